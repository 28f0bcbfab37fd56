# SPDX-License-Identifier: BSD-3-Clause
"""The parameter that is quantized: as the optimizer holds it, or rounded to ``master`` first."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import Self

from .checked_state import ChecksState

_HALVES = (torch.float16, torch.bfloat16)


def check_unrounded(name: str, dtype: torch.dtype, held: torch.dtype, master: str) -> None:
    """Check that no wrapper has rounded parameters of ``dtype``, which the optimizer holds.

    They may be rounded to the ``master``.
    """
    is_rounded = dtype in _HALVES and dtype != held
    if not is_rounded or (master != "" and dtype == _dtype_of(master)):
        return
    if not (dist.is_available() and dist.is_initialized()):
        return  # no wrapper: the parameter was replaced
    got, wide = (str(one).removeprefix("torch.") for one in (dtype, held))
    raise RuntimeError(
        f"{name}: expected parameters in {wide}, as the optimizer holds them, but got {got}: a "
        "wrapper has rounded them (MixedPrecisionPolicy's param_dtype), so that training would see "
        "other integers than those that are served; prepare with QuantConfig(..., "
        f"master={got!r}), such as W8A8(master={got!r}), or wrap without param_dtype"
    )


def round_master(parameter: Tensor, master: str) -> Tensor:
    """Return a parameter rounded to a dtype, in its own dtype; the gradient goes straight through.

    ``master`` is ``bfloat16`` or ``float16``; empty returns the parameter itself. Masters are
    rounded here and in :func:`in_master` only.
    """
    if master == "" or parameter.dtype == _dtype_of(master):
        return parameter
    # An op, since Inductor removes two casts.
    rounded: Tensor = torch.ops.baraquant._round_master(parameter, master == "bfloat16")
    return rounded


def in_master(parameter: Tensor, master: str) -> Tensor:
    """Return a parameter rounded to a dtype as :func:`round_master` does, without a gradient.

    A float32 parameter is returned in that dtype itself, which takes half of the memory: its
    integers and scales are the same.
    """
    if master != "" and parameter.dtype == torch.float32:
        return parameter.to(_dtype_of(master))
    return round_master(parameter, master)


def _dtype_of(master: str) -> torch.dtype:
    return torch.bfloat16 if master == "bfloat16" else torch.float16


class HoldsMaster(ChecksState):
    """A layer that knows the dtype in which the optimizer holds its parameters.

    A wrapper such as ``fully_shard`` may give it rounded copies of them. Then the layer trains on
    other numbers than it is converted with, unless ``master`` is the dtype of the copies.
    """

    __jit_ignored_attributes__: tuple[str, ...] = ("_held_dtype",)
    master: str = ""  # that of the configuration; empty for none
    _held_dtype: torch.dtype | None = None  # None: not known yet

    def _held_parameter(self) -> Tensor | None:
        """Return a parameter whose dtype is that of all that are quantized; None: none is left."""
        return self._parameters.get("weight")

    def _rounded_master(self, parameter: Tensor) -> Tensor:
        """Return what stands for a parameter: itself, or rounded to the master."""
        if not torch.jit.is_scripting():
            self._check_unrounded(parameter.dtype)
        return round_master(parameter, self.master)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _check_unrounded(self, dtype: torch.dtype) -> None:
        if self._held_dtype is not None:
            check_unrounded(type(self).__name__, dtype, self._held_dtype, self.master)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._hold_again()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._hold_again()  # with assign=True the dtype may be another one

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _hold_again(self) -> None:
        parameter = self._held_parameter()
        if parameter is not None:
            self._held_dtype = parameter.dtype
