# SPDX-License-Identifier: BSD-3-Clause
"""Says which kernels a call of an op would launch, and whether the op takes the call.

The answers come from the code that checks arguments and selects kernels when the op runs. It runs
up to the launch of a kernel. No kernel is launched, and no argument is written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._ops import OpOverload, OpOverloadPacket

from baraquant import _C

__all__ = ["Implementable", "KernelPlan", "can_implement", "plan"]


@dataclass(frozen=True)
class KernelPlan:
    """A kernel that a call would launch.

    Attributes:
        name: What the kernel does and how, for example ``"int8_mm_vnni"``. A copy that torch would
            make first, because of strides or a dtype that no kernel takes, has the name of torch's
            method.
        backend: ``"cpu"`` or ``"cuda"``.
        architecture: The target of the code: an instruction set of the CPU (``"avx512"``) or a GPU
            architecture (``"sm_90"``); ``"torch"`` for a kernel of torch.
        tile: The part of the result or of the input that it processes at a time; "" if that has no
            meaning.
        workspace_bytes: The temporary memory of the call, in bytes.
        compute_dtype: The dtype of the computation, for example ``"float32"``.
        accumulator_dtype: The dtype of sums; "" if nothing is summed.
        deterministic: Whether every run on this device gives the same bits.
        bit_stable: Whether every device gives the same bits.
    """

    name: str
    backend: str
    architecture: str
    tile: str
    workspace_bytes: int
    compute_dtype: str
    accumulator_dtype: str
    deterministic: bool
    bit_stable: bool


class Implementable(NamedTuple):
    """Whether an op takes a call.

    Attributes:
        ok: Whether it does.
        kind: The name of the exception that the call raises, for example ``"ValueError"``; or "".
        reason: The exception's message; or "".
    """

    ok: bool
    kind: str
    reason: str


Op: TypeAlias = str | Callable[..., Any]


def plan(op: Op, /, *args: Any, **kwargs: Any) -> list[KernelPlan]:
    """Return the kernels that a call would launch, in order, without launching them.

    Args:
        op: The name of an op (``"quantized_linear"``, or with its overload
            ``"smoothquant_linear.number"``), the op itself
            (``torch.ops.baraquant.quantized_linear``), or the function of :mod:`baraquant.ops`.
        *args: The arguments of the call. Their values are not read: tensors with the right shapes,
            dtypes, strides, alignment and device suffice.
        **kwargs: The keyword arguments of the call.

    Returns:
        The kernels; an empty list if there is nothing to do (an empty tensor, or tensors on the
        meta device). For the kernels of a backward pass, plan the op that computes it. If autograd
        would record the call, the kernels are those of a recorded call.

    Raises:
        ValueError: There is no op of that name.
        Exception: What the call itself would raise.

    Example:
        >>> x = torch.zeros(4, 8)
        >>> [kernel.name for kernel in baraquant.plan("fake_quantize_per_tensor", x, 0.5, 0)]
        ['fake_quantize']
    """
    call = _resolve(op)
    return [KernelPlan(**entry) for entry in _C.plan(lambda: call(*args, **kwargs))]


def can_implement(op: Op, /, *args: Any, **kwargs: Any) -> Implementable:
    """Return whether an op takes a call, and otherwise its error, without running it.

    Args:
        op: As :func:`plan` takes it.
        *args: The arguments of the call.
        **kwargs: The keyword arguments of the call.

    Returns:
        ``(ok, kind, reason)``: whether the op takes the call, and if not the error's name and text.

    Raises:
        ValueError: There is no op of that name.

    Example:
        >>> x = torch.zeros(4, 8)
        >>> baraquant.can_implement("fake_quantize_per_tensor", x, 0.5, 0).ok
        True
        >>> ok, kind, reason = baraquant.can_implement("fake_quantize_per_tensor", x, -1.0, 0)
        >>> kind, reason[:58]
        ('ValueError', 'baraquant::fake_quantize_per_tensor: expected scale to be ')
    """
    call = _resolve(op)
    try:
        _C.plan(lambda: call(*args, **kwargs))
    except Exception as error:
        return Implementable(False, type(error).__name__, str(error))
    return Implementable(True, "", "")


def _resolve(op: Any) -> Any:
    """Return the op of ``torch.ops``."""
    if isinstance(op, (OpOverload, OpOverloadPacket)):
        name = op._schema.name if isinstance(op, OpOverload) else op._qualified_op_name
        if name.startswith("baraquant::"):
            return op
        raise ValueError(f"baraquant.plan: expected an op of baraquant, but got {name}")
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    packet, _, overload = name.removeprefix("baraquant::").partition(".")
    found = getattr(torch.ops.baraquant, packet, None)
    if overload:
        found = getattr(found, overload, None)
    if not isinstance(found, (OpOverload, OpOverloadPacket)):
        raise ValueError(
            f"baraquant.plan: expected the name of an op, 'quantized_linear' say, but got {name!r}"
        )
    return found
