# SPDX-License-Identifier: BSD-3-Clause
"""Four-bit weights in PyTorch: opcheck, torch.compile, export, TorchScript, instruction sets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.int4.test_values import weights
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.int4 import INT4_CALLS, LINEARS, Int4Call
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, print_digests

by_call = pytest.mark.parametrize("call", INT4_CALLS, ids=str)


@pytest.mark.exhaustive
@by_call
def test_opcheck(call: Int4Call, device: str) -> None:
    tensors = call.tensors((3, 12), torch.float32, device)
    if call.differentiable:
        tensors = (tensors[0].requires_grad_(), *tensors[1:])
    args, kwargs = call.arguments(*tensors)
    torch.library.opcheck(getattr(torch.ops.baraquant, call.verb).default, args, kwargs)


@by_call
def test_compiled_is_eager(call: Int4Call, device: str) -> None:
    """One graph for all sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((5, 12), (9, 20)):
        tensors = call.tensors(shape, torch.float32, device)
        want, got = call(*tensors), compiled(*tensors)
        for a, b in zip(*((r,) if isinstance(r, Tensor) else r for r in (want, got)), strict=True):
            assert_same_bits(b, a)


@pytest.mark.parametrize("call", [c for c in INT4_CALLS if c.verb in LINEARS], ids=str)
def test_exported_and_scripted(call: Int4Call, device: str) -> None:
    tensors = call.tensors((5, 12), torch.float32, device)

    class Layer(torch.nn.Module):
        def forward(self, *values: Tensor) -> Tensor:
            result: Tensor = call(*values)
            return result

    exported = torch.export.export(Layer(), tensors).module()
    assert_same_bits(exported(*tensors), call(*tensors))
    traced = torch.jit.trace(Layer(), tensors, check_trace=False)
    assert_same_bits(traced(*tensors), call(*tensors))


def results() -> Iterator[tuple[str, Tensor]]:
    for dtype in cases.FLOAT_DTYPES:
        for size in (2, 32, 48, 64, 128):
            columns = 416 if size % 32 == 0 else 413  # few rows are multiplied as they lie, or not
            w = weights((70, columns), dtype)
            scale, factor, zero_point = ops.choose_int4_qparams(w, size, symmetric=False)
            yield f"scale-{dtype}-{size}", scale
            yield f"factor-{dtype}-{size}", factor
            given = {"group_zero_point": zero_point}
            packed = ops.quantize_int4(w, scale, factor, size, **given)
            yield f"packed-{dtype}-{size}", packed
            yield f"int8-{dtype}-{size}", ops.expand_int4(packed, factor, size, columns, **given)
            for tokens in (1, 4, 5, 70):
                x = weights((tokens, columns), dtype, 3).nan_to_num(1, 1, 1)
                layer = ops.quantized_int4_linear
                y = layer(x, packed, scale, factor, size, **given, symmetric=False)
                yield f"{tokens}-{dtype}-{size}", y


@pytest.mark.process
@pytest.mark.parametrize("isa", ISAS)
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=150)


@pytest.mark.process
@pytest.mark.parametrize("threads", (1, 3))
def test_same_bits_with_any_number_of_threads(threads: int, lines_of: Lines) -> None:
    assert lines_of(None, threads) == lines_of(None)


if __name__ == "__main__":
    print_digests(results())
