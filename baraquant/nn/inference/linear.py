# SPDX-License-Identifier: BSD-3-Clause
"""Quantized linear layers for inference that multiply integers: a weight and an input each.

The weight is int8, or packed numbers of four bits whose groups of columns have a whole factor and a
zero point (:class:`baraquant.nn.FakeQuantizeInt4`); these have the bits of the layers of int8 for
the expanded weight.

The tensors have the names of the constructor's arguments. A layer keeps nothing that is computed
from them: whatever is put in their place counts from the next call on. ``weight`` is the
dequantized weight, to read.
"""

import torch
from torch import Tensor

from .inputs import DynamicInput, StaticInput
from .weights import Int4Factors, Int8Rows


class QuantizedLinear(Int8Rows, DynamicInput):
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


class StaticQuantizedLinear(Int8Rows, StaticInput):
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


class QuantizedInt4Linear(Int4Factors, DynamicInput):
    """A linear layer of four-bit weights that computes the scale of its input from the input.

    ``y = x_int @ w8.T * (x_scale * weight_scale) + bias`` with ``w8 = (u - z) * f``, by
    :func:`baraquant.ops.quantized_int4_linear`: the input ``[..., in_features]`` is quantized on
    the fly, with one scale for each token, and the output has the dtype of the input. The gradient
    goes straight through the rounding to the input, as in the prepared layer.

    Args:
        packed: uint8 ``[out_features, ceil(in_features / 2)]``: the numbers ``u``, two in a byte.
        weight_scale: float32 (float64 for float64 inputs) ``[out_features]``.
        group_factor: ``f``, uint8 ``[out_features, groups]``, 1 to 16.
        group_size: The number of adjacent inputs that share a factor and a zero point, even.
        in_features: Size of each input.
        group_zero_point: ``z``, uint8 ``[out_features, groups]``, 0 to 15; None stands for 8.

    The other arguments are those of :class:`QuantizedLinear`.

    Raises:
        ValueError: A shape, width, block or granularity does not fit.
        TypeError: A tensor has another dtype, or the dtype is not floating.

    Example:
        >>> packed = torch.tensor([[0x7F, 0xAF]], dtype=torch.uint8)  # 7, -1; 7, 2
        >>> factor = torch.tensor([[1, 16]], dtype=torch.uint8)
        >>> scale = torch.tensor([0.5])
        >>> layer = baraquant.nn.QuantizedInt4Linear(packed, scale, factor, 2, in_features=4)
        >>> layer.weight.tolist(), layer(torch.tensor([[127.0, 1.0, 0.0, 1.0]])).item()
        ([[3.5, -0.5, 56.0, 16.0]], 460.0)
    """

    _scales = ("weight_scale", "smooth")
    __constants__ = (*DynamicInput.__constants__, "group_size")

    def __init__(
        self,
        packed: Tensor,
        weight_scale: Tensor,
        group_factor: Tensor,
        group_size: int,
        bias: Tensor | None = None,
        *,
        in_features: int,
        group_zero_point: Tensor | None = None,
        symmetric: bool = True,
        bits: int = 8,
        granularity: str = "per_token",
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        self.weight_bits, self.symmetric, self.bits = 4, symmetric, bits
        shape = self._store(packed, group_factor, group_size, group_zero_point, in_features, bias)
        self._set(shape, weight_scale, bias, dtype, transposed, rotate)
        self._set_input(granularity, None)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def as_int8(self) -> QuantizedLinear:
        """Return a layer of int8 with the same bits, for formats that have no factors."""
        return QuantizedLinear(
            symmetric=self.symmetric, granularity=self.granularity, **self._int8_options()
        )


class StaticQuantizedInt4Linear(Int4Factors, StaticInput):
    """A linear layer of four-bit weights whose input has one scale, fixed in advance.

    ``y = x_int @ w8.T * (act_scale * weight_scale) + bias`` with ``w8 = (u - z) * f``, by
    :func:`baraquant.ops.static_quantized_int4_linear`. The gradient goes straight through the
    rounding to the input, and is 0 where the input was clamped.

    Args:
        act_scale: ``[]`` or ``[1]``, of the dtype of ``weight_scale``.
        act_zero_point: Integer ``[]`` or ``[1]``; None stands for 0.

    The other arguments and the errors are those of :class:`QuantizedInt4Linear`.

    Example:
        >>> packed = torch.tensor([[0x7F, 0xAF]], dtype=torch.uint8)  # 7, -1; 7, 2
        >>> factor = torch.tensor([[1, 16]], dtype=torch.uint8)
        >>> scales = torch.tensor([0.5]), torch.tensor(1.0)
        >>> kind = baraquant.nn.StaticQuantizedInt4Linear
        >>> layer = kind(packed, scales[0], factor, 2, scales[1], in_features=4)
        >>> layer(torch.tensor([[127.0, 1.0, 0.0, 1.0]]))
        tensor([[460.]])
    """

    _scales = ("weight_scale", "act_scale", "smooth_scale")
    __constants__ = (*StaticInput.__constants__, "group_size")

    def __init__(
        self,
        packed: Tensor,
        weight_scale: Tensor,
        group_factor: Tensor,
        group_size: int,
        act_scale: Tensor,
        bias: Tensor | None = None,
        *,
        in_features: int,
        group_zero_point: Tensor | None = None,
        act_zero_point: Tensor | None = None,
        bits: int = 8,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        self.weight_bits, self.symmetric, self.bits = 4, act_zero_point is None, bits
        shape = self._store(packed, group_factor, group_size, group_zero_point, in_features, bias)
        self._set(shape, weight_scale, bias, dtype, transposed, rotate)
        self._set_input(act_scale, act_zero_point, None)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def as_int8(self) -> StaticQuantizedLinear:
        """Return a layer of int8 with the same bits, for formats that have no factors."""
        return StaticQuantizedLinear(
            act_scale=self.act_scale, act_zero_point=self.act_zero_point, **self._int8_options()
        )
