# SPDX-License-Identifier: BSD-3-Clause
"""What every family refuses alike: other objects, tensors of other kinds, numbers for dtypes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.bad_arguments.affine import not_plain
from tests.support.cases import function_of
from tests.support.checks.bad_calls import BadCalls
from tests.support.processes import run_program

# The ops that a test takes, by the name of its argument.
WANTED: dict[str, Callable[[Any], bool]] = {
    "op": lambda op: True,
    "op_with_dtype": lambda op: "dtype" in op.arguments("meta"),
    "op_to_integers": lambda op: op.verb in ("quantize", "dynamic_range_quantize"),
    "op_of_segments": lambda op: op.granularity.kind != "per_tensor",
}
# What the message says of tensors of other kinds.
WORDS = {"nested": "unbind()", "jagged": "unbind()", "coo": "to_dense()", "quantized": "int8"}
OF_PYTORCH = re.compile(r"Expected a value of type|match any schema")


def schemas(op: Any) -> list[Any]:
    packet = getattr(torch.ops.baraquant, op.name)
    return [getattr(packet, overload)._schema for overload in packet.overloads()]


def names_of_type(op: Any, kind: str) -> set[str]:
    """The arguments whose type in a schema begins so."""
    found = (argument for schema in schemas(op) for argument in schema.arguments)
    return {a.name for a in found if str(a.real_type).startswith(kind)}


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The message of a TypeError; of an argument of another type it may be PyTorch's own."""
    with pytest.raises((TypeError, RuntimeError)) as raised:
        call(*args, **kwargs)
    message = str(raised.value)
    assert type(raised.value) is TypeError or OF_PYTORCH.search(message), message
    return message


class WrongCalls(BadCalls):
    """The tests of a family's wrong calls; each has a subclass that names its ops."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name in set(WANTED) & set(metafunc.fixturenames):
            metafunc.parametrize(name, [op for op in self.OPS if WANTED[name](op)], ids=str)

    def test_none_and_other_objects(self, op: Any) -> None:
        """What PyTorch's schema refuses, and None, for which it passes an undefined tensor."""
        may_be_none, words = names_of_type(op, "Optional"), names_of_type(op, "str")
        for name in sorted(set(op.arguments("cpu")) - names_of_type(op, "bool")):
            objects = [3 + 2j, [1.0, 2.0], object()]
            objects += [] if name in may_be_none else [None]
            objects += [] if name in words else ["three"]  # a wrong word is among the bad cases
            for wrong in objects:
                refusal(op, op.arguments("cpu") | {name: wrong})

    def test_tensors_that_are_not_plain(self, op: Any) -> None:
        """The message names the public op and the argument, through torch.ops and baraquant.ops."""
        right = op.arguments("cpu")
        for name in [n for n, value in right.items() if isinstance(value, Tensor)]:
            for kind, make in not_plain(right[name]).items():
                if (kind, op.name) == ("jagged", "rms_norm"):
                    continue  # which PyTorch takes for its own op of that name, and refuses
                for call in (op, lambda a: function_of(op.name)(**a)):
                    message = refusal(call, right | {name: make()})
                    assert re.match(rf"baraquant::{op.name}: expected {name} to ", message), message
                    assert WORDS.get(kind, "") in message.lower() and "::_" not in message, message


class RandomCalls:
    """Of a family with programs of random calls."""

    PROGRAMS: tuple[str, ...] = ("fuzz",)

    @pytest.mark.process
    def test_random_arguments_neither_crash_nor_give_a_wrong_number(self) -> None:
        """In a process of its own, whose death would be seen; see `fuzz.py`."""
        for program in self.PROGRAMS:
            done = run_program(f"{type(self).__module__.rpartition('.')[0]}.{program}")
            assert "examples passed" in done.stdout


class WrongDtypes(WrongCalls):
    """Of a family whose ops take a dtype."""

    def test_a_number_that_is_no_dtype(self, op_with_dtype: Any) -> None:
        """torch.ops takes numbers, and reads them as PyTorch's own enumeration."""
        op = op_with_dtype
        message = f"^baraquant::{op.name}: expected dtype to be "
        for wrong in (1000, -1, 255, 2**40, True, 6.5, "float32"):
            with pytest.raises(TypeError, match=f"{message}a torch.dtype, but got '?{wrong}"):
                function_of(op.name)(**op.arguments("cpu") | {"dtype": wrong})
        for wrong in (1000, -1, 127, 255):
            with pytest.raises(TypeError, match=f"{message}.* but got a number that is no dtype"):
                op(op.arguments("cpu") | {"dtype": wrong})


class WrongGranularities(WrongDtypes):
    """Of a family whose ops have a granularity."""

    def test_no_axis_in_a_0_dimensional_input(self, op_of_segments: Any, any_device: str) -> None:
        op = op_of_segments
        arguments = op.arguments(any_device)
        for shape in ((), (1,)):
            for name, value in arguments.items():
                if isinstance(value, Tensor):
                    is_input = name in ("grad", "input")
                    arguments[name] = value.new_ones(() if is_input else shape)
            if "axis" in arguments:
                arguments["axis"] = -1
            with pytest.raises(IndexError, match=rf"^baraquant::{op.name}: .*got"):
                op(arguments)

    def test_default_range_does_not_fit_uint8(self, op_to_integers: Any, any_device: str) -> None:
        op = op_to_integers
        arguments = op.arguments(any_device) | {"dtype": torch.uint8}
        del arguments["quant_min"], arguments["quant_max"]
        with pytest.raises(ValueError, match=rf"^baraquant::{op.name}.*-128"):
            op(arguments)
