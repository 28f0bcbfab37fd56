# SPDX-License-Identifier: BSD-3-Clause
"""Scales that keep their precision when a module is converted (``half()``, ``to(dtype)``, ...).

They stay float32 in a float16 or bfloat16 module, as the ops require.
Tensors that two modules share, as tied weights are, stay shared. PyTorch does this for parameters
alone, and not on the way to the meta device and back.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from typing_extensions import Self

from .checked_state import ChecksState

# The result of the last conversion of a tensor, kept while another module holds it, and the version
# of that tensor.
_converted = WeakIdKeyDictionary()


class KeepsScales(ChecksState):
    """A module whose tensors stay shared. The buffers in ``_scales`` stay float32 or float64.

    Its parameters get no gradient, and a plain tensor may take the place of one.
    """

    _scales: Iterable[str] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        is_plain = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        if is_plain and name in self.__dict__.get("_parameters", ()):
            value = nn.Parameter(value.detach(), requires_grad=False)  # as with a buffer
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every conversion of a module (half(), to(dtype), cuda(), ...) passes through here.
        before = dict(self._buffers), dict(self._parameters)
        super()._apply(fn, recurse)
        for own, olds in zip((self._buffers, self._parameters), before, strict=True):
            for name, old in olds.items():
                new = own.get(name)
                if old is not None and new is not None:
                    new = with_precision(old, new) if name in self._scales else new
                    own[name] = _as_converted(old, new)
        return self


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of a dtype are computed with."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def wide(values: Tensor) -> Tensor:
    """Return floating values in the dtype in which they are computed with."""
    return values.to(compute_dtype(values.dtype))


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
    version = None if old.is_inference() else old._version  # another one: it was changed since
    reference, converted = _converted.get(old, (None, None))
    twin = None if reference is None else reference()
    is_same = isinstance(twin, Tensor) and (twin.device, twin.dtype) == (new.device, new.dtype)
    if is_same and converted == version:
        return twin
    _converted[old] = weakref.ref(new), version
    return new
