# SPDX-License-Identifier: BSD-3-Clause
"""Checks the arguments of the quantized layers, and makes tensors of them."""

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..training._arguments import check_even

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


def check_bits(name: str, argument: str, bits: int) -> None:
    """Check a width."""
    if type(bits) is not int or not 2 <= bits <= 8:
        raise ValueError(f"{name}: expected {argument} to be an int in [2, 8], but got {bits!r}")


# The layout of a layer's integers, by their number of dimensions.
LAYOUTS = {
    2: "out_features, in_features",
    3: "out_channels, in_channels / groups, kernel",
    4: "out_channels, in_channels / groups, height, width",
    5: "out_channels, in_channels / groups, depth, height, width",
}


def check_weight(name: str, weight: Tensor, bias: Tensor | None, dimensions: int = 2) -> None:
    """Check int8 weights and their bias."""
    if weight.dtype != torch.int8:
        raise TypeError(f"{name}: expected qweight to be int8, but got {weight.dtype}")
    if weight.dim() != dimensions:
        raise ValueError(
            f"{name}: expected qweight to have {dimensions} dimensions ({LAYOUTS[dimensions]}), "
            f"but got {list(weight.shape)}"
        )
    check_bias(name, "qweight", weight.shape[0], bias)


def check_bias(name: str, weight: str, channels: int, bias: Tensor | None) -> None:
    """Check a bias; ``weight`` is the name of the tensor that has the channels."""
    if bias is None:
        return
    if not bias.is_floating_point():
        raise TypeError(f"{name}: expected bias to be floating, but got {bias.dtype}")
    if bias.shape != (channels,):
        raise ValueError(
            f"{name}: expected bias to have {channels} elements ({weight}.size(0)), "
            f"but got {list(bias.shape)}"
        )


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
        if tensor.dtype != torch.uint8:
            raise TypeError(f"{name}: expected {argument} to be uint8, but got {tensor.dtype}")
        if tensor is not packed and list(tensor.shape) != groups:
            raise ValueError(
                f"{name}: expected {argument} to have the shape {groups} (groups of "
                f"{group_size}), but got {list(tensor.shape)}"
            )


def check_packed(name: str, packed: Tensor, features: int, bits: int, bias: Tensor | None) -> None:
    """Check packed weights of at most four bits, and their bias."""
    if type(bits) is not int or not 2 <= bits <= 4:
        raise ValueError(f"{name}: expected weight_bits to be an int in [2, 4], but got {bits!r}")
    _check_packed_shape(name, packed, features)
    if packed.dtype != torch.uint8:
        raise TypeError(f"{name}: expected packed to be uint8, but got {packed.dtype}")
    check_bias(name, "packed", packed.shape[0], bias)


def _check_packed_shape(name: str, packed: Tensor, features: int) -> None:
    if type(features) is not int or features < 0:
        raise ValueError(f"{name}: expected in_features to be an int >= 0, but got {features!r}")
    if packed.dim() != 2 or packed.shape[1] != -(-features // 2):
        raise ValueError(
            f"{name}: expected packed to have the shape [out_features, {-(-features // 2)}] "
            f"(ceil(in_features / 2)), but got {list(packed.shape)}"
        )


def weight_dtype(
    name: str, dtype: torch.dtype | None, bias: Tensor | None, scale: Tensor
) -> torch.dtype:
    """Return the dtype of ``weight``: as given, else of the bias, else of the scale."""
    if dtype is None:
        return scale.dtype if bias is None else bias.dtype
    if not dtype.is_floating_point:
        raise TypeError(f"{name}: expected dtype to be floating, but got {dtype}")
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
    if group_size <= 0:
        raise ValueError(f"{name}: expected group_size > 0, but got {group_size}")
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
        if type(group_size) is not int or group_size <= 0:
            raise ValueError(f"{name}: expected group_size > 0, but got {group_size}")
        wanted.append(-(-weight.shape[2] // group_size))
    return _scale(name, f"{which}_scale", scale, wanted, f"the shape {wanted}")


def _scale(name: str, argument: str, scale: Tensor, shape: list[int], expected: str) -> Tensor:
    """Return a scale of a shape, of which the message says what is ``expected``."""
    _check_dtype(name, argument, scale)
    if list(scale.shape) != shape:
        raise ValueError(
            f"{name}: expected {argument} to have {expected}, but got {list(scale.shape)}"
        )
    return plain(scale).contiguous()


def zero_point_of_weight(
    name: str, zero_point: Tensor | None, scale: Tensor, which: str = "weight"
) -> nn.Parameter | None:
    """Return an int32 zero point for each scale, as a frozen parameter, or None."""
    if zero_point is None:
        return None
    _check_integer(name, f"{which}_zero_point", zero_point)
    if zero_point.shape != scale.shape:
        raise ValueError(
            f"{name}: expected {which}_zero_point to have the shape of {which}_scale "
            f"({list(scale.shape)}), but got {list(zero_point.shape)}"
        )
    return parameter(zero_point.to(torch.int32))


def scale_of_tensor(
    name: str, scale: Tensor, zero_point: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the one scale of an input, ``[]``, and its int32 zero point or None."""
    _check_dtype(name, "act_scale", scale)
    if scale.numel() != 1:
        raise ValueError(
            f"{name}: expected act_scale to have one element, but got {list(scale.shape)}"
        )
    scale = plain(scale).reshape(())
    if zero_point is None:
        return scale, None
    _check_integer(name, "act_zero_point", zero_point)
    if zero_point.numel() != 1:
        raise ValueError(
            f"{name}: expected act_zero_point to have one element, but got {list(zero_point.shape)}"
        )
    return scale, plain(zero_point).to(torch.int32).reshape(())


def check_experts(name: str, which: str, weight: Tensor, bias: Tensor | None) -> None:
    """Check the int8 weights of experts and their biases."""
    if weight.dtype != torch.int8:
        raise TypeError(f"{name}: expected {which}_qweight to be int8, but got {weight.dtype}")
    if weight.dim() != 3:
        raise ValueError(
            f"{name}: expected {which}_qweight to have 3 dimensions (experts, out_features, "
            f"in_features), but got {list(weight.shape)}"
        )
    if bias is None:
        return
    if not bias.is_floating_point():
        raise TypeError(f"{name}: expected {which}_bias to be floating, but got {bias.dtype}")
    if bias.shape != weight.shape[:2]:
        raise ValueError(
            f"{name}: expected {which}_bias to have the shape {list(weight.shape[:2])} "
            f"(experts, out_features), but got {list(bias.shape)}"
        )


def _check_dtype(name: str, argument: str, scale: Tensor) -> None:
    if scale.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"{name}: expected {argument} to be float32 or float64, but got {scale.dtype}"
        )


def _check_integer(name: str, argument: str, tensor: Tensor) -> None:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: expected {argument} to be integer, but got {tensor.dtype}")
