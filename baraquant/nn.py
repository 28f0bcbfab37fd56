# SPDX-License-Identifier: BSD-3-Clause
"""Modules around the ops of :mod:`baraquant.ops`."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from typing_extensions import Self

from . import ops

GRANULARITIES = ("per_tensor", "per_channel", "per_token", "per_group")


class FakeQuantize(nn.Module):  # type: ignore[misc]
    """Rounds its input to a quantization grid of fixed scale; the gradient goes straight through.

    Computes :func:`baraquant.ops.fake_quantize_per_tensor` or its sibling for ``granularity``. The
    buffers ``scale`` and ``zero_point`` move with the module and are part of its state dict. They
    keep their precision when the module changes its dtype: the scale stays float32 in a float16 or
    bfloat16 module, as the ops want it, and is float64 in a float64 one.

    Args:
        scale: A number > 0 (``per_tensor``), or a float32 or float64 tensor shaped as the op of the
            granularity wants it.
        zero_point: An integer, or an integer tensor shaped like ``scale``; None stands for 0.
        granularity: ``per_tensor``, ``per_channel``, ``per_token`` or ``per_group``.
        axis: The channels' dimension (``per_channel``, needed there) or the groups' (``per_group``,
            the last one by default).
        group_size: Neighbours that share a scale (``per_group``, needed there).
        quant_min: The smallest integer of the grid.
        quant_max: The largest integer of the grid.
        save_mask: What is kept for backward: True a bit per element, False the input, None the
            input where it is a leaf (a parameter) or a view of one, and else the bits.

    Raises:
        ValueError: A granularity, shape, range or number that does not fit.
        TypeError: A scale that is not float32 or float64, or a zero point that is not integer.

    Example:
        >>> scale = torch.tensor([0.5, 0.25])
        >>> quantizer = baraquant.nn.FakeQuantize(scale, None, "per_channel", axis=0)
        >>> quantizer(torch.tensor([[0.6, 1.5], [0.6, 1.5]]))
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
    """

    scale: Tensor
    zero_point: Tensor
    granularity: Final[str]
    axis: Final[int]
    group_size: Final[int]
    quant_min: Final[int]
    quant_max: Final[int]
    save_mask: Final[bool | None]

    def __init__(
        self,
        scale: Tensor | float,
        zero_point: Tensor | int | None = None,
        granularity: str = "per_tensor",
        *,
        axis: int | None = None,
        group_size: int | None = None,
        quant_min: int = -128,
        quant_max: int = 127,
        save_mask: bool | None = None,
    ) -> None:
        super().__init__()
        _check_granularity(granularity, axis, group_size)
        if quant_min >= quant_max:
            raise ValueError(
                f"FakeQuantize: expected quant_min < quant_max, but got {quant_min} and {quant_max}"
            )
        scale = _scale_tensor(scale, granularity)
        self.register_buffer("scale", scale)
        self.register_buffer(
            "zero_point", _zero_point_tensor(zero_point, scale, quant_min, quant_max)
        )
        self.granularity = granularity
        self.axis = -1 if axis is None else axis
        self.group_size = 0 if group_size is None else group_size
        self.quant_min = quant_min
        self.quant_max = quant_max
        self.save_mask = save_mask

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded to the grid, in its own shape and dtype."""
        if self.granularity == "per_tensor":
            return ops.fake_quantize_per_tensor(
                input,
                self.scale,
                self.zero_point,
                self.quant_min,
                self.quant_max,
                save_mask=self.save_mask,
            )
        if self.granularity == "per_channel":
            return ops.fake_quantize_per_channel(
                input,
                self.scale,
                self.zero_point,
                self.axis,
                self.quant_min,
                self.quant_max,
                save_mask=self.save_mask,
            )
        if self.granularity == "per_token":
            return ops.fake_quantize_per_token(
                input,
                self.scale,
                self.zero_point,
                self.quant_min,
                self.quant_max,
                save_mask=self.save_mask,
            )
        return ops.fake_quantize_per_group(
            input,
            self.scale,
            self.zero_point,
            self.group_size,
            self.axis,
            self.quant_min,
            self.quant_max,
            save_mask=self.save_mask,
        )

    def extra_repr(self) -> str:
        """Return the arguments that differ between modules, for ``repr``."""
        parts = [self.granularity]
        if self.granularity == "per_group":
            parts.append(f"group_size={self.group_size}")
        if self.granularity in ("per_channel", "per_group"):
            parts.append(f"axis={self.axis}")
        parts += [f"quant_min={self.quant_min}", f"quant_max={self.quant_max}"]
        return ", ".join([*parts, f"scale={list(self.scale.shape)}"])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every conversion of a module (half(), to(dtype), cuda(), ...) passes through here.
        before = self.scale
        super()._apply(fn, recurse)
        if self.scale.dtype not in (torch.float32, torch.float64):
            self.scale = before.to(self.scale.device, torch.float32)
        return self


def _check_granularity(granularity: str, axis: int | None, group_size: int | None) -> None:
    if granularity not in GRANULARITIES:
        raise ValueError(
            f"FakeQuantize: expected granularity to be one of {', '.join(GRANULARITIES)}, "
            f"but got {granularity!r}"
        )
    if granularity == "per_channel" and axis is None:
        raise ValueError("FakeQuantize: expected an axis for per_channel, but got None")
    if granularity in ("per_tensor", "per_token") and axis is not None:
        raise ValueError(f"FakeQuantize: expected no axis for {granularity}, but got {axis}")
    if granularity == "per_group":
        if group_size is None or group_size <= 0:
            raise ValueError(
                f"FakeQuantize: expected a group_size > 0 for per_group, but got {group_size}"
            )
    elif group_size is not None:
        raise ValueError(
            f"FakeQuantize: expected no group_size for {granularity}, but got {group_size}"
        )


def _scale_tensor(scale: Tensor | float, granularity: str) -> Tensor:
    if not isinstance(scale, Tensor):
        if granularity != "per_tensor":
            raise ValueError(f"FakeQuantize: expected scale to be a tensor for {granularity}")
        if not 0.0 < scale < float("inf"):
            raise ValueError(f"FakeQuantize: expected scale to be finite and > 0, but got {scale}")
        return torch.tensor(scale, dtype=torch.float32)
    if scale.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"FakeQuantize: expected scale to be float32 or float64, but got {scale.dtype}"
        )
    fits = {
        "per_tensor": scale.shape in ((), (1,)),
        "per_channel": scale.dim() == 1,
    }
    if not fits.get(granularity, True):
        expected = "[] or [1]" if granularity == "per_tensor" else "one dimension"
        raise ValueError(
            f"FakeQuantize: expected scale to have {expected} for {granularity}, "
            f"but got {list(scale.shape)}"
        )
    return scale.detach().clone()


def _zero_point_tensor(
    zero_point: Tensor | int | None, scale: Tensor, quant_min: int, quant_max: int
) -> Tensor:
    if zero_point is None:
        return torch.zeros_like(scale, dtype=torch.int32)
    if not isinstance(zero_point, Tensor):
        if not quant_min <= zero_point <= quant_max:
            raise ValueError(
                f"FakeQuantize: expected zero_point to lie in [{quant_min}, {quant_max}], "
                f"but got {zero_point}"
            )
        return torch.full_like(scale, zero_point, dtype=torch.int32)
    if zero_point.is_floating_point() or zero_point.is_complex() or zero_point.dtype == torch.bool:
        raise TypeError(
            f"FakeQuantize: expected zero_point to be integer, but got {zero_point.dtype}"
        )
    if zero_point.shape != scale.shape:
        raise ValueError(
            f"FakeQuantize: expected zero_point to have the shape of scale ({list(scale.shape)}), "
            f"but got {list(zero_point.shape)}"
        )
    limits = torch.iinfo(torch.int32)
    return zero_point.detach().clamp(limits.min, limits.max).to(torch.int32)


__all__ = ["FakeQuantize"]
