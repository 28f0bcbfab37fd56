# SPDX-License-Identifier: BSD-3-Clause
"""The one place that chooses among the ops of a verb by the granularity of a module."""

from torch import Tensor

from ... import ops
from .quantizer import Quantizer


class ByGranularity(Quantizer):
    """A module that knows which values of its input share a scale, and their range of integers.

    The methods call the op of their verb for ``granularity``, with the arguments that it takes.
    They are written with ``if`` because TorchScript compiles them, and it has no tables of
    functions.
    """

    # TorchScript takes these as constants.
    __constants__ = (
        *Quantizer.__constants__,
        *("granularity", "axis", "group_size"),
        *("quant_min", "quant_max", "scale_dtype", "_name"),
    )
    _name: str  # of the class, for messages
    scale_dtype: str
    granularity: str
    axis: int
    group_size: int
    quant_min: int
    quant_max: int

    def _set_granularity(self, granularity: str, axis: int | None, group_size: int | None) -> None:
        self.granularity = granularity
        self.axis = -1 if axis is None else axis
        self.group_size = 0 if group_size is None else group_size

    def _grid_parts(self) -> list[str]:
        """Return what ``repr`` shows of the granularity and the integers."""
        parts = [self.granularity]
        if self.granularity == "per_group":
            parts.append(f"group_size={self.group_size}")
        if self.granularity in ("per_channel", "per_group"):
            parts.append(f"axis={self.axis}")
        return [*parts, f"quant_min={self.quant_min}", f"quant_max={self.quant_max}"]

    def _segments(self, input: Tensor) -> Tensor:
        """Return a matrix with a row of values for each scale."""
        if self.granularity == "per_tensor":
            return input.reshape(1, input.numel())
        if self.granularity == "per_channel":
            rows = input.movedim(self.axis, 0)
            return rows.reshape(rows.shape[0], rows.numel() // max(rows.shape[0], 1))
        size = input.shape[-1]
        if self.granularity == "per_token":
            tokens = 1
            for length in input.shape[:-1]:
                tokens *= length
            return input.reshape(tokens, size)
        if self.axis != -1 and self.axis != input.dim() - 1:
            raise ValueError(f"{self._name}: expected groups along the last dimension")
        if size % self.group_size != 0:
            raise ValueError(
                f"{self._name}: expected group_size to divide {size}, but got {self.group_size}"
            )
        return input.reshape(-1, self.group_size)

    def _fake_quantize(
        self, input: Tensor, scale: Tensor, zero_point: Tensor | None, save_mask: bool | None
    ) -> Tensor:
        low, high = self.quant_min, self.quant_max
        if self.granularity == "per_tensor":
            return ops.fake_quantize_per_tensor(
                input, scale, zero_point, low, high, save_mask=save_mask
            )
        if self.granularity == "per_channel":
            return ops.fake_quantize_per_channel(
                input, scale, zero_point, self.axis, low, high, save_mask=save_mask
            )
        if self.granularity == "per_token":
            return ops.fake_quantize_per_token(
                input, scale, zero_point, low, high, save_mask=save_mask
            )
        return ops.fake_quantize_per_group(
            input, scale, zero_point, self.group_size, self.axis, low, high, save_mask=save_mask
        )

    def _quantize(self, input: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
        low, high = self.quant_min, self.quant_max
        if self.granularity == "per_tensor":
            return ops.quantize_per_tensor(input, scale, zero_point, low, high)
        if self.granularity == "per_channel":
            return ops.quantize_per_channel(input, scale, zero_point, self.axis, low, high)
        if self.granularity == "per_token":
            return ops.quantize_per_token(input, scale, zero_point, low, high)
        return ops.quantize_per_group(
            input, scale, zero_point, self.group_size, self.axis, low, high
        )

    def _dynamic_fake_quantize(self, input: Tensor, symmetric: bool) -> Tensor:
        low, high = self.quant_min, self.quant_max
        if self.granularity == "per_tensor":
            return ops.dynamic_fake_quantize_per_tensor(input, low, high, symmetric=symmetric)
        if self.granularity == "per_channel":
            return ops.dynamic_fake_quantize_per_channel(
                input, self.axis, low, high, symmetric=symmetric
            )
        if self.granularity == "per_token":
            return ops.dynamic_fake_quantize_per_token(input, low, high, symmetric=symmetric)
        return ops.dynamic_fake_quantize_per_group(
            input, self.group_size, self.axis, low, high, symmetric=symmetric
        )

    def _dynamic_quantize(self, input: Tensor, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
        low, high = self.quant_min, self.quant_max
        if self.granularity == "per_tensor":
            return ops.dynamic_range_quantize_per_tensor(input, low, high, symmetric=symmetric)
        if self.granularity == "per_channel":
            return ops.dynamic_range_quantize_per_channel(
                input, self.axis, low, high, symmetric=symmetric
            )
        if self.granularity == "per_token":
            return ops.dynamic_range_quantize_per_token(input, low, high, symmetric=symmetric)
        return ops.dynamic_range_quantize_per_group(
            input, self.group_size, self.axis, low, high, symmetric=symmetric
        )
