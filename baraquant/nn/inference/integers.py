# SPDX-License-Identifier: BSD-3-Clause
"""The base of all quantized layers: integers, and a floating ``weight`` to read."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ..shared.precision import KeepsScales
from ..shared.pretrained import refuse_save_pretrained
from ..shared.weight import Shaped, WeightView, weight_to_read
from . import _arguments


class ReadsFloats(KeepsScales):
    """A module whose floating weights are computed from integers when they are read.

    ``dtype`` is theirs, and follows the conversions of the module (``half()``, ``to(dtype)``).
    """

    dtype: torch.dtype

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _check_assigned(self, name: str, value: Any, scale: Tensor, integers: str) -> None:
        """Check that what is assigned to a weight is itself, multiplied in place by a number."""
        if not (isinstance(value, WeightView) and value.is_result_of(scale)):
            raise AttributeError(
                f"{type(self).__name__}: expected {name} to be read only, as it is computed from "
                f"the integers in {integers}; to change it, quantize the float model again"
            )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        refuse_save_pretrained()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # No buffer has the weights' dtype: convert a tensor of this dtype to learn the new one.
        device = next(tensor.device for tensor in self._parameters.values() if tensor is not None)
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=device)).dtype
        return self


class HoldsIntegers(ReadsFloats):
    """A layer that stores its weight as integers.

    Each read of ``weight`` computes it from the integers: a parent module may read its dtype, or
    compute with its values.
    """

    qweight: Tensor
    weight_scale: Tensor

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, to read, or to multiply in place by a number."""
        if torch.jit.is_scripting():
            weight = self.dequantized_weight()
        else:
            like = self._shaped_as_weight()
            scale = self.weight_scale
            weight = weight_to_read(self, self._weight_as_laid_out, like, self.dtype, scaled=scale)
        return weight

    def _integers(self) -> Tensor:
        """Return the tensor that holds the integers."""
        return self.qweight

    def _shaped_as_weight(self) -> Tensor | Shaped:
        """Return the weight's shape, strides and device, or a tensor that has them."""
        return self.qweight

    def _weight_as_laid_out(self) -> Tensor:
        """Return the floating weight in the layout of the layer that this one replaces."""
        return self.dequantized_weight()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            self._check_assigned(name, value, self.weight_scale, "qweight")
            return
        super().__setattr__(name, value)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def set_weight(self, name: str, integers: Tensor, bias: Tensor | None) -> None:
        """Register the bias and the integers as parameters without a gradient.

        Tools that move, offload or shard a model handle its parameters, and leave buffers alone.
        The bias comes first, as much code asks the first parameter of a model for its dtype.
        """
        self.register_parameter("bias", None if bias is None else _arguments.parameter(bias))
        self.register_parameter(name, _arguments.parameter(integers))
