# SPDX-License-Identifier: BSD-3-Clause
"""Any strides and sizes: the values of the contiguous copy, contiguous; Meta says so too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import outputs
from tests.support.calls.fused import FLOAT_CALLS, QUANTIZE_CALLS, FusedCall
from tests.support.family_cases.fused import ACTIVATION_DTYPES

CALLS = (*FLOAT_CALLS, *QUANTIZE_CALLS)
by_call = pytest.mark.parametrize("call", CALLS, ids=str)
SHAPE = (3, 5, 32)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda x: torch.cat([x, x + 1], -1).chunk(2, -1)[0],
    "second chunk": lambda x: torch.cat([x + 1, x], -1).chunk(2, -1)[1],
    "unaligned": lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
    "transposed rows": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "last is outermost": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "stepped": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    "every other row": lambda x: torch.stack([x, x + 1], 1)[:, 0],
    "negative": lambda x: (
        torch.complex(x * 0, -x).conj().imag if x.dtype in (torch.float32, torch.float64) else x
    ),
}


def run(call: FusedCall, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return outputs(call(*tensors))


@by_call
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(call: FusedCall, layout: str, device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tensors = tuple(t.detach() for t in call.tensors(SHAPE, dtype, device))
        changed = tuple(LAYOUTS[layout](t) if t.dim() == 3 else t for t in tensors)
        assert all(map(torch.equal, tensors, changed))
        for actual, expected in zip(run(call, changed), run(call, tensors), strict=True):
            assert_same_bits(actual, expected)
            assert actual.is_contiguous()


@pytest.mark.exhaustive
@by_call
def test_expanded_and_strided_vectors(call: FusedCall, device: str) -> None:
    first, *others = (t.detach() for t in call.tensors(SHAPE, device=device))
    wide = first[:, :1].expand(SHAPE)
    strided = [torch.stack([t, t], -1)[..., 0] if t.dim() == 1 else t for t in others]
    expected = run(call, (wide.contiguous(), *others))
    for actual, wanted in zip(run(call, (wide, *strided)), expected, strict=True):
        assert_same_bits(actual, wanted)


@pytest.mark.exhaustive
@by_call
def test_rows_do_not_depend_on_their_neighbours(call: FusedCall, device: str) -> None:
    """Nor on how many they are."""
    tensors = tuple(t.detach() for t in call.tensors((41, 32), device=device))
    whole = run(call, tensors)
    for i in (0, 17, 40):
        single = run(call, tuple(t[i] if t.dim() == 2 else t for t in tensors))
        for actual, expected in zip(single, whole, strict=True):
            assert_same_bits(actual, expected[i])


@pytest.mark.parametrize("dtype", ACTIVATION_DTYPES, ids=cases.name_of)
def test_a_chunk_is_not_copied(dtype: torch.dtype, device: str) -> None:
    """One kernel for `silu_mul(*x.chunk(2, -1))`, aligned or not."""
    for length in (64, 33):
        x = torch.zeros(4, 5, 2 * length, dtype=dtype, device=device)
        plans = baraquant.plan(ops.silu_mul_quantize_per_token, *x.chunk(2, -1))
        assert [p.name.removesuffix("_rows") for p in plans] == ["silu_mul_quantize"]
