# SPDX-License-Identifier: BSD-3-Clause
"""Per tensor, scale and zero point as numbers: either, both, or none of them; the same bits."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.marks import by_dtype

by_verb = pytest.mark.parametrize("verb", ("quantize", "dequantize", "fake_quantize"))
SCALE, POINT = 0.02, 3


def values(verb: str, dtype: torch.dtype, device: str) -> Tensor:
    x = cases.adversarial(torch.full((3, 50), SCALE), dtype).to(device)
    return torch.arange(-128, 128, device=device).to(torch.int8) if verb == "dequantize" else x


def tensors(verb: str, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The full form: scale and zero point as tensors."""
    compute = torch.float32 if verb == "dequantize" else cases.compute_dtype(dtype)
    scale = torch.tensor(SCALE, dtype=compute, device=device)
    return scale, torch.tensor(POINT, dtype=torch.int32, device=device)


def forms(scale: Tensor) -> list[tuple[tuple[Any, Any], int]]:
    """Scale and zero point as one may type them, and which zero point that is."""
    one = scale.reshape(1)
    given = ((scale, POINT), (one, POINT), (scale, 0), (scale, -2), (SCALE, POINT))
    return [(pair, pair[1] or 0) for pair in (*given, (SCALE, None), (scale, None))]


@by_verb
@by_dtype
def test_every_form_has_the_bits_of_the_full_one(
    verb: str, dtype: torch.dtype, device: str
) -> None:
    """Of baraquant.ops, torch.ops, by keyword, and of the specification."""
    name = f"{verb}_per_tensor"
    x, (scale, point) = values(verb, dtype, device), tensors(verb, dtype, device)
    function, packet = getattr(ops, name), getattr(torch.ops.baraquant, name)
    for given, zero in forms(scale):
        expected = packet.default(x, scale, point.new_full((), zero))
        assert_same_bits(function(x, *given), expected, f"{given}")
        assert_same_bits(packet(x, *given), expected, f"torch.ops {given}")
        assert_same_bits(function(x, scale=given[0], zero_point=given[1]), expected, f"{given}")
        assert_same_bits(getattr(reference, name)(x, *given), expected, f"reference {given}")
    assert_same_bits(packet(x, scale, point), packet.default(x, scale, point))


@by_dtype
@pytest.mark.parametrize("save_mask", [None, True, False])
def test_a_learned_scale_keeps_its_gradient(
    save_mask: bool | None, dtype: torch.dtype, device: str
) -> None:
    x = values("fake_quantize", dtype, device).nan_to_num().requires_grad_()
    scale, point = tensors("fake_quantize", dtype, device)
    found = []
    for zero_point in (point, POINT):
        leaf = scale.clone().requires_grad_()
        y = ops.fake_quantize_per_tensor(x, leaf, zero_point, save_mask=save_mask)
        found.append((y, *torch.autograd.grad(y, (x, leaf), torch.ones_like(y))))
    assert_all_same(found[1], found[0])
    assert found[1][2].isfinite() and found[1][2] != 0


@by_verb
def test_gradient_of_the_input(verb: str, device: str) -> None:
    x = torch.randn(40, generator=cases.generator(1)).to(device).requires_grad_()
    scale, point = tensors(verb, torch.float32, device)
    kwargs = {"dtype": torch.float32} if verb == "quantize" else {}
    function = getattr(ops, f"{verb}_per_tensor")
    for given, zero in forms(scale):
        grads = [
            torch.autograd.grad(function(x, *args, **kwargs).sum(), x)[0]
            for args in ((scale, point.new_full((), zero)), given)
        ]
        assert_same_bits(grads[1], grads[0], f"{given}")


@by_verb
def test_opcheck(verb: str, device: str) -> None:
    packet = getattr(torch.ops.baraquant, f"{verb}_per_tensor")
    x, (scale, _) = torch.randn(3, 9, device=device), tensors(verb, torch.float32, device)
    torch.library.opcheck(packet.scale_tensor, (x, scale, POINT))
    torch.library.opcheck(packet.number, (x, SCALE, None))
    if verb == "fake_quantize":
        leaves = x.requires_grad_(), scale.requires_grad_()
        torch.library.opcheck(packet.scale_tensor, (*leaves, POINT))


@by_verb
def test_vmap_with_a_scale_of_each_sample(verb: str, device: str) -> None:
    x = values(verb, torch.float32, device).reshape(-1)[: 6 * 8].reshape(6, 8)
    scales = torch.linspace(0.01, 0.5, 6, device=device)
    function = getattr(ops, f"{verb}_per_tensor")
    got = torch.vmap(lambda a, s: function(a, s, POINT))(x, scales)
    right = torch.stack([function(a, s, POINT) for a, s in zip(x, scales, strict=True)])
    assert_same_bits(got, right)


@by_verb
def test_zero_points_that_do_not_fit(verb: str, any_device: str) -> None:
    """As a number it has to lie in the range: 0 too, where one writes it."""
    x, scale = torch.ones(3, device=any_device), torch.tensor(SCALE, device=any_device)
    function = getattr(ops, f"{verb}_per_tensor")
    for first, zero in itertools.product((scale, SCALE), (128, -129, 2**31, -(2**63))):
        if verb == "dequantize" and abs(zero) < 2**31:
            continue
        limits = "fit in 32 bits" if verb == "dequantize" else r"lie in \[-128, 127\]"
        message = rf"^baraquant::{verb}_per_tensor: expected zero_point to {limits}.* got {zero}$"
        with pytest.raises(ValueError, match=message):
            function(x, first, zero)
    if verb != "dequantize":
        with pytest.raises(ValueError, match=r"expected zero_point to lie in \[3, 9\] .* got 0$"):
            function(x, scale, 0, 3, 9)
        assert function(x, scale, None, 3, 9).shape == x.shape
    for wrong in ("0", 0.5, [0]):
        with pytest.raises((TypeError, RuntimeError), match=r"zero_point|match any schema"):
            function(x, scale, wrong)
