# SPDX-License-Identifier: BSD-3-Clause
"""The base of all fake quantizers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .arguments import SCALES
from .precision import with_precision


class Quantizer(nn.Module):  # type: ignore[misc]
    """A module that rounds its input, and can be switched off.

    Its floating tensors keep their precision when the module changes its dtype.
    """

    _rounds: bool  # an observed range has a buffer instead

    @torch.jit.export  # type: ignore[untyped-decorator]
    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Let the module round its input, or pass it through unchanged."""
        self._rounds = enabled

    @torch.jit.export  # type: ignore[untyped-decorator]
    def disable_fake_quant(self) -> None:
        """Pass the input through unchanged; an observer continues."""
        self.enable_fake_quant(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every conversion of a module (half(), to(dtype), cuda(), ...) calls this.
        buffers = {name: b for name, b in self._buffers.items() if b is not None}
        parameters = {name: p.data for name, p in self._parameters.items() if p is not None}
        super()._apply(fn, recurse)
        for name, old in buffers.items():
            self._buffers[name] = with_precision(old, self._buffers[name])
        for name, old in parameters.items():
            parameter = self._parameters[name]
            if parameter.dtype not in SCALES:
                parameter.data = with_precision(old, parameter.data)
                parameter.grad = None
        return self
