# SPDX-License-Identifier: BSD-3-Clause
"""``WeightOnlyLinear``: a linear layer that stores integers and computes in floating point."""

import torch
from torch import Tensor

from ... import ops
from ..shared.fake_quantize import FakeQuantize
from ..shared.product import fixing_bias
from ..shared.rotation import check_block
from . import _arguments
from ._dequantizes import Dequantizes
from ._integer_linear import LaysOutWeight


class WeightOnlyLinear(Dequantizes, LaysOutWeight):
    """A linear layer that stores integers and computes in floating point.

    It serves the cases that an integer product cannot compute: weights with a scale for each group,
    weights with zero points, and inputs that stay floating. Of integers of at most four bits
    conversion makes a :class:`WeightOnlyInt4Linear`, unless another layer shares them as int8.
    ``y = linear(input_fake_quant(x), w, bias)`` where ``w`` is the dequantized weight in the dtype
    of the input: :func:`baraquant.ops.weight_only_linear`. The gradient is that of the prepared
    layer.

    Args:
        qweight: int8 ``[out_features, in_features]``.
        weight_scale: float32 (float64 for float64 inputs): ``[out_features]``, or
            ``[out_features, groups]`` with ``group_size``.
        bias: ``[out_features]``, of the dtype of the inputs.
        weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
        group_size: The number of adjacent values of a row of the weight that share a scale.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: The width of the weight's integers, 2 to 8. They are always stored as int8.
        dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the
            scale.
        transposed: Whether ``weight`` reads as ``[in_features, out_features]``, the layout of
            transformers' ``Conv1D``.
        rotate: The block of :func:`baraquant.ops.hadamard`, by which the weight is rotated and the
            input is to be, before it is rounded. None: no rotation.

    Raises:
        ValueError: A shape, width or block does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is
            not an integer tensor, or the dtype is not floating.

    Example:
        >>> weight = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5, 0.25]])
        >>> layer = baraquant.nn.WeightOnlyLinear(weight, scale, group_size=2)
        >>> layer(torch.ones(1, 4))
        tensor([[1.2500]])
    """

    __constants__ = ("in_features", "out_features", "rotate")

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        weight_zero_point: Tensor | None = None,
        group_size: int | None = None,
        input_fake_quant: FakeQuantize | None = None,
        weight_bits: int = 8,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        _arguments.check_weight("WeightOnlyLinear", qweight, bias)
        self.out_features, self.in_features = qweight.shape
        self.group_size, self.weight_bits = group_size, weight_bits
        self._store(qweight, weight_scale, bias, weight_zero_point, input_fake_quant, dtype)
        self.set_layout(transposed)
        self.rotate = check_block("WeightOnlyLinear", rotate, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]`` in the dtype of ``input``."""
        bias = self.bias
        if bias is not None and bias.dtype != input.dtype:
            bias = bias.to(input.dtype)
        bias = fixing_bias(bias, input, self.out_features)
        return ops.weight_only_linear(
            self.input_fake_quant(self._rotated(input)),
            self._integers(),
            self.weight_scale,
            bias,
            weight_zero_point=self.weight_zero_point,
            group_size=self.group_size,
        )

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight, before any rotation."""
        return self._rotated(self._dequantized(self.dtype))

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self._scheme()}{self.rotate_repr()}"
        )
