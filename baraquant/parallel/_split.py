# SPDX-License-Identifier: BSD-3-Clause
"""What happens to a layer when it is split: checks, its tensors, its fake quantizers, its class.

Embeddings are split by their features (columns) or by their rows.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from .. import nn as bnn
from ..nn.inference.integers import HoldsIntegers
from ..nn.inference.weights import Int4Factors
from ..nn.shared.fake_quantize import FakeQuantize
from ..nn.shared.subclassed import plain_type, subclassed, with_forward_of
from ..nn.training.int4 import FakeQuantizeInt4
from ..nn.training.quantizers import QuantizesWeight
from ..nn.training.ternary import FakeQuantizeTernary
from ._agreed import (
    AgreedFakeQuantize,
    AgreedFakeQuantizeInt4,
    AgreedFakeQuantizeTernary,
    LocalFakeQuantize,
)
from ._layout import Layout
from ._linear import (
    ColumnsInTraining,
    ColumnsOfIntegers,
    LocalIntegers,
    LocalParameters,
    Parallel,
    RowsInTraining,
    RowsOfIntegers,
    RowsOfStaticIntegers,
    RowsOfWeights,
)


class FeaturesOfTable(Parallel):
    """An embedding whose features are split: each process has some of each row."""

    _split = "features split"

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the features of this process, in the layout that the style says."""
        index = self._layout.arriving(input, Replicate(), Replicate())
        rows = super().forward(index)  # type: ignore[misc]
        return self._layout.leaving(rows, Shard(-1), self.embedding_dim)


class RowsOfTable(Parallel):
    """An embedding whose rows are split: each process looks up those that it has."""

    _split = "rows split"
    _first_row: int

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the rows, in the layout that the style says.

        A process that lacks a row adds zeros, so that the sum over the processes is the row.
        """
        layout = self._layout
        index = layout.arriving(input, Replicate(), Replicate())
        known = ((index >= 0) & (index < self.num_embeddings)).all()
        torch._assert_async(known, f"expected indices of {self.num_embeddings} rows")
        first, count = self._first_row, self._own_table().shape[0]
        is_here = (index >= first) & (index < first + count)
        if count == 0:  # more processes than parts of the table
            rows = self._no_rows(index)
        else:
            rows = super().forward(  # type: ignore[misc]
                torch.where(is_here, index - first, 0)
            )
            rows = rows.masked_fill(~is_here.unsqueeze(-1), 0)
        return layout.finished(layout.sum(rows, layout.output))

    def _no_rows(self: Any, index: Tensor) -> Tensor:
        table = self._own_table()
        dtype = table.dtype if table.is_floating_point() else self.dtype
        return table.new_zeros([*index.shape, table.shape[1]], dtype=dtype)


class FeaturesInTraining(FeaturesOfTable, LocalParameters):
    """A prepared embedding, split by its features."""

    def _round_rows(self: Any, rows: Tensor) -> Tensor:
        quantizer = self.weight_fake_quant
        if not isinstance(quantizer, AgreedFakeQuantize) and not self.rounds_scale:
            return super()._round_rows(rows)  # type: ignore[misc]
        table = rows.reshape(-1, rows.shape[-1])
        return quantizer.round(table).reshape(rows.shape)


class RowsOfTableInTraining(RowsOfTable, LocalParameters):
    """A prepared embedding, split by its rows."""

    def _own_table(self: Any) -> Tensor:
        return self.float_weight()

    def _no_rows(self: Any, index: Tensor) -> Tensor:
        # The sum of the empty table connects the zeros to the parameter, which has a gradient.
        return super()._no_rows(index) + self.float_weight().sum()

    def _rows(self: Any, input: Tensor, weight: Tensor) -> Tensor:
        padding = None if self.padding_idx is None else self.padding_idx - self._first_row
        if padding is not None and not 0 <= padding < weight.shape[0]:
            padding = None
        return F.embedding(input, weight, padding, None, self.norm_type)


class FeaturesOfIntegers(FeaturesOfTable, LocalIntegers):
    """A ``QuantizedEmbedding``, split by its features."""


class RowsOfTableOfIntegers(RowsOfTable, LocalIntegers):
    """A ``QuantizedEmbedding``, split by its rows."""

    def _own_table(self: Any) -> Tensor:
        return self.qweight


# What stands before a layer's class if it is split by outputs (or features), or inputs (or rows).
_CLASSES: dict[type[nn.Module], tuple[Any, Any]] = {
    bnn.FakeQuantizedLinear: (ColumnsInTraining, RowsInTraining),
    bnn.FakeQuantizedConv1D: (ColumnsInTraining, RowsInTraining),
    bnn.QuantizedLinear: (ColumnsOfIntegers, RowsOfIntegers),
    bnn.StaticQuantizedLinear: (ColumnsOfIntegers, RowsOfStaticIntegers),
    bnn.WeightOnlyLinear: (ColumnsOfIntegers, RowsOfWeights),
    # Those of packed weights become layers of int8 before.
    bnn.QuantizedInt4Linear: (ColumnsOfIntegers, RowsOfIntegers),
    bnn.StaticQuantizedInt4Linear: (ColumnsOfIntegers, RowsOfStaticIntegers),
    bnn.WeightOnlyInt4Linear: (ColumnsOfIntegers, RowsOfWeights),
    bnn.FakeQuantizedEmbedding: (FeaturesInTraining, RowsOfTableInTraining),
    bnn.QuantizedEmbedding: (FeaturesOfIntegers, RowsOfTableOfIntegers),
}
EMBEDDINGS = (bnn.FakeQuantizedEmbedding, bnn.QuantizedEmbedding)
_OF_A_SCALE = ("min_val", "max_val", "scale", "zero_point")

# For a parameter that several layers share: the DTensor that the first of them got, and its layout.
_shared = WeakIdKeyDictionary()


def is_quantized(module: nn.Module) -> bool:
    """Whether a module is a layer of this package, prepared or converted."""
    return isinstance(module, (QuantizesWeight, HoldsIntegers))


def split(module: nn.Module, layout: Layout, by_rows: bool, source: int | None) -> None:
    """Split a layer over processes, in place; nothing is changed if it cannot be split.

    The messages of errors have neither the style nor the layer. ``source`` is the process whose
    numbers count; None: each process keeps its part of its own.
    """
    kind = _check_kind(module)
    has_table = kind in EMBEDDINGS
    # Whether a part of the weight has all of a channel, which is a row of an embedding.
    splits_channels = by_rows if has_table else not by_rows
    _check_weight(module, layout.mesh, splits_channels)
    _check_size(module, layout, by_rows and not has_table)
    _check_quantizers(module, layout.mesh, splits_channels, by_rows and not has_table)
    if getattr(module, "backward", "float") != "float":
        raise NotImplementedError(
            f'expected backward="float", but got "{module.backward}"; the gradients of a layer on '
            "several processes are products of floats"
        )
    if by_rows and not has_table:
        _check_rotation(module, layout.mesh)
    if isinstance(module, (Int4Factors, bnn.WeightOnlyInt4Linear)):
        kind = _unpack(module)
    placements = _placements(module, splits_channels)
    for name, placement in placements.items():
        _check_shared(module, name, placement)
    if by_rows and has_table:
        rank, total = layout.mesh.get_local_rank(), module.num_embeddings
        module._first_row = min(total, rank * -(-total // layout.mesh.size()))
    for name, placement in placements.items():
        _distribute(module, name, layout.mesh, placement, source)
    if isinstance(module, QuantizesWeight):
        _split_quantizer(module, layout, splits_channels, source)
    if by_rows and not has_table:
        _agree_on_input(module, layout)
    module._layout = layout
    module.__class__ = _class_of(module, kind, by_rows)


def _check_kind(module: nn.Module) -> type[nn.Module]:
    if isinstance(module, Parallel):
        raise ValueError(
            "expected a layer that is on one process, but got one that is parallel already; name "
            "each layer once in the plan"
        )
    kind = plain_type(module)
    if kind not in _CLASSES:
        raise NotImplementedError(
            f"expected one of {', '.join(known.__name__ for known in _CLASSES)}, nn.Linear or "
            f"nn.Embedding, but got {kind.__name__}; leave it out of the plan, and every process "
            "computes it whole"
        )
    if kind is not type(module) and kind not in EMBEDDINGS:
        raise NotImplementedError(
            f"expected a layer with a forward of its kind, but got {type(module).__name__}, which "
            "adds to it; leave it out of the plan"
        )
    return kind


def _unpack(module: Int4Factors | bnn.WeightOnlyInt4Linear) -> type[nn.Module]:
    """Make a layer of packed weights the layer of int8 that has its bits, in place.

    Two parts of the weight may meet in one byte, and in one group with a factor.
    """
    layer = with_forward_of(module.as_int8(), module, nn.Linear)
    if isinstance(module, Int4Factors):
        del module.group_size
    for name in ("_parameters", "_buffers", "weight_bits"):
        setattr(module, name, getattr(layer, name))
    kind = type(layer)
    module.__class__ = kind
    return kind


def _check_weight(module: nn.Module, mesh: DeviceMesh, splits_channels: bool) -> None:
    if isinstance(module, QuantizesWeight):
        weight = module._parameters.get("weight")
        if weight is None:
            raise NotImplementedError(
                "expected weight to be a parameter, but a parametrization or a hook computes it; "
                "remove that first"
            )
    else:
        weight = module._integers()
    if isinstance(weight, DTensor):
        raise ValueError(
            "expected a plain weight, but got a DTensor; call parallelize_module before fully_shard"
        )
    if getattr(module, "sparse", False) or (
        splits_channels and getattr(module, "scale_grad_by_freq", False)
    ):
        raise NotImplementedError(
            "expected sparse=False and scale_grad_by_freq=False, of whose gradients several "
            "processes know only parts"
        )


def _check_size(module: nn.Module, layout: Layout, splits_inputs: bool) -> None:
    size = layout.mesh.size()
    if splits_inputs and module.in_features % size != 0:
        raise ValueError(
            f"expected in_features to be a multiple of the {size} processes, but got "
            f"{module.in_features}; use ColwiseParallel or fewer processes"
        )
    for name, placement in (("input", layout.input), ("output", layout.output)):
        if type(placement) not in (Shard, Replicate):
            raise ValueError(
                f"expected {name}_layouts to be Shard(dim) or Replicate(), but got {placement}"
            )


def _check_quantizers(
    module: nn.Module, mesh: DeviceMesh, splits_channels: bool, splits_inputs: bool
) -> None:
    for name, quantizer in module.named_modules():
        if isinstance(quantizer, bnn.LearnedFakeQuantize):
            raise NotImplementedError(
                f"expected {name} to compute or observe its scale, but it learns it, and each "
                "process would learn another one; train with fully_shard, or with a scheme whose "
                "scales are dynamic"
            )
        if isinstance(quantizer, FakeQuantizeInt4) and not quantizer.is_dynamic:
            raise NotImplementedError(
                f"expected {name} to choose its factors from the weight, but they are given; split "
                "the layer when it is converted"
            )
    size = _group_size(module)
    if size is not None and not splits_channels:
        features = module.in_features if splits_inputs else module.embedding_dim
        _check_group(module, mesh, "group_size", size, features)
    if getattr(module, "fold", 0) > 0 and (
        not splits_channels or module.float_weight().shape[0] % mesh.size() != 0
    ):
        raise NotImplementedError(
            "expected groups with dynamic scales, but the weight's scales are observed, in one "
            "list for all channels and groups; prepare with dynamic=True for the weight, or use a "
            "style that gives each process whole channels"
        )
    quantizer = getattr(module, "input_fake_quant", None)
    if not splits_inputs or not isinstance(quantizer, FakeQuantize):
        return
    if quantizer.granularity == "per_group":
        of_input = quantizer.group_size
        _check_group(module, mesh, "group_size of the input", of_input, module.in_features)
    elif quantizer.mode == "fixed" and quantizer.scale.numel() != 1:
        raise NotImplementedError(
            f"expected one fixed scale for the input, but got {quantizer.scale.numel()}; use "
            "ColwiseParallel"
        )


def _check_rotation(module: nn.Module, mesh: DeviceMesh) -> None:
    block, features = module.rotate, module.in_features
    if block > 0 and features // mesh.size() % block != 0:
        raise NotImplementedError(
            f"expected rotate to divide the features of a process ({features} / {mesh.size()}), "
            f"but got {block}, and a block must not lie on two processes; choose a smaller rotate, "
            "or use ColwiseParallel"
        )


def _check_group(module: nn.Module, mesh: DeviceMesh, what: str, size: int, features: int) -> None:
    if features % mesh.size() != 0 or features // mesh.size() % size != 0:
        raise ValueError(
            f"expected {what} to divide the features of a process ({features} / {mesh.size()}), "
            f"but got {size}; a group must not lie on two processes"
        )


def _group_size(module: nn.Module) -> int | None:
    if isinstance(module, QuantizesWeight):
        return module.config.weight.group_size
    if isinstance(module, Int4Factors):  # the factors are in the int8
        return None
    size: int | None = getattr(module, "group_size", None)
    return size


def _placements(module: nn.Module, splits_channels: bool) -> dict[str, Placement]:
    """Return the layout of each parameter and buffer of a layer."""
    whole = Replicate()
    if isinstance(module, QuantizesWeight):
        dim = int(not splits_channels) ^ int(module.transposed_groups > 0)
        return {"weight": Shard(dim), "bias": Shard(0) if splits_channels else whole}
    scale: Placement = Shard(0)
    if not splits_channels:
        scale = whole if _group_size(module) is None else Shard(1)
    return {
        "qweight": Shard(0 if splits_channels else 1),
        "weight_scale": scale,
        "weight_zero_point": scale,
        "bias": Shard(0) if splits_channels else whole,
        # Of each feature of a linear layer's input.
        "smooth": whole if splits_channels else Shard(0),
        "smooth_scale": whole if splits_channels else Shard(0),
    }


def _check_shared(module: nn.Module, name: str, placement: Placement) -> None:
    parameter = module._parameters.get(name)
    known = None if parameter is None else _shared.get(parameter)
    if known is not None and known[1] != placement:
        raise ValueError(
            f"expected the layers that share its {name} to be split alike, but got {placement} "
            f"here and {known[1]} there; an embedding by rows goes with an output layer by columns"
        )


def _distribute(
    module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement, source: int | None
) -> None:
    """Make a parameter or buffer a DTensor; those that a layer lacks are left out."""
    parameter, buffer = module._parameters.get(name), module._buffers.get(name)
    if buffer is not None:
        module._buffers[name] = _as_dtensor(buffer, mesh, placement, source)
    if parameter is None:
        return
    known = _shared.get(parameter)
    if known is None:
        tensor = _as_dtensor(parameter.detach(), mesh, placement, source)
        known = nn.Parameter(tensor, parameter.requires_grad), placement
        _shared[parameter] = known
    module._parameters[name] = known[0]


def _as_dtensor(
    tensor: Tensor, mesh: DeviceMesh, placement: Placement, source: int | None
) -> DTensor:
    with torch.no_grad():
        return distribute_tensor(tensor, mesh, [placement], src_data_rank=source)


def _split_quantizer(
    module: QuantizesWeight, layout: Layout, splits_channels: bool, source: int | None
) -> None:
    """Let the fake quantizer of a weight agree with those of the other processes where it must."""
    quantizer = module.weight_fake_quant
    if isinstance(quantizer, FakeQuantizeInt4) and not splits_channels:
        _become(quantizer, AgreedFakeQuantizeInt4, layout)
    if not isinstance(quantizer, FakeQuantize) or quantizer.granularity == "per_group":
        return
    is_whole = quantizer.granularity == "per_tensor"
    if isinstance(quantizer, FakeQuantizeTernary) and (is_whole or not splits_channels):
        _become(quantizer, AgreedFakeQuantizeTernary, layout)
        shape = module._parameters["weight"].shape  # of the parts together
        channels = shape[1 if module.transposed_groups > 0 else 0]
        quantizer._count = shape.numel() // (1 if is_whole else channels)
    elif is_whole or not splits_channels:
        _become(quantizer, AgreedFakeQuantize, layout)
    elif quantizer.is_observed:
        for name in _OF_A_SCALE:
            _distribute(quantizer, name, layout.mesh, Shard(0), source)
        quantizer.__class__ = LocalFakeQuantize


def _become(quantizer: Any, kind: type[nn.Module], layout: Layout) -> None:
    quantizer.__class__, quantizer._layout = kind, layout
    if isinstance(quantizer, AgreedFakeQuantize):  # no op knows the other processes
        quantizer.__dict__["computes_scale"] = quantizer.is_dynamic


def _agree_on_input(module: nn.Module, layout: Layout) -> None:
    quantizer: Any = getattr(module, "input_fake_quant", None)
    if isinstance(module, bnn.QuantizedLinear):
        names = ("granularity", "quant_min", "quant_max", "symmetric")
        given = {name: getattr(module, name) for name in names}
        quantizer = FakeQuantize(mode="dynamic", **given)
        module.__dict__["_input_quant"] = quantizer  # it holds no tensor, so it is no submodule
    if not isinstance(quantizer, FakeQuantize) or quantizer.mode == "fixed":
        return
    if quantizer.granularity != "per_group":
        _become(quantizer, AgreedFakeQuantize, layout)


@functools.cache
def _made(way: Any, kind: Any) -> Any:
    return type(f"{way.__name__}Of{kind.__name__}", (way, kind), {"__module__": __name__})


def _class_of(module: nn.Module, kind: Any, by_rows: bool) -> Any:
    made = _made(_CLASSES[kind][by_rows], kind)
    if kind is not type(module):
        made = subclassed(type(module).__mro__[1], made, nn.Embedding)
    return made
