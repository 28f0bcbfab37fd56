# SPDX-License-Identifier: BSD-3-Clause
"""Checks of fields and arguments; the errors name the class or function, and the field."""

from ._table import shown

MAX_ROTATION = 32768  # the largest block of baraquant.ops.hadamard


def check_type(where: str, name: str, value: object, is_right: bool, what: str) -> None:
    """Raise a TypeError unless an argument of ``where`` is of the right type, which is ``what``."""
    if not is_right:
        raise TypeError(f"{where}: expected {name} to be {what}, but got {type(value).__name__}")


def check_int(config: object, name: str) -> None:
    """Check that a field is an int."""
    value = getattr(config, name)
    check_type(type(config).__name__, name, value, type(value) is int, "an int")


def check_rotation(config: object, block: object) -> None:
    """Check the block of a rotation: a power of two, or None for no rotation."""
    name = type(config).__name__
    if block is None:
        return
    check_type(name, "rotate", block, type(block) is int, "an int or None")
    assert isinstance(block, int)
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
    check_type(where, name, value, type(value) is bool, "a bool")


def check_choice(config: object, name: str, choices: tuple[str, ...]) -> None:
    """Check that a field is one of some strings."""
    where, value = type(config).__name__, getattr(config, name)
    check_type(where, name, value, isinstance(value, str), "a str")
    if value not in choices:
        raise ValueError(
            f"{where}: expected {name} to be one of {', '.join(choices)}, but got {shown(value)}"
        )
