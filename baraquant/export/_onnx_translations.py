# SPDX-License-Identifier: BSD-3-Clause
"""The ONNX nodes of our ops, in opset 21.

QuantizeLinear computes ``saturate(round(x / scale) + zero_point)`` with ties to even, and
DequantizeLinear ``(q - zero_point) * scale``: the bits of ours, except that a NaN is no zero point.
Their input is float32 here, because a scale is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset21

op: Any = opset21  # its annotations are of types of tensors that nothing here holds
_FLOAT, _INT8, _UINT8 = ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8
_RANGES = {_INT8: (-128, 127), _UINT8: (0, 255)}


def table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations for PyTorch's exporter."""
    ours, theirs = torch.ops.baraquant, torch.ops.baraquant_export
    translations: dict[Any, Callable[..., Any]] = {
        ours.fake_quantize_per_tensor.default: _fake_quantize,
        ours.fake_quantize_per_channel.default: _fake_quantize,
        ours.fake_quantize_per_token.default: _fake_quantize_per_token,
        ours.fake_quantize_per_group.default: _fake_quantize,
        ours.quantize_per_tensor.default: _quantize,
        ours.quantize_per_channel.default: _quantize,
        ours.dequantize_per_tensor.default: _dequantize,
        ours.dequantize_per_channel.default: _dequantize,
        ours.dequantize_per_token.default: _dequantize_per_token,
        ours.dequantize_per_group.default: _dequantize,
        theirs.integer_product.default: _integer_product,
    }
    return {target: _by_names(target, one) for target, one in translations.items()}


def _by_names(target: Any, translation: Callable[..., Any]) -> Callable[..., Any]:
    """Return a translation that takes arguments as they stand in a call of an op.

    The one given takes them by the names of the op's schema; of a group it takes what ONNX calls
    ``block_size``, and the axis.
    """
    names = [argument.name for argument in target._schema.arguments]

    def translated(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        given.pop("save_mask", None)
        if "group_size" in given:
            given = {"axis": -1, "block_size": given.pop("group_size"), **given}
        return translation(**given)

    return translated


def _integer_product(input: Any, weight: Any, zero_point: Any) -> Any:
    return op.MatMulInteger(input, weight, zero_point)


def _fake_quantize(
    input: Any,
    scale: Any,
    zero_point: Any,
    quant_min: int = -128,
    quant_max: int = 127,
    **where: int,
) -> Any:
    kind = _INT8 if quant_min < 0 else _UINT8
    smallest, largest = _RANGES[kind]
    if quant_min < smallest or quant_max > largest:
        if where:
            raise ValueError(
                f"to_onnx: expected integers of at most 8 bits, but got [{quant_min}, {quant_max}]"
            )
        return _in_floats(input, scale, zero_point, quant_min, quant_max)
    integers = _quantize(input, scale, zero_point, quant_min, quant_max, kind, **where)
    return _to(_dequantize(integers, scale, zero_point, None, kind, **where), input.dtype)


def _fake_quantize_per_token(input: Any, scale: Any, zero_point: Any, **limits: int) -> Any:
    zero_point = None if zero_point is None else _column(zero_point)
    return _in_floats(input, _column(scale), zero_point, **limits)


def _quantize(
    input: Any,
    scale: Any,
    zero_point: Any,
    quant_min: int = -128,
    quant_max: int = 127,
    dtype: int = _INT8,
    **where: int,
) -> Any:
    rows, kind = _to(input, _FLOAT), ir.DataType(dtype)
    if zero_point is None:
        integers = op.QuantizeLinear(rows, scale, output_dtype=kind, **where)
    else:
        integers = op.QuantizeLinear(rows, scale, _to(zero_point, kind), **where)
    if (quant_min, quant_max) == _RANGES[kind]:
        return integers
    return op.Clip(integers, _constant(quant_min, kind), _constant(quant_max, kind))


def _dequantize(
    input: Any, scale: Any, zero_point: Any, dtype: Any = None, kind: Any = None, **where: int
) -> Any:
    if zero_point is None:
        output = op.DequantizeLinear(input, scale, **where)
    else:
        same = input.dtype if kind is None else kind
        output = op.DequantizeLinear(input, scale, _to(zero_point, same), **where)
    return output if dtype in (None, _FLOAT) else op.Cast(output, to=dtype)


def _dequantize_per_token(input: Any, scale: Any, zero_point: Any, dtype: Any = None) -> Any:
    integers = op.Cast(input, to=_FLOAT)
    if zero_point is not None:
        integers = op.Sub(integers, op.Cast(_column(zero_point), to=_FLOAT))
    return _to(op.Mul(integers, _column(scale)), dtype)


def _in_floats(
    input: Any, scale: Any, zero_point: Any, quant_min: int = -128, quant_max: int = 127
) -> Any:
    """Return the rounded values by plain arithmetic, where QuantizeLinear has no such scale."""
    integers = op.Round(op.Div(_to(input, _FLOAT), scale))
    if zero_point is not None:
        zero_point = op.Cast(zero_point, to=_FLOAT)
        integers = op.Add(integers, zero_point)
    integers = op.Clip(integers, _constant(quant_min, _FLOAT), _constant(quant_max, _FLOAT))
    if zero_point is not None:
        integers = op.Sub(integers, zero_point)
    return _to(op.Mul(integers, scale), input.dtype)


def _column(values: Any) -> Any:
    return op.Unsqueeze(values, op.Constant(value_ints=[-1]))


def _constant(value: int, kind: Any) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=kind))


def _to(value: Any, kind: Any) -> Any:
    return value if kind is None or value.dtype == kind else op.Cast(value, to=kind)
