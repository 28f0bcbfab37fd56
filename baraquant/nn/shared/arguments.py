# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the arguments of modules: the errors name the class and the argument."""

import torch
from torch import Tensor

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
