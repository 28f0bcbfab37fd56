# SPDX-License-Identifier: BSD-3-Clause
"""The tensors of a layer in a folder of compressed-tensors, written and read.

``int-quantized`` keeps ``weight`` as int8. ``pack-quantized`` packs the integers of a row, with
``2^(bits-1)`` added, into a string of bits: integer ``i`` takes the bits ``i * bits`` to
``(i + 1) * bits - 1``, its low bit first, and 32 bits make an int32. Zero points are packed along
the rows of the weight by the same rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import nn as bnn
from ... import ops
from ...configs import integer_range
from ...workflow.layers import LAYERS, form_of
from ...workflow.serialization.packing import pack, unpack
from ...workflow.served import check_within
from .._layers import IntegerLayer
from .scheme import PACKED, Scheme, TensorScheme

Expected = dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]

# All tensors that a layer may have in a folder.
TENSORS = (
    *("weight", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point"),
    *("weight_g_idx", "input_scale", "input_zero_point", "bias"),
)
# The kinds of layers that the format has.
_READABLE = [layer for layer in LAYERS if layer.float_type in (nn.Linear, nn.Embedding)]
_SCALES = (torch.float32, torch.bfloat16, torch.float16)
# As other programs write zero points.
_ZERO_POINTS = (torch.int8, torch.int32, torch.int64, torch.uint8)


def pack_rows(integers: Tensor, bits: int) -> Tensor:
    """Pack each row of signed integers ``[rows, columns]`` that have 2 to 8 bits.

    The result is int32 ``[rows, ceil(columns * bits / 32)]``.
    """
    rows, columns = integers.shape
    # Two's complement with its sign bit turned over is the integer with 2^(bits-1) added. 32
    # integers take `bits` words exactly, so that the stream of all rows has no gap between them.
    padded = torch.zeros(rows, -(-columns // 32) * 32, dtype=torch.int8)
    padded[:, :columns] = integers.cpu().to(torch.int8) ^ -(1 << (bits - 1))
    words = pack(padded, bits).view(torch.int32).view(rows, -1)
    return words[:, : packed_width(columns, bits)].to(integers.device).contiguous()


def unpack_rows(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Return the integers of :func:`pack_rows`, int8 ``[rows, columns]``."""
    rows, padded = packed.shape[0], -(-columns // 32) * 32
    if packed.is_meta:
        return torch.empty(rows, columns, dtype=torch.int8, device="meta")
    words = torch.zeros(rows, padded // 32 * bits, dtype=torch.int32)
    words[:, : packed.shape[1]] = packed.cpu()
    integers = unpack(words.view(-1).view(torch.uint8), bits, (rows, padded))
    return (integers[:, :columns] ^ -(1 << (bits - 1))).to(packed.device).contiguous()


def packed_width(columns: int, bits: int) -> int:
    """Return the number of int32 words of a packed row."""
    return -(-columns * bits // 32)


def tensors_of(layer: IntegerLayer, scheme: Scheme, scale_dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of a layer by their names in the file.

    ``scale_dtype`` is for packed weights. Scales of layers that multiply integers stay float32.
    """
    weight, scale, bits = layer.qweight, layer.grouped_scale, scheme.weight.bits
    zero_point = None if layer.zero_point is None else layer.zero_point.reshape(scale.shape)
    if scheme.format == PACKED:
        tensors = {
            "weight_packed": pack_rows(weight, bits),
            "weight_scale": scale.to(scale_dtype),
            "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
        }
        if zero_point is not None:
            rows = pack_rows(zero_point.t().contiguous(), bits)
            tensors["weight_zero_point"] = rows.t().contiguous()
    else:
        tensors = {"weight": weight, "weight_scale": scale.to(torch.float32)}
        if zero_point is not None:
            tensors["weight_zero_point"] = zero_point.to(torch.int8)
    input = layer.input
    if input is not None and input.scale is not None:
        tensors["input_scale"] = input.scale.reshape(1).to(torch.float32)
        if input.zero_point is not None:
            tensors["input_zero_point"] = input.zero_point.reshape(1).to(torch.int8)
    if layer.bias is not None:
        tensors["bias"] = layer.bias
    return tensors


def expected_tensors(scheme: Scheme, module: nn.Module) -> Expected:
    """Return the shapes and the possible dtypes of a layer's tensors, without its bias."""
    rows, columns = module.weight.shape
    weight = scheme.weight
    groups = columns // weight.group_size if weight.group_size else 1
    scales = (1,) if weight.strategy == "tensor" else (rows, groups)
    expected: Expected = {"weight_scale": (scales, _SCALES)}
    if scheme.format == PACKED:
        width = packed_width(columns, weight.bits)
        expected["weight_packed"] = (rows, width), (torch.int32,)
        expected["weight_shape"] = (2,), (torch.int64, torch.int32)
    else:
        expected["weight"] = (rows, columns), (torch.int8,)
    if not weight.symmetric:
        if scheme.format == PACKED and weight.strategy != "tensor":
            zeros = packed_width(rows, weight.bits), groups
            expected["weight_zero_point"] = zeros, (torch.int32,)
        else:
            expected["weight_zero_point"] = scales, _ZERO_POINTS
    if scheme.input is not None and not scheme.input.dynamic:
        expected["input_scale"] = (1,), _SCALES
        if not scheme.input.symmetric:
            expected["input_zero_point"] = (1,), _ZERO_POINTS
    return expected


def check_layer(path: str, scheme: Scheme, module: nn.Module) -> None:
    """Check that baraquant has a quantized form of a floating layer with a scheme."""
    kind = next((layer for layer in _READABLE if layer.matches(module)), None)
    if kind is None:
        names = ", ".join(sorted(layer.name for layer in _READABLE))
        raise ValueError(
            f"{path}: expected a {names} for the scheme {scheme}, but the model has a "
            f"{type(module).__name__}"
        )
    size, columns = scheme.weight.group_size, module.weight.shape[1]
    if size is not None and columns % size:
        raise ValueError(
            f"{path}: expected groups of {size} that divide its {columns} inputs, but they do not"
        )
    if kind.training is bnn.FakeQuantizedEmbedding and scheme.input is not None:
        raise ValueError(f"{path}: expected an embedding without quantized inputs, got {scheme}")


def build_layer(
    path: str, scheme: Scheme, tensors: dict[str, Tensor], like: nn.Module, caller: str
) -> nn.Module:
    """Build the quantized layer of a path from its tensors, in the dtype of ``like``."""
    try:
        check_layer(path, scheme, like)
        _check_tensors(path, scheme, tensors, like)
        module = _build(scheme, tensors, like)
        form = form_of(module)
        if form is not None and not module.weight_scale.is_meta:
            form.check_values(module)
    except (ValueError, TypeError) as error:
        prefix = "" if str(error).startswith(f"{path}:") else f"{path}: "
        raise ValueError(f"{caller}: {prefix}{error}") from None
    return module


def _check_tensors(path: str, scheme: Scheme, given: dict[str, Tensor], like: nn.Module) -> None:
    expected = expected_tensors(scheme, like)
    missing = sorted(expected.keys() - given.keys())
    extra = sorted(given.keys() - expected.keys() - {"bias"})
    if missing:
        raise ValueError(f"{path}: expected a tensor {missing[0]} for {scheme}, but there is none")
    if extra:
        reordered = ": columns were reordered; quantize again with actorder='weight'"
        reason = reordered if extra[0] == "weight_g_idx" else ""
        raise ValueError(f"{path}: expected no tensor {extra[0]} for {scheme}{reason}")
    for name, (shape, dtypes) in expected.items():
        tensor = given[name]
        # A scale may lack its dimension of one.
        if tuple(tensor.shape) not in (shape, shape[:-1] if shape[-1] == 1 else shape):
            raise ValueError(
                f"{path}.{name}: expected the shape {list(shape)}, but got {list(tensor.shape)}"
            )
        if tensor.dtype not in dtypes:
            raise ValueError(
                f"{path}.{name}: expected {' or '.join(str(d) for d in dtypes)}, but got "
                f"{tensor.dtype}"
            )
    shape_of = given.get("weight_shape")
    if shape_of is not None and not shape_of.is_meta:
        stored, wanted = shape_of.tolist(), list(like.weight.shape)
        if stored != wanted:
            raise ValueError(
                f"{path}.weight_shape: expected {wanted} as in the model, but got {stored}"
            )


def _build(scheme: Scheme, tensors: dict[str, Tensor], like: nn.Module) -> Any:
    rows, columns = like.weight.shape
    weight = scheme.weight
    if scheme.format == PACKED:
        qweight = unpack_rows(tensors["weight_packed"], weight.bits, columns)
    else:
        qweight = tensors["weight"]
    options: dict[str, Any] = {"weight_bits": weight.bits, "dtype": like.weight.dtype}
    scale = _per_row(tensors["weight_scale"].to(torch.float32), weight, rows)
    zero_point = _zero_point(scheme, tensors, rows)
    grouped = {"weight_zero_point": zero_point, "group_size": weight.group_size}
    if isinstance(like, nn.Embedding):
        options |= {**grouped, "padding_idx": like.padding_idx}
        return bnn.QuantizedEmbedding(qweight, scale, **options)
    bias = tensors.get("bias")
    input = scheme.input
    if input is not None and weight.symmetric and weight.strategy != "group":
        if not input.dynamic:
            zeros = None if input.symmetric else tensors["input_zero_point"].reshape(()).int()
            act_scale = tensors["input_scale"].reshape(()).float()
            options |= {"act_zero_point": zeros, "bits": input.bits}
            return bnn.StaticQuantizedLinear(qweight, scale, act_scale, bias, **options)
        if input.strategy in ("token", "tensor"):
            options |= {"granularity": f"per_{input.strategy}", "bits": input.bits}
            return bnn.QuantizedLinear(qweight, scale, bias, symmetric=input.symmetric, **options)
    rounder = None if input is None else _rounder(input, tensors)
    options |= {**grouped, "input_fake_quant": rounder}
    if weight.bits > 4:
        return bnn.WeightOnlyLinear(qweight, scale, bias, **options)
    if not qweight.is_meta:
        check_within("qweight", qweight, integer_range(weight.bits))
    packed = ops.pack_int4(qweight.contiguous())
    return bnn.WeightOnlyInt4Linear(packed, scale, bias, in_features=columns, **options)


def _per_row(tensor: Tensor, weight: TensorScheme, rows: int) -> Tensor:
    """Return a scale or zero point as a layer takes it: ``[rows]``, or ``[rows, groups]``."""
    if weight.strategy == "tensor":
        return tensor.reshape(1).expand(rows).contiguous()
    return tensor if weight.strategy == "group" else tensor.reshape(rows)


def _zero_point(scheme: Scheme, tensors: dict[str, Tensor], rows: int) -> Tensor | None:
    weight = scheme.weight
    if weight.symmetric:
        return None
    stored = tensors["weight_zero_point"]
    if scheme.format == PACKED and weight.strategy != "tensor":
        stored = unpack_rows(stored.t().contiguous(), weight.bits, rows).t().contiguous()
    return _per_row(stored.to(torch.int32), weight, rows)


def _rounder(input: TensorScheme, tensors: dict[str, Tensor]) -> bnn.FakeQuantize:
    low, high = integer_range(input.bits)
    options: dict[str, Any] = {"quant_min": low, "quant_max": high, "symmetric": input.symmetric}
    options["granularity"] = f"per_{input.strategy}"
    if input.strategy == "group":
        options |= {"group_size": input.group_size, "axis": -1}
    if input.dynamic:
        return bnn.FakeQuantize(None, None, mode="dynamic", **options)
    zero_point = None if input.symmetric else tensors["input_zero_point"].to(torch.int32)
    return bnn.FakeQuantize(tensors["input_scale"].to(torch.float32), zero_point, **options)
