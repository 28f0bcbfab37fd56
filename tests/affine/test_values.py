# SPDX-License-Identifier: BSD-3-Clause
"""Values of the affine family against the oracle, bit for bit, on every device, of any layout."""

import math

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_same_bits, same_bits, to_numpy
from tests.support.calls.affine import BACKWARD, FORWARD, Call
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.family_cases.layouts import AnyLayout
from tests.support.marks import by_dtype, by_kind
from tests.support.oracle import affine as oracle
from tests.support.oracle.affine import Affine


def arguments(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    granularity: Granularity,
    quant_range: tuple[int, int] = (-128, 127),
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hostile input with ordinary scales, and zero points of which some lie outside the range."""
    params = granularity.param_shape(shape)
    scale = cases.scales(params, cases.compute_dtype(dtype), seed)
    x = cases.adversarial(cases.expand(scale, granularity, shape), dtype, seed + 1)
    return x, scale, cases.zero_points(params, quant_range, seed + 2)


def check_forward(
    device: str,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    granularity: Granularity,
    quant_range: tuple[int, int],
    dtypes: tuple[torch.dtype, ...] = cases.QUANTIZED_DTYPES,
) -> None:
    """Compare quantize to each dtype that holds the range, fake_quantize, and their identity."""
    expected = Affine(x, scale, zero_point, granularity, *quant_range)
    args = [*cases.to(device, x, scale, zero_point), *granularity.args]
    note = f"{granularity} {tuple(x.shape)} {x.dtype} {quant_range}"
    fake = granularity.op("fake_quantize")(*args, *quant_range)
    assert fake.dtype == x.dtype
    assert_same_bits(fake, expected.fake_quantize(), note)
    for dtype in dtypes:
        if not cases.fits(quant_range, dtype):
            continue
        q = granularity.op("quantize")(*args, *quant_range, dtype=dtype)
        assert q.dtype == dtype
        assert_same_bits(q, expected.quantize(dtype), f"{note} to {dtype}")
        y = granularity.op("dequantize")(q, *args[1:], dtype=x.dtype)
        same = same_bits(y, to_numpy(fake))
        assert (same | expected.nan).all(), f"{note}: fake_quantize is not dequantize(quantize)"


@by_dtype
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_every_shape_and_granularity(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    for seed, granularity in enumerate(cases.granularities(shape)):
        args = arguments(shape, dtype, granularity, seed=seed)
        check_forward(device, *args, granularity, (-128, 127), (torch.int8, torch.float32))


@by_dtype
@by_kind
@pytest.mark.parametrize("quant_range", cases.RANGES, ids=str)
def test_every_range_and_output_dtype(
    quant_range: tuple[int, int], granularity: Granularity, dtype: torch.dtype, device: str
) -> None:
    args = arguments((17, 53), dtype, granularity, quant_range)
    check_forward(device, *args, granularity, quant_range)
    check_forward(device, *args[:2], None, granularity, quant_range)


@by_dtype
def test_widest_ranges_of_floating_outputs(dtype: torch.dtype, device: str) -> None:
    """Up to the last width at which each output dtype, and C, still holds every integer."""
    for output, limit in cases.INTEGER_LIMIT.items():
        if output == torch.float64 and dtype != torch.float64:
            continue
        x, scale, zero_point = arguments((9, 301), dtype, per_channel(0), (-limit, limit))
        narrow = scale * 2.0**-12
        check_forward(device, x, narrow, zero_point, per_channel(0), (-limit, limit), (output,))
        check_forward(device, x, scale, None, per_channel(0), (limit - 3, limit), (output,))


@by_dtype
def test_special_scales_and_zero_points(dtype: torch.dtype, device: str) -> None:
    """Zero, negative, NaN, infinite and extreme scales with zero points up to int32's ends."""
    scale = cases.special_scales(cases.compute_dtype(dtype))
    points = torch.tensor(cases.SPECIAL_ZERO_POINTS, dtype=torch.int32)
    scale, points = scale.repeat_interleave(len(points)), points.repeat(len(scale))
    special = cases.special_values(dtype)
    multiples = cases.adversarial(scale.abs()[:, None].expand(-1, 60), dtype)
    x = torch.cat([special.expand(len(scale), -1), multiples], dim=1)
    for quant_range in ((-128, 127), (0, 255), (-2, 1)):
        check_forward(device, x, scale, points, per_channel(0), quant_range)
    check_forward(device, x, scale, None, per_channel(0), (-8, 7))
    check_forward(device, x, scale[:, None], points[:, None], PER_TOKEN, (0, 15))
    check_forward(device, x[::40], scale[::40, None], None, per_group(10**6), (-128, 127))
    for i in range(0, len(scale), 7):
        check_forward(device, x[i], scale[i], points[i], PER_TENSOR, (-128, 127))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=cases.name_of)
@pytest.mark.parametrize("quant_range", ((-128, 127), (0, 255), (-2, 1)), ids=str)
def test_all_65536_bit_patterns(
    quant_range: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    patterns = cases.bit_patterns(dtype, 65536)
    assert len(patterns.view(torch.int16).unique()) == 65536
    ordinary = cases.scales((8,), torch.float32) * torch.tensor([1e-6, 1e-3, 1, 1, 1, 1, 64, 1e5])
    scale = torch.cat([ordinary, cases.special_scales(torch.float32)])
    zero_point = cases.zero_points(scale.shape, quant_range)
    x = patterns.expand(len(scale), -1)
    outputs = (torch.uint8 if quant_range == (0, 255) else torch.int8, dtype)
    check_forward(device, x, scale, zero_point, per_channel(0), quant_range, outputs)


@pytest.mark.parametrize("dtype", cases.SCALE_DTYPES, ids=cases.name_of)
def test_every_exponent(dtype: torch.dtype, device: str) -> None:
    """Each exponent, both signs, several significands; against scales of many exponents."""
    mantissa_bits, exponents = (23, 256) if dtype == torch.float32 else (52, 2048)
    integer = torch.int32 if dtype == torch.float32 else torch.int64
    ones = (1 << mantissa_bits) - 1
    significands = torch.tensor([0, 1, ones // 2, ones // 2 + 1, ones // 3, ones - 1, ones])
    bits = (torch.arange(exponents)[:, None] << mantissa_bits) | significands
    x = bits.reshape(-1).to(integer).view(dtype)
    x = torch.cat([x, -x])
    every = torch.arange(1, exponents - 1, exponents // 32)
    scale = ((every << mantissa_bits) | (every * 2654435761 & ones)).to(integer).view(dtype)
    near_one = torch.tensor([2.0**-7, 0.05, 1 / 3, 1.0, 3.0], dtype=dtype)
    scale = torch.cat([scale, near_one])
    x = x.expand(len(scale), -1)
    for quant_range in ((-128, 127), (0, 255)):
        points = cases.zero_points(scale.shape, quant_range, seed=5)
        check_forward(device, x, scale, points, per_channel(0), quant_range, cases.INTEGER_DTYPES)


@by_dtype
@by_kind
def test_zero_point_dtypes(granularity: Granularity, dtype: torch.dtype, device: str) -> None:
    """Any integer dtype; int64 beyond int32 saturates and never wraps."""
    x, scale, _ = arguments((6, 40), dtype, granularity)
    ends = {
        torch.int8: (-128, 127),
        torch.uint8: (0, 255),
        torch.int16: (-(2**15), 2**15 - 1),
        torch.int32: (cases.INT32_MIN, cases.INT32_MAX),
        torch.int64: (cases.INT64_MIN, cases.INT64_MAX),
    }
    for point_dtype, (low, high) in ends.items():
        options = torch.tensor([low, high, low + 1, high - 1, 0, 1, 5, 100], dtype=point_dtype)
        if point_dtype == torch.int64:
            options = torch.cat([options, torch.tensor([2**31, -(2**31) - 1, 2**32, 2**40 + 3])])
        pick = torch.randint(0, len(options), scale.shape, generator=cases.generator(3))
        for quant_range in ((-128, 127), (0, 15)):
            given = (x, scale, options[pick], granularity, quant_range)
            check_forward(device, *given, (torch.int8, torch.float32))


@by_dtype
@by_kind
def test_floating_zero_point(granularity: Granularity, dtype: torch.dtype, device: str) -> None:
    """fake_quantize takes `rint(z)`, clamped to the range."""
    x, scale, _ = arguments((6, 40), dtype, granularity)
    options = torch.tensor([0.5, 1.5, -2.5, 3.4, 126.6, 200, -1e9, 7, math.inf])
    pick = torch.randint(0, len(options), scale.shape, generator=cases.generator(4))
    for point_dtype in cases.FLOAT_DTYPES:
        points = options[pick].to(point_dtype)
        args = [*cases.to(device, x, scale, points), *granularity.args]
        for quant_range in ((-128, 127), (0, 15)):
            expected = Affine(x, scale, points, granularity, *quant_range)
            got = granularity.op("fake_quantize")(*args, *quant_range)
            assert_same_bits(got, expected.fake_quantize(), f"{point_dtype} {quant_range}")


def test_floating_zero_point_is_rounded_once(device: str) -> None:
    """`rint(z)` is taken of z itself: in float32 these two would first become ties."""
    points = torch.tensor([0.5 + 1e-12, 1.5 - 1e-12], dtype=torch.float64)
    x, scale = torch.full((2, 1), 500.0), torch.ones(2)
    expected = torch.tensor([[126.0], [126.0]])  # 127 - 1, twice
    args = cases.to(device, x, scale, points)
    assert_same_bits(torch.ops.baraquant.fake_quantize_per_channel(*args, 0), expected)


def test_facts_by_hand(device: str) -> None:
    """Statements of the contract with their answers written out, whatever the oracle says."""
    ops = torch.ops.baraquant

    def quantize(values: list[float], scale: float, point: int, *quant_range: int) -> list[int]:
        x, s = torch.tensor(values, device=device), torch.tensor(scale, device=device)
        z = torch.tensor(point, device=device)
        return ops.quantize_per_tensor(x, s, z, *quant_range).tolist()

    inf, nan = math.inf, math.nan
    assert quantize([3e9, -3e9], 1.0, 1) == [127, -128]  # an int32 add would wrap
    assert quantize([0.5, 1.5, 2.5, -0.5, -1.5], 1.0, 0) == [0, 2, 2, 0, -2]  # half to even
    assert quantize([0.5, 1.5], 1.0, 1) == [1, 3]  # the zero point comes after rounding
    assert quantize([nan, inf, -inf], 1.0, 5) == [5, 127, -128]
    assert quantize([nan, nan], 1.0, 300) == [127, 127]  # the clamped zero point
    assert quantize([nan], 1.0, -300, 0, 15) == [0]
    assert quantize([0.0, 1.0, -1.0], 0.0, 3) == [3, 127, -128]  # 0/0 is NaN, ±1/0 infinite
    assert quantize([1.0, -1.0, inf], inf, 9) == [9, 9, 9]
    assert quantize([1.0, 300.0], -1.0, 0) == [-1, -128]
    assert quantize([1.0], nan, 4) == [4]
    # Exact ties 2.5 and 3.5, of which x * (1 / s) misses both: it gives 3 and 3.
    assert quantize([37.5], 15.0, 0) == [2]
    assert quantize([143.5], 41.0, 0) == [4]
    x = torch.tensor([nan, -0.0, -0.2, inf], device=device)
    y = ops.fake_quantize_per_tensor(x, torch.tensor(1.0, device=device), None)
    assert_same_bits(y, torch.tensor([nan, 0.0, 0.0, 127.0]))  # never -0: r + 0 is +0
    q = ops.quantize_per_tensor(x, torch.tensor(1.0, device=device), None, dtype=torch.float32)
    assert_same_bits(q, torch.tensor([0.0, 0.0, 0.0, 127.0]))


# --- dequantize and its backward: every pair of dtypes, extreme scales, one rounding at the end --

OUTPUTS = (None, *cases.FLOAT_DTYPES)
by_input = pytest.mark.parametrize("dtype", cases.QUANTIZED_DTYPES, ids=cases.name_of)
by_scale = pytest.mark.parametrize("scale_dtype", cases.SCALE_DTYPES, ids=cases.name_of)


def integers_or_floats(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Every value an integer dtype has; for a floating one also fractions and specials."""
    if dtype in cases.INTEGER_DTYPES:
        low, high = cases.default_range(dtype)
        return torch.randint(low, high + 1, shape, generator=cases.generator(seed)).to(dtype)
    whole = torch.randint(-300, 300, shape, generator=cases.generator(seed)).to(dtype)
    other = cases.gradients(shape, dtype, seed + 1)
    return torch.where(torch.rand(shape, generator=cases.generator(seed + 2)) < 0.8, whole, other)


def check_dequantize(
    device: str, q: Tensor, scale: Tensor, zero_point: Tensor | None, granularity: Granularity
) -> None:
    """Forward to each output dtype, and backward to the dtype of `q` from that."""
    moved = cases.to(device, q, scale, zero_point)
    for output in OUTPUTS:
        note = f"{granularity} {q.dtype} by {scale.dtype} to {output}"
        y = granularity.op("dequantize")(*moved, *granularity.args, dtype=output)
        assert y.dtype == (output or scale.dtype)
        expected = oracle.dequantize(q, scale, zero_point, granularity, output)
        assert_same_bits(y, expected, note)
        if q.dtype.is_floating_point:
            grad = cases.gradients(tuple(q.shape), y.dtype)
            backward = granularity.op("dequantize_backward")
            dq = backward(grad.to(device), moved[1], *granularity.args, dtype=q.dtype)
            assert dq.dtype == q.dtype
            expected = oracle.dequantize_backward(grad, scale, granularity, q.dtype)
            assert_same_bits(dq, expected, note)


@by_input
@by_scale
@by_kind
def test_dequantize_of_every_dtype(
    granularity: Granularity, scale_dtype: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    shape = (9, 17, 21)
    params = granularity.param_shape(shape)
    scale = cases.scales(params, scale_dtype)
    q = integers_or_floats(shape, dtype)
    check_dequantize(device, q, scale, cases.zero_points(params, (-128, 127)), granularity)
    check_dequantize(device, q, scale, None, granularity)


@by_input
@by_scale
def test_dequantize_special_scales_and_zero_points(
    scale_dtype: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    scale = cases.special_scales(scale_dtype)
    points = torch.tensor((*cases.SPECIAL_ZERO_POINTS, 2**31, -(2**40)), dtype=torch.int64)
    scale, points = scale.repeat_interleave(len(points)), points.repeat(len(scale))
    if dtype in cases.INTEGER_DTYPES:
        low, high = cases.default_range(dtype)
        values = torch.arange(low, high + 1).to(dtype)
    else:
        values = cases.special_values(dtype)
    q = values.expand(len(scale), -1)
    check_dequantize(device, q, scale, points, per_channel(0))
    check_dequantize(device, q, scale[:, None], points[:, None].to(torch.int32), PER_TOKEN)


@pytest.mark.parametrize("output", (torch.float16, torch.bfloat16), ids=cases.name_of)
def test_float64_is_rounded_once_to_16_bits(output: torch.dtype, device: str) -> None:
    """Just above and below a tie of the output: a stop at float32 would make it a tie."""
    precision = 11 if output == torch.float16 else 8
    tie, ulp = 1 + 2.0**-precision, 2.0 ** (1 - precision)
    above, below = tie + 2.0**-40, tie + ulp - 2.0**-40
    scale = torch.tensor([above, below], dtype=torch.float64, device=device)
    expected = torch.tensor([1 + ulp, 1 + ulp], dtype=output)
    ones = torch.ones(2, 1, device=device)
    ops = torch.ops.baraquant
    for dtype in (torch.int8, torch.float32):
        y = ops.dequantize_per_channel(ones.to(dtype), scale, None, 0, dtype=output)
        assert_same_bits(y[:, 0], expected)
    for dtype, option in ((torch.float64, {"dtype": output}), (output, {})):
        dq = ops.dequantize_per_channel_backward(ones.to(dtype), scale, 0, **option)
        assert_same_bits(dq[:, 0], expected)


# --- any strides in; out come those of a dense input, or contiguous ones -------------------------

GRANULARITIES = (
    *(PER_TENSOR, per_channel(0), per_channel(1), per_channel(-1), PER_TOKEN),
    *(per_group(3), per_group(4, 1), per_group(3, 0), per_group(2, -2)),
)


class TestAnyLayout(AnyLayout):
    KEEPS, PLANTS = True, 1 / 8
    CALLS = (
        *(Call(verb, g) for verb in (*FORWARD, *BACKWARD[:3]) for g in GRANULARITIES),
        *(Call("quantize", g, dtype=torch.float64) for g in GRANULARITIES),
        *(Call("dequantize", g, dtype=torch.bfloat16) for g in GRANULARITIES),
    )
