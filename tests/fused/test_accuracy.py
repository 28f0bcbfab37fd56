# SPDX-License-Identifier: BSD-3-Clause
"""The activations against their exact values, over numbers of every size."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baraquant import ops

ULPS = 2.0
ULPS_OF_TAIL = 5.0  # of gelu below -1: a quotient of two polynomials, of which each rounds
# silu has a relative error of 2 units, 2^-23 at most; the product rounds once.
ULPS_OF_PRODUCT = 3.0


def silu(x: Tensor) -> Tensor:
    return ops.silu_mul(x, torch.ones_like(x))


def exact_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * torch.special.erfc(-x * math.sqrt(0.5))


def exact_gelu_tanh(x: Tensor) -> Tensor:
    return exact_silu_of(x, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def exact_silu_of(x: Tensor, w: Tensor) -> Tensor:
    e = torch.exp(-w.abs())
    return x * torch.where(w < 0, e / (1 + e), 1 / (1 + e))


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (silu, lambda x: exact_silu_of(x, x)),
    "gelu": (ops.gelu, exact_gelu),
    "gelu_tanh": (lambda x: ops.gelu(x, approximate="tanh"), exact_gelu_tanh),
}
by_name = pytest.mark.parametrize("name", FUNCTIONS)


def unit_of(value: Tensor, bits: int = 24, least: int = -125) -> Tensor:
    """That of the last place of so many, of exponents that are not less."""
    _, exponent = torch.frexp(value)
    return torch.ldexp(torch.ones_like(value), exponent.clamp(min=least) - bits)


def check(name: str, bits: Tensor) -> None:
    x = bits.to(torch.int32).view(torch.float32)
    x = x[x.isfinite() & (x.abs() < 1e30)]
    own, exact = FUNCTIONS[name]
    value = exact(x.double())
    found = (own(x).double() - value).abs() / unit_of(value)
    assert not found.isnan().any()
    tail = (x < -1) & (name == "gelu")
    for part, limit in ((~tail, ULPS), (tail, ULPS_OF_TAIL)):
        if part.any():
            worst = found[part].argmax()
            assert found[part][worst] <= limit, f"{name} at {x[part][worst].item().hex()}"


@by_name
def test_some_numbers_of_every_exponent(name: str, device: str) -> None:
    check(name, torch.arange(-(2**31), 2**31, 65537 // 4, device=device))


@pytest.mark.exhaustive
@by_name
@pytest.mark.parametrize("part", range(8))
def test_many_numbers(name: str, part: int, device: str) -> None:
    """Every 97th number: 44 million of them."""
    first = -(2**31) + part * 2**29
    for begin in range(first, first + 2**29, 2**27):
        check(name, torch.arange(begin, begin + 2**27, 97, device=device))


@pytest.mark.exhaustive
@by_name
def test_every_number_near_one(name: str, device: str) -> None:
    """All of [1, 2) and (-2, -1]."""
    one = 0x3F800000
    for sign in (0, -(2**31)):
        for begin in range(one, one + 2**23, 2**21):
            check(name, torch.arange(begin, begin + 2**21, device=device) + sign)


def test_the_product_of_silu_mul(device: str) -> None:
    """Where the relative error of silu is largest, `up` gives the product the smallest units."""
    near = torch.arange(-(2**17), 2**17, 8, device=device)
    starts = [(127 + e) << 23 for e in range(-14, 5)]
    bits = torch.cat([near.clamp(min=0) + start for start in starts]).to(torch.int32)
    gate = bits.view(torch.float32)
    gate = torch.cat((gate, -gate))
    significand, _ = torch.frexp(exact_silu_of(gate.double(), gate.double()))
    for size in (1.0, 2.0**-60, 2.0**60):
        for share in (1 - 2.0**-20, 1 - 2.0**-12, 0.97):
            up = (share * size / significand.abs()).float()
            exact = exact_silu_of(gate.double(), gate.double()) * up.double()
            found = (ops.silu_mul(gate, up).double() - exact).abs() / unit_of(exact)
            assert found.max() <= ULPS_OF_PRODUCT


def test_a_subnormal_silu(device: str) -> None:
    """It is within 1 unit of the smallest number, and so the product within `up` such units."""
    gate = -torch.linspace(91.5, 110, 100_001, device=device)
    exact = exact_silu_of(gate.double(), gate.double())
    for up in (1.0, 2.0**100, -(2.0**120)):
        found = ops.silu_mul(gate, torch.full_like(gate, up)).double()
        assert ((found - exact * up).abs() <= 2.0**-149 * abs(up)).all()


@by_name
def test_the_ends(name: str, device: str) -> None:
    own, _ = FUNCTIONS[name]
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38], device=device)
    found = own(special).tolist()
    assert math.copysign(1, found[0]) == 1 and math.copysign(1, found[1]) == -1
    assert found[2] == math.inf and found[3] == 0 and math.isnan(found[4])
    assert found[5] == special[5].item() and found[6] == 0


# The arguments of 16 bits, among all 65536, whose result is not the correctly rounded one.
NOT_ROUNDED_CORRECTLY = {
    ("silu", torch.float16): 18,
    ("gelu", torch.float16): 43,
    ("gelu_tanh", torch.float16): 34,
    ("silu", torch.bfloat16): 4,
    ("gelu", torch.bfloat16): 2,
    ("gelu_tanh", torch.bfloat16): 0,
}


@pytest.mark.parametrize(("name", "dtype"), NOT_ROUNDED_CORRECTLY, ids=str)
def test_every_number_of_16_bits(name: str, dtype: torch.dtype, device: str) -> None:
    """All are within 0.51 ulp, and few are not rounded correctly."""
    x = torch.arange(-(2**15), 2**15, device=device).to(torch.int16).view(dtype)
    own, exact = FUNCTIONS[name]
    result = own(x)
    assert torch.equal(result.isnan(), x.isnan())
    finite = x.isfinite()
    found, value = result[finite].double(), exact(x[finite].double())
    bits, least = (8, -125) if dtype == torch.bfloat16 else (11, -13)
    unit = unit_of(value, bits, least)
    assert ((found - value).abs() / unit).max() <= 0.51
    # NB: rounded by way of the unit, since a cast from float64 may round twice.
    differ = found != (value / unit).round() * unit
    assert differ.sum() == NOT_ROUNDED_CORRECTLY[name, dtype]


@by_name
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_ends_of_16_bits(name: str, dtype: torch.dtype, device: str) -> None:
    own, _ = FUNCTIONS[name]
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, -300.0, 300.0], device=device).to(dtype)
    expected = torch.tensor([0.0, -0.0, math.inf, -0.0, -0.0, 300.0], device=device).to(dtype)
    assert torch.equal(own(x).view(torch.int16), expected.view(torch.int16))
