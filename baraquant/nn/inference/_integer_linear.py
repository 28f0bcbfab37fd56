# SPDX-License-Identifier: BSD-3-Clause
"""The bases of the linear layers that store integers."""

from typing import Any, Final

import torch
from torch import Tensor

from ... import ops
from .._rotation import check_block, has_same_metadata, note_metadata
from . import _arguments
from ._integers import HoldsIntegers


class LaysOutWeight(HoldsIntegers):
    """A linear layer whose ``weight`` reads as ``[in_features, out_features]`` if ``transposed``.

    This is the layout of transformers' ``Conv1D``, whose sizes ``nx`` and ``nf`` it has too. The
    integers are always ``[out_features, in_features]``.
    """

    transposed: bool
    rotate: int  # the block that is rotated in inputs, and is in the weight; 0 if none is

    def set_layout(self, transposed: bool) -> None:
        """Set the layout in which ``weight`` is read."""
        self.transposed = transposed
        if transposed:
            self.nf, self.nx = self.qweight.shape

    def _shaped_as_weight(self) -> Tensor:
        return self.qweight.t() if self.transposed else self.qweight

    def _weight_as_laid_out(self) -> Tensor:
        weight = self.dequantized_weight()
        return weight.t() if self.transposed else weight

    def _rotated(self, rows: Tensor) -> Tensor:
        """Return an input as the integers need it, or a weight in the other basis."""
        return ops.hadamard(rows, self.rotate) if self.rotate > 0 else rows

    def rotate_repr(self) -> str:
        """Return what ``repr`` shows of the rotation."""
        return f", rotate={self.rotate}" if self.rotate > 0 else ""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        note_metadata(self, destination, prefix)

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        if has_same_metadata(self, metadata, prefix, args[-1]):  # else the layer stays as it is
            super()._load_from_state_dict(state, prefix, metadata, *args)


class IntegerLinear(LaysOutWeight):
    """The base of the quantized linear layers: the weight with its scale, and the bias."""

    __constants__ = ("rotate",)

    weight_scale: Tensor
    bias: Tensor | None
    weight_sum: Tensor | None
    in_features: Final[int]
    out_features: Final[int]
    weight_bits: Final[int]
    symmetric: Final[bool]

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        weight_bits: int,
        symmetric: bool,
        dtype: torch.dtype | None,
        transposed: bool,
        rotate: int | None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        _arguments.check_weight(name, qweight, bias)
        _arguments.check_bits(name, "weight_bits", weight_bits)
        self.out_features, self.in_features = qweight.shape
        self.rotate = check_block(name, rotate, self.in_features)
        self.weight_bits, self.symmetric = weight_bits, symmetric
        scale = _arguments.scale_of_channels(name, weight_scale, self.out_features)
        self.dtype = _arguments.weight_dtype(name, dtype, bias, scale)
        self.register_buffer("qweight", _arguments.plain(qweight).contiguous())
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", None if bias is None else _arguments.plain(bias))
        self.set_layout(transposed)
        self.register_buffer("weight_sum", None, persistent=False)
        self.sum_weight()

    def check_one(self, smooth: str, given: Tensor | None) -> None:
        """Check that a layer is not both rotated and smoothed."""
        if self.rotate > 0 and given is not None:
            raise ValueError(
                f"{type(self).__name__}: expected rotate or {smooth}, but got both; a rotation "
                "mixes the features that a smoothing divides"
            )

    def sum_weight(self) -> None:
        """Compute ``weight_sum`` from the weight again."""
        if not self.symmetric:
            self.weight_sum = self.qweight.sum(dim=1, dtype=torch.int32)

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        self.sum_weight()

    def _dequantized(self) -> Tensor:
        return ops.dequantize_per_channel(self.qweight, self.weight_scale, None, 0)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weight=int{self.weight_bits} per_channel"
        )
