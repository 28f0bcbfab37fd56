# SPDX-License-Identifier: BSD-3-Clause
"""What the functions of this package share: fast calls, TorchScript, and clear type errors."""

import functools
import numbers
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.jit._builtins

from baraquant._C import eager_call

F = TypeVar("F", bound=Callable[..., object])

# Torch's message if the type of an argument differs from the schema.
_MISMATCH = re.compile(
    r"Expected a value of type '(.+?)' for argument '(\w+)' but instead found type '(.+?)'"
)


def operator(function: F) -> F:
    """Declare a function to be the op ``baraquant::<its name>``.

    The body defines what the function does. Two shortcuts do the same faster: TorchScript calls the
    op instead of compiling the body, and eager mode bypasses the conversions of ``torch.ops`` if
    all arguments are plain. So does ``torch.ops.baraquant.<its name>`` itself.
    """
    name = function.__name__
    eager = _bypassed(name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        result = eager(*args, **kwargs)
        if result is not NotImplemented:
            return result
        return _call_with_others(function, args, kwargs)

    torch.jit._builtins._register_builtin(call, f"baraquant::{name}")
    return cast(F, call)


def _bypassed(name: str) -> Callable[..., Any]:
    """Let an op of ``torch.ops`` bypass its conversions; return what calls it so."""
    packet = getattr(torch.ops.baraquant, name)
    overloads = ["" if one == "default" else one for one in packet.overloads()]
    eager = eager_call(f"baraquant::{name}", overloads)
    packet.__class__, packet._eager = _EagerPacket, eager
    return eager


class _EagerPacket(torch._ops.OpOverloadPacket):  # type: ignore[misc]
    """An op of ``torch.ops`` that finds the overload without a trial of each.

    PyTorch tries the overloads in their order, and each that does not fit costs an exception: 17 us
    if the first takes a tensor and the second a number.
    """

    _eager: Callable[..., Any]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = self._eager(*args, **kwargs)
        return super().__call__(*args, **kwargs) if result is NotImplemented else result


def _call_with_others(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call with arguments that are not plain (NumPy scalars, subclasses, symbols) or wrong."""
    _check_dtypes(function, kwargs)
    args = tuple(map(_as_python, args))
    kwargs = {key: _as_python(value) for key, value in kwargs.items()}
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        mismatch = _MISMATCH.search(str(error))
        if mismatch is None:
            raise
        expected, argument, got = mismatch.groups()
    if argument == "dtype":
        expected = "torch.dtype"  # which torch writes as int
    message = f"baraquant::{function.__name__}: expected {argument} to "
    if got == "int" and expected in ("int", "Optional[int]"):
        raise ValueError(f"{message}fit in 64 bits")
    raise TypeError(f"{message}be of type {expected}, but got {got}")


def _check_dtypes(function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuse what is no dtype: torch.ops takes an int for one, and the low byte of a large int."""
    for name, value in kwargs.items():
        is_dtype = function.__annotations__.get(name) in (torch.dtype, torch.dtype | None)
        if is_dtype and not (value is None or isinstance(value, torch.dtype)):
            raise TypeError(
                f"baraquant::{function.__name__}: expected {name} to be a torch.dtype, "
                f"but got {value!r}"
            )


def _as_python(value: Any) -> Any:
    """Return the Python number for a number of another library."""
    if isinstance(value, (bool, int, float)) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


for _name in ("_int8_linears", "_int4_linears", "_weight_only_linears"):  # layers call them
    _bypassed(_name)
