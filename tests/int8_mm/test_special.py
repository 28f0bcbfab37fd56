# SPDX-License-Identifier: BSD-3-Clause
"""Exact sums and special values of the integer matrix family, bit for bit, on every device."""

from typing import Any

import numpy as np
import pytest
import torch

from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import check, check_case, summary
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED, VALUES, Case, integers
from tests.support.marks import by_dtype
from tests.support.oracle import int8_mm as int8_oracle

by_input_dtype = pytest.mark.parametrize("input_dtype", cases.INTEGER_DTYPES, ids=cases.name_of)

# --- exact sums ----------------------------------------------------------------------------------


@by_input_dtype
@pytest.mark.parametrize("w", VALUES)
@pytest.mark.parametrize("a", VALUES)
def test_extremes(a: str, w: str, input_dtype: torch.dtype, device: str) -> None:
    """Where 16-bit halves of a product saturate; float64 scales of 1 show the sums themselves."""
    for rows, n, k in ((3, 5, 4), (2, 3, 130), (17, 33, 1025)):
        input = integers((rows, k), input_dtype, a, 1)
        weight = integers((n, k), torch.int8, w, 2)
        one = torch.ones((), dtype=torch.float64)
        arguments = {"input": input, "weight": weight, "dtype": torch.float64}
        arguments |= {"input_scale": one, "weight_scale": one.expand(n).clone()}
        got = check("int8_linear", arguments, device)
        exact = input.long() @ weight.long().T
        assert torch.equal(got.cpu().long(), exact)
        for point in (-128, 127) if input_dtype == torch.int8 else (0, 127, 255):
            shifted = arguments | {"input_zero_point": torch.full((rows,), point)}
            got = check("int8_linear", shifted, device)
            assert torch.equal(got.cpu().long(), (input.long() - point) @ weight.long().T)


@pytest.mark.parametrize("rows", (1, 3, 19))
@pytest.mark.parametrize("w", VALUES[1:6])
@pytest.mark.parametrize("a", VALUES[1:6])
def test_the_deepest_sums(a: str, w: str, rows: int, device: str) -> None:
    """K at its limits, with sums as far out as int32 goes."""
    for depth, dtype, point in (
        (DEEPEST, torch.int8, None),
        (DEEPEST_SHIFTED, torch.int8, 127),
        (DEEPEST_SHIFTED, torch.int8, -128),
        (DEEPEST_SHIFTED, torch.uint8, None),
        (DEEPEST_SHIFTED, torch.uint8, 255),
    ):
        input, weight = integers((rows, depth), dtype, a, 3), integers((5, depth), torch.int8, w, 4)
        arguments = {"input": input, "weight": weight, "weight_scale": torch.ones(5).double()}
        arguments |= {"act_scale": 1.0, "act_zero_point": point, "dtype": torch.float64}
        check("smoothquant_linear", arguments, device)


# --- special values ------------------------------------------------------------------------------


@by_dtype
@by_input_dtype
def test_special_scales(input_dtype: torch.dtype, dtype: torch.dtype, device: str) -> None:
    """Zero, negative, subnormal, huge, infinite and NaN: what the formula gives, row by column."""
    special = cases.special_scales(cases.compute_dtype(dtype))
    count = len(special)
    for bias, point in ((None, None), ("compute", "token"), ("output", None)):
        case = Case((count,), count, 37, input_dtype, dtype, "token", point, bias=bias)
        arguments = case.arguments() | {"input_scale": special, "weight_scale": special.flip(0)}
        got = check("int8_linear", arguments, device)
        assert got.isnan().any() and got.isinf().any()
        assert bias is not None or (got == 0).any()
        for index in range(count):
            one = arguments | {"input_scale": special[index]}
            check("int8_linear", one, device)


@by_dtype
def test_special_biases(dtype: torch.dtype, device: str) -> None:
    special = cases.special_values(dtype)
    case = Case((9,), len(special), 21, dtype=dtype, scale="token", values="sparse")
    for bias in (special, special.to(case.compute)):
        arguments = case.arguments() | {"bias": bias}
        check("int8_linear", arguments, device)
        zeros = arguments | {"input": torch.zeros_like(arguments["input"])}
        got = check("int8_linear", zeros, device).cpu()
        for row in got:  # the bias itself, but that +0 and -0 add up to +0
            assert_same_bits(row, torch.where(special == 0, torch.zeros_like(special), special))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=cases.name_of)
def test_overflow_and_subnormal_results(dtype: torch.dtype, device: str) -> None:
    """The one rounding to the output: infinite beyond the largest, gradual towards zero."""
    info = torch.finfo(dtype)
    a = w = torch.arange(-128, 128, dtype=torch.int8)[:, None]
    arguments = {"input": a, "weight": w, "dtype": dtype}
    for size in (info.max / 128**2, info.max / 100**2, info.smallest_normal / 2**7, info.eps):
        for bias in (None, size * 1000):
            given = arguments | {"input_scale": torch.tensor(float(size))}
            given["weight_scale"] = torch.ones(256)
            if bias is not None:
                given["bias"] = torch.full((256,), float(bias))
            check("int8_linear", given, device)
    one = {"input": a[129:130], "weight": w[129:130], "weight_scale": torch.ones(1), "dtype": dtype}
    ties = (2049.0, 2051.0, 65519.0, 65520.0, -65520.0, 65536.0, 2.0**-25, 3 * 2.0**-25)
    ties += (257.0, 259.0, 2.0**-134, 3 * 2.0**-134)
    for tie in ties:  # between two numbers of float16 or bfloat16, and at the very ends
        got = check("int8_linear", one | {"input_scale": torch.tensor(tie)}, device)
        assert_same_bits(got.cpu().view(()), torch.tensor(tie).to(dtype))


@by_dtype
def test_accumulators_beyond_24_bits(dtype: torch.dtype, device: str) -> None:
    """C(acc) is rounded first, to even where it is a tie, and only then multiplied."""
    for case in (
        Case((33,), 65, 4099, torch.int8, dtype, "token", bias="compute", values="high"),
        Case((5,), 9, 60001, torch.uint8, dtype, "token", "token", values="high"),
    ):
        check_case(case, device)
    # 2^24 + 1 and others, put together from few terms; their scale 1 shows what C holds.
    for wanted in (2**24 + 1, 2**24 + 3, 2**25 + 2, 2**25 + 6, -(2**24) - 1, -(2**26) - 4):
        terms = abs(wanted) // (127 * 127)
        rest = abs(wanted) - terms * 127 * 127
        row = [127] * terms + [rest // 127, 1]
        column = [127] * terms + [127, rest % 127]
        input = torch.tensor([row], dtype=torch.int8)
        weight = torch.tensor([column], dtype=torch.int8) * (1 if wanted > 0 else -1)
        one = torch.ones(1, dtype=cases.compute_dtype(dtype))
        arguments = {"input": input, "weight": weight, "input_scale": one, "weight_scale": one}
        got = check("int8_linear", arguments | {"dtype": dtype}, device)
        if dtype in cases.SCALE_DTYPES:
            exact = float(wanted)
            assert got.item() == (exact if dtype == torch.float64 else np.float32(exact))


# --- baraquant.reference -------------------------------------------------------------------------


def check_reference(arguments: dict[str, Any]) -> None:
    got, expected = reference.int8_linear(**arguments), int8_oracle.int8_linear(**arguments)
    assert got.dtype == arguments["dtype"]
    if got.dtype == torch.float64 and "bias" in arguments:
        beyond = beyond_its_limits(arguments)
        assert beyond.sum() <= 0.8 * beyond.size
        got, expected = got.clone(), expected.copy()
        got[torch.from_numpy(beyond)], expected[beyond] = 0, 0
    assert_same_bits(got, expected, summary(arguments))


def beyond_its_limits(arguments: dict[str, Any]) -> np.ndarray:
    """Where the reference says that a float64 product is too small or too large for its fma."""
    a = arguments
    acc = int8_oracle.accumulators(a["input"], a["weight"], a.get("input_zero_point"), None)
    with np.errstate(all="ignore"):
        first = acc * a["weight_scale"].numpy()
        second = np.broadcast_to(a["input_scale"].numpy().reshape(-1, 1), first.shape)
        exponent = np.frexp(first)[1] + np.frexp(second)[1]
    ordinary = np.isfinite(first) & np.isfinite(second) & (first != 0) & (second != 0)
    return (ordinary & ((exponent < -967) | (exponent > 995))).reshape(*a["input"].shape[:-1], -1)


@by_dtype
def test_special_scales_and_biases_of_the_reference(dtype: torch.dtype) -> None:
    """The fma's one rounding among them: overflow, subnormal numbers, zeros of either sign."""
    special = cases.special_scales(cases.compute_dtype(dtype))
    for bias in (None, "compute", "output"):
        case = Case((len(special),), len(special), 37, torch.int8, dtype, "token", bias=bias)
        scales = {"input_scale": special, "weight_scale": special.flip(0)}
        check_reference(case.arguments() | scales)
    patterns = cases.bit_patterns(case.compute, 700, 3)
    case = Case((70,), 70, 5, dtype=dtype, scale="token")
    scales = {"input_scale": patterns[:70], "weight_scale": patterns[70:140]}
    for part in range(2, 10):
        bias = patterns[70 * part : 70 * part + 70]
        check_reference(case.arguments() | scales | {"bias": bias})
