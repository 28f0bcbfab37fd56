# SPDX-License-Identifier: BSD-3-Clause
"""Quantized linear layers for inference: weights are int8, and inputs are quantized to int8.

The tensors have the names of the constructor's arguments. A layer keeps nothing that is computed
from them: whatever is put in their place counts from the next call on. ``weight`` is the
dequantized weight, to read.
"""

import torch
from torch import Tensor

from ._integer_linear import DynamicInput, HoldsInt8, StaticInput
from .quantized_input import QuantizedInput, TakesIntegers


class QuantizedLinear(TakesIntegers, HoldsInt8, DynamicInput):
    """An integer linear layer that computes the scale of its input from the input (W8A8 dynamic).

    ``y = x_int @ weight.T * (x_scale * weight_scale) + bias``, by
    :func:`baraquant.ops.quantized_linear`: the input ``[..., in_features]`` is quantized on the
    fly, with one scale for each token, and the output has the dtype of the input. The gradient goes
    straight through the rounding to the input, as in the prepared layer. A :class:`QuantizedInput`
    may take the place of the input.

    Args:
        qweight: int8 ``[out_features, in_features]``.
        weight_scale: float32 (float64 for float64 inputs) ``[out_features]``.
        bias: ``[out_features]``, of the dtype of the scale or of the inputs.
        symmetric: True for no zero point: 0 is in the middle of the input's integers. False adds a
            zero point.
        bits: The width of the input's integers, 2 to 8.
        granularity: ``per_token``, or ``per_tensor``: one scale for the whole input.
        smooth: ``[in_features]``, of the dtype of the scale: the input is first divided by it.
            SmoothQuant uses it where no preceding layer can absorb the division.
        weight_bits: The width of the weight's integers, 2 to 8. They are always stored as int8.
        dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the
            scale.
        transposed: Whether ``weight`` reads as ``[in_features, out_features]``, the layout of
            transformers' ``Conv1D``.
        rotate: The block of :func:`baraquant.ops.hadamard`, by which the weight is rotated and the
            input is to be; not beside ``smooth``. None: no rotation.

    Raises:
        ValueError: A shape, width, block or granularity does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, or the dtype is not
            floating.

    Example:
        >>> weight = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
        >>> layer = baraquant.nn.QuantizedLinear(weight, torch.tensor([0.5, 0.25]))
        >>> layer(torch.tensor([[127.0, 64.0]]))
        tensor([[ -0.5000, 159.2500]])
    """

    _scales = ("weight_scale", "smooth")

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        symmetric: bool = True,
        bits: int = 8,
        granularity: str = "per_token",
        smooth: Tensor | None = None,
        weight_bits: int = 8,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        self.weight_bits, self.symmetric, self.bits = weight_bits, symmetric, bits
        self._set(self._store(qweight, bias), weight_scale, bias, dtype, transposed, rotate)
        self._set_input(granularity, smooth)

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]`` in the dtype of ``input``."""
        if not torch.jit.is_scripting() and isinstance(input, QuantizedInput):
            return self._output_of(input)
        return self._output_of_floats(input)


class StaticQuantizedLinear(HoldsInt8, StaticInput):
    """An integer linear layer whose input has one scale, fixed in advance (W8A8 static).

    ``y = x_int @ weight.T * (act_scale * weight_scale) + bias``, by
    :func:`baraquant.ops.static_quantized_linear`. The input ``[..., in_features]`` is quantized
    with ``act_scale``, and the output has the dtype of the input. The gradient goes straight
    through the rounding to the input, and is 0 where the input was clamped; it is the gradient of
    the prepared layer.

    With ``smooth_scale`` each feature k is quantized with ``smooth_scale[k]``, which is
    ``act_scale * smooth[k]``: dividing by ``smooth`` (Xiao et al. 2023) then costs nothing.

    Args:
        act_scale: ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
        act_zero_point: Integer ``[]`` or ``[1]``; None stands for 0.
        smooth_scale: ``[in_features]``, of the dtype of ``weight_scale``; None: no smoothing. Not
            beside ``rotate``.

    The other arguments and the errors are those of :class:`QuantizedLinear`.

    Example:
        >>> weight = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
        >>> scales = torch.tensor([0.5, 0.25]), torch.tensor(1.0)
        >>> layer = baraquant.nn.StaticQuantizedLinear(weight, *scales)
        >>> layer(torch.tensor([[127.0, 64.0]]))
        tensor([[ -0.5000, 159.2500]])
    """

    _scales = ("weight_scale", "act_scale", "smooth_scale")

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        act_scale: Tensor,
        bias: Tensor | None = None,
        *,
        act_zero_point: Tensor | None = None,
        smooth_scale: Tensor | None = None,
        bits: int = 8,
        weight_bits: int = 8,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        self.weight_bits, self.symmetric, self.bits = weight_bits, act_zero_point is None, bits
        self._set(self._store(qweight, bias), weight_scale, bias, dtype, transposed, rotate)
        self._set_input(act_scale, act_zero_point, smooth_scale)
