# SPDX-License-Identifier: BSD-3-Clause
"""Values of the range family against the oracle, bit for bit, on every device."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import (
    FLOAT_DTYPES,
    PER_TENSOR,
    PER_TOKEN,
    Granularity,
    per_channel,
    per_group,
)
from tests.support.checks.range import check, check_input
from tests.support.family_cases import range as range_cases
from tests.support.family_cases.range import (
    CHARACTERS,
    CLEAN,
    LENGTHS,
    LONG_LENGTHS,
    MATRIX,
    MODES,
    RANGES,
    modes_of,
)

by_float_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=cases.name_of)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_mode = pytest.mark.parametrize("symmetric", MODES, ids=("symmetric", "asymmetric"))


@by_float_dtype
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_every_shape_and_granularity(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    for seed, granularity in enumerate(cases.granularities(shape)):
        check(device, shape, dtype, granularity, seed=seed)


@by_float_dtype
@by_kind
@pytest.mark.parametrize("quant_range", RANGES, ids=str)
def test_every_range(
    quant_range: tuple[int, int], granularity: Granularity, dtype: torch.dtype, device: str
) -> None:
    check(device, (53, 17), dtype, granularity, quant_range, seed=RANGES.index(quant_range))
    for seed in range(len(CHARACTERS) if granularity == PER_TENSOR else 0):
        check(device, (53, 17), dtype, granularity, quant_range, seed)


@by_float_dtype
def test_widest_ranges_of_fake_quantize(dtype: torch.dtype, device: str) -> None:
    """As far as C (and an int32 zero point) holds every integer."""
    limit = 2**24 if dtype != torch.float64 else 2**31 - 1
    for ends in ((-limit, limit), (limit - 3, limit), (-limit, -limit + 9), (0, limit), (-1, 999)):
        for granularity in cases.KINDS:
            check(device, (20, 40), dtype, granularity, ends)


@pytest.mark.exhaustive
@by_float_dtype
@pytest.mark.parametrize("length", (*LENGTHS, *LONG_LENGTHS))
def test_every_row_length(length: int, dtype: torch.dtype, device: str) -> None:
    """Around every width of a vector, a warp and a block; each character in each granularity."""
    seeds = itertools.count(length)
    for rows in (1, 3, 17) if length < 5000 else (3,):
        for granularity in MATRIX:
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
        for dtype in (FLOAT_DTYPES[index % 4], FLOAT_DTYPES[(index + 2) % 4]):
            check(device, shape, dtype, granularity, seed=index)


# --- one element decides -------------------------------------------------------------------------


@by_float_dtype
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


@by_float_dtype
@by_mode
def test_a_poisoned_row_leaves_its_neighbours_alone(
    symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    """NaN and infinities poison their own segment, whose dequantized values are then NaN."""
    for length in (5, 64, 300, 5000):
        x = torch.randn(9, length, generator=cases.generator(1)).to(dtype)
        for row, value in ((1, math.nan), (4, math.inf), (5, -math.inf)):
            x[row, (row * 37) % length] = value
        x[8, 0] = range_cases.negative_nan(dtype)
        poisoned = torch.tensor([False, True, False, False, True, True, False, False, True])
        for granularity in (PER_TOKEN, per_channel(0), per_group(10**6)):
            rule = check_input(device, x, granularity, symmetric=symmetric)
            fake = granularity.op("dynamic_fake_quantize")
            y = fake(x.to(device), *granularity.args, symmetric=symmetric).cpu()
            assert torch.equal(y.isnan().all(1), poisoned)
            assert torch.equal(y.isnan().any(1), poisoned)
            q = torch.from_numpy(rule.quantize())[poisoned]
            assert (q == (0 if symmetric else -128)).all()


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


def test_integers_by_hand(device: str) -> None:
    x = torch.tensor([[-254.0, 1, 3, 5, 253], [0, 0, 0, 0, 0], [1, 2, 3, 4, 10.2]], device=device)
    ops = torch.ops.baraquant
    q, scale, point = ops.dynamic_range_quantize_per_token(x)
    rows = [[-127, 0, 2, 2, 126], [0, 0, 0, 0, 0], [12, 25, 37, 50, 127]]
    assert q.tolist() == rows and q.dtype == torch.int8
    assert scale[:2].tolist() == [[2.0], [1.0]] and point.tolist() == [[0], [0], [0]]
    q, scale, point = ops.dynamic_range_quantize_per_token(
        x, 0, 255, symmetric=False, dtype=torch.uint8
    )
    assert q.dtype == torch.uint8
    assert q[1].tolist() == [0] * 5 and point[1:].tolist() == [[0], [0]]
    assert q[2].tolist() == [25, 50, 75, 100, 255]
    y = ops.dynamic_fake_quantize_per_token(x)
    assert y[:2].tolist() == [[-254, 0, 4, 4, 252], [0, 0, 0, 0, 0]]


@by_float_dtype
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


# --- what holds without an oracle -----------------------------------------------------------------


@by_float_dtype
@by_kind
@by_mode
def test_zero_is_exact(
    symmetric: bool, granularity: Granularity, dtype: torch.dtype, device: str
) -> None:
    """Zeros among any finite numbers, of one sign too, come back as zeros.

    But for one step from the lowest to the largest number, which is no number of C.
    """
    for ends in RANGES:
        if symmetric not in modes_of(ends):
            continue
        names = tuple(c for c in CLEAN if c not in ("huge", "wild") or ends[1] - ends[0] >= 2)
        for seed in range(4):
            x = range_cases.characterful((40, 33), dtype, granularity, ends, symmetric, seed, names)
            x[torch.rand(x.shape, generator=cases.generator(seed)) < 0.2] = 0
            op = granularity.op("dynamic_fake_quantize")
            y = op(x.to(device), *granularity.args, *ends, symmetric=symmetric).cpu()
            zeros = to_numpy(y[x == 0])
            assert len(zeros) > 100
            assert not zeros.any()
            assert not np.signbit(zeros).any()


@by_kind
@by_mode
def test_twenty_runs_give_the_same_bits(
    symmetric: bool, granularity: Granularity, device: str
) -> None:
    """Large enough for several blocks and threads to share a segment."""
    for shape in ((70, 4099), (3, 70_001)):
        x = range_cases.finite_patterns(torch.float32, shape[0] * shape[1], 1).view(shape)
        x = x.to(device)
        args, mode = (x, *granularity.args), {"symmetric": symmetric}
        op, fake = granularity.op("dynamic_range_quantize"), granularity.op("dynamic_fake_quantize")
        first = (*op(*args, **mode), fake(*args, **mode))
        for _ in range(19):
            again = (*op(*args, **mode), fake(*args, **mode))
            for a, b in zip(first, again, strict=True):
                assert torch.equal(a, b)
