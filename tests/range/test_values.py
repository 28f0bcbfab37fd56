# SPDX-License-Identifier: BSD-3-Clause
"""Values of the range family against the oracle, bit for bit, on every device; any strides in."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.range import OBSERVE_CALLS, RangeCall
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.checks.range import check, check_input
from tests.support.family_cases import range as ranges
from tests.support.family_cases.layouts import AnyLayout
from tests.support.family_cases.range import MODES, RANGES
from tests.support.marks import by_dtype, by_kind, by_mode


@by_dtype
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_every_shape_and_granularity(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    for seed, granularity in enumerate(cases.granularities(shape)):
        check(device, shape, dtype, granularity, seed=seed)


@by_dtype
@by_kind
@pytest.mark.parametrize("quant_range", RANGES, ids=str)
def test_every_range(
    quant_range: tuple[int, int], granularity: Granularity, dtype: torch.dtype, device: str
) -> None:
    check(device, (53, 17), dtype, granularity, quant_range, seed=RANGES.index(quant_range))
    for seed in range(len(ranges.CHARACTERS) if granularity == PER_TENSOR else 0):
        check(device, (53, 17), dtype, granularity, quant_range, seed)


@by_dtype
def test_widest_ranges_of_fake_quantize(dtype: torch.dtype, device: str) -> None:
    """As far as C (and an int32 zero point) holds every integer."""
    limit = 2**24 if dtype != torch.float64 else 2**31 - 1
    for ends in ((-limit, limit), (limit - 3, limit), (-limit, -limit + 9), (0, limit), (-1, 999)):
        for granularity in cases.KINDS:
            check(device, (20, 40), dtype, granularity, ends)


@pytest.mark.exhaustive
@by_dtype
@pytest.mark.parametrize("length", (*ranges.LENGTHS, *ranges.LONG_LENGTHS))
def test_every_row_length(length: int, dtype: torch.dtype, device: str) -> None:
    """Around every width of a vector, a warp and a block; each character in each granularity."""
    seeds = itertools.count(length)
    for rows in (1, 3, 17) if length < 5000 else (3,):
        for granularity in ranges.MATRIX:
            check(device, (rows, length), dtype, granularity, seed=next(seeds))


MANY = {
    "many_short_rows": ((70_001, 3), (PER_TOKEN, per_channel(0), per_channel(1), per_group(2))),
    "rows_of_one": ((100_003, 1), (PER_TOKEN, per_channel(0), per_channel(1), PER_TENSOR)),
    "rows_of_eight": ((20_011, 8), (PER_TOKEN, per_channel(1), per_group(8), per_group(1000, 0))),
    "middle_axis": ((129, 7, 33), (per_channel(1), per_group(3, 1), per_group(100, 0), PER_TOKEN)),
    "long_inside": ((3, 5, 4097), (per_channel(1), per_channel(0), per_group(2, 1), PER_TOKEN)),
    "images": ((2, 300, 3, 3), (per_channel(1), per_channel(0), per_group(64, 1), per_channel(3))),
    "narrow_columns": ((4097, 2, 2), (per_channel(-1), per_channel(1), per_group(64, 0))),
    "one_channel": ((1, 1, 70_001), (per_channel(0), per_channel(1), PER_TOKEN, per_group(999))),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MANY)
def test_many_segments(name: str, device: str) -> None:
    """Shapes whose mapping to threads is another; each with two of the dtypes."""
    shape, granularities = MANY[name]
    for index, granularity in enumerate(granularities):
        for dtype in (cases.FLOAT_DTYPES[index % 4], cases.FLOAT_DTYPES[(index + 2) % 4]):
            check(device, shape, dtype, granularity, seed=index)


# --- one element decides -------------------------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("value", (100.0, -100.0, math.nan, math.inf, -math.inf))
def test_an_outstanding_element_at_every_place(
    value: float, dtype: torch.dtype, device: str
) -> None:
    """No element of a row is overlooked, wherever it lies."""
    for length in (1, 2, 7, 33, 64, 130, 257):
        x = torch.randn(length, length, generator=cases.generator(length)).clamp(-3, 3).to(dtype)
        x.fill_diagonal_(value)
        for granularity in (PER_TOKEN, per_channel(1), per_group(48)):
            for symmetric in MODES:
                check_input(device, x, granularity, symmetric=symmetric)


@by_mode
def test_an_outstanding_element_of_a_tensor(symmetric: bool, device: str) -> None:
    """Across blocks and threads: at the ends, and at places spread over the tensor."""
    for length, dtype in ((70_001, torch.float32), (70_001, torch.bfloat16), (999, torch.float16)):
        places = [*range(9), *range(length - 9, length), *range(100, length, length // 23)]
        x = torch.zeros(len(places), length, dtype=dtype, device=device)
        x[range(len(places)), places] = -5
        scale, _ = torch.ops.baraquant.choose_qparams_per_token(x, symmetric=symmetric)
        for row, expected in zip(x, scale[:, 0], strict=True):
            got, _ = torch.ops.baraquant.choose_qparams_per_tensor(row, symmetric=symmetric)
            assert got.item() == expected.item()
        width = 127 if symmetric else 255
        right = torch.full((len(places), 1), 5 / width, dtype=torch.float64).float()
        assert_same_bits(scale, right)


# --- every number --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=cases.name_of)
def test_all_65536_bit_patterns(dtype: torch.dtype, device: str) -> None:
    """Each as the only number of its segment, beside zero, and among others in segments of 256."""
    patterns = cases.bit_patterns(dtype, 65536)
    assert len(patterns.view(torch.int16).unique()) == 65536
    alone = patterns[:, None]
    beside = torch.stack([torch.zeros(65536, dtype=dtype), patterns], dim=1)
    few = patterns.view(256, 256)  # of one exponent or two: the first eight bits agree
    finite = torch.where(patterns.isfinite(), patterns, torch.zeros_like(patterns))
    for symmetric in MODES:
        for ends in ((-128, 127), (0, 255), (-8, 7)):
            for x in (alone, beside, few):
                rule = check_input(device, x, PER_TOKEN, ends, symmetric)
                check_input(device, x, per_channel(0), ends, symmetric)
        assert rule.scale.isfinite().any()
        check_input(device, finite, PER_TENSOR, symmetric=symmetric)
        check_input(device, finite.view(16, 4096), per_channel(1), symmetric=symmetric)


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)
def test_every_exponent(dtype: torch.dtype, device: str) -> None:
    """A maximum of each exponent, with numbers of its own size beneath it."""
    exponents = 256 if dtype == torch.float32 else 2048
    info = torch.finfo(dtype)
    lowest = 1 - exponents // 2 - (22 if dtype == torch.float32 else 51)
    powers = torch.arange(lowest, exponents // 2 - 1)
    spread = torch.rand(len(powers), 200, generator=cases.generator(0), dtype=torch.float64)
    x = torch.ldexp((4 * spread - 2).to(dtype), powers[:, None])
    assert x.isfinite().all() and x.abs().max() > info.max / 4
    assert (x.abs().amax(1) < info.smallest_normal).sum() > 20
    for symmetric in MODES:
        for ends in ((-128, 127), (0, 255), (-2, 1)):
            for granularity in (PER_TOKEN, per_channel(0), per_group(7), per_channel(1)):
                check_input(device, x, granularity, ends, symmetric)


# --- by hand -------------------------------------------------------------------------------------


def chosen(x: Tensor, *ends: int, symmetric: bool) -> tuple[float, int]:
    scale, point = torch.ops.baraquant.choose_qparams_per_tensor(x, *ends, symmetric=symmetric)
    assert scale.shape == point.shape == ()
    assert point.dtype == torch.int32
    return scale.item(), point.item()


def test_facts_by_hand(device: str) -> None:
    """Statements of the contract with their answers written out, whatever the oracle says."""

    def of(values: list[float], *ends: int, symmetric: bool = True) -> tuple[float, int]:
        return chosen(torch.tensor(values, device=device), *ends, symmetric=symmetric)

    assert of([-254.0, 3]) == (2.0, 0)
    assert of([3.0, 254], 0, 255) == (2.0, 128)
    assert of([-7.0, 3], 0, 15) == (1.0, 8)
    assert of([-7.0, 3], -8, 7) == (1.0, 0)
    assert of([127.0], -127, 127) == (1.0, 0)
    assert of([4.0], -8, -4) == (2.0, -6)  # the middle is rounded down, not towards zero
    assert of([-98.0], 3, 200) == (1.0, 102)
    assert of([6.0], -2, 1) == (6.0, 0)
    assert of([-10.0, 500], 0, 255, symmetric=False) == (2.0, 5)
    assert of([100.0, 510], symmetric=False) == (2.0, -128)  # zero always lies in the range
    assert of([-510.0, -100], symmetric=False) == (2.0, 127)
    assert of([-1.0, 3], 0, 4, symmetric=False) == (1.0, 1)
    assert of([-2.5, 12.5], 0, 15, symmetric=False) == (1.0, 2)  # rint(-2.5) is -2
    assert of([0.0, 3], 0, 1, symmetric=False) == (3.0, 0)
    assert of([0.0, -0.0]) == (1.0, 0)
    assert of([0.0], 0, 255) == (1.0, 128)
    assert of([-0.0], 0, 255, symmetric=False) == (1.0, 0)
    assert of([0.0], symmetric=False) == (1.0, -128)


@by_dtype
@by_mode
def test_largest_and_smallest_numbers(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """No overflow on the way to a scale, and none of its precision lost to subnormal numbers."""
    info = torch.finfo(dtype)
    compute = cases.compute_dtype(dtype)
    smallest = torch.finfo(compute).smallest_normal
    for low, high in ((-info.max, info.max), (0, info.max), (-info.max, 0), (1, info.max)):
        x = torch.tensor([low, high], dtype=dtype, device=device)
        for ends in ((-128, 127), (-1, 1), (0, 255)):
            scale, _ = chosen(x, *ends, symmetric=symmetric)
            steps = ends[1] - ends[0]
            if symmetric:
                expected = info.max / (steps // 2)
            else:
                expected = (0.5 * high - 0.5 * min(low, 0)) / (0.5 * steps)
            assert math.isfinite(scale)
            assert scale == torch.tensor(expected, dtype=torch.float64).to(compute).item()
            check_input(device, x.cpu(), PER_TENSOR, ends, symmetric)
    subnormal = info.smallest_normal * info.eps
    for values in ((subnormal,), (-subnormal, 0), (info.smallest_normal, -3 * subnormal)):
        x = torch.tensor(values, dtype=dtype, device=device)
        scale, _ = chosen(x, symmetric=symmetric)
        assert scale >= smallest
        if compute == dtype:  # narrower dtypes have normal scales in C
            assert scale == smallest
        check_input(device, x.cpu(), PER_TENSOR, symmetric=symmetric)


# --- any strides in; out come those of a dense input, or contiguous ones, and contiguous scales --

GRANULARITIES = (
    *(PER_TENSOR, per_channel(0), per_channel(1), per_channel(2), per_channel(-1), PER_TOKEN),
    *(per_group(3), per_group(4, 1), per_group(3, 0), per_group(2, -2)),
)
VERBS = ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")


class TestAnyLayout(AnyLayout):
    KEEPS, PLANTS = True, 1 / 200
    CALLS = tuple(RangeCall(v, g, m) for v in VERBS for g in GRANULARITIES for m in MODES)


class TestObserversOfAnyLayout(AnyLayout):
    """What an input is fake-quantized to keeps its strides; the state is contiguous."""

    KEEPS, PLANTS = True, 1 / 200
    CALLS = OBSERVE_CALLS[::-1]

    def is_dense(self, call: Any, tensors: tuple[Tensor, ...], index: int) -> bool:
        return True
