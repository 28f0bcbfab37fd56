# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of qat_linear: those of a float layer of fake-quantized tensors, once and twice."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from baraquant import ops, reference
from baraquant.nn import FakeQuantizedLinear
from tests.support import cases
from tests.support.cases import PER_TOKEN, per_channel
from tests.support.family_cases.int8_mm import clipped
from tests.support.marks import by_dtype, by_mode
from tests.support.oracle.range import Dynamic
from tests.support.saved_tensors import saved_tensors, storages

# --- layers of whole numbers, for which every order of summation is exact ------------------------


# Three bits of the weight, four of the input.
NARROW = {"weight_quant_min": -4, "weight_quant_max": 3, "quant_min": -8, "quant_max": 7}


def ends_of(ranges: dict[str, int], prefix: str = "") -> tuple[int, int]:
    return ranges.get(f"{prefix}quant_min", -128), ranges.get(f"{prefix}quant_max", 127)


def whole_rows(
    rows: int, width: int, dtype: torch.dtype, ends: tuple[float, float], seed: int
) -> Tensor:
    """Small numbers near whole ones, and in each row the ends of a range whose scale is 1.

    The ends lie elsewhere in each row, so that a sum over rows has few large terms.
    """
    lowest = -1 if ends[0] > -2 else -2
    gen = cases.generator(seed)
    small = torch.randint(lowest, 3, (rows, width), generator=gen).to(dtype)
    small += torch.randint(-1, 2, (rows, width), generator=gen).to(dtype) / 4
    for row in range(rows):
        small[row, (2 * row) % width], small[row, (2 * row + 1) % width] = ends
    return small


# 253.5 is rounded up beyond the range: its gradient is masked. bfloat16 does not have it. So is
# 13.5, in four bits.
ENDS = {"symmetric": (-127.0, 127.0), "whole": (-60.0, 195.0), "clipped": (-1.5, 253.5)}
ENDS |= {"narrow": (-7.0, 7.0), "narrow_clipped": (-1.5, 13.5)}


@dataclass
class Layer:
    """Leaves of one layer, an incoming gradient, and the fake-quantized tensors and mask."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    dy: Tensor
    symmetric: bool
    ranges: dict[str, int] = field(default_factory=dict)

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.weight, self.bias

    def forward(self, module: Any = ops, factor: float | None = None) -> Tensor:
        """With a factor the weight is computed: its integers are kept."""
        weight = self.weight if factor is None else self.weight * factor
        options = {"symmetric": self.symmetric, **self.ranges}
        result: Tensor = module.qat_linear(self.x, weight, self.bias, **options)
        return result

    def composed(self) -> Tensor:
        """The same in the ops of the range family and a float product."""
        of_x, of_w = ends_of(self.ranges), ends_of(self.ranges, "weight_")
        x = ops.dynamic_fake_quantize_per_token(self.x, *of_x, symmetric=self.symmetric)
        weight = ops.dynamic_fake_quantize_per_channel(self.weight, 0, *of_w)
        return linear(x, weight, self.bias)

    def rule(self) -> tuple[Tensor, Tensor, Tensor]:
        """The analytic gradients, in float64 on the CPU."""
        of_x = Dynamic(self.x, PER_TOKEN, *ends_of(self.ranges), symmetric=self.symmetric)
        of_w = Dynamic(self.weight, per_channel(0), *ends_of(self.ranges, "weight_"))
        fake_x, fake_w = (
            torch.from_numpy(rule.fake_quantize().copy()).double() for rule in (of_x, of_w)
        )
        dy = self.dy.detach().cpu().double()
        rows = dy.reshape(dy.shape[:-1].numel(), dy.shape[-1])
        dx = dy @ fake_w
        if not self.symmetric:
            dx = torch.where(torch.from_numpy(of_x.mask), dx, 0.0)
        dw = rows.T @ fake_x.reshape(len(rows), fake_x.shape[-1])
        return dx, dw, rows.sum(0)


def exact_layer(
    kind: str, dtype: torch.dtype, device: str, lead: tuple[int, ...] = (3, 4), n: int = 9
) -> Layer:
    rows, k = int(torch.tensor(lead).prod()), 32
    x = whole_rows(rows, k, dtype, ENDS[kind], 1).view(*lead, k)
    ranges = NARROW if kind.startswith("narrow") else {}
    limit = float(ends_of(ranges, "weight_")[1])
    weight = whole_rows(n, k, dtype, (-limit, limit), 2)
    gen = cases.generator(3)
    bias, dy = (torch.randint(-1, 2, s, generator=gen).to(dtype) for s in ((n,), (*lead, n)))
    made = (t.to(device).requires_grad_() for t in (x, weight, bias, dy))
    return Layer(*made, symmetric=kind in ("symmetric", "narrow"), ranges=ranges)


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
        for y in (layer.composed(), layer.forward(factor=1), layer.forward(reference)):
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
        pairs = zip(again, wanted, strict=True)
        found += [torch.zeros_like(w) if t is None else t for t, w in pairs]
    return found


@by_exact
def test_double_backward(kind: str, dtype: torch.dtype, device: str) -> None:
    """The cross terms too: dx depends on the weight, and the weight's gradient on x."""
    for lead, n in (((3, 4), 9), ((), 3)):
        layer = exact_layer(kind, dtype, device, lead, n)
        actual = second_derivatives(layer.forward(), layer)
        expected = second_derivatives(layer.composed(), layer)
        pairs = itertools.product(("dx", "dw", "db"), ("x", "w", "b", "dy"))
        names = ["/".join(pair) for pair in pairs]
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
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


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
    for name, tensor in (("x", x), ("w", w), ("b", b)):
        tensor.requires_grad_(name in grads)
    return x, w, b


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
    "x": [(torch.float32, (OUTPUTS, DEPTH))],  # needs the weight, which is alive anyway
    "w": [(torch.int8, (2, 3, DEPTH))],  # needs the input
    "b": [],
}


@pytest.mark.parametrize("wanted", WANTED)
@by_mode
def test_only_what_is_wanted_is_kept(symmetric: bool, wanted: str, device: str) -> None:
    tensors = arguments(device=device, grads=wanted)
    with saved_tensors() as kept:
        ops.qat_linear(*tensors, symmetric=symmetric)
    matrices = [(t.dtype, tuple(t.shape)) for t in kept if t.shape[-1:] == (DEPTH,)]
    assert matrices == WANTED[wanted]


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
