# SPDX-License-Identifier: BSD-3-Clause
"""What is done to the graph after PyTorch's exporter has written it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx_ir as ir
from onnxscript import optimizer

_NO_LIMIT = 1 << 40


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
    optimizer.fold_constants(
        model, input_size_limit=_NO_LIMIT, output_size_limit=_NO_LIMIT, should_fold=_should_fold
    )


def _should_fold(node: Any) -> bool | None:
    return node.op_type in ("Cast", "Reshape", "Unsqueeze", "Constant", "Identity") or False
