# SPDX-License-Identifier: BSD-3-Clause
"""static_quantized_linear: the oracle's bits, and those of the reference."""

from typing import Any

import pytest
import torch

from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import check
from tests.support.family_cases.int8_mm import (
    OTHER_RANGES,
    POINT_DTYPES,
    SYMMETRIC_RANGES,
    integers,
)
from tests.support.marks import by_dtype

by_smooth = pytest.mark.parametrize("smooth", (False, True), ids=("plain", "smooth"))
SIZES = (((33,), 17, 65), ((2, 3), 5, 128), ((), 7, 31), ((0,), 3, 4), ((4,), 0, 4), ((4,), 3, 0))
SIZES += (((1,), 512, 256), ((2, 1, 2), 1, 1), ((65,), 130, 513))


def arguments(
    lead: tuple[int, ...],
    n: int,
    k: int,
    dtype: torch.dtype,
    *,
    smooth: bool = False,
    seed: int = 0,
    point: torch.dtype | None = torch.int32,
    bias: bool = True,
) -> dict[str, Any]:
    """By name, on the CPU. Every tenth of the inputs lies outside the range."""
    compute, gen = cases.compute_dtype(dtype), cases.generator(seed)
    weight = integers((n, k), torch.int8, "random", seed)
    x = torch.randn((*lead, k), generator=gen, dtype=torch.float64) * 5
    found: dict[str, Any] = {
        "input": x.to(dtype),
        "weight": weight,
        "weight_scale": cases.scales((n,), compute, seed + 1),
        "act_scale": torch.tensor(0.0625, dtype=compute).reshape(() if seed % 2 else (1,)),
    }
    if smooth:
        found["smooth_scale"] = cases.scales((k,), compute, seed + 2)
    if point is not None:
        shape = (1,) if seed % 3 else ()
        found["act_zero_point"] = torch.full(shape, 7 + seed % 50, dtype=point)
    if bias:
        made = torch.randn(n, generator=gen, dtype=torch.float64) * 100
        found["bias"] = made.to((compute, dtype)[seed % 2])
    return found


@by_dtype
@by_smooth
def test_sizes(smooth: bool, dtype: torch.dtype, device: str) -> None:
    for seed, (lead, n, k) in enumerate(SIZES):
        for point in (None, POINT_DTYPES[seed % len(POINT_DTYPES)]):
            given = arguments(lead, n, k, dtype, smooth=smooth, seed=seed, point=point)
            check("static_quantized_linear", given, device)
            same = reference.static_quantized_linear(**given)
            assert_same_bits(same, ops.static_quantized_linear(**given))
        check(
            "static_quantized_linear",
            given | {"weight_sum": given["weight"].sum(1, dtype=torch.int32)},
            device,
        )
        del given["bias"]
        check("static_quantized_linear", given, device)


@by_smooth
def test_ranges(smooth: bool, device: str) -> None:
    """Without a zero point too, any will do."""
    for seed, ends in enumerate(SYMMETRIC_RANGES + OTHER_RANGES):
        for point in (None, torch.int32):
            given = arguments((9,), 5, 40, torch.float32, smooth=smooth, seed=seed, point=point)
            given |= dict(zip(("quant_min", "quant_max"), ends, strict=True))
            check("static_quantized_linear", given, device, ends)


@by_dtype
@by_smooth
def test_special_values(smooth: bool, dtype: torch.dtype, device: str) -> None:
    """A NaN becomes the zero point, infinities the ends of the range: finite, all of them."""
    values = cases.special_values(dtype)
    given = arguments((1,), 9, len(values), dtype, smooth=smooth)
    given["input"] = values.unsqueeze(0)
    check("static_quantized_linear", given, device)
    assert ops.static_quantized_linear(**given).isfinite().all() or dtype == torch.float16
    special = cases.special_scales(cases.compute_dtype(dtype))
    for scale in special:
        given["act_scale"] = scale
        check("static_quantized_linear", given, device, scale)
    if smooth:
        given = arguments((3,), 9, len(special), dtype, smooth=True)
        check("static_quantized_linear", given | {"smooth_scale": special}, device)
