# SPDX-License-Identifier: BSD-3-Clause
"""Checks the arguments of ``FakeQuantize``, and makes tensors of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...configs import MASTERS, SCALE_DTYPES, SCALE_RULES
from ...granularity import GRANULARITIES
from .arguments import (
    SCALES,
    check_choice,
    check_dtype,
    check_even,
    check_integer,
    check_sizes,
    int32_of,
)

MODES = ("fixed", "dynamic", "observed")
# The arguments that only some modes use.
MODES_OF = {
    "scale": ("fixed",),
    "zero_point": ("fixed",),
    "save_mask": ("fixed",),
    "averaging_constant": ("observed",),
    "channels": ("observed",),
}


def check_mode(mode: str, symmetric: bool, **arguments: Any) -> None:
    """Check that the mode exists, and that no argument is given that it does not use."""
    check_choice("FakeQuantize", "mode", mode, MODES)
    if mode == "fixed" and arguments["scale"] is None:
        raise ValueError(
            "FakeQuantize: expected a scale for mode 'fixed', but got None; "
            "'dynamic' and 'observed' take it from the data"
        )
    if mode == "fixed" and not symmetric:
        raise ValueError(
            "FakeQuantize: expected symmetric=False with mode 'dynamic' or 'observed' only: "
            "with mode 'fixed' the zero point is given"
        )
    for name, value in arguments.items():
        if value is not None and mode not in MODES_OF[name]:
            raise ValueError(f"FakeQuantize: expected no {name} for mode {mode!r}, but got {value}")


def check_granularity(granularity: str, axis: int | None, group_size: int | None) -> None:
    """Check that the granularity exists and has its own arguments and no others."""
    check_choice("FakeQuantize", "granularity", granularity, GRANULARITIES)
    if granularity == "per_channel" and axis is None:
        raise ValueError("FakeQuantize: expected an axis for per_channel, but got None")
    if granularity in ("per_tensor", "per_token") and axis is not None:
        raise ValueError(f"FakeQuantize: expected no axis for {granularity}, but got {axis}")
    if granularity == "per_group":
        if group_size is None or group_size <= 0:
            raise ValueError(
                f"FakeQuantize: expected a group_size > 0 for per_group, but got {group_size}"
            )
    elif group_size is not None:
        raise ValueError(
            f"FakeQuantize: expected no group_size for {granularity}, but got {group_size}"
        )


def check_range(mode: str, symmetric: bool, quant_min: int, quant_max: int) -> None:
    """Check that the range of integers is valid, and that a symmetric scale exists for it."""
    if quant_min >= quant_max:
        raise ValueError(
            f"FakeQuantize: expected quant_min < quant_max, but got {quant_min} and {quant_max}"
        )
    if mode != "fixed" and symmetric and quant_max - quant_min < 2:
        raise ValueError(
            "FakeQuantize: expected quant_max - quant_min >= 2 for a symmetric scale, "
            f"but got {quant_min} and {quant_max}"
        )


def check_observed(
    granularity: str, channels: int | None, averaging_constant: float | None
) -> None:
    """Check the further requirements of the mode ``observed``."""
    if granularity not in ("per_tensor", "per_channel"):
        raise ValueError(
            "FakeQuantize: expected granularity to be per_tensor or per_channel for mode "
            f"'observed', but got {granularity!r}"
        )
    if granularity == "per_tensor" and channels is not None:
        raise ValueError(f"FakeQuantize: expected no channels for per_tensor, but got {channels}")
    if granularity == "per_channel" and (channels is None or channels <= 0):
        raise ValueError(
            "FakeQuantize: expected channels > 0 for an observed per_channel scale, "
            f"but got {channels}"
        )
    # NB: written as "not in the range" so that NaN is refused.
    if averaging_constant is not None and not 0.0 < averaging_constant <= 1.0:
        raise ValueError(
            "FakeQuantize: expected averaging_constant to lie in (0, 1], "
            f"but got {averaging_constant}"
        )


def check_scale_dtype(name: str, scale_dtype: str) -> None:
    """Check that scales can be rounded to a dtype of this name."""
    check_choice(name, "scale_dtype", scale_dtype, SCALE_DTYPES)


def check_master(name: str, master: str | None) -> None:
    """Check that parameters can be rounded to a dtype of this name; None is none."""
    if master is not None:
        check_choice(name, "master", master, MASTERS)


def scale_tensor(scale: Tensor | float, granularity: str) -> Tensor:
    """Return a given scale as a new tensor."""
    if not isinstance(scale, Tensor):
        if granularity != "per_tensor":
            raise ValueError(f"FakeQuantize: expected scale to be a tensor for {granularity}")
        if not 0.0 < scale < float("inf"):
            raise ValueError(f"FakeQuantize: expected scale to be finite and > 0, but got {scale}")
        return torch.tensor(scale, dtype=torch.float32)
    check_dtype("FakeQuantize", "scale", scale.dtype, *SCALES)
    fits = {"per_tensor": scale.shape in ((), (1,)), "per_channel": scale.dim() == 1}
    expected = "[] or [1]" if granularity == "per_tensor" else "one dimension"
    wanted = f"{expected} for {granularity}"
    check_sizes("FakeQuantize", "scale", scale, fits.get(granularity, True), wanted)
    return scale.detach().clone()


def zero_point_tensor(
    zero_point: Tensor | int | None, scale: Tensor, quant_min: int, quant_max: int
) -> Tensor:
    """Return a given zero point as an int32 tensor shaped like ``scale``."""
    if zero_point is None:
        return torch.zeros_like(scale, dtype=torch.int32)
    if not isinstance(zero_point, Tensor):
        if not quant_min <= zero_point <= quant_max:
            raise ValueError(
                f"FakeQuantize: expected zero_point to lie in [{quant_min}, {quant_max}], "
                f"but got {zero_point}"
            )
        return torch.full_like(scale, zero_point, dtype=torch.int32)
    check_integer("FakeQuantize", "zero_point", zero_point)
    wanted = f"the shape of scale ({list(scale.shape)})"
    fits = zero_point.shape == scale.shape
    check_sizes("FakeQuantize", "zero_point", zero_point, fits, wanted)
    return int32_of(zero_point.detach()).clone()


def check_int4(
    group_size: int, scale: Tensor | None, factor: Tensor | None, zero_point: Tensor | None
) -> None:
    """Check the arguments of ``FakeQuantizeInt4``."""
    name = "FakeQuantizeInt4"
    check_even(name, group_size)
    if (scale is None, factor is None, zero_point is None) not in ((True,) * 3, (False,) * 3):
        raise ValueError(
            f"{name}: expected scale, group_factor and group_zero_point together, or none of them"
        )
    if scale is None or factor is None or zero_point is None:
        return
    check_dtype(name, "scale", scale.dtype, *SCALES)
    for what, tensor in (("group_factor", factor), ("group_zero_point", zero_point)):
        check_dtype(name, what, tensor.dtype, torch.uint8)
        if tensor.dim() != 2 or scale.shape != tensor.shape[:1] or tensor.shape != factor.shape:
            raise ValueError(
                f"{name}: expected {what} to have the shape [rows, groups] and scale [rows], but "
                f"got {list(tensor.shape)} and {list(scale.shape)}"
            )


def check_learned_int4(
    group_size: int, shape: Sequence[int], scale_rule: str, dtype: torch.dtype
) -> None:
    """Check the arguments of ``LearnedFakeQuantizeInt4``."""
    name = "LearnedFakeQuantizeInt4"
    check_even(name, group_size)
    if len(shape) != 2 or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{name}: expected shape to be [rows, groups], but got {list(shape)}")
    check_choice(name, "scale_rule", scale_rule, SCALE_RULES)
    check_dtype(name, "dtype", dtype, *SCALES)
