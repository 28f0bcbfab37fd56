# SPDX-License-Identifier: BSD-3-Clause
"""Grouped products: the bits of the op for one weight, group by group; gradients; tools."""

from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import call, moved
from tests.support.family_cases import grouped
from tests.support.family_cases.grouped import SIZES, Grouped, floating, integer_weight, one_weight
from tests.support.marks import by_dtype, by_mode

OPS = ("int8_grouped_linear", "quantized_grouped_linear", "qat_grouped_linear")
by_case = pytest.mark.parametrize("case", grouped.CASES, ids=str)
by_sizes = pytest.mark.parametrize("sizes", SIZES)

# --- values --------------------------------------------------------------------------------------


@by_case
def test_bits_of_the_op_for_one_weight(case: Grouped, device: str) -> None:
    arguments = case.arguments()
    got = call("int8_grouped_linear", arguments, device)
    assert got.shape == (case.rows, case.n) and got.dtype == case.dtype and got.is_contiguous()
    assert_same_bits(got.cpu(), one_weight("int8_grouped_linear", arguments), str(case))


@by_sizes
@by_dtype
@by_mode
def test_quantized_on_the_fly(sizes: str, dtype: torch.dtype, symmetric: bool, device: str) -> None:
    """Bits of the op for one weight; what is trained is what is served."""
    trained = floating(sizes, dtype) | {"symmetric": symmetric}
    served = integer_weight(trained)
    expected = one_weight("quantized_grouped_linear", served)
    assert_same_bits(call(OPS[1], served, device).cpu(), expected)
    assert_same_bits(call(OPS[2], trained, device).cpu(), expected)
    assert_same_bits(one_weight(OPS[2], trained), expected)
    assert_same_bits(reference.quantized_grouped_linear(**served), expected)
    assert_same_bits(reference.qat_grouped_linear(**trained), expected)


# --- gradients -----------------------------------------------------------------------------------


def gradients(name: str, arguments: dict[str, Any], is_grouped: bool) -> list[Tensor]:
    names = ("input", "bias", *(("weight",) if name == OPS[2] else ()))
    given = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    leaves = [given[key].requires_grad_() for key in names]
    y = call(name, given, given["input"].device.type) if is_grouped else one_weight(name, given)
    if not y.requires_grad:  # no group has rows
        return [torch.zeros_like(leaf) for leaf in leaves]
    dy = torch.randn(y.shape, generator=cases.generator(1), dtype=torch.float64)
    return list(torch.autograd.grad(y, leaves, dy.to(y.device, y.dtype), allow_unused=True))


@by_sizes
@by_dtype
@by_mode
@pytest.mark.parametrize("name", OPS[1:])
def test_gradients_of_each_group(
    name: str, sizes: str, dtype: torch.dtype, symmetric: bool, device: str
) -> None:
    """Those of the op for one weight; of what no group has, 0."""
    arguments = floating(sizes, dtype) | {"symmetric": symmetric}
    if name == OPS[1]:
        arguments = integer_weight(arguments)
    expected = gradients(name, arguments, is_grouped=False)
    got = gradients(name, moved(arguments, device), is_grouped=True)
    tolerance = {"rtol": 0.05, "atol": 0.2} if dtype.itemsize == 2 else {"rtol": 1e-3, "atol": 1e-3}
    for mine, right in zip(got, expected, strict=True):
        assert mine.dtype == right.dtype
        torch.testing.assert_close(mine.cpu(), right, **tolerance)


def test_differentiable_twice(device: str) -> None:
    """As the op for one weight is: the derivative of a gradient's square."""
    arguments = floating("empty_at_the_ends", torch.float64, n=5, k=7)
    results = []
    for is_grouped in (True, False):
        given = moved(arguments, device)
        leaves = [given[k].requires_grad_() for k in ("input", "weight", "bias")]
        y = call(OPS[2], given, device) if is_grouped else one_weight(OPS[2], given, device)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        total = sum(g.square().sum() for g in first)
        results.append(torch.autograd.grad(total, leaves))
    torch.testing.assert_close(*results)


def test_the_bias_of_integers_gets_its_gradient(device: str) -> None:
    given = moved(Grouped("uneven").arguments(), device)
    bias = given["bias"].requires_grad_()
    dy = torch.randn(221, 24, device=device)
    (db,) = torch.autograd.grad(ops.int8_grouped_linear(**given), bias, dy)
    parts = torch.tensor_split(dy, given["offsets"].cpu()[:-1].long())
    torch.testing.assert_close(db, torch.stack([part.sum(0) for part in parts]))


# --- PyTorch -------------------------------------------------------------------------------------


def call_of(name: str) -> tuple[Any, dict[str, Any]]:
    arguments = floating("uneven", torch.float32, seed=3)
    if name == OPS[0]:
        arguments = Grouped("uneven", zero_point="token").arguments()
    elif name == OPS[1]:
        arguments = integer_weight(arguments)
    return getattr(torch.ops.baraquant, name).default, arguments


@pytest.mark.inductor
@pytest.mark.parametrize("name", OPS)
def test_compiles(name: str, device: str) -> None:
    """Forward and backward in whole graphs; sizes of groups that change compile nothing anew."""
    torch._dynamo.reset()
    _, arguments = call_of(name)
    learned = {OPS[0]: "bias"}.get(name, "input")
    function = getattr(ops, name)
    compiled = torch.compile(lambda **given: function(**given).square(), fullgraph=True)
    for sizes in ((3, 0, 70, 1, 130, 17), (0, 21, 100, 0, 50, 40)):
        given = moved(arguments | {"offsets": grouped.ends(sizes)}, device)
        leaf = given[learned].requires_grad_()
        y, right = compiled(**given), function(**given).square()
        assert_same_bits(y.detach().cpu(), right.detach().cpu())
        torch.testing.assert_close(
            torch.autograd.grad(y.sum(), leaf), torch.autograd.grad(right.sum(), leaf)
        )


def test_autocast_lowers_the_input(device: str) -> None:
    given = moved(floating("uneven", torch.float32), device)
    lowered = given | {"input": given["input"].bfloat16()}  # the weights keep their integers
    with torch.autocast(device, dtype=torch.bfloat16):
        y = ops.qat_grouped_linear(**given)
    assert_same_bits(y.cpu(), ops.qat_grouped_linear(**lowered).cpu())


def test_plan(device: str) -> None:
    """The product's kernel, also with offsets that are not known yet; what is refused says so."""
    given = moved(Grouped("uneven", k=64).arguments(), device)
    given["offsets"] = torch.full_like(given["offsets"], 10**9)
    (kernel,) = baraquant.plan("int8_grouped_linear", **given)
    assert kernel.backend == device and kernel.accumulator_dtype == "int32"
    assert kernel.bit_stable and kernel.deterministic
    assert baraquant.can_implement("int8_grouped_linear", **given).ok
    given["offsets"] = given["offsets"].long()
    ok, kind, reason = baraquant.can_implement("int8_grouped_linear", **given)
    assert (ok, kind) == (False, "TypeError") and "expected offsets to be torch.int32" in reason


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name: str, device: str) -> None:
    op, arguments = call_of(name)
    given = moved(arguments, device)
    given["input"].requires_grad_(name != OPS[0])
    torch.library.opcheck(op, (), given)


def test_vmap_is_refused() -> None:
    x, offsets = torch.ones(2, 3, 4), torch.tensor([3], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"qat_grouped_linear: torch\.vmap over input is"):
        torch.vmap(lambda t: ops.qat_grouped_linear(t, torch.ones(1, 2, 4), offsets))(x)
