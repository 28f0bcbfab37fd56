# SPDX-License-Identifier: BSD-3-Clause
"""The ONNX nodes of our ops, and what is done to the graph that PyTorch's exporter makes of them.

QuantizeLinear computes ``saturate(round(x / scale) + zero_point)`` with ties to even, and
DequantizeLinear ``(q - zero_point) * scale``: the bits of ours, except that a NaN is no zero point.
Their input is float32 here, because a scale is.

Integers of four bits are packed, casts of constants are computed, and products whose numbers depend
on the processor or the session of onnxruntime are made safe or named. Without VNNI its kernels add
two products of uint8 and int8 in int16, which saturates where weights exceed [-64, 64]. With uint8
weights, 128 larger and with a zero point 128 larger, they add in int32: the same sums on every
processor. Of a product by a weight of integers it makes MatMulNBits, which rounds the input to
int8, unless its node has an accuracy level of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset21, optimizer

_NO_LIMIT = 1 << 40
_INT8, _UINT8 = ir.DataType.INT8, ir.DataType.UINT8
_BITS = {ir.DataType.INT4: 4, _INT8: 8}
_LARGEST = 64  # 2 * 255 * 64 < 2 ** 15
_MIDDLE = 128
_DOMAIN = "com.microsoft"
_FLOATING = 1  # the accuracy level of float32
_HALF_STEP = 2.0**-11  # the largest relative error of a normal number in float16
_SMALLEST_BLOCK = 16  # of MatMulNBits
# Through these onnxruntime moves a DequantizeLinear to the product behind.
_MOVES = {
    *("Pad", "Reshape", "Transpose", "MaxPool", "Squeeze", "Unsqueeze", "Flatten", "Slice"),
    *("Identity", "Expand", "Concat", "Gather", "Resize", "DepthToSpace", "SpaceToDepth", "Split"),
}


def store_four_bits(model: Any, names: Collection[str]) -> None:
    """Turn int8 initializers whose values have at most four bits into int4, which packs them."""
    kind = ir.DataType.INT4
    for name in names:
        value = model.graph.initializers.get(name)
        if value is None or value.const_value is None:
            continue
        integers = value.const_value.numpy().astype(kind.numpy())
        value.const_value = ir.Tensor(integers, dtype=kind, name=name)
        value.dtype = kind


def fold_casts(model: Any) -> None:
    """Compute the casts and reshapes of constants: compilers look for constant zero points."""
    limits = {"input_size_limit": _NO_LIMIT, "output_size_limit": _NO_LIMIT}
    kinds = ("Cast", "Reshape", "Unsqueeze", "Constant", "Identity")
    optimizer.fold_constants(model, should_fold=lambda node: node.op_type in kinds, **limits)


def saturating(model: Any) -> list[Any]:
    """Return the int8 weights that saturate by uint8 inputs without VNNI, as values of the graph.

    They are the integers of MatMulInteger, and those of a Conv, MatMul or Gemm whose input and
    weight both come from integers, of which onnxruntime makes a product of integers.
    """
    found: dict[int, Any] = {}
    for weight, _ in _weights(model.graph):
        integers = weight.const_value.numpy()
        if integers.size and (int(integers.min()) < -_LARGEST or int(integers.max()) > _LARGEST):
            found[id(weight)] = weight
    return list(found.values())


def make_unsigned(model: Any) -> None:
    """Turn saturating int8 weights into uint8 ones; the values that they stand for are the same."""
    wrong = {id(weight) for weight in saturating(model)}
    zeros: dict[Any, Any] = {}
    made: dict[int, Any] = {}
    uses = [(weight, use) for weight, use in _weights(model.graph) if id(weight) in wrong]
    for weight, (node, at) in uses:
        index = 3 if node.op_type == "MatMulInteger" else 2
        old = node.inputs[index] if len(node.inputs) > index else None
        shape: tuple[int, ...] = ()
        if old is None and node.op_type == "DequantizeLinear":
            shape = tuple(node.inputs[1].const_value.shape)
        key = (shape, None if old is None else old.name)
        if key not in zeros:
            values = np.zeros(shape, np.int8) if old is None else old.const_value.numpy()
            zeros[key] = _constant(model.graph, f"{weight.name}_unsigned_zero_point", _up(values))
        if id(weight) not in made:  # other nodes may read the int8 weight, such as an embedding's
            integers = _up(weight.const_value.numpy())
            made[id(weight)] = _constant(model.graph, f"{weight.name}_unsigned", integers)
        node.resize_inputs(max(len(node.inputs), index + 1))
        node.replace_input_with(at, made[id(weight)])
        node.replace_input_with(index, zeros[key])
    _remove_unused(model.graph)


def weights_only(model: Any) -> list[tuple[Any, Any]]:
    """Return each MatMul that onnxruntime may turn into MatMulNBits, with the DequantizeLinear.

    Its weight has 4 or 8 bits and a scale for the tensor, each channel or each group, its input is
    floating; MatMulNBits rounds this to int8 by default. In a model of 16 bits a Cast is between
    the two.
    """
    found = []
    for node in model.graph:
        source = node.inputs[1].producer() if node.op_type == "MatMul" else None
        if source is not None and source.op_type == "Cast":
            source = source.inputs[0].producer()
        if source is None or source.op_type != "DequantizeLinear":
            continue
        weight, size, shape = source.inputs[0], _block_size(source), node.inputs[0].shape
        if weight.const_value is None or weight.dtype not in _BITS:
            continue
        if shape is not None and len(shape) < 2:
            continue
        if _BITS[weight.dtype] == 8 and _is_of_integers(node, 0):
            continue  # a product of integers
        if size == 0 or (size >= _SMALLEST_BLOCK and size & (size - 1) == 0):
            found.append((node, source))
    return found


def rounded_scales(model: Any) -> list[str]:
    """Return the weights whose scales are too small or too large for the float16 of their product.

    onnxruntime's MatMulNBits has scales in the dtype of its input.
    """
    wrong = []
    for product, source in weights_only(model):
        scale = source.inputs[1].const_value.numpy().astype(np.float64)
        with np.errstate(over="ignore"):
            error = np.abs(scale.astype(np.float16).astype(np.float64) - scale)
        is_half = product.inputs[0].dtype == ir.DataType.FLOAT16
        if is_half and bool((error > _HALF_STEP * np.abs(scale)).any()):
            wrong.append(source.inputs[0].name.removesuffix(".qweight"))
    return wrong


def keep_inputs_floating(model: Any) -> None:
    """Make MatMulNBits, which does not round its input, of products by weights of integers.

    It computes in float32, whatever the model's dtype: its scales have the dtype of its input, and
    float16 has no small ones.
    """
    pairs = weights_only(model)
    for product, source in pairs:
        weight, bits = source.inputs[0], _BITS[source.inputs[0].dtype]
        integers = weight.const_value.numpy().astype(np.int8)  # [K, N]
        columns, rows = integers.shape
        size = _block_size(source) or (128 if columns >= 128 else 32)
        groups = -(-columns // size)
        padded = np.zeros((rows, groups * size), np.int8)
        padded[:, :columns] = integers.T
        parts = {
            "packed": _packed(padded, bits).reshape(rows, groups, -1),
            "scales": _by_block(source.inputs[1], rows, groups),
        }
        if len(source.inputs) > 2 and source.inputs[2] is not None:
            zeros = _by_block(source.inputs[2], rows, groups).astype(np.int8)
            parts["zero_points"] = _packed(zeros, bits)
        inputs = [
            _constant(model.graph, f"{weight.name}_{part}", values)
            for part, values in parts.items()
        ]
        old, given = product.outputs[0], product.inputs[0]
        is_half = given.dtype != ir.DataType.FLOAT
        before = [_cast(given, ir.DataType.FLOAT)] if is_half else []
        node = ir.node(
            "MatMulNBits",
            [before[0].outputs[0] if is_half else given, *inputs],
            {"K": columns, "N": rows, "bits": bits, "block_size": size}
            | {"accuracy_level": _FLOATING},
            domain=_DOMAIN,
            version=1,
            name=product.name,
        )
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].shape = old.shape
        after = [_cast(node.outputs[0], given.dtype)] if is_half else []
        nodes = [*before, node, *after]
        output = nodes[-1].outputs[0]
        output.name, output.type, output.shape = old.name, old.type, old.shape
        ir.convenience.replace_nodes_and_values(
            model.graph, product, [product], nodes, [old], [output]
        )
    if pairs:
        model.graph.opset_imports[_DOMAIN] = 1
        _remove_unused(model.graph)


def floating_convolutions(model: Any) -> tuple[list[str], int]:
    """Return why convolutions of integers will be floating, and how many such ones there are.

    onnxruntime computes a Conv in integers if its output goes to one QuantizeLinear, directly or
    behind a Relu, a Clip or nodes that only move values.
    """
    reasons, nodes = [], list(_convolutions(model.graph))
    for node in nodes:
        users = _users(node)
        if not _is_rounded(users):
            kinds = ", ".join(sorted({user.op_type for user in users})) or "the output"
            name = node.inputs[1].producer().inputs[0].name
            name = name.removesuffix("_unsigned").removesuffix(".qweight")
            reasons.append(f"{name} ({kinds})")
    return reasons, len(nodes)


def rounded_biases(model: Any) -> int:
    """Return of how many int8 convolutions onnxruntime changes the bias, which it makes int32."""
    count = 0
    for node in _convolutions(model.graph):
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is None or bias.const_value is None or not _is_rounded(_users(node)):
            continue
        scales = [node.inputs[i].producer().inputs[1].const_value for i in (0, 1)]
        if None in scales or bias.dtype != ir.DataType.FLOAT:
            continue
        step = scales[0].numpy().astype(np.float32) * scales[1].numpy().astype(np.float32)
        values = bias.const_value.numpy()
        count += bool((np.rint(values / step) * step != values).any())
    return count


def _convolutions(graph: Any) -> Iterator[Any]:
    """Yield each Conv whose input and weight are dequantized just before it."""
    for node in graph:
        sources = [value.producer() for value in node.inputs[:2] if value is not None]
        if node.op_type == "Conv" and all(
            source is not None and source.op_type == "DequantizeLinear" for source in sources
        ):
            yield node


def _users(node: Any) -> list[Any]:
    """Return the nodes that read an output, past a Relu, a Clip and what moves values."""
    users = list(node.outputs[0].consumers())
    while len(users) == 1 and users[0].op_type in {"Relu", "Clip", *_MOVES}:
        users = list(users[0].outputs[0].consumers())
    return users


def _is_rounded(users: list[Any]) -> bool:
    return len(users) == 1 and users[0].op_type == "QuantizeLinear"


def _weights(graph: Any) -> Iterator[tuple[Any, tuple[Any, int]]]:
    """Yield the int8 constants that products take, with the node and the input that read it."""
    for node in graph:
        if node.op_type == "MatMulInteger" and _is_int8(node.inputs[1]):
            yield node.inputs[1], (node, 1)
        if node.op_type in ("Conv", "MatMul", "Gemm") and _is_of_integers(node, 0):
            source = node.inputs[1].producer()
            is_read = source is not None and source.op_type == "DequantizeLinear"
            if is_read and _is_int8(source.inputs[0]) and not _block_size(source):
                yield source.inputs[0], (source, 0)


def _block_size(node: Any) -> int:
    given = node.attributes.get("block_size")
    return 0 if given is None else int(given.as_int())


def _is_int8(value: Any) -> bool:
    return value.const_value is not None and value.dtype == _INT8


def _is_of_integers(node: Any, index: int) -> bool:
    """Whether an input comes from a DequantizeLinear, past nodes that only move values."""
    value = node.inputs[index]
    source = value.producer()
    while source is not None and source.op_type in _MOVES:
        source = source.inputs[0].producer()
    return source is not None and source.op_type == "DequantizeLinear"


def _cast(value: Any, kind: Any) -> Any:
    node = ir.node("Cast", [value], {"to": kind})
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(kind), value.shape
    return node


def _up(integers: Any) -> Any:
    return (integers.astype(np.int16) + _MIDDLE).astype(np.uint8)


def _constant(graph: Any, name: str, values: Any) -> Any:
    while name in graph.initializers:
        name += "_"
    tensor = ir.Tensor(np.ascontiguousarray(values), name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _by_block(value: Any, rows: int, groups: int) -> Any:
    """Return scales or zero points ``[]``, ``[N]`` or ``[groups, N]`` as ``[N, groups]``."""
    values = value.const_value.numpy()
    values = values.T if values.ndim == 2 else values.reshape(-1, 1)
    return np.ascontiguousarray(np.broadcast_to(values, (rows, groups)))


def _packed(integers: Any, bits: int) -> Any:
    """Return rows of unsigned integers: bytes, or two of four bits, the first in the low half."""
    if bits == 8:
        return _up(integers)
    unsigned = (integers + 8).astype(np.uint8)
    if unsigned.shape[1] % 2:
        unsigned = np.pad(unsigned, ((0, 0), (0, 1)))
    return unsigned[:, ::2] | (unsigned[:, 1::2] << 4)


def _remove_unused(graph: Any) -> None:
    for node in reversed(list(graph)):
        if all(not out.consumers() and not out.is_graph_output() for out in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.consumers() and not value.is_graph_output():
            del graph.initializers[name]


# ---- The nodes of our ops, in opset 21 -----------------------------------------------------------

op: Any = opset21  # its annotations are of types of tensors that nothing here holds
_FLOAT = ir.DataType.FLOAT
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
        theirs.integer_product.default: lambda input, weight, zero_point: op.MatMulInteger(
            input, weight, zero_point
        ),
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
    return op.Clip(integers, _scalar(quant_min, kind), _scalar(quant_max, kind))


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
    integers = op.Clip(integers, _scalar(quant_min, _FLOAT), _scalar(quant_max, _FLOAT))
    if zero_point is not None:
        integers = op.Sub(integers, zero_point)
    return _to(op.Mul(integers, scale), input.dtype)


def _column(values: Any) -> Any:
    return op.Unsqueeze(values, op.Constant(value_ints=[-1]))


def _scalar(value: int, kind: Any) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=kind))


def _to(value: Any, kind: Any) -> Any:
    return value if kind is None or value.dtype == kind else op.Cast(value, to=kind)
