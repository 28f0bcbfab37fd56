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
from tests.support.calls.call import OpCall
from tests.support.calls.fused import FusedCall
from tests.support.calls.int8_mm import Int8Call
from tests.support.calls.range import RANGE, RangeCall
from tests.support.cases import Granularity

GROUP = 8
KINDS = cases.KINDS
FORWARD = ("quantize", "dequantize", "fake_quantize")
BACKWARD = (
    "quantize_backward",
    "dequantize_backward",
    "fake_quantize_backward",
    "fake_quantize_backward_qparams",
)


@dataclass(frozen=True)
class Call(OpCall):
    """One op with its granularity.

    Attributes:
        verb: `fake_quantize`, `quantize_backward`, ...
        granularity: Which elements share a scale.
        number: Scale and zero point are numbers (per tensor only).
        learned: Scale and floating zero point require grad (fake_quantize only).
        dtype: The op's own argument of that name, where it has one.
        input_alone: Whether vmap goes over the first tensor alone.
        exact_gradients: Whether they have the same bits however they are batched.
    """

    verb: str
    granularity: Granularity
    number: bool = False
    learned: bool = False
    dtype: torch.dtype | None = None

    input_alone = False
    exact_gradients = True

    @property
    def facets(self) -> set[tuple[str, Any]]:
        """What the short run takes at least once; the public ops of one verb are one core op."""
        made = {("verb", self.verb), ("granularity", self.granularity), ("dtype", self.dtype)}
        return made | {(name, True) for name in ("number", "learned") if getattr(self, name)}

    @property
    def ranged(self) -> bool:
        """Whether the arguments end with a range, which may be left out."""
        return "dequantize" not in self.verb

    @property
    def returns(self) -> int:
        """How many tensors."""
        return 3 if self.verb == "fake_quantize_backward_qparams" else 1

    @property
    def differentiable(self) -> bool:
        """Whether the first tensor can require grad."""
        if self.verb == "quantize":
            return self.dtype is not None and self.dtype.is_floating_point
        return self.verb != "fake_quantize_backward_qparams"

    def tensors(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> tuple[Tensor, ...]:
        """The tensors for an input of `shape`, of which those that can require grad do."""
        gen = cases.generator(sum(shape))
        x = torch.randn(shape, generator=gen, dtype=torch.float64).to(device, dtype)
        params = self.granularity.param_shape(shape)
        scale = cases.scales(params, cases.compute_dtype(dtype), seed=1).to(device)
        zero_point = cases.zero_points(params, RANGE, seed=2).to(device)
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
            input = torch.randn(shape, generator=gen, dtype=torch.float64).to(device, dtype)
            return x, input, scale, zero_point
        return x, scale, zero_point

    @property
    def function(self) -> Callable[..., Any]:
        """The function of `baraquant.ops`."""
        return self.granularity.op(self.verb, ops)

    def arguments(self, *tensors: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of the op."""
        args: tuple[Any, ...] = (*tensors, *((0.1, 1) if self.number else ()))
        args += self.granularity.args
        if self.ranged:
            args += RANGE
        return args, {} if self.dtype is None else {"dtype": self.dtype}


NUMBERS = (
    Call("quantize", cases.PER_TENSOR, number=True),
    Call("dequantize", cases.PER_TENSOR, number=True),
    Call("fake_quantize", cases.PER_TENSOR, number=True),
)
FORWARD_CALLS: tuple[Call | RangeCall | Int8Call | FusedCall, ...] = (
    *(Call("quantize", g) for g in KINDS),
    *(Call("quantize", g, dtype=torch.float32) for g in KINDS),
    *(Call("dequantize", g) for g in KINDS),
    *(Call("fake_quantize", g) for g in KINDS),
    *(Call("fake_quantize", g, learned=True) for g in KINDS),
    *NUMBERS,
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


def outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def ramp(like: Tensor) -> Tensor:
    """An incoming gradient that differs along the last dimension, in the strides of `like`."""
    values = torch.linspace(-1, 2, like.shape[-1], dtype=like.dtype, device=like.device)
    return torch.empty_like(like, requires_grad=False).copy_(values.expand(like.shape))


def value_and_gradients(
    function: Callable[..., Any], tensors: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
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


def assert_equal(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Same number, shapes, dtypes, strides and values."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        if e.requires_grad or not TANGENTS_ARE_CONTIGUOUS:
            assert a.stride() == e.stride(), f"strides {a.stride()} for {e.stride()}"
        assert torch.equal(a, e)
