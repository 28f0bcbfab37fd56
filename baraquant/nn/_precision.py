# SPDX-License-Identifier: BSD-3-Clause
"""Scales keep their precision: float32 in a float16 or bfloat16 module, as the ops want them."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from typing_extensions import Self


class KeepsScales(nn.Module):  # type: ignore[misc]
    """A module whose buffers named in ``_scales`` stay float32 or float64 in any conversion."""

    _scales: Iterable[str] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every conversion of a module (half(), to(dtype), cuda(), ...) passes through here.
        before = {name: self._buffers.get(name) for name in self._scales}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers.get(name)
            if old is not None and new is not None:
                self._buffers[name] = with_precision(old, new)
        return self


def with_precision(old: Tensor, new: Tensor) -> Tensor:
    """Return ``new``, what a conversion made of ``old``; ``old`` moved where that lost precision.

    A tensor that is float64 before and float16 after comes back as float32.
    """
    if not new.is_floating_point() or new.dtype in (torch.float32, torch.float64):
        return new
    return old.to(new.device, torch.float32)
