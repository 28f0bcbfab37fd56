# SPDX-License-Identifier: BSD-3-Clause
"""Values of the integer matrix family against the oracle, bit for bit, on every device."""

from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import PER_TOKEN
from tests.support.checks.int8_mm import call, check, check_case
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases.int8_mm import Case, integers
from tests.support.family_cases.range import characterful
from tests.support.marks import by_dtype, by_mode

# --- sizes ---------------------------------------------------------------------------------------

PARTS = 10  # so that pytest's processes share the work


@pytest.mark.parametrize("part", range(PARTS))
def test_random_cases(part: int, device: str) -> None:
    """Hundreds of shapes, with every option of int8_linear and smoothquant_linear in turn."""
    for case in int8_cases.RANDOM_CASES[part::PARTS]:
        check_case(case, device)


@pytest.mark.parametrize("part", range(4))
def test_edges_of_every_size(part: int, device: str) -> None:
    for case in int8_cases.edge_cases()[part::4]:
        check_case(case, device)
        check("int8_product", some(case, OF_PRODUCT), device, case)
    for case in int8_cases.one_by_one()[part::4]:
        check_case(case, device)


@by_dtype
@by_mode
def test_dynamic_sizes(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """quantized_linear and qat_linear over sizes 0, 1, odd, prime, and one K beyond any tile."""
    sizes = [c for c in int8_cases.RANDOM_CASES if c.dtype == dtype and c.rows * c.n * c.k < 3e5]
    assert len(sizes) > 20
    for seed, case in enumerate(sizes):
        w = characterful((case.n, case.k), dtype, PER_TOKEN, seed=seed + 1)
        x = characterful((*case.lead, case.k), dtype, PER_TOKEN, symmetric=symmetric, seed=seed)
        if seed % 2:  # without poison
            x, w = (torch.randn(t.shape, generator=cases.generator(seed)).to(dtype) for t in (x, w))
        bias = case.bias_values(seed) / 5000 if case.bias else None
        arguments = {"input": x, "weight": w, "bias": bias, "symmetric": symmetric}
        check("qat_linear", arguments, device)
        arguments["weight"] = integers((case.n, case.k), torch.int8, case.values, seed)
        arguments["weight_scale"] = cases.scales((case.n,), case.compute, seed)
        if case.weight_sum:
            arguments["weight_sum"] = arguments["weight"].sum(1, dtype=torch.int32)
        check("quantized_linear", arguments, device)


def test_given_weight_sums_are_used(device: str) -> None:
    """As they are, where there is a zero point; nothing reads them where there is none."""
    case = Case((6,), 7, 40, scale="token", zero_point="token", weight_sum=True)
    arguments = case.arguments()
    right = check("int8_linear", arguments, device)
    other = arguments["weight_sum"] + 1
    wrong = check("int8_linear", arguments | {"weight_sum": other}, device)
    assert not torch.equal(right, wrong)
    nonsense = torch.tensor([cases.INT32_MAX, cases.INT32_MIN] * 4, dtype=torch.int32)[:7]
    check("int8_linear", arguments | {"weight_sum": nonsense}, device)
    x = torch.randn(6, 40, generator=cases.generator(0)) + 1
    shared = {k: arguments[k] for k in ("weight", "weight_scale")} | {"input": x}
    for symmetric in (True, False):
        plain = check("quantized_linear", shared | {"symmetric": symmetric}, device)
        given = shared | {"symmetric": symmetric, "weight_sum": arguments["weight_sum"]}
        assert torch.equal(check("quantized_linear", given, device), plain)
        other = check("quantized_linear", given | {"weight_sum": nonsense}, device)
        assert torch.equal(other, plain) == symmetric
    del arguments["input_zero_point"]
    plain = call("int8_linear", arguments | {"weight_sum": None}, device)
    assert torch.equal(call("int8_linear", arguments | {"weight_sum": nonsense}, device), plain)


# --- ranges --------------------------------------------------------------------------------------


@by_dtype
@by_mode
def test_every_range(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """Of 2 to 8 bits, and others: of quantized_linear's input, and of both operands."""
    for seed, ranges in enumerate(int8_cases.ranges_for(symmetric)):
        low, high = ranges["quant_min"], ranges["quant_max"]
        x = characterful((35, 67), dtype, PER_TOKEN, (low, high), symmetric, seed)
        weight_ends = ranges["weight_quant_min"], ranges["weight_quant_max"]
        weight = characterful((33, 67), dtype, PER_TOKEN, weight_ends, seed=seed + 1)
        bias = Case((), 33, 67, dtype=dtype, bias="output", seed=seed).arguments()["bias"]
        shared = {"input": x, "symmetric": symmetric, "bias": (None, bias)[seed % 2]}
        check("qat_linear", shared | ranges | {"weight": weight}, device, ranges)
        integer = Case((), 33, 67, dtype=dtype, weight_sum=True, seed=seed).arguments()
        integer = {k: integer[k] for k in ("weight", "weight_scale", "weight_sum")}
        check("quantized_linear", shared | integer | int8_cases.of_input(ranges), device, ranges)


# --- by hand -------------------------------------------------------------------------------------


def test_by_hand(device: str) -> None:
    """Statements of the contract with their answers written out, whatever the oracle says."""
    ops = torch.ops.baraquant

    def of(values: object, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    a = of([[1, 2, 3], [-4, 5, 127]], torch.int8)
    w = of([[1, 0, -1], [2, 2, 2]], torch.int8)
    sw = of([0.5, 2.0])
    y = ops.int8_linear(a, w, of([1.0, 0.25]), sw)
    assert y.tolist() == [[-1.0, 24.0], [-16.375, 128.0]] and y.dtype == torch.float32
    y = ops.int8_linear(a, w, of([[1.0], [0.25]]), sw, of([10.0, -24.0]), dtype=torch.float16)
    assert y.tolist() == [[9.0, 0.0], [-6.375, 104.0]] and y.dtype == torch.float16
    for scale, point in ((1.0, 1), (of(1.0), of(1, torch.int64))):
        y = ops.smoothquant_linear(a, w, sw, scale, act_zero_point=point)
        assert y.tolist() == [[-1.0, 12.0], [-65.5, 500.0]]
    unsigned = of([[255, 0, 1]], torch.uint8)
    assert ops.smoothquant_linear(unsigned, w, sw, 1.0).tolist() == [[127.0, 1024.0]]
    bias = of([10.0, -24.0])
    assert ops.int8_linear(a[:, :0], w[:, :0], of(1.0), sw, bias).tolist() == [[10.0, -24.0]] * 2
    assert ops.int8_linear(a[:, :0], w[:, :0], of(1.0), sw).tolist() == [[0.0, 0.0]] * 2
    x = of([[-254.0, 2, 4], [0, 0, 0]])
    assert ops.quantized_linear(x, w, sw).tolist() == [[-129.0, -992.0], [0.0, 0.0]]
    y = ops.quantized_linear(of([[0.0, 255, 510]]), w, sw, symmetric=False)
    assert y.tolist() == [[-255.0, 3064.0]]
    weight = of([[127.0, 0, -127], [254, 254, 254]])
    assert ops.qat_linear(of([127.0, 1, 2]), weight).tolist() == [15875.0, 33020.0]
    # Of two and of four bits: [1, 1], [0, -1]; [7, 4] with the scale 1, and [-1, 7] or [0, 15] - 3
    weight = of([[3.0, 2.0], [0.75, -2.0]])
    ranges = {"weight_quant_min": -2, "weight_quant_max": 1, "quant_min": -8, "quant_max": 7}
    assert ops.qat_linear(of([7.0, 4.25]), weight, **ranges).tolist() == [33.0, -8.0]
    ranges |= {"quant_min": 0, "quant_max": 15, "symmetric": False}
    assert ops.qat_linear(of([-3.25, 11.75]), weight, **ranges).tolist() == [27.0, -24.0]
    # The fma: the product of the scales and the sum is not rounded before the bias is added.
    third = of(1 / 3)
    y = ops.int8_linear(a[:1, :1], w[:1, :1], third, third[None], -(third * third)[None])
    exact = third.double() * third.double()
    assert y.item() == (exact - (third * third).double()).float().item() != 0


LARGE = (
    Case((129,), 1025, 1025, scale="token", bias="compute", dtype=torch.bfloat16),
    Case((257,), 511, 769, torch.uint8, torch.float16, "token", "token", bias="output"),
    Case((5, 51), 384, 640, torch.int8, torch.float32, "token_1", "one", weight_sum=True),
    Case((64,), 1000, 512, torch.uint8, torch.float64, "one", None, bias="compute", static=True),
    Case((1,), 4099, 2053, scale="one", bias="output", dtype=torch.float16),
    Case((4,), 2048, 1024, torch.uint8, torch.bfloat16, "token", "token_1", bias="compute"),
    Case((1025,), 3, 1030, dtype=torch.bfloat16, static=True, scale="number", zero_point="number"),
)


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_sizes(case: Case, device: str) -> None:
    check_case(case, device)


# --- int8_product and rescale_product, the halves of int8_linear ---------------------------------

OF_PRODUCT = ("input", "weight", "input_zero_point", "weight_sum")
OF_RESCALE = ("input_scale", "weight_scale", "bias", "dtype")


def some(case: Case, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in case.arguments().items() if name in names}


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(p, marks=pytest.mark.exhaustive) for p in range(1, 6))]
)
def test_the_halves_of_every_random_case(part: int, device: str) -> None:
    """Against the oracle and the reference; one after the other they are int8_linear."""
    found = [c for c in int8_cases.RANDOM_CASES if not c.static][part::6]
    assert len(found) > 30
    for case in found:
        sums = check("int8_product", some(case, OF_PRODUCT), device, case)
        expected = check("int8_linear", case.arguments(), device, case)
        arguments = some(case, OF_RESCALE) | {"input": sums.cpu()}
        y = check("rescale_product", arguments, device, case)
        assert_same_bits(y, expected)
        own = reference.int8_product(**some(case, OF_PRODUCT))
        assert_same_bits(own, sums.cpu())
        assert_same_bits(reference.rescale_product(**arguments), y.cpu())


@by_dtype
def test_sums_of_any_bits(dtype: torch.dtype, device: str) -> None:
    """And scales and biases of any bits, over sizes of whole packs and of parts of them."""
    compute = cases.compute_dtype(dtype)
    for rows, n in ((1, 1), (3, 7), (17, 64), (2, 1030), (90, 33), (3, 4096)):
        random = cases.generator(n)
        sums = torch.randint(-(2**31), 2**31, (rows, n), generator=random, dtype=torch.int64)
        arguments = {
            "input": sums.to(torch.int32),
            "input_scale": cases.bit_patterns(compute, rows, 1).reshape(rows, 1),
            "weight_scale": cases.bit_patterns(compute, n, 2),
            "dtype": dtype,
        }
        check("rescale_product", arguments, device)
        check("rescale_product", arguments | {"bias": cases.scales((n,), dtype, 3)}, device)


# --- static_quantized_linear: the oracle's bits, and those of the reference ----------------------

by_smooth = pytest.mark.parametrize("smooth", (False, True), ids=("plain", "smooth"))
STATIC_SIZES = (
    *(((33,), 17, 65), ((2, 3), 5, 128), ((), 7, 31), ((0,), 3, 4), ((4,), 0, 4), ((4,), 3, 0)),
    *(((1,), 512, 256), ((2, 1, 2), 1, 1), ((65,), 130, 513)),
)


def static_arguments(
    size: tuple[tuple[int, ...], int, int],
    dtype: torch.dtype,
    smooth: bool = False,
    seed: int = 0,
    point: torch.dtype | None = torch.int32,
) -> dict[str, Any]:
    """By name, on the CPU. Every tenth of the inputs lies outside the range."""
    lead, n, k = size
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
    bias = torch.randn(n, generator=gen, dtype=torch.float64) * 100
    return found | {"bias": bias.to((compute, dtype)[seed % 2])}


@by_dtype
@by_smooth
def test_static_sizes(smooth: bool, dtype: torch.dtype, device: str) -> None:
    for seed, size in enumerate(STATIC_SIZES):
        for point in (None, int8_cases.POINT_DTYPES[seed % len(int8_cases.POINT_DTYPES)]):
            given = static_arguments(size, dtype, smooth, seed, point)
            check("static_quantized_linear", given, device)
            same = reference.static_quantized_linear(**given)
            assert_same_bits(same, ops.static_quantized_linear(**given))
        sums = {"weight_sum": given["weight"].sum(1, dtype=torch.int32)}
        check("static_quantized_linear", given | sums, device)
        del given["bias"]
        check("static_quantized_linear", given, device)


@by_smooth
def test_static_ranges(smooth: bool, device: str) -> None:
    """Without a zero point too, any will do."""
    for seed, ends in enumerate(int8_cases.SYMMETRIC_RANGES + int8_cases.OTHER_RANGES):
        for point in (None, torch.int32):
            given = static_arguments(((9,), 5, 40), torch.float32, smooth, seed, point)
            given |= dict(zip(("quant_min", "quant_max"), ends, strict=True))
            check("static_quantized_linear", given, device, ends)


@by_dtype
@by_smooth
def test_static_special_values(smooth: bool, dtype: torch.dtype, device: str) -> None:
    """A NaN becomes the zero point, infinities the ends of the range: finite, all of them."""
    values = cases.special_values(dtype)
    given = static_arguments(((1,), 9, len(values)), dtype, smooth)
    given["input"] = values.unsqueeze(0)
    check("static_quantized_linear", given, device)
    assert ops.static_quantized_linear(**given).isfinite().all() or dtype == torch.float16
    special = cases.special_scales(cases.compute_dtype(dtype))
    for scale in special:
        given["act_scale"] = scale
        check("static_quantized_linear", given, device, scale)
    if smooth:
        given = static_arguments(((3,), 9, len(special)), dtype, smooth=True)
        check("static_quantized_linear", given | {"smooth_scale": special}, device)
