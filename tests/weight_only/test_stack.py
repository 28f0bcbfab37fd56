# SPDX-License-Identifier: BSD-3-Clause
"""weight_only_linear in PyTorch: autocast, compilers, vmap, threads, instruction sets."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.weight_only import GROUP_SIZE, OUTPUTS, WEIGHT_ONLY_CALLS, WeightOnlyCall
from tests.support.family_cases.int8_mm import integers
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, print_digests
from tests.weight_only.test_gradients import FEW, MANY, by_call, leaves_of
from tests.weight_only.test_values import OWN_ROWS, by_dtype, numbers, params_shape

of_torchscript = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


# --- autocast ------------------------------------------------------------------------------------


@by_call
@pytest.mark.parametrize("low", (torch.bfloat16, torch.float16), ids=cases.name_of)
def test_autocast(low: torch.dtype, call: WeightOnlyCall, device: str) -> None:
    """Input and bias are cast; with a scale of float64 nothing is."""
    for dtype in cases.FLOAT_DTYPES:
        for shape in (FEW, MANY):
            given, leaves = leaves_of(call, shape, dtype, device)
            with torch.autocast(device, dtype=low):
                y = call.function(**given)
            to = dtype if dtype == torch.float64 else low
            cast = {name: given[name].to(to) for name in ("input", "bias") if name in given}
            right = call.function(**given | cast)
            assert_same_bits(y, right)
            dy = numbers(tuple(y.shape), to, 5).to(device)
            for a, e, leaf in zip(
                torch.autograd.grad(y, leaves, dy),
                torch.autograd.grad(right, leaves, dy),
                leaves,
                strict=True,
            ):
                assert a.dtype == leaf.dtype and torch.equal(a, e)


# --- compilers -----------------------------------------------------------------------------------


@pytest.mark.exhaustive
@by_call
@by_dtype
def test_opcheck(call: WeightOnlyCall, dtype: torch.dtype, device: str) -> None:
    for shape in ((3, 12), (7, 9, 12)):
        for learned in (False, True):
            given, _ = leaves_of(call, shape, dtype, device)
            if not learned:
                given = {k: v.detach() if isinstance(v, Tensor) else v for k, v in given.items()}
            torch.library.opcheck(torch.ops.baraquant.weight_only_linear.default, (), given)


@by_call
def test_compiled_is_eager(call: WeightOnlyCall, device: str) -> None:
    """One graph for all sizes, and one for all with gradients."""
    torch._dynamo.reset()
    for learned in (False, True):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
        for shape in ((5, 12), (9, 20), (70, 33)):
            tensors = call.tensors(shape, torch.float32, device)
            tensors[0].requires_grad_(learned)
            want, got = call(*tensors), compiled(*tensors)
            assert_same_bits(got, want)
            if learned:
                pair = [torch.autograd.grad(y.square().sum(), tensors[0])[0] for y in (got, want)]
                torch.testing.assert_close(*pair)


@pytest.mark.exhaustive
@by_call
@by_dtype
def test_inductor(call: WeightOnlyCall, dtype: torch.dtype, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True)
    for shape in ((3, 12), (70, 12)):
        tensors = call.tensors(shape, dtype, device)
        assert_same_bits(compiled(*tensors), call(*tensors))


class Layer(torch.nn.Module):
    def __init__(self, call: WeightOnlyCall) -> None:
        super().__init__()
        self.call = call

    def forward(self, *values: Tensor) -> Tensor:
        result: Tensor = self.call(*values)
        return result


@of_torchscript
@by_call
def test_exported_and_traced(call: WeightOnlyCall, device: str) -> None:
    tensors = call.tensors((5, 12), torch.float32, device)
    rows = {0: torch.export.Dim("rows", min=2, max=4096)}
    shapes = ((rows, *({} for _ in tensors[1:])),)
    program = torch.export.export(Layer(call), tensors, dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    traced = torch.jit.trace(Layer(call), tensors, check_trace=False)
    for run in (program.module(), torch.export.load(file).module(), traced):
        for count in (5, 2, 70):
            given = (call.tensors((count, 12), torch.float32, device)[0], *tensors[1:])
            assert_same_bits(run(*given), call(*given))


@of_torchscript
@by_call
def test_scripted(call: WeightOnlyCall, device: str) -> None:
    tensors = call.tensors(FEW, torch.float32, device)
    words = ["input", "weight", "weight_scale"]
    rest = ["weight_zero_point", "bias"] if call.full else []
    passed = [*words, *(f"{name}={name}" for name in rest)]
    passed += [f"group_size={GROUP_SIZE}"] if call.grouped else []
    unit = torch.jit.CompilationUnit(
        f"def call({', '.join(f'{name}: Tensor' for name in (*words, *rest))}) -> Tensor:\n"
        f"    return ops.weight_only_linear({', '.join(passed)})\n"
    )
    assert "baraquant::weight_only_linear" in str(unit.call.graph)
    for _ in range(3):  # the profiling executor
        assert_same_bits(unit.call(*tensors), call(*tensors))


@by_call
@by_dtype
def test_meta(call: WeightOnlyCall, dtype: torch.dtype) -> None:
    for shape in (FEW, MANY, (13,), (0, 13), (2, 0)):
        y = call(*call.tensors(shape, dtype, "meta"))
        assert y.is_meta and y.dtype == dtype and y.shape == (*shape[:-1], OUTPUTS)
        assert y.is_contiguous()


# --- vmap ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@by_call
@by_dtype
def test_vmap_over_the_input(
    call: WeightOnlyCall, dtype: torch.dtype, device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A batch is more rows."""
    x, *rest = call.tensors((3, 2, 4, 13), dtype, device)

    def one(value: Tensor) -> Any:
        return call(value, *rest)

    whole = call(x, *rest)
    found = [torch.vmap(one, dim, dim)(x) for dim in range(3)]
    found += [torch.vmap(torch.vmap(one))(x), torch.vmap(torch.vmap(torch.vmap(one)))(x)]
    found += [torch.vmap(one, 3)(x.movedim(0, 3).contiguous())]
    for y in found:
        if dtype == torch.float32:  # of which so few rows do not depend on each other
            assert_same_bits(y, whole)
        else:
            largest = whole.abs().max().item()
            error = 8 * torch.finfo(dtype).eps * largest
            torch.testing.assert_close(y, whole, rtol=0, atol=error)
    assert "batching rule" not in capfd.readouterr().err


# --- threads and instruction sets ----------------------------------------------------------------


def test_eight_threads_get_the_bits_of_one(device: str) -> None:
    made = [
        (call, call.tensors((rows, 200), dtype, device))
        for call in WEIGHT_ONLY_CALLS
        for rows in (3, 40)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    expected = [call(*tensors) for call, tensors in made]
    failures: list[BaseException] = []
    together = threading.Barrier(8)

    def run(first: int) -> None:
        try:
            together.wait()
            for index in (*range(first, len(made)), *range(first)):
                call, tensors = made[index]
                assert_same_bits(call(*tensors), expected[index])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(2 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def results() -> Iterator[tuple[str, Tensor]]:
    """Of few rows, whose kernel is the op's own."""
    for dtype, limit in OWN_ROWS.items():
        for n, k in ((1, 1), (5, 7), (70, 413), (33, 1030), (260, 416)):
            w, b = integers((n, k), torch.int8, "random", n), numbers((n,), dtype, 2)
            for size in (None, 1, 32, 50, 128, 2000):
                params = params_shape((n, k), size)
                s = cases.scales(params, torch.float32, 3)
                z = cases.zero_points(params, (-128, 127), 4)
                for rows in (1, 2, 3, 4, 5, 17, 48):
                    if rows > limit:
                        continue
                    x = numbers((rows, k), dtype, rows)
                    plain = ops.weight_only_linear(x, w, s, group_size=size)
                    full = ops.weight_only_linear(x, w, s, b, weight_zero_point=z, group_size=size)
                    yield f"{rows}-{n}-{k}-{size}-{dtype}", torch.cat([plain, full])


@pytest.mark.process
@pytest.mark.parametrize("isa", ISAS)
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=300)


@pytest.mark.process
@pytest.mark.parametrize("threads", (1, 3))
def test_same_bits_with_any_number_of_threads(threads: int, lines_of: Lines) -> None:
    assert lines_of(None, threads) == lines_of(None)


if __name__ == "__main__":
    print_digests(results())
