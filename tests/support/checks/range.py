# SPDX-License-Identifier: BSD-3-Clause
"""The comparison with the oracle that the tests of the range family share."""

import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import Granularity, Shape
from tests.support.family_cases.range import Ends, characterful, modes_of
from tests.support.oracle.range import Dynamic

FULL = (-128, 127)


def assert_chosen(scale: Tensor, point: Tensor, rule: Dynamic, note: str = "") -> None:
    assert_same_bits(scale, rule.scale, f"scale {note}")
    assert_same_bits(point, rule.zero_point, f"zero point {note}")
    assert not scale.requires_grad


def check_input(
    device: str, x: Tensor, granularity: Granularity, ends: Ends = FULL, symmetric: bool = True
) -> Dynamic:
    """Compare choose_qparams, dynamic_range_quantize to each dtype, and dynamic_fake_quantize."""
    rule = Dynamic(x, granularity, *ends, symmetric)
    note = f"{granularity} {tuple(x.shape)} {x.dtype} {ends} symmetric={symmetric}"
    args, mode = (x.to(device), *granularity.args, *ends), {"symmetric": symmetric}
    assert_chosen(*granularity.op("choose_qparams")(*args, **mode), rule, note)
    for dtype in [d for d in cases.INTEGER_DTYPES if cases.fits(ends, d)]:
        op = granularity.op("dynamic_range_quantize")
        q, scale, point = op(*args, **mode, dtype=dtype)
        assert q.dtype == dtype
        assert_same_bits(q, rule.quantize(dtype), f"{note} to {dtype}")
        assert_chosen(scale, point, rule, f"{note} of dynamic_range_quantize")
    fake = granularity.op("dynamic_fake_quantize")(*args, **mode)
    assert fake.dtype == x.dtype
    assert_same_bits(fake, rule.fake_quantize(), note)
    return rule


def check(
    device: str,
    shape: Shape,
    dtype: torch.dtype,
    granularity: Granularity,
    ends: Ends = FULL,
    seed: int = 0,
) -> None:
    """Both modes on characterful data."""
    for symmetric in modes_of(ends):
        x = characterful(shape, dtype, granularity, ends, symmetric, seed)
        check_input(device, x, granularity, ends, symmetric)
