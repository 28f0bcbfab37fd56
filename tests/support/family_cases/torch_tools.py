# SPDX-License-Identifier: BSD-3-Clause
"""The calls of a family under the tools of PyTorch, where `tests/torch_stack/` does not have them.

Compilers, export, TorchScript, vmap and Meta give the bits of eager mode.
"""

import io
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_all_same
from tests.support.calls.affine import outputs, value_and_gradients
from tests.support.cases import Shape
from tests.support.core_calls import AsModule, bound, opcheck, scripted


def learning(call: Any, shape: Shape, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """Its tensors, of which the input requires grad where it can."""
    first, *rest = call.tensors(shape, dtype, device)
    return (first.requires_grad_(call.differentiable), *rest)


class Tools:
    """The tests of a family's calls; each has a subclass that names them."""

    CALLS: ClassVar[Sequence[Any]]
    BATCHED: ClassVar[tuple[str, ...]] = ()  # the arguments that vmap may batch
    ANY_ROWS = True  # whether they may be exported for any number of rows
    SLOW: ClassVar[Sequence[Any]] = ()  # those for TorchInductor, if not the first alone
    SHAPE = (5, 12)
    OTHER_SHAPES: ClassVar[Sequence[Shape]] = ((9, 20), (70, 33))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
        for name, calls in (("call", self.CALLS), ("slow_call", self.SLOW or self.CALLS[:1])):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, calls, ids=str)

    @pytest.mark.exhaustive
    def test_opcheck(self, call: Any, dtype: torch.dtype, device: str) -> None:
        opcheck(*bound(call, call.tensors(self.SHAPE, dtype, device)), graph=False)
        opcheck(*bound(call, learning(call, self.SHAPE, device, dtype)), graph=False)
        opcheck(*bound(call, learning(call, (2, *self.SHAPE), device, dtype)))

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
        given = bound(call, tensors)[1]
        batched = {id(given.get(name)) for name in self.BATCHED if self.ANY_ROWS}
        rows = [{0: torch.export.Dim.AUTO} if id(t) in batched else {} for t in tensors]
        program = torch.export.export(AsModule(call), tensors, dynamic_shapes=(tuple(rows),))
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        traced = torch.jit.trace(AsModule(call), tensors, check_trace=False)
        for run in (program.module(), torch.export.load(file).module(), traced):
            for count in (5, 2, 70) if any(rows) else (5,):
                other = call.tensors((count, *self.SHAPE[1:]), torch.float32, device)
                pairs = zip(tensors, other, rows, strict=True)
                now = tuple((o if any_row else t).detach() for t, o, any_row in pairs)
                assert_all_same(run(*now), call(*now))

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
    def test_scripted(self, call: Any, device: str) -> None:
        tensors = tuple(t.detach() for t in call.tensors(self.SHAPE, torch.float32, device))
        function = scripted(call, tensors)
        for _ in range(3):  # the profiling executor
            assert_all_same(function(*tensors), call(*tensors))

    def test_meta(self, call: Any, dtype: torch.dtype) -> None:
        for shape in (self.SHAPE, (2, *self.SHAPE), (0, 13), (2, 0)):
            here, there = (outputs(call(*call.tensors(shape, dtype, d))) for d in ("cpu", "meta"))
            for mine, on_meta in zip(here, there, strict=True):
                assert on_meta.is_meta and on_meta.dtype == mine.dtype
                assert (on_meta.shape, on_meta.stride()) == (mine.shape, mine.stride())

    @pytest.mark.filterwarnings("error")
    def test_vmap(self, call: Any, device: str, capfd: pytest.CaptureFixture[str]) -> None:
        """A batch is more rows; over all else it is refused."""
        _, given = bound(call, tuple(t.detach() for t in call.tensors((3, 5, 8), device=device)))
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
