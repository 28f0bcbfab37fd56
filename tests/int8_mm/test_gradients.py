# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of qat_linear: those of a float layer of fake-quantized tensors, once and twice."""

import itertools

import pytest
import torch
from torch import Tensor

from baraquant import ops
from baraquant.nn import FakeQuantizedLinear
from tests.int8_mm.exact_layers import ENDS, Layer, ends_of, exact_layer
from tests.support import cases
from tests.support.cases import PER_TOKEN
from tests.support.family_cases.int8_mm import clipped
from tests.support.marks import by_dtype, by_mode
from tests.support.oracle.range import Dynamic
from tests.support.saved_tensors import saved_tensors, storages

# --- integers, for which every order of summation is exact ---------------------------------------


EXACT = [
    (kind, dtype)
    for kind in ENDS
    for dtype in cases.FLOAT_DTYPES
    if (kind, dtype) != ("clipped", torch.bfloat16)
]
by_exact = pytest.mark.parametrize(("kind", "dtype"), EXACT)


@by_exact
def test_the_rule_bit_for_bit(kind: str, dtype: torch.dtype, device: str) -> None:
    sizes = [((3, 4), 9), ((1,), 5), ((), 3), ((16,), 16), ((2, 1, 3), 1)]
    if dtype in cases.SCALE_DTYPES:  # the others hold no such sums
        sizes += [((64,), 17), ((2, 3, 5), 31), ((129,), 130)]
    for lead, n in sizes:
        layer = exact_layer(kind, dtype, device, lead, n)
        dy = layer.dy.detach()
        gradients = torch.autograd.grad(layer.forward(), layer.leaves, dy)
        for got, expected, leaf in zip(gradients, layer.rule(), layer.leaves, strict=True):
            assert got.dtype == dtype and got.shape == leaf.shape
            assert torch.equal(got.cpu().double(), expected), f"{lead} {n}"
        x, weight, bias = layer.leaves
        options = {"symmetric": layer.symmetric, **layer.ranges}
        computed = ops.qat_linear(x, weight * 1, bias, **options)  # of which integers are kept
        for y in (layer.composed(), computed):
            others = torch.autograd.grad(y, layer.leaves, dy)
            assert all(map(torch.equal, gradients, others))


@pytest.mark.parametrize("kind", ("clipped", "narrow_clipped"))
def test_ends_are_masked(kind: str, device: str) -> None:
    """Or the asymmetric test above could not tell a mask from the identity."""
    layer = exact_layer(kind, torch.float32, device)
    mask = Dynamic(layer.x, PER_TOKEN, *ends_of(layer.ranges), symmetric=False).mask
    assert (~mask).sum() == 12
    (dx,) = torch.autograd.grad(layer.forward(), layer.x, torch.ones_like(layer.dy))
    assert not dx.cpu()[torch.from_numpy(~mask)].any()
    assert dx.cpu()[torch.from_numpy(mask)].count_nonzero() > 300


def second_derivatives(y: Tensor, layer: Layer) -> list[Tensor]:
    """Of x, weight, bias and dy in every gradient of x, weight and bias, one at a time."""
    wanted = (*layer.leaves, layer.dy)
    gradients = torch.autograd.grad(y, layer.leaves, layer.dy, create_graph=True)
    found: list[Tensor] = []
    for seed, gradient in enumerate(gradients):
        weights = torch.randint(-1, 2, gradient.shape, generator=cases.generator(seed + 7))
        weights = weights.to(gradient.device, gradient.dtype)
        again = torch.autograd.grad(gradient, wanted, weights, retain_graph=True, allow_unused=True)
        found += [
            torch.zeros_like(w) if t is None else t for t, w in zip(again, wanted, strict=True)
        ]
    return found


@by_exact
def test_double_backward(kind: str, dtype: torch.dtype, device: str) -> None:
    """The cross terms too: dx depends on the weight, and the weight's gradient on x."""
    for lead, n in (((3, 4), 9), ((), 3)):
        layer = exact_layer(kind, dtype, device, lead, n)
        actual = second_derivatives(layer.forward(), layer)
        expected = second_derivatives(layer.composed(), layer)
        names = [
            "/".join(pair) for pair in itertools.product(("dx", "dw", "db"), ("x", "w", "b", "dy"))
        ]
        for name, got, right in zip(names, actual, expected, strict=True):
            assert got.dtype == right.dtype and torch.equal(got, right), name
        moving = {name for name, right in zip(names, expected, strict=True) if right.any()}
        assert moving == {"dx/w", "dx/dy", "dw/x", "dw/dy", "db/dy"}


# --- any numbers ---------------------------------------------------------------------------------


POISON = {
    "input": lambda layer: layer.x[1, 5].fill_(torch.nan),
    "infinite input": lambda layer: layer.x[2, 0].fill_(-torch.inf),
    "weight": lambda layer: layer.weight[4, 4].fill_(torch.nan),
    "gradient": lambda layer: layer.dy[7, 0].fill_(torch.nan),
    "infinite gradient": lambda layer: layer.dy[6, 2].fill_(torch.inf),
}


@pytest.mark.parametrize("kind", ("symmetric", "clipped", "narrow", "narrow_clipped"))
@pytest.mark.parametrize("where", POISON)
def test_poison_stays_visible(where: str, kind: str, device: str) -> None:
    """NaN and infinities are where a float layer has them; rows of zeros among them."""
    layer = exact_layer(kind, torch.float32, device, (12,))
    with torch.no_grad():
        POISON[where](layer)
        layer.x[8], layer.weight[5] = 0, 0
    dy = layer.dy.detach()
    actual = torch.autograd.grad(layer.forward(), layer.leaves, dy)
    expected = torch.autograd.grad(layer.composed(), layer.leaves, dy)
    assert any(t.isnan().any() or t.isinf().any() for t in actual)
    assert any(t.isfinite().any() for t in actual)
    for got, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", ("contiguous", "transposed", "stepped", "expanded"))
@by_mode
def test_layouts(symmetric: bool, layout: str, device: str) -> None:
    """Of the input, the weight and the incoming gradient; the mask follows the input's rows."""
    plain = exact_layer("symmetric" if symmetric else "clipped", torch.float32, device, (12,))
    tensors = [t.detach() for t in (*plain.leaves, plain.dy)]
    if layout == "expanded":
        tensors[0], tensors[3] = (t[:1].expand_as(t).contiguous() for t in (tensors[0], tensors[3]))
    expected = Layer(*tensors, symmetric=symmetric).rule()
    make = cases.LAYOUTS[layout]
    x, weight, dy = (make(tensors[i]).detach() for i in (0, 1, 3))
    if layout == "expanded":
        weight = tensors[1]
    leaves = [t.requires_grad_() for t in (x, weight, tensors[2])]
    y = ops.qat_linear(*leaves, symmetric=symmetric)
    for got, right in zip(torch.autograd.grad(y, leaves, dy), expected, strict=True):
        assert torch.equal(got.cpu().double(), right)


# --- what is kept between forward and backward, and when; autocast -------------------------------

TOKENS, OUTPUTS, DEPTH = 6, 8, 32


def arguments(
    dtype: torch.dtype = torch.float32, device: str = "cpu", grads: str = "xwb"
) -> tuple[Tensor, Tensor, Tensor]:
    """Input (two leading dimensions), weight and bias; those that `grads` names require grad."""
    gen = cases.generator(1)
    x = clipped().reshape(2, 3, DEPTH).to(device, dtype)
    w = torch.randn(OUTPUTS, DEPTH, generator=gen, dtype=torch.float64).to(device, dtype)
    b = torch.randn(OUTPUTS, generator=gen, dtype=torch.float64).to(device, dtype)
    return (
        x.requires_grad_("x" in grads),
        w.requires_grad_("w" in grads),
        b.requires_grad_("b" in grads),
    )


@by_dtype
@by_mode
@pytest.mark.parametrize("parameter", [True, False], ids=["parameter", "computed"])
def test_memory_held(parameter: bool, symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """A byte per element, scales and zero points, and where asymmetric a bit per element.

    Of a parameter, which is alive anyway, the scales alone; of another weight its integers.
    """
    x, w, b = arguments(dtype, device)
    if not parameter:
        w = w * 1
    with saved_tensors() as kept:
        y = ops.qat_linear(x * 1, w, b, symmetric=symmetric)
    kept = [t for t in kept if t.dtype != x.dtype or t.shape != x.shape]  # of `x * 1`
    itself = [t for t in kept if t.data_ptr() == w.data_ptr()]
    assert len(itself) == parameter
    kept = [t for t in kept if t.data_ptr() != w.data_ptr()]
    scale = 8 if dtype == torch.float64 else 4
    expected = TOKENS * DEPTH + TOKENS * scale + OUTPUTS * scale
    if not parameter:
        expected += OUTPUTS * DEPTH
    if not symmetric:
        expected += TOKENS * 4 + TOKENS * DEPTH // 8
    assert sum(t.numel() * t.element_size() for t in kept) == expected
    if device == "cpu":
        assert sum(storages(kept).values()) == expected
    assert y.requires_grad


def test_a_compiled_layer_holds_no_copy_of_its_weight(device: str) -> None:
    """A parameter is no leaf while it is traced, but alive anyway all the same."""
    torch._dynamo.reset()
    layer = FakeQuantizedLinear(DEPTH, OUTPUTS).to(device)
    compiled = torch.compile(layer, backend="aot_eager_decomp_partition", fullgraph=True)
    x = arguments(device=device)[0]
    with saved_tensors() as kept:
        y = compiled(x)
    of_weight = [t for t in kept if t.shape == layer.weight.shape]
    assert [t.data_ptr() for t in of_weight] == [layer.weight.data_ptr()]
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, torch.autograd.grad(layer(x).sum(), x)[0])


WANTED = {
    "x": (torch.float32, (OUTPUTS, DEPTH)),  # needs the weight, which is alive anyway
    "w": (torch.int8, (2, 3, DEPTH)),  # needs the input
    "b": None,
}


@pytest.mark.parametrize("wanted", WANTED)
@by_mode
def test_only_what_is_wanted_is_kept(symmetric: bool, wanted: str, device: str) -> None:
    tensors = arguments(device=device, grads=wanted)
    with saved_tensors() as kept:
        ops.qat_linear(*tensors, symmetric=symmetric)
    matrices = [(t.dtype, tuple(t.shape)) for t in kept if t.shape[-1:] == (DEPTH,)]
    assert matrices == ([WANTED[wanted]] if WANTED[wanted] else [])
