# SPDX-License-Identifier: BSD-3-Clause
"""The calls of a family under the tools of PyTorch, where `tests/torch_stack/` does not have them.

Compilers, export, TorchScript, vmap, Meta and Python's threads give the bits of eager mode.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from baraquant import ops  # noqa: F401  (which TorchScript looks up by name)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import outputs, value_and_gradients


class Name(str):
    """Of a tensor, as it stands in source."""

    __slots__ = ()
    __repr__ = str.__str__


class Layer(nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(*tensors)


def overload(call: Any) -> torch._ops.OpOverload:
    return getattr(torch.ops.baraquant, call.verb).default


def by_name(call: Any, tensors: tuple[Any, ...]) -> dict[str, Any]:
    args, kwargs = call.arguments(*tensors)
    names = [argument.name for argument in overload(call)._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def learning(
    call: Any, shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32
) -> Any:
    """Its tensors, of which the input requires grad where it can."""
    first, *rest = call.tensors(shape, dtype, device)
    return (first.requires_grad_(call.differentiable), *rest)


def assert_all_same(got: Any, wanted: Any, note: str = "") -> None:
    for mine, right in zip(outputs(got), outputs(wanted), strict=True):
        assert_same_bits(mine, right, note)


class Tools:
    """The tests of a family's calls; each has a subclass that names them."""

    CALLS: ClassVar[Sequence[Any]]
    BATCHED: ClassVar[tuple[str, ...]] = ()  # the arguments that vmap may batch
    ANY_ROWS = True  # whether they may be exported for any number of rows
    SLOW: ClassVar[Sequence[Any]] = ()  # those for TorchInductor, if not the first alone
    SHAPE = (5, 12)
    OTHER_SHAPES: ClassVar[Sequence[tuple[int, ...]]] = ((9, 20), (70, 33))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
        for name, calls in (("call", self.CALLS), ("slow_call", self.SLOW or self.CALLS[:1])):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, calls, ids=str)

    @pytest.mark.exhaustive
    def test_opcheck(self, call: Any, dtype: torch.dtype, device: str) -> None:
        for tensors in (
            call.tensors(self.SHAPE, dtype, device),
            learning(call, self.SHAPE, device, dtype),
            learning(call, (2, *self.SHAPE), device, dtype),
        ):
            torch.library.opcheck(overload(call), (), by_name(call, tensors))

    def test_compiled_is_eager(self, call: Any, device: str) -> None:
        """One graph for all sizes, and one for all with gradients."""
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
        for shape in (self.SHAPE, *self.OTHER_SHAPES):
            tensors = call.tensors(shape, torch.float32, device)
            detached = tuple(t.detach() for t in tensors)
            assert_all_same(compiled(*detached), call(*detached), f"{shape}")
            learned = learning(call, shape, device)
            wanted = value_and_gradients(call, learned)
            assert_all_same(value_and_gradients(compiled, learned), wanted, f"{shape}")

    @pytest.mark.inductor
    def test_inductor(self, slow_call: Any, dtype: torch.dtype, device: str) -> None:
        torch._dynamo.reset()
        call = slow_call
        compiled = torch.compile(call, fullgraph=True)
        for shape in (self.SHAPE, self.OTHER_SHAPES[-1]):
            tensors = tuple(t.detach() for t in call.tensors(shape, dtype, device))
            assert_all_same(compiled(*tensors), call(*tensors))

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
    def test_exported_and_traced(self, call: Any, device: str) -> None:
        """Exported for any number of rows where vmap may batch them; saved and loaded, too."""
        tensors = tuple(t.detach() for t in call.tensors(self.SHAPE, torch.float32, device))
        given = by_name(call, tensors)
        rows = [{0: torch.export.Dim.AUTO} if self.is_batched(given, t) else {} for t in tensors]
        program = torch.export.export(Layer(call), tensors, dynamic_shapes=(tuple(rows),))
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        traced = torch.jit.trace(Layer(call), tensors, check_trace=False)
        for run in (program.module(), torch.export.load(file).module(), traced):
            for count in (5, 2, 70) if any(rows) else (5,):
                other = call.tensors((count, *self.SHAPE[1:]), torch.float32, device)
                pairs = zip(tensors, other, rows, strict=True)
                now = tuple((o if any_row else t).detach() for t, o, any_row in pairs)
                assert_all_same(run(*now), call(*now))

    def is_batched(self, given: dict[str, Any], tensor: Tensor) -> bool:
        return self.ANY_ROWS and any(given.get(name) is tensor for name in self.BATCHED)

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
    def test_scripted(self, call: Any, device: str) -> None:
        tensors = tuple(t.detach() for t in call.tensors(self.SHAPE, torch.float32, device))
        names = tuple(Name(f"t{i}") for i in range(len(tensors)))
        given = by_name(call, tensors)
        words = {id(t): name for t, name in zip(tensors, names, strict=True)}
        passed = [f"{key}={words.get(id(value), value)!r}" for key, value in given.items()]
        count = len(overload(call)._schema.returns)
        returns = f"Tuple[{', '.join(['Tensor'] * count)}]" if count > 1 else "Tensor"
        unit = torch.jit.CompilationUnit(
            f"def call({', '.join(n + ': Tensor' for n in names)}) -> {returns}:\n"
            f"    return ops.{call.verb}({', '.join(passed)})\n"
        )
        assert f"baraquant::{call.verb}" in str(unit.call.graph)
        for _ in range(3):  # the profiling executor
            assert_all_same(unit.call(*tensors), call(*tensors))

    def test_meta(self, call: Any, dtype: torch.dtype) -> None:
        for shape in (self.SHAPE, (2, *self.SHAPE), (0, 13), (2, 0)):
            here, there = (outputs(call(*call.tensors(shape, dtype, d))) for d in ("cpu", "meta"))
            for mine, on_meta in zip(here, there, strict=True):
                assert on_meta.is_meta and on_meta.dtype == mine.dtype
                assert (on_meta.shape, on_meta.stride()) == (mine.shape, mine.stride())

    @pytest.mark.filterwarnings("error")
    def test_vmap(self, call: Any, device: str, capfd: pytest.CaptureFixture[str]) -> None:
        """A batch is more rows; over all else it is refused."""
        given = by_name(call, tuple(t.detach() for t in call.tensors((3, 5, 8), device=device)))
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        names = [name for name in self.BATCHED if name in tensors]

        def one(*values: Tensor) -> Any:
            return call.function(**given | dict(zip(names, values, strict=True)))

        if names:
            whole = call.function(**given)
            batch = [tensors[name] for name in names]
            assert_all_same(torch.vmap(one)(*batch), whole)
            if min(t.dim() for t in batch) > 1:
                assert_all_same(torch.vmap(torch.vmap(one))(*batch), whole)
            last = [t.movedim(0, -1).contiguous() for t in batch]
            assert_all_same(torch.vmap(one, in_dims=-1, out_dims=0)(*last), whole)
        for name in set(tensors) - set(names):
            batch_of_it = torch.stack([tensors[name]] * 2)
            with pytest.raises(NotImplementedError, match=rf"{call.verb}.*vmap"):
                torch.vmap(lambda t, name=name: call.function(**given | {name: t}))(batch_of_it)
        assert "batching rule" not in capfd.readouterr().err

    def test_eight_threads_get_the_bits_of_one(self, device: str) -> None:
        """Tensors that they share, calls of a few rows and of many."""
        shapes = [(rows, 200) for rows in (3, 40)]
        made = [
            (call, tuple(t.detach() for t in call.tensors(shape, dtype, device)))
            for call in self.CALLS
            for shape in shapes
            for dtype in (torch.float32, torch.bfloat16)
        ]
        expected = [call(*tensors) for call, tensors in made]
        failures: list[BaseException] = []
        together = threading.Barrier(8)

        def run(first: int) -> None:
            try:
                together.wait()
                for index in range(first, first + len(made)):
                    call, tensors = made[index % len(made)]
                    assert_all_same(call(*tensors), expected[index % len(made)])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(2 * i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
