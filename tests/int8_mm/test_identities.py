# SPDX-License-Identifier: BSD-3-Clause
"""What holds between the ops of the three families, without an oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import PER_TOKEN
from tests.support.checks.int8_mm import call
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases.int8_mm import WEIGHT_RANGE, Case, integers, of_input, ranges_for
from tests.support.family_cases.range import characterful

by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
by_mode = pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
ops = torch.ops.baraquant


def check_dynamic(
    x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None, symmetric: bool, **ranges: int
) -> None:
    """One op is its two halves, with and without the sums over the weight."""
    q, sa, za = ops.dynamic_range_quantize_per_token(x, symmetric=symmetric, **ranges)
    point = None if symmetric else za
    options: dict[str, Any] = {"input_zero_point": point, "dtype": x.dtype}
    expected = ops.int8_linear(q, w, sa, scale, bias, **options)
    for sums in (None, w.sum(1, dtype=torch.int32)):
        given = {"symmetric": symmetric, "weight_sum": sums} | ranges
        y = ops.quantized_linear(x, w, scale, bias, **given)
        assert_same_bits(y, expected)
        assert_same_bits(ops.int8_linear(q, w, sa, scale, bias, weight_sum=sums, **options), y)
    if symmetric:  # a zero point of zeros changes no sum
        assert_same_bits(ops.int8_linear(q, w, sa, scale, bias, **options | {
            "input_zero_point": za}), expected)  # fmt: skip


def check_training(
    x: Tensor, weight: Tensor, bias: Tensor | None, symmetric: bool, **ranges: int
) -> None:
    """The layer that is trained is the layer that is deployed."""
    of_weight = [ranges[name] for name in WEIGHT_RANGE if ranges]
    w, scale, _ = ops.dynamic_range_quantize_per_channel(weight, 0, *of_weight)
    y = ops.qat_linear(x, weight, bias, symmetric=symmetric, **ranges)
    given = {"symmetric": symmetric} | (of_input(ranges) if ranges else {})
    assert_same_bits(y, ops.quantized_linear(x, w.contiguous(), scale, bias, **given))


@by_dtype
@by_mode
@pytest.mark.parametrize("shape", ((7,), (33, 65), (4, 17, 96), (2, 3, 5, 129), (5, 1025), (0, 9)))
def test_the_dynamic_ops(
    shape: tuple[int, ...], symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    for seed, n in enumerate((1, 8, 37, 130)):
        case = Case(
            shape[:-1], n, shape[-1], dtype=dtype, bias=("compute", "output", None)[seed % 3]
        )
        found = case.arguments()
        bias = found["bias"].to(device) if "bias" in found else None
        w, scale = found["weight"].to(device), found["weight_scale"].to(device)
        x = characterful(shape, dtype, PER_TOKEN, symmetric=symmetric, seed=seed).to(device)
        check_dynamic(x, w, scale, bias, symmetric)
        weight = characterful((n, shape[-1]), dtype, PER_TOKEN, seed=seed + 1).to(device)
        check_training(x, weight, bias, symmetric)


@by_dtype
@by_mode
def test_the_dynamic_ops_of_every_range(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    for seed, ranges in enumerate(ranges_for(symmetric)):
        found = Case((), 37, 65, dtype=dtype, bias="output", seed=seed).arguments()
        w, scale, bias = (found[k].to(device) for k in ("weight", "weight_scale", "bias"))
        ends = ranges["quant_min"], ranges["quant_max"]
        x = characterful((33, 65), dtype, PER_TOKEN, ends, symmetric, seed).to(device)
        check_dynamic(x, w, scale, bias, symmetric, **of_input(ranges))
        weight = characterful((37, 65), dtype, PER_TOKEN, seed=seed + 1).to(device)
        check_training(x, weight, bias, symmetric, **ranges)


@st.composite
def layers(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool]:
    lead = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    n, k = draw(st.integers(0, 70)), draw(st.integers(0, 300))
    dtype = draw(st.sampled_from(cases.FLOAT_DTYPES))
    symmetric, seed = draw(st.booleans()), draw(st.integers(0, 10**6))
    x = characterful((*lead, k), dtype, PER_TOKEN, symmetric=symmetric, seed=seed)
    weight = characterful((n, k), dtype, PER_TOKEN, seed=seed + 1)
    case = Case((), n, k, dtype=dtype, bias=draw(st.sampled_from((None, "compute", "output"))))
    found = case.arguments()
    return x, weight, found["weight_scale"], found.get("bias"), symmetric


@settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(layers())
def test_the_dynamic_ops_for_any_layer(
    device: str, layer: tuple[Tensor, Tensor, Tensor, Tensor | None, bool]
) -> None:
    x, weight, scale, bias = cases.to(device, *layer[:4])
    symmetric = layer[4]
    w = integers(tuple(weight.shape), torch.int8, "random", 1).to(device)
    check_dynamic(x, w, scale, bias, symmetric)
    check_training(x, weight, bias, symmetric)


@pytest.mark.parametrize("input_dtype", cases.INTEGER_DTYPES, ids=cases.name_of)
def test_a_static_scale_is_one_scale(input_dtype: torch.dtype, device: str) -> None:
    """smoothquant_linear, its numbers, and int8_linear with one scale or the same for each row."""
    for seed, dtype in enumerate(cases.FLOAT_DTYPES):
        case = Case((3, 7), 45, 66, input_dtype, dtype, "one", "one", bias="output", seed=seed)
        found = {k: v.to(device) for k, v in case.arguments().items() if isinstance(v, Tensor)}
        a, w, sw, bias = (found[k] for k in ("input", "weight", "weight_scale", "bias"))
        sa, za = found["input_scale"], found["input_zero_point"]
        expected = ops.int8_linear(a, w, sa, sw, bias, input_zero_point=za, dtype=dtype)
        spread = (sa.expand(3, 7), za.expand(3, 7, 1))
        rows = ops.int8_linear(a, w, spread[0], sw, bias, input_zero_point=spread[1], dtype=dtype)
        static = ops.smoothquant_linear(a, w, sw, sa, bias, act_zero_point=za, dtype=dtype)
        numbers = (float(sa), int(za))
        number = ops.smoothquant_linear(
            a, w, sw, numbers[0], bias, act_zero_point=numbers[1], dtype=dtype
        )
        for y in (rows, static, number):
            assert_same_bits(y, expected)


def test_unsigned_is_signed_shifted_by_128(device: str) -> None:
    for case in int8_cases.RANDOM_CASES[:60]:
        if case.static or case.zero_point is None:
            continue
        found = {
            k: v.to(device) if isinstance(v, Tensor) else v for k, v in case.arguments().items()
        }
        y = ops.int8_linear(**found)
        unsigned = case.input_dtype == torch.uint8
        other = found["input"].to(torch.int32) + (-128 if unsigned else 128)
        found["input"] = other.to(torch.int8 if unsigned else torch.uint8)
        found["input_zero_point"] = found["input_zero_point"].int() + (-128 if unsigned else 128)
        assert_same_bits(ops.int8_linear(**found), y, str(case))


@by_dtype
def test_rows_and_columns_stand_alone(dtype: torch.dtype, device: str) -> None:
    """Any part of the rows and any part of the weight gives that part of the result."""
    case = Case((67,), 131, 259, torch.uint8, dtype, "token", "token", bias="compute")
    found = case.arguments()
    whole = call("int8_linear", found, device)
    for start, count in ((0, 1), (3, 2), (10, 5), (31, 17), (2, 64)):
        rows = {k: found[k][start : start + count] for k in (
            "input", "input_scale", "input_zero_point")}  # fmt: skip
        part = call("int8_linear", found | rows, device)
        assert torch.equal(part, whole[start : start + count])
        columns = {k: found[k][start : start + count] for k in ("weight", "weight_scale", "bias")}
        part = call("int8_linear", found | columns, device)
        assert torch.equal(part, whole[:, start : start + count])


def test_depth_padded_with_zeros_changes_nothing(device: str) -> None:
    """Whatever the tail of K; and its order does not count."""
    for k in (1, 3, 4, 15, 16, 17, 31, 63, 65, 127, 130, 257):
        case = Case((5,), 9, k, scale="token", zero_point=None, values="high")
        found = case.arguments()
        expected = call("int8_linear", found, device)
        for extra in (1, 2, 13, 64):
            wide = {n: torch.nn.functional.pad(found[n], (0, extra)) for n in ("input", "weight")}
            assert torch.equal(call("int8_linear", found | wide, device), expected)
        order = torch.randperm(k, generator=cases.generator(k))
        turned = {n: found[n][:, order].contiguous() for n in ("input", "weight")}
        assert torch.equal(call("int8_linear", found | turned, device), expected)


def test_smoothing_costs_no_op(device: str) -> None:
    """Dividing by smooth[k] and quantizing with s is quantizing with s * smooth[k] per channel."""
    gen = cases.generator(0)
    x, w = torch.randn(9, 24, generator=gen), torch.randn(7, 24, generator=gen)
    smooth = 2.0 ** torch.randint(-3, 4, (24,), generator=gen)
    x, w, smooth = (t.to(device) for t in (x * smooth, w, smooth))
    s = torch.tensor(2.0**-5, device=device)
    q = ops.quantize_per_channel(x, s * smooth, None, -1)
    assert torch.equal(q, ops.quantize_per_tensor(x / smooth, s, None))
    wq, sw, _ = ops.dynamic_range_quantize_per_channel(w * smooth, 0)
    y = ops.smoothquant_linear(q, wq, sw, s)
    close = torch.nn.functional.linear(x, w)
    assert (y - close).abs().max() < 0.05 * close.abs().max()


@by_dtype
@by_mode
def test_near_the_floating_layer(symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """Within the steps of both quantizations: the numbers mean what they should."""
    gen = cases.generator(3)
    x = (torch.randn(50, 200, generator=gen) + 0.3).to(device, dtype)
    weight, bias = (torch.randn(*s, generator=gen).to(device, dtype) for s in ((30, 200), (30,)))
    y = ops.qat_linear(x, weight, bias, symmetric=symmetric).double()
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    assert (y - exact).std() < 0.012 * exact.std()


@by_mode
@pytest.mark.parametrize("shape", ((1, 4099, 2053), (5, 300, 8193), (130, 257, 1030)), ids=str)
def test_twenty_runs_give_the_same_bits(
    shape: tuple[int, int, int], symmetric: bool, device: str
) -> None:
    m, n, k = shape
    gen = cases.generator(1)
    x = torch.randn(m, k, generator=gen).to(device)
    w = integers((n, k), torch.int8, "random", 2).to(device)
    scale = cases.scales((n,), torch.float32).to(device)
    first = ops.quantized_linear(x, w, scale, symmetric=symmetric)
    for _ in range(19):
        assert torch.equal(ops.quantized_linear(x, w, scale, symmetric=symmetric), first)


@pytest.mark.parametrize("threads", (1, 3))
def test_threads_of_the_cpu(threads: int) -> None:
    """Rows, columns or the depth may be shared out: the bits do not say how."""
    before = torch.get_num_threads()
    shapes = ((1, 2049, 1030), (3, 129, 5000), (200, 65, 130), (64, 512, 256), (1030, 7, 33))
    for m, n, k in shapes:
        case = Case((m,), n, k, torch.uint8, torch.float16, "token", "token", bias="compute")
        found = case.arguments()
        expected = call("int8_linear", found)
        try:
            torch.set_num_threads(threads)
            assert torch.equal(call("int8_linear", found), expected)
        finally:
            torch.set_num_threads(before)
