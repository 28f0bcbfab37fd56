# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family of `baraquant.reference` against the NumPy oracle, bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch

from baraquant import ops, reference
from tests.int8_mm.exact_layers import exact_layer
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import summary
from tests.support.family_cases.int8_mm import Case
from tests.support.marks import by_dtype
from tests.support.oracle import int8_mm as int8_oracle


def check(name: str, arguments: dict[str, Any]) -> None:
    got = getattr(reference, name)(**arguments)
    expected = getattr(int8_oracle, name)(**arguments)
    dtype = arguments.get("dtype", arguments["input"].dtype)
    assert got.dtype == dtype
    if name == "int8_linear" and dtype == torch.float64 and "bias" in arguments:
        beyond = beyond_its_limits(arguments)
        assert beyond.sum() <= 0.8 * beyond.size
        got, expected = got.clone(), expected.copy()
        got[torch.from_numpy(beyond)], expected[beyond] = 0, 0
    assert_same_bits(got, expected, f"{name} {summary(arguments)}")


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
def test_special_scales_and_biases(dtype: torch.dtype) -> None:
    """The fma's one rounding among them: overflow, subnormal numbers, zeros of either sign."""
    special = cases.special_scales(cases.compute_dtype(dtype))
    for bias in (None, "compute", "output"):
        case = Case((len(special),), len(special), 37, torch.int8, dtype, "token", bias=bias)
        scales = {"input_scale": special, "weight_scale": special.flip(0)}
        check("int8_linear", case.arguments() | scales)
    patterns = cases.bit_patterns(case.compute, 700, 3)
    case = Case((70,), 70, 5, dtype=dtype, scale="token")
    scales = {"input_scale": patterns[:70], "weight_scale": patterns[70:140]}
    for part in range(2, 10):
        bias = patterns[70 * part : 70 * part + 70]
        check("int8_linear", case.arguments() | scales | {"bias": bias})


@pytest.mark.parametrize("kind", ("symmetric", "whole", "clipped", "narrow", "narrow_clipped"))
def test_gradient(kind: str) -> None:
    layer = exact_layer(kind, torch.float32, "cpu")
    y = reference.qat_linear(*layer.leaves, symmetric=layer.symmetric, **layer.ranges)
    gradients = torch.autograd.grad(y, layer.leaves, layer.dy.detach())
    for got, expected in zip(gradients, layer.rule(), strict=True):
        assert torch.equal(got.double(), expected)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backward", ["float", "int8_input", "int8"])
def test_a_weight_that_is_wider_than_the_input(backward: str, low: torch.dtype) -> None:
    """A master weight: its own integers, and a product in the dtype of the input."""
    torch.manual_seed(0)
    x = torch.randn(5, 24).to(low).requires_grad_()
    weight, bias = torch.randn(6, 24, requires_grad=True), torch.randn(6, requires_grad=True)
    found = []
    for function in (ops.qat_linear, reference.qat_linear):
        y = function(x, weight, bias, backward=backward)
        found.append((y, *torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y) / 3)))
    for got, right, dtype in zip(*found, (low, low, torch.float32, torch.float32), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), right.float(), rtol=1e-2, atol=1e-2)
    q, s, _ = ops.dynamic_range_quantize_per_channel(weight.detach(), 0)
    assert torch.equal(found[0][0], ops.quantized_linear(x.detach(), q, s, bias.detach()))
    assert torch.equal(found[0][0], found[1][0])
