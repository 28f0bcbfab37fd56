# SPDX-License-Identifier: BSD-3-Clause
"""Checks the arguments of the quantized layers, and makes tensors of them."""

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..shared.arguments import (
    SCALES,
    check,
    check_bits,
    check_dtype,
    check_even,
    check_floating,
    check_integer,
    check_sizes,
    int32_of,
)

# The parameters of tensors that are still in memory.
_parameters = WeakIdKeyDictionary()


def plain(tensor: Tensor) -> Tensor:
    """Return the tensor itself if it can be a buffer, so that modules can share it."""
    return tensor if type(tensor) is Tensor and not tensor.requires_grad else tensor.detach()


def parameter(tensor: Tensor) -> nn.Parameter:
    """Return a tensor as a frozen parameter: the same one for layers that share the tensor."""
    source = plain(tensor).contiguous() if type(tensor) is not nn.Parameter else tensor
    if source.requires_grad or not source.is_contiguous():
        source = source.detach().contiguous()
    if type(source) is nn.Parameter:
        return source
    known = _parameters.get(source)
    if known is None or known.untyped_storage()._cdata != source.untyped_storage()._cdata:
        known = _parameters[source] = nn.Parameter(source, requires_grad=False)
    return known


# The layout of a layer's integers, by their number of dimensions.
LAYOUTS = {
    2: "out_features, in_features",
    3: "out_channels, in_channels / groups, kernel",
    4: "out_channels, in_channels / groups, height, width",
    5: "out_channels, in_channels / groups, depth, height, width",
}


def check_weight(name: str, weight: Tensor, bias: Tensor | None, dimensions: int = 2) -> None:
    """Check int8 weights and their bias."""
    check_dtype(name, "qweight", weight.dtype, torch.int8)
    wanted = f"{dimensions} dimensions ({LAYOUTS[dimensions]})"
    check_sizes(name, "qweight", weight, weight.dim() == dimensions, wanted)
    check_bias(name, "qweight", weight.shape[0], bias)


def check_bias(name: str, weight: str, channels: int, bias: Tensor | None) -> None:
    """Check a bias; ``weight`` is the name of the tensor that has the channels."""
    if bias is not None:
        check_floating(name, "bias", bias.dtype)
        wanted = f"{channels} elements ({weight}.size(0))"
        check_sizes(name, "bias", bias, bias.shape == (channels,), wanted)


def check_int4(
    name: str,
    packed: Tensor,
    factor: Tensor,
    group_size: int,
    zero_point: Tensor | None,
    features: int,
) -> None:
    """Check packed weights of four bits, and the factors and zero points of their groups."""
    check_even(name, group_size)
    _check_packed_shape(name, packed, features)
    groups = [packed.shape[0], -(-features // group_size)]
    tensors = {"packed": packed, "group_factor": factor, "group_zero_point": zero_point}
    for argument, tensor in tensors.items():
        if tensor is None:
            continue
        check_dtype(name, argument, tensor.dtype, torch.uint8)
        fits = tensor is packed or list(tensor.shape) == groups
        wanted = f"the shape {groups} (groups of {group_size})"
        check_sizes(name, argument, tensor, fits, wanted)


def check_packed(name: str, packed: Tensor, features: int, bits: int, bias: Tensor | None) -> None:
    """Check packed weights of at most four bits, and their bias."""
    check_bits(name, "weight_bits", bits, 4)
    _check_packed_shape(name, packed, features)
    check_dtype(name, "packed", packed.dtype, torch.uint8)
    check_bias(name, "packed", packed.shape[0], bias)


def _check_packed_shape(name: str, packed: Tensor, features: int) -> None:
    fits = type(features) is int and features >= 0
    check(name, fits, "in_features to be an int >= 0", repr(features))
    width = -(-features // 2)
    fits = packed.dim() == 2 and packed.shape[1] == width
    wanted = f"the shape [out_features, {width}] (ceil(in_features / 2))"
    check_sizes(name, "packed", packed, fits, wanted)


def weight_dtype(
    name: str, dtype: torch.dtype | None, bias: Tensor | None, scale: Tensor
) -> torch.dtype:
    """Return the dtype of ``weight``: as given, else of the bias, else of the scale."""
    if dtype is None:
        return scale.dtype if bias is None else bias.dtype
    check_floating(name, "dtype", dtype)
    return dtype


def scale_of_channels(name: str, scale: Tensor, channels: int) -> Tensor:
    """Return a scale for each output channel."""
    expected = f"{channels} elements (one for each output channel)"
    return _scale(name, "weight_scale", scale, [channels], expected)


def scale_of_weight(
    name: str, scale: Tensor, shape: tuple[int, ...], group_size: int | None
) -> Tensor:
    """Return a scale for each output channel, or for each of its groups of inputs."""
    channels, features = shape[:2]
    if group_size is None:
        return scale_of_channels(name, scale, channels)
    check(name, group_size > 0, "group_size > 0", group_size)
    wanted = [channels, -(-features // group_size)]
    expected = f"the shape {wanted} (groups of {group_size})"
    return _scale(name, "weight_scale", scale, wanted, expected)


def scale_of_inputs(name: str, argument: str, smooth: Tensor, features: int) -> Tensor:
    """Return a factor for each input feature."""
    return _scale(name, argument, smooth, [features], f"{features} elements (qweight.size(1))")


def scale_of_experts(
    name: str, which: str, scale: Tensor, weight: Tensor, group_size: int | None
) -> Tensor:
    """Return a scale for each output channel of each expert, or for each of its groups."""
    wanted = list(weight.shape[:2])
    if group_size is not None:
        check(name, type(group_size) is int and group_size > 0, "group_size > 0", group_size)
        wanted.append(-(-weight.shape[2] // group_size))
    return _scale(name, f"{which}_scale", scale, wanted, f"the shape {wanted}")


def _scale(name: str, argument: str, scale: Tensor, shape: list[int], expected: str) -> Tensor:
    """Return a scale of a shape, of which the message says what is ``expected``."""
    check_dtype(name, argument, scale.dtype, *SCALES)
    check_sizes(name, argument, scale, list(scale.shape) == shape, expected)
    return plain(scale).contiguous()


def zero_point_of_weight(
    name: str, zero_point: Tensor | None, scale: Tensor, which: str = "weight"
) -> nn.Parameter | None:
    """Return an int32 zero point for each scale, as a frozen parameter, or None."""
    if zero_point is None:
        return None
    argument = f"{which}_zero_point"
    check_integer(name, argument, zero_point)
    wanted = f"the shape of {which}_scale ({list(scale.shape)})"
    check_sizes(name, argument, zero_point, zero_point.shape == scale.shape, wanted)
    return parameter(int32_of(zero_point))


def scale_of_tensor(
    name: str, scale: Tensor, zero_point: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the one scale of an input, ``[]``, and its int32 zero point or None."""
    check_dtype(name, "act_scale", scale.dtype, *SCALES)
    check_sizes(name, "act_scale", scale, scale.numel() == 1, "one element")
    scale = plain(scale).reshape(())
    if zero_point is None:
        return scale, None
    check_integer(name, "act_zero_point", zero_point)
    check_sizes(name, "act_zero_point", zero_point, zero_point.numel() == 1, "one element")
    return scale, int32_of(plain(zero_point)).reshape(())


def check_experts(name: str, which: str, weight: Tensor, bias: Tensor | None) -> None:
    """Check the int8 weights of experts and their biases."""
    argument = f"{which}_qweight"
    check_dtype(name, argument, weight.dtype, torch.int8)
    wanted = "3 dimensions (experts, out_features, in_features)"
    check_sizes(name, argument, weight, weight.dim() == 3, wanted)
    if bias is not None:
        check_floating(name, f"{which}_bias", bias.dtype)
        wanted = f"the shape {list(weight.shape[:2])} (experts, out_features)"
        check_sizes(name, f"{which}_bias", bias, bias.shape == weight.shape[:2], wanted)
