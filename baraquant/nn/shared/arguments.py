# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the arguments of modules: the errors name the class and the argument."""

import functools
from typing import Any

import torch
from torch import Tensor

from ...granularity import GRANULARITIES

SCALES = (torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def check(name: str, fits: bool, wanted: str, got: object) -> None:
    """Check a requirement of an argument; the message says what was ``wanted``, and ``got``."""
    if not fits:
        raise ValueError(f"{name}: expected {wanted}, but got {got}")


def check_choice(name: str, argument: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that an argument is one of some words."""
    check(name, value in choices, f"{argument} to be one of {', '.join(choices)}", repr(value))


def check_dtype(name: str, argument: str, dtype: torch.dtype, *wanted: torch.dtype) -> None:
    """Check that a dtype is one of some."""
    if dtype not in wanted:
        words = " or ".join(str(one).removeprefix("torch.") for one in wanted)
        raise TypeError(f"{name}: expected {argument} to be {words}, but got {dtype}")


def check_floating(name: str, argument: str, dtype: torch.dtype) -> None:
    """Check that a dtype is floating."""
    if not dtype.is_floating_point:
        raise TypeError(f"{name}: expected {argument} to be floating, but got {dtype}")


def check_integer(name: str, argument: str, tensor: Tensor) -> None:
    """Check that a tensor holds integers."""
    if tensor.dtype not in INTEGERS:
        raise TypeError(f"{name}: expected {argument} to be integer, but got {tensor.dtype}")


def int32_of(integers: Tensor) -> Tensor:
    """Return integers as int32; one that is beyond becomes the nearest."""
    if integers.dtype == torch.int32:
        return integers
    limits = torch.iinfo(torch.int32)
    return integers.to(torch.int64).clamp(limits.min, limits.max).to(torch.int32)


def check_sizes(name: str, argument: str, tensor: Tensor, fits: bool, wanted: str) -> None:
    """Check that a tensor has the sizes that are ``wanted``, which ``fits`` says."""
    check(name, fits, f"{argument} to have {wanted}", list(tensor.shape))


def check_even(name: str, group_size: int) -> None:
    """Check the size of groups whose packed bytes hold two numbers of one group."""
    fits = type(group_size) is int and group_size > 0 and group_size % 2 == 0
    check(name, fits, "an even group_size > 0", repr(group_size))


def check_bits(name: str, argument: str, bits: int, most: int = 8) -> None:
    """Check a width."""
    fits = type(bits) is int and 2 <= bits <= most
    check(name, fits, f"{argument} to be an int in [2, {most}]", repr(bits))


# ---- Those of fake quantizers -------------------------------------------------------------------

_check = functools.partial(check, "FakeQuantize")
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
        fits = value is None or mode in MODES_OF[name]
        _check(fits, f"no {name} for mode {mode!r}", value)


def check_granularity(granularity: str, axis: int | None, group_size: int | None) -> None:
    """Check that the granularity exists and has its own arguments and no others."""
    check_choice("FakeQuantize", "granularity", granularity, GRANULARITIES)
    _check(granularity != "per_channel" or axis is not None, "an axis for per_channel", axis)
    takes_axis = granularity in ("per_channel", "per_group")
    _check(takes_axis or axis is None, f"no axis for {granularity}", axis)
    if granularity == "per_group":
        fits = group_size is not None and group_size > 0
        _check(fits, "a group_size > 0 for per_group", group_size)
    else:
        _check(group_size is None, f"no group_size for {granularity}", group_size)


def check_range(mode: str, symmetric: bool, quant_min: int, quant_max: int) -> None:
    """Check that the range of integers is valid, and that a symmetric scale exists for it."""
    ends = f"{quant_min} and {quant_max}"
    _check(quant_min < quant_max, "quant_min < quant_max", ends)
    is_wide = mode == "fixed" or not symmetric or quant_max - quant_min >= 2
    _check(is_wide, "quant_max - quant_min >= 2 for a symmetric scale", ends)


def check_observed(
    granularity: str, channels: int | None, averaging_constant: float | None
) -> None:
    """Check the further requirements of the mode ``observed``."""
    wanted = "granularity to be per_tensor or per_channel for mode 'observed'"
    _check(granularity in ("per_tensor", "per_channel"), wanted, repr(granularity))
    if granularity == "per_tensor":
        _check(channels is None, "no channels for per_tensor", channels)
    else:
        fits = channels is not None and channels > 0
        _check(fits, "channels > 0 for an observed per_channel scale", channels)
    fits = averaging_constant is None or 0.0 < averaging_constant <= 1.0  # false for NaN
    _check(fits, "averaging_constant to lie in (0, 1]", averaging_constant)


def scale_tensor(scale: Tensor | float, granularity: str) -> Tensor:
    """Return a given scale as a new tensor."""
    if not isinstance(scale, Tensor):
        if granularity != "per_tensor":
            raise ValueError(f"FakeQuantize: expected scale to be a tensor for {granularity}")
        _check(0.0 < scale < float("inf"), "scale to be finite and > 0", scale)
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
        wanted = f"zero_point to lie in [{quant_min}, {quant_max}]"
        _check(quant_min <= zero_point <= quant_max, wanted, zero_point)
        return torch.full_like(scale, zero_point, dtype=torch.int32)
    check_integer("FakeQuantize", "zero_point", zero_point)
    wanted = f"the shape of scale ({list(scale.shape)})"
    fits = zero_point.shape == scale.shape
    check_sizes("FakeQuantize", "zero_point", zero_point, fits, wanted)
    return int32_of(zero_point.detach()).clone()
