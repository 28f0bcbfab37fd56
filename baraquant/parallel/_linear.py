# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers on several processes: split by their outputs (columns) or by their inputs (rows).

A layer becomes one of these classes in place, as ``fully_shard`` does it: the plan of
``parallelize_module`` replaces no module. Its tensors become DTensors, and it computes with the
parts of this process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard

from .. import ops
from ..nn._product import linear, matching_bias
from ..nn._recomputed import product_of_integers
from ..nn.inference.linear import QuantizedLinear, StaticQuantizedLinear
from ..nn.inference.weight_only import WeightOnlyLinear
from ..nn.training._quantizers import QuantizesWeight
from ..nn.training.fake_quantize import FakeQuantize
from ..nn.training.linear import FakeQuantizedConv1D, FakeQuantizedLinear
from ._agreed import AgreedFakeQuantize
from ._layout import Layout, local, local_attribute
from ._product import Grid, Product, product_of_parts, sum_of_floats

_WEIGHT: Any = QuantizesWeight.weight


class Parallel:
    """A layer that lies on several processes."""

    _layout: Layout
    _is_on_several_processes = True

    def extra_repr(self) -> str:
        """Return what the layer is, and how it is split, for ``repr``."""
        base: str = super().extra_repr()  # type: ignore[misc]
        return f"{base}, {self._split} over {self._layout.mesh.size()} processes"

    _split = ""


class LocalParameters(Parallel):
    """A prepared layer: its weight and bias, of which this process has parts."""

    def _own_weight(self) -> Tensor:
        return local(super()._own_weight())  # type: ignore[misc]

    def _own_bias(self: Any) -> Tensor | None:
        return local(self._parameters["bias"])

    def _weight(self: Any) -> Tensor:
        """The whole parameter, a DTensor, in evaluation too."""
        return self._parameters["weight"]

    weight = _WEIGHT.getter(_weight)


class LocalIntegers(Parallel):
    """A converted layer: its buffers, of which this process has parts."""

    qweight = local_attribute("qweight")
    weight_scale = local_attribute("weight_scale")
    weight_zero_point = local_attribute("weight_zero_point")
    bias = local_attribute("bias")
    smooth = local_attribute("smooth")
    smooth_scale = local_attribute("smooth_scale")


class Columns(Parallel):
    """A layer whose outputs are split: each process has some, and the whole input."""

    _split = "outputs split"

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the outputs of this process, in the layout that the style says."""
        rows = self._layout.arriving(input, Replicate(), Partial())
        output = super().forward(rows)  # type: ignore[misc]
        return self._layout.leaving(output, Shard(-1), self.out_features)


class Rows(Parallel):
    """A layer whose inputs are split: each process has some, and computes a part of every sum."""

    _split = "inputs split"

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the output, in the layout that the style says."""
        rows = self._layout.arriving(input, Shard(-1), Shard(-1))
        if self.rotate > 0:  # every block is whole on one process
            rows = ops.hadamard(rows, self.rotate)
        return self._layout.finished(self._summed(rows))


class ColumnsInTraining(Columns, LocalParameters, FakeQuantizedLinear):
    """A prepared linear layer, split by its outputs."""


class ColumnsOfConv1D(Columns, LocalParameters, FakeQuantizedConv1D):
    """A prepared ``Conv1D`` of transformers, split by its outputs."""


class ColumnsOfIntegers(Columns, LocalIntegers, QuantizedLinear):
    """A ``QuantizedLinear``, split by its outputs."""


class ColumnsOfStaticIntegers(Columns, LocalIntegers, StaticQuantizedLinear):
    """A ``StaticQuantizedLinear``, split by its outputs."""


class ColumnsOfWeights(Columns, LocalIntegers, WeightOnlyLinear):
    """A ``WeightOnlyLinear``, split by its outputs."""


class _RowsInTraining(Rows, LocalParameters):
    """A prepared linear layer, split by its inputs."""

    def _summed(self: Any, input: Tensor) -> Tensor:
        is_whole = self.is_whole and self._is_on()
        if is_whole if self.training else self.is_integer:
            return self._sum_of_integers(input)
        part = linear(self.rounded_input(input), self._rounded_channels_first(), None)
        return sum_of_floats(part, self.bias_to_add(), self._layout)

    def _sum_of_integers(self: Any, input: Tensor) -> Tensor:
        weight, bias = self._channels_first(self.weight_to_round()), self.bias_to_add()
        if self.training:
            input = lowered(input)  # as qat_linear
        qweight, scale, _ = self.quantized_weight()
        return product_of_parts(
            input,
            weight,
            matching_bias(bias, input.dtype, scale),
            _grid(self.input_fake_quant, input),
            qweight,
            scale,
            Product(self._layout, input.dtype),
        )


class RowsInTraining(_RowsInTraining, FakeQuantizedLinear):
    """A prepared linear layer, split by its inputs."""


class RowsOfConv1D(_RowsInTraining, FakeQuantizedConv1D):
    """A prepared ``Conv1D`` of transformers, split by its inputs."""


class RowsOfIntegers(Rows, LocalIntegers, QuantizedLinear):
    """A ``QuantizedLinear``, split by its inputs."""

    _input_quant: AgreedFakeQuantize

    def _summed(self, input: Tensor) -> Tensor:
        smooth = self.smooth
        rows = input if smooth is None else input / smooth
        return product_of_parts(
            rows,
            None,
            matching_bias(self.bias, input.dtype, self.weight_scale),
            _grid(self._input_quant, rows),
            self.qweight,
            self.weight_scale,
            Product(self._layout, input.dtype),
        )


class RowsOfStaticIntegers(Rows, LocalIntegers, StaticQuantizedLinear):
    """A ``StaticQuantizedLinear``, split by its inputs."""

    def _summed(self, input: Tensor) -> Tensor:
        scale, zero_point, smooth_scale = self.act_scale, self.act_zero_point, self.smooth_scale
        grid = Grid(
            "per_tensor" if smooth_scale is None else "per_channel",
            scale.reshape(()) if smooth_scale is None else smooth_scale,
            None if zero_point is None else zero_point.reshape(()),
            self.quant_min,
            self.quant_max,
            scale.reshape(()),
            clips=True,
        )
        return product_of_parts(
            input,
            None,
            matching_bias(self.bias, input.dtype, self.weight_scale),
            grid,
            self.qweight,
            self.weight_scale,
            Product(self._layout, input.dtype),
        )


class RowsOfWeights(Rows, LocalIntegers, WeightOnlyLinear):
    """A ``WeightOnlyLinear``, split by its inputs."""

    def _summed(self, input: Tensor) -> Tensor:
        rows = self.input_fake_quant(input)
        part = product_of_integers(self, rows, lambda x, weight, _: linear(x, weight, None))
        return sum_of_floats(part, self.bias, self._layout)


def _grid(quantizer: FakeQuantize, input: Tensor) -> Grid:
    """Return the integers of an input whose processes agree on its range."""
    symmetric = quantizer.symmetric
    if isinstance(quantizer, AgreedFakeQuantize) and quantizer.is_dynamic:
        scale, zero_point = quantizer.agreed_qparams(input)
    else:
        scale, zero_point = quantizer.scale.reshape(()), quantizer.zero_point.reshape(())
    return Grid(
        quantizer.granularity,
        scale,
        None if symmetric else zero_point,
        quantizer.quant_min,
        quantizer.quant_max,
        scale,
        clips=not (symmetric and quantizer.is_dynamic),
    )


def lowered(input: Tensor) -> Tensor:
    """Return an input in the dtype of autocast, where that is enabled and casts it."""
    device = input.device.type
    if input.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return input
    return input.to(torch.get_autocast_dtype(device))
