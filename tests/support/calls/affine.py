# SPDX-License-Identifier: BSD-3-Clause
"""The ops as functions of tensors alone: what PyTorch's tools take.

Those of the affine family are here, the others in `range.py`, `int8_mm.py` and `fused.py`; the ops
that change a running range in place, and the grouped products, whose inputs are matrices sorted by
group, are not among `ALL_CALLS`, but have tests of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.calls import fused as fused_calls
from tests.support.calls import int8_mm as int8_calls
from tests.support.calls import range as range_calls
from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.calls.range import RANGE
from tests.support.cases import Granularity, Shape

KINDS = cases.KINDS
FORWARD = ("quantize", "dequantize", "fake_quantize")
BACKWARD = (*(f"{verb}_backward" for verb in FORWARD), "fake_quantize_backward_qparams")


@dataclass(frozen=True)
class Call(OpCall):
    """One op with its granularity.

    Attributes:
        verb: `fake_quantize`, `quantize_backward`, ...
        granularity: Which elements share a scale.
        number: Scale and zero point are numbers (per tensor only).
        learned: Scale and floating zero point require grad (fake_quantize only).
        dtype: The op's own argument of that name, where it has one.
    """

    verb: str
    granularity: Granularity
    number: bool = False
    learned: bool = False
    dtype: torch.dtype | None = None

    FACETS = ("verb", "granularity", "dtype")

    @property
    def facets(self) -> set[tuple[str, Any]]:
        return super().facets | {(n, True) for n in ("number", "learned") if getattr(self, n)}

    @property
    def ranged(self) -> bool:
        return "dequantize" not in self.verb

    @property
    def differentiable(self) -> bool:
        if self.verb == "quantize":
            return self.dtype is not None and self.dtype.is_floating_point
        return self.verb != "fake_quantize_backward_qparams"

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        gen = cases.generator(sum(shape))
        x = torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)
        params = self.granularity.param_shape(shape)
        scale = cases.scales(params, cases.compute_dtype(dtype), seed=1)
        zero_point = cases.zero_points(params, RANGE, seed=2)
        if self.learned:
            zero_point = zero_point.to(scale.dtype).requires_grad_()
            scale.requires_grad_()
        if self.differentiable:
            x.requires_grad_()
        if self.number:
            return (x,)
        if self.verb == "dequantize_backward":
            return x, scale
        if "backward" in self.verb:
            input = torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)
            return x, input, scale, zero_point
        return x, scale, zero_point

    @property
    def function(self) -> Callable[..., Any]:
        return self.granularity.op(self.verb, ops)

    def arguments(self, *tensors: Tensor) -> Arguments:
        args: tuple[Any, ...] = (*tensors, *((0.1, 1) if self.number else ()))
        args += self.granularity.args
        if self.ranged:
            args += RANGE
        return args, {} if self.dtype is None else {"dtype": self.dtype}


FORWARD_CALLS: tuple[Any, ...] = (
    *(Call("quantize", g) for g in KINDS),
    *(Call("quantize", g, dtype=torch.float32) for g in KINDS),
    *(Call("dequantize", g) for g in KINDS),
    *(Call("fake_quantize", g) for g in KINDS),
    *(Call("fake_quantize", g, learned=True) for g in KINDS),
    *(Call(verb, cases.PER_TENSOR, number=True) for verb in FORWARD),
    *range_calls.FAKE_CALLS,
    *int8_calls.QAT_CALLS,
    *int8_calls.SERVED_CALLS,
    *fused_calls.SINGLE_CALLS,
)
BACKWARD_CALLS = tuple(Call(verb, g) for verb in BACKWARD for g in KINDS)
ALL_CALLS = (
    *FORWARD_CALLS,
    *BACKWARD_CALLS,
    *range_calls.OTHER_CALLS,
    *int8_calls.INT8_CALLS,
    *fused_calls.RESIDUAL_CALLS,
    *fused_calls.QUANTIZE_CALLS,
)


def outputs(result: Any) -> Tensors:
    return result if isinstance(result, tuple) else (result,)


def ramp(like: Tensor) -> Tensor:
    """An incoming gradient that differs along the last dimension, in the strides of `like`."""
    values = torch.linspace(-1, 2, like.shape[-1], dtype=like.dtype, device=like.device)
    return torch.empty_like(like, requires_grad=False).copy_(values.expand(like.shape))


def value_and_gradients(function: Callable[..., Any], tensors: Tensors) -> Tensors:
    """The results, then the gradients in each tensor that requires grad."""
    results = outputs(function(*tensors))
    leaves = [t for t in tensors if t.requires_grad]
    with_grad = [r for r in results if r.requires_grad]
    if not leaves or not with_grad:
        return results
    weights = [ramp(r) for r in with_grad]
    return (*results, *torch.autograd.grad(with_grad, leaves, weights))


# torch.compile in 2.11 makes the incoming gradients contiguous, and so the strides of the outgoing
# ones are not eager's.
TANGENTS_ARE_CONTIGUOUS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def assert_equal(actual: Tensors, expected: Tensors) -> None:
    """Same number, shapes, dtypes, strides and values."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        if e.requires_grad or not TANGENTS_ARE_CONTIGUOUS:
            assert a.stride() == e.stride(), f"strides {a.stride()} for {e.stride()}"
        assert torch.equal(a, e)
