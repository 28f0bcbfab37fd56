# SPDX-License-Identifier: BSD-3-Clause
"""Served products pass on the gradient that the trained layer has: the contract's rule, to the bit.

dx = inside ? dy @ w^ : 0        w^ = C(w) * sw, rounded to the input's dtype
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import cases
from tests.support.family_cases.int8_mm import integers
from tests.support.marks import by_dtype
from tests.support.saved_tensors import saved_tensors
from tests.support.served_products import K, N, Served, by_kind, example

LEADS = ((), (5,), (2, 3), (1, 2, 2), (0,), (2, 0))


@by_dtype
@by_kind
def test_the_rule_bit_for_bit(kind: str, dtype: torch.dtype, device: str) -> None:
    served = Served(kind, dtype, device)
    for lead in LEADS:
        x, dy = example(served, lead)
        y = served(x)
        with torch.no_grad():
            assert torch.equal(y, served(x)), "recording changes no value"
        (dx,) = torch.autograd.grad(y, x, dy)
        assert dx.dtype == dtype and dx.shape == x.shape
        assert torch.equal(dx, served.rule(x, dy)), f"{lead}"
        (same,) = torch.autograd.grad(served.call(reference, x), x, dy)
        assert torch.equal(dx, same), f"the reference, {lead}"
        ratio = served.inside(x).float().mean().item() if x.numel() else 0.5
        assert ratio == 1 if kind == "symmetric" and x.numel() else 0 < ratio < 1


# --- the mask ------------------------------------------------------------------------------------


@by_dtype
@pytest.mark.parametrize("smooth", (False, True), ids=("plain", "smooth"))
@pytest.mark.parametrize("point", (None, 3), ids=("symmetric", "shifted"))
def test_mask_at_the_ends(point: int | None, smooth: bool, dtype: torch.dtype, device: str) -> None:
    """Both ends are inside, ties go to the even integer, NaN and infinities are outside."""
    z, low, high = point or 0, -8, 7
    steps = [low - z - 1, low - z - 0.5, low - z, high - z, high - z + 0.5, high - z + 1, 0, 0.5]
    steps += [torch.nan, torch.inf, -torch.inf]
    # -8.5 rounds to -8 and 7.5 to 8; shifted, -11.5 to -12 and 4.5 to 4
    tie_low, tie_high = (True, False) if point is None else (False, True)
    expected = [False, tie_low, True, True, tie_high, False, True, True, False, False, False]
    compute = cases.compute_dtype(dtype)
    x = (torch.tensor(steps, dtype=torch.float64) * 0.25).to(device, dtype)[None].requires_grad_()
    k, scale = len(steps), torch.tensor(0.25, dtype=compute, device=device)
    options: dict[str, Any] = {"quant_min": low, "quant_max": high}
    if point is not None:
        options["act_zero_point"] = torch.tensor([point], device=device)
    if smooth:
        options["smooth_scale"] = scale.expand(k)
    weight = torch.ones(1, k, dtype=torch.int8, device=device)
    y = ops.static_quantized_linear(x, weight, scale.expand(1), scale, **options)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
    assert (dx[0] == 0.25).tolist() == expected
    assert (dx[0] == 0).tolist() == [not e for e in expected]
    # A select: no NaN from what comes in.
    (dx,) = torch.autograd.grad(y, x, torch.full_like(y, torch.inf))
    assert (dx[0] == torch.inf).tolist() == expected and (dx[0] == 0).sum() == expected.count(False)


@by_kind
@pytest.mark.parametrize("k", (1, 7, 8, 9, 33))
def test_masks_of_every_length(k: int, kind: str, device: str) -> None:
    """Eight bits to a byte, over the rows of a matrix that need not fill it."""
    served = Served(kind, torch.float32, device, k=k)
    for lead in ((1,), (3,), (2, 5)):
        x, dy = example(served, lead, seed=k)
        (dx,) = torch.autograd.grad(served(x), x, dy)
        assert torch.equal(dx, served.rule(x, dy))


@by_kind
@pytest.mark.parametrize("layout", ("transposed", "stepped", "padded", "swapped"))
def test_layouts(layout: str, kind: str, device: str) -> None:
    served = Served(kind, torch.float32, device)
    x, dy = example(served, (4, 6))
    expected = served.rule(x, dy)
    x, dy = (cases.LAYOUTS[layout](t.detach()) for t in (x, dy))
    (dx,) = torch.autograd.grad(served(x.requires_grad_()), x, dy)
    torch.testing.assert_close(dx, expected)
    assert torch.equal(dx == 0, expected == 0)
    (dx,) = torch.autograd.grad(served(x).sum(), x)  # an incoming gradient without strides
    torch.testing.assert_close(dx, served.rule(x, torch.ones_like(dy)))


def test_poison_in_the_gradient_stays_visible(device: str) -> None:
    served = Served("static", torch.float32, device)
    x, dy = example(served)
    dy[2, 3], dy[3, 3] = torch.nan, torch.inf
    (dx,) = torch.autograd.grad(served(x), x, dy)
    inside = served.inside(x)
    assert dx[2].isnan().equal(inside[2]) and (~dx[3].isfinite()).equal(inside[3])
    assert dx[[0, 1, 4]].isfinite().all()


# --- twice ---------------------------------------------------------------------------------------


@by_kind
def test_double_backward(kind: str, device: str) -> None:
    """dx is linear in dy, and constant in x."""
    served = Served(kind, torch.float64, device)
    x, dy = example(served, (2, 3))
    dy.requires_grad_()
    y = served(x)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    weights = torch.randn(dx.shape, generator=cases.generator(5), dtype=torch.float64).to(device)
    of_dy, of_x = torch.autograd.grad(dx, (dy, x), weights, allow_unused=True)
    expected = torch.autograd.grad(served.rule(x, dy), dy, weights)[0]
    torch.testing.assert_close(of_dy, expected)
    assert of_x is None or not of_x.any()


# --- what is kept, and when ----------------------------------------------------------------------


@by_dtype
@by_kind
def test_memory_held(kind: str, dtype: torch.dtype, device: str) -> None:
    """The layer's own tensors, at no cost, and a bit per element where the range clips."""
    served = Served(kind, dtype, device)
    x, _ = example(served, (4,))
    own = (served.weight, served.weight_scale, served.act_scale, served.smooth_scale)
    addresses = {t.data_ptr() for t in own}
    with saved_tensors() as kept:
        served(x)
    others = [t for t in kept if t.data_ptr() not in addresses]
    bits = [] if kind == "symmetric" else [(torch.uint8, 4 * K // 8)]
    assert [(t.dtype, t.numel()) for t in others] == bits


@by_kind
def test_nothing_is_recorded_without_need(kind: str, device: str) -> None:
    served = Served(kind, torch.float32, device)
    x, dy = example(served)
    bias = torch.randn(N, device=device, requires_grad=True)
    with saved_tensors() as kept:
        assert not served(x.detach()).requires_grad
        with torch.no_grad():
            assert not served(x, bias).requires_grad
        with torch.inference_mode():
            assert not served(x, bias).requires_grad
        y = served(x.detach(), bias)
    assert not kept, "the bias needs nothing"
    (db,) = torch.autograd.grad(y, bias, dy)
    torch.testing.assert_close(db, dy.sum(0))


@by_kind
def test_the_bias_gets_its_gradient(kind: str, device: str) -> None:
    """In its own dtype; of ops whose input is integers too."""
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32)):
        served = Served(kind, dtype, device)
        x, dy = example(served, (2, 3))
        for bias_dtype in {dtype, wide}:
            bias = torch.randn(N, device=device, dtype=bias_dtype, requires_grad=True)
            y = served(x, bias)
            dx, db = torch.autograd.grad(y, (x, bias), dy)
            assert torch.equal(dx, served.rule(x, dy)) and db.dtype == bias_dtype
            assert torch.equal(db, dy.reshape(-1, N).sum(0, dtype=bias_dtype))


def integer_calls(device: str) -> dict[str, Callable[..., Tensor]]:
    """The ops whose input is integers, as functions of scales and bias."""
    q = integers((3, K), torch.int8, "random").to(device)
    w = integers((N, K), torch.int8, "random", 1).to(device)
    return {
        "int8_linear": lambda s, sw, b=None: ops.int8_linear(q, w, s, sw, b),
        "smoothquant_linear": lambda s, sw, b=None: ops.smoothquant_linear(q, w, sw, s, b),
        "number": lambda s, sw, b=None: ops.smoothquant_linear(q, w, sw, 0.25, b),
    }


@pytest.mark.parametrize("name", ("int8_linear", "smoothquant_linear", "number"))
def test_integers_carry_none_but_the_bias_does(name: str, device: str) -> None:
    call = integer_calls(device)[name]
    s, sw = torch.tensor(0.5, device=device), torch.ones(N, device=device)
    assert not call(s, sw).requires_grad
    bias = torch.randn(N, device=device, requires_grad=True)
    y = call(s, sw, bias)
    assert torch.equal(y, call(s, sw, bias.detach()))
    dy = torch.randn_like(y)
    (db,) = torch.autograd.grad(y, bias, dy)
    assert torch.equal(db, dy.sum(0))
    y = call(s, sw, bias)
    y += 1  # the output is a tensor of its own, not a view
    (db,) = torch.autograd.grad(y.square().sum(), bias)
    torch.testing.assert_close(db, 2 * y.detach().sum(0))


def test_a_tangent_of_the_input_is_refused(device: str) -> None:
    served = Served("static_shifted", torch.float32, device)
    x, _ = example(served)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        with pytest.raises((NotImplementedError, RuntimeError), match="jvp is not implemented"):
            served(dual)
