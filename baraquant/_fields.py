# SPDX-License-Identifier: BSD-3-Clause
"""Checks of fields and arguments; the errors name the class or function, and the field."""

from ._table import shown

MAX_ROTATION = 32768  # the largest block of baraquant.ops.hadamard


def check_int(config: object, name: str) -> None:
    """Check that a field is an int."""
    value = getattr(config, name)
    if type(value) is not int:
        raise TypeError(
            f"{type(config).__name__}: expected {name} to be an int, but got {type(value).__name__}"
        )


def check_rotation(config: object, block: object) -> None:
    """Check the block of a rotation: a power of two, or None for no rotation."""
    name = type(config).__name__
    if block is None:
        return
    if type(block) is not int:
        raise TypeError(
            f"{name}: expected rotate to be an int or None, but got {type(block).__name__}"
        )
    if not 2 <= block <= MAX_ROTATION or block & (block - 1) != 0:
        raise ValueError(
            f"{name}: expected rotate to be a power of two in [2, {MAX_ROTATION}], but got "
            f"{block}; 128 and 256 are good choices, and None rotates nothing"
        )


def check_bools(config: object, *names: str) -> None:
    """Check that fields are bools."""
    for name in names:
        check_bool(type(config).__name__, name, getattr(config, name))


def check_bool(where: str, name: str, value: object) -> None:
    """Check an argument of a function or a class, of which ``where`` is the name."""
    if type(value) is not bool:
        raise TypeError(f"{where}: expected {name} to be a bool, but got {type(value).__name__}")


def check_choice(config: object, name: str, choices: tuple[str, ...]) -> None:
    """Check that a field is one of some strings."""
    value = getattr(config, name)
    if not isinstance(value, str):
        raise TypeError(
            f"{type(config).__name__}: expected {name} to be a str, but got {type(value).__name__}"
        )
    if value not in choices:
        raise ValueError(
            f"{type(config).__name__}: expected {name} to be one of {', '.join(choices)}, "
            f"but got {shown(value)}"
        )
