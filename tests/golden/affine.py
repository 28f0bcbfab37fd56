# SPDX-License-Identifier: BSD-3-Clause
"""The affine family: each direction and gradient, by every granularity, dtype and layout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tests.golden import values
from tests.golden.values import Case, Shape
from tests.support import cases
from tests.support.cases import Granularity, name_of

RANGE = (-100, 90)
VERBS = ("fake_quantize", "quantize", "dequantize", "public_backward", "learned", "point_less")


class Inputs:
    """The tensors of one case on a device, of which `x` is in a layout."""

    def __init__(
        self, g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
    ) -> None:
        self.shape, self.compute, self.device = shape, cases.compute_dtype(dtype), device
        self.params = g.param_shape(shape)
        scale = values.scales(self.params, self.compute, 1)
        full = values.expanded_scale(g, shape, self.compute, 1)
        x = values.adversarial(full, dtype, 2)
        if scale.numel() > 20:  # some segments have a scale that nobody should pass
            odd = cases.special_scales(self.compute)
            count = min(len(odd), scale.numel() // 2)
            scale.view(-1)[:count] = odd[:count]
        self.x = values.lay_out(x.to(device), layout)
        self.scale = scale.to(device)
        self.point = values.zero_points(self.params, RANGE, 3).to(device)
        self.grad = partial(self._grad, shape)

    def _grad(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        return values.gradients(shape, dtype, 4).to(self.device)


def gradient(y: Tensor, leaf: Tensor, dy: Tensor) -> Tensor:
    return torch.autograd.grad(y, leaf, dy)[0]


def fake_quantize(
    g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """With its gradient, whatever is kept for it."""
    given, found = Inputs(g, shape, layout, dtype, device), []
    for save_mask in (None, True, False):
        leaf = given.x.detach().requires_grad_()
        # A product with 1 is nobody's else, and so nothing but the op keeps it.
        for x in (leaf, leaf * 1):
            args = (x, given.scale, given.point, *g.args, *RANGE)
            y = g.op("fake_quantize")(*args, save_mask=save_mask)
            found += [y, gradient(y, leaf, given.grad(dtype))]
    return tuple(found)


def quantize(
    g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """To each dtype; the floating ones with a gradient."""
    given, found = Inputs(g, shape, layout, dtype, device), []
    for output in cases.QUANTIZED_DTYPES:
        ends = (0, 100) if output == torch.uint8 else RANGE
        args = (given.scale, given.point, *g.args, *ends)
        if not output.is_floating_point:
            found.append(g.op("quantize")(given.x, *args, dtype=output))
            continue
        for save_mask in (True, False):
            leaf = given.x.detach().requires_grad_()
            y = g.op("quantize")(leaf, *args, dtype=output, save_mask=save_mask)
            found += [y, gradient(y, leaf, given.grad(output))]
    return tuple(found)


def dequantize(
    g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """To `dtype`, from each dtype; the floating ones with a gradient."""
    given, found = Inputs(g, shape, layout, dtype, device), []
    for kind in cases.QUANTIZED_DTYPES:
        if kind.is_floating_point:
            q = values.adversarial(torch.ones(shape).double(), kind, 5)
        else:
            q = values.integers(shape, *cases.default_range(kind), 5, kind)
        leaf = values.lay_out(q.to(device), layout).requires_grad_(kind.is_floating_point)
        y = g.op("dequantize")(leaf, given.scale, given.point, *g.args, dtype=dtype)
        found.append(y)
        if kind.is_floating_point:
            found.append(gradient(y, leaf, given.grad(dtype)))
    return tuple(found)


def public_backward(
    g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """The ops that are gradients themselves."""
    given = Inputs(g, shape, layout, dtype, device)
    params, found = (given.scale, given.point, *g.args), []
    for output in cases.FLOAT_DTYPES:
        dy = values.lay_out(given.grad(output), layout)
        found.append(g.op("quantize_backward")(dy, given.x, *params, *RANGE))
        found.append(g.op("dequantize_backward")(dy, given.scale, *g.args, dtype=dtype))
    dy = values.lay_out(given.grad(dtype), layout)
    found.append(g.op("fake_quantize_backward")(dy, given.x, *params, *RANGE))
    return tuple(found)


def learned(
    g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """Gradients of the scale and of the zero point, by the op and by autograd."""
    given = Inputs(g, shape, layout, dtype, device)
    scale = values.scales(given.params, given.compute, 1).to(device)
    floating = (values.spread(given.params, 6) * 3).to(device, given.compute)
    dy = values.rounded(values.spread(shape, 7), dtype).to(device)
    found = []
    for point in (given.point, floating, None):
        op = g.op("fake_quantize_backward_qparams")
        found += op(dy, given.x, scale, point, *g.args, *RANGE)
    leaves = [t.detach().requires_grad_() for t in (given.x, scale, floating)]
    y = g.op("fake_quantize")(*leaves, *g.args, *RANGE)
    return (*found, y, *torch.autograd.grad(y, leaves, dy))


def point_less(
    g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """Without a zero point, by the default range, and by the overloads for numbers."""
    given = Inputs(g, shape, layout, dtype, device)
    found = []
    for verb in ("fake_quantize", "quantize", "dequantize"):
        op = g.op(verb)
        found.append(op(given.x, given.scale, None, *g.args))
        if g == cases.PER_TENSOR:
            found += [op(given.x, s, z) for s in (0.1, given.scale) for z in (3, -7)]
            found.append(op(given.x, 0.1, None))
    for kind in (torch.int64, torch.int8, torch.uint8, torch.int16):
        point = values.integers(given.params, 0, 90, 8, kind).to(device)
        found.append(g.op("fake_quantize")(given.x, given.scale, point, *g.args, -8, 7))
    return tuple(found)


CALLS = {f.__name__: f for f in (fake_quantize, quantize, dequantize, public_backward, learned)}
CALLS["point_less"] = point_less


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every call with inputs of a dtype."""
    for g in values.GRANULARITIES:
        for name, call in CALLS.items():
            for shape, layout in values.places(g):
                run = partial(call, g, shape, layout, dtype)
                title = f"{name} {g} {name_of(dtype)}"
                yield Case(title, f"{list(shape)} {layout}", run)
