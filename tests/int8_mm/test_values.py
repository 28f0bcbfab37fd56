# SPDX-License-Identifier: BSD-3-Clause
"""Values of the integer matrix family against the oracle, bit for bit, on every device."""

import pytest
import torch
from torch import Tensor

from tests.support import cases
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
    for case in (int8_cases.edge_cases() + int8_cases.one_by_one())[part::4]:
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
    assert ops.smoothquant_linear(a, w, sw, 1.0, act_zero_point=1).tolist() == [
        [-1.0, 12.0],
        [-65.5, 500.0],
    ]
    y = ops.smoothquant_linear(a, w, sw, of(1.0), act_zero_point=of(1, torch.int64))
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
