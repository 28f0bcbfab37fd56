# SPDX-License-Identifier: BSD-3-Clause
"""Buffers that keep their precision when a module is converted (``half()``, ``to(dtype)``, ...).

Scales keep their precision: they stay float32 in a float16 or bfloat16 module, as the ops require.
Buffers that two modules share, as tied weights are, stay shared. PyTorch does this only for
parameters.
"""

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from typing_extensions import Self

# The result of the last conversion of a buffer, kept while another module holds it.
_converted = WeakIdKeyDictionary()


class KeepsScales(nn.Module):  # type: ignore[misc]
    """A module whose buffers stay shared. The buffers in ``_scales`` stay float32 or float64."""

    _scales: Iterable[str] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every conversion of a module (half(), to(dtype), cuda(), ...) passes through here.
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers.get(name)
            if old is not None and new is not None:
                new = with_precision(old, new) if name in self._scales else new
                self._buffers[name] = _as_converted(old, new)
        return self


def with_precision(old: Tensor, new: Tensor) -> Tensor:
    """Return ``new``, the converted ``old``; only moved if the conversion lost precision.

    If a conversion takes a tensor from float64 to float16, the result is float32.
    """
    if not new.is_floating_point() or new.dtype in (torch.float32, torch.float64):
        return new
    return old.to(new.device, torch.float32)


def _as_converted(old: Tensor, new: Tensor) -> Tensor:
    """Return ``new``, or the result that another module got for the same tensor."""
    if new is old:
        return new
    known = _converted.get(old)
    twin = None if known is None else known()
    if isinstance(twin, Tensor) and twin.device == new.device and twin.dtype == new.dtype:
        return twin
    _converted[old] = weakref.ref(new)
    return new
