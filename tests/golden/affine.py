# SPDX-License-Identifier: BSD-3-Clause
"""The affine family: each direction and gradient, by every granularity, dtype and layout."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tests.golden import values
from tests.golden.values import Case, Shape
from tests.support import cases
from tests.support.cases import Granularity, name_of

RANGE = (-100, 90)


class Inputs:
    """The tensors of one case on a device, of which `x` is in a layout."""

    def __init__(
        self, g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
    ) -> None:
        self.g, self.shape, self.layout, self.dtype = g, shape, layout, dtype
        self.compute, self.device = cases.compute_dtype(dtype), device
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

    def grad(self, dtype: torch.dtype) -> Tensor:
        return values.gradients(self.shape, dtype, 4).to(self.device)


def gradient(y: Tensor, leaf: Tensor, dy: Tensor) -> Tensor:
    return torch.autograd.grad(y, leaf, dy)[0]


def fake_quantize(given: Inputs) -> Iterator[Tensor]:
    """With its gradient, whatever is kept for it."""
    for save_mask in (None, True, False):
        leaf = given.x.detach().requires_grad_()
        # A product with 1 is nobody's else, and so nothing but the op keeps it.
        for x in (leaf, leaf * 1):
            args = (x, given.scale, given.point, *given.g.args, *RANGE)
            y = given.g.op("fake_quantize")(*args, save_mask=save_mask)
            yield from (y, gradient(y, leaf, given.grad(given.dtype)))


def quantize(given: Inputs) -> Iterator[Tensor]:
    """To each dtype; the floating ones with a gradient."""
    for output in cases.QUANTIZED_DTYPES:
        ends = (0, 100) if output == torch.uint8 else RANGE
        args = (given.scale, given.point, *given.g.args, *ends)
        if not output.is_floating_point:
            yield given.g.op("quantize")(given.x, *args, dtype=output)
            continue
        for save_mask in (True, False):
            leaf = given.x.detach().requires_grad_()
            y = given.g.op("quantize")(leaf, *args, dtype=output, save_mask=save_mask)
            yield from (y, gradient(y, leaf, given.grad(output)))


def dequantize(given: Inputs) -> Iterator[Tensor]:
    """To the dtype, from each dtype; the floating ones with a gradient."""
    for kind in cases.QUANTIZED_DTYPES:
        if kind.is_floating_point:
            q = values.adversarial(torch.ones(given.shape).double(), kind, 5)
        else:
            q = values.integers(given.shape, *cases.default_range(kind), 5, kind)
        leaf = values.lay_out(q.to(given.device), given.layout).requires_grad_(
            kind.is_floating_point
        )
        y = given.g.op("dequantize")(
            leaf, given.scale, given.point, *given.g.args, dtype=given.dtype
        )
        yield y
        if kind.is_floating_point:
            yield gradient(y, leaf, given.grad(given.dtype))


def public_backward(given: Inputs) -> Iterator[Tensor]:
    """The ops that are gradients themselves."""
    params = (given.scale, given.point, *given.g.args)
    for output in cases.FLOAT_DTYPES:
        dy = values.lay_out(given.grad(output), given.layout)
        yield given.g.op("quantize_backward")(dy, given.x, *params, *RANGE)
        yield given.g.op("dequantize_backward")(dy, given.scale, *given.g.args, dtype=given.dtype)
    dy = values.lay_out(given.grad(given.dtype), given.layout)
    yield given.g.op("fake_quantize_backward")(dy, given.x, *params, *RANGE)


def learned(given: Inputs) -> Iterator[Tensor]:
    """Gradients of the scale and of the zero point, by the op and by autograd."""
    scale = values.scales(given.params, given.compute, 1).to(given.device)
    floating = (values.spread(given.params, 6) * 3).to(given.device, given.compute)
    dy = values.rounded(values.spread(given.shape, 7), given.dtype).to(given.device)
    for point in (given.point, floating, None):
        op = given.g.op("fake_quantize_backward_qparams")
        yield from op(dy, given.x, scale, point, *given.g.args, *RANGE)
    leaves = [t.detach().requires_grad_() for t in (given.x, scale, floating)]
    y = given.g.op("fake_quantize")(*leaves, *given.g.args, *RANGE)
    yield from (y, *torch.autograd.grad(y, leaves, dy))


def point_less(given: Inputs) -> Iterator[Tensor]:
    """Without a zero point, by the default range, and by the overloads for numbers."""
    for verb in ("fake_quantize", "quantize", "dequantize"):
        op = given.g.op(verb)
        yield op(given.x, given.scale, None, *given.g.args)
        if given.g == cases.PER_TENSOR:
            yield from (op(given.x, s, z) for s in (0.1, given.scale) for z in (3, -7))
            yield op(given.x, 0.1, None)
    for kind in (torch.int64, torch.int8, torch.uint8, torch.int16):
        point = values.integers(given.params, 0, 90, 8, kind).to(given.device)
        yield given.g.op("fake_quantize")(given.x, given.scale, point, *given.g.args, -8, 7)


Call = Callable[[Inputs], Iterator[Tensor]]
ALL = (fake_quantize, quantize, dequantize, public_backward, learned, point_less)
CALLS: dict[str, Call] = {call.__name__: call for call in ALL}


def made(
    call: Call, g: Granularity, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> Iterator[Tensor]:
    return call(Inputs(g, shape, layout, dtype, device))


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every call with inputs of a dtype."""
    for g in values.GRANULARITIES:
        for name, call in CALLS.items():
            for shape, layout in values.places(g):
                run = partial(made, call, g, shape, layout, dtype)
                title = f"{name} {g} {name_of(dtype)}"
                yield Case(title, f"{list(shape)} {layout}", run)
