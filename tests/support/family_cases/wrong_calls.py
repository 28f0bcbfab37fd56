# SPDX-License-Identifier: BSD-3-Clause
"""What every family refuses alike: other objects, tensors of other kinds, numbers for dtypes.

A wrong call has an exception's type and words, on Meta the same.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.support.bad_arguments.affine import names_of, not_plain
from tests.support.cases import function_of
from tests.support.processes import run_program

# The ops that a test takes, by the name of its argument.
WANTED: dict[str, Callable[[Any], bool]] = {
    "op": lambda op: True,
    "op_with_dtype": lambda op: "dtype" in names_of(op),
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


def names_of_tensors(arguments: dict[str, Any]) -> list[str]:
    return [name for name, value in arguments.items() if isinstance(value, Tensor)]


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The message of a TypeError; of an argument of another type it may be PyTorch's own."""
    with pytest.raises((TypeError, RuntimeError)) as raised:
        call(*args, **kwargs)
    message = str(raised.value)
    assert type(raised.value) is TypeError or OF_PYTORCH.search(message), message
    return message


class BadCalls:
    """The tests of wrong calls; each has a subclass that names its ops."""

    OPS: ClassVar[Sequence[Any]]
    PAIRS: ClassVar[Sequence[tuple[Any, Any]]]  # an op, and a wrong call of it

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name in set(WANTED) & set(metafunc.fixturenames):
            metafunc.parametrize(name, [op for op in self.OPS if WANTED[name](op)], ids=str)

    def check_result(self, op: Any, result: Any, device: str) -> None:
        """Whether a right call returns what it should."""

    def wrong_calls(self, op: Any) -> list[Any]:
        return [bad for other, bad in self.PAIRS if other == op]

    def test_right_arguments_are_taken(self, op: Any, any_device: str) -> None:
        """So that each wrong call below is wrong in one way only."""
        self.check_result(op, op(op.arguments(any_device)), any_device)

    def test_type_and_words(self, op: Any, any_device: str) -> None:
        """Of each: the exception's type; op, argument, expectation and what came."""
        failures = []
        for bad in self.wrong_calls(op):
            try:
                message, pattern = bad.call(op, any_device)
            except BaseException as error:  # pytest.raises fails with an exception that is none
                failures.append(f"{bad}: {type(error).__name__}: {str(error)[:200]}")
                continue
            if not re.match(pattern, message, re.DOTALL):
                failures.append(f"{bad}: {message!r} does not match {pattern!r}")
        assert not failures, "\n".join(failures)

    def test_meta_says_the_same(self, op: Any) -> None:
        for bad in self.wrong_calls(op):
            assert bad.call(op, "cpu") == bad.call(op, "meta"), str(bad)

    def test_tensors_that_are_not_plain(self, op: Any, any_device: str) -> None:
        """The message names the public op and the argument, through torch.ops and baraquant.ops."""
        right = op.arguments(any_device)
        for name in names_of_tensors(right):
            for kind, make in not_plain(right[name]).items():
                if (kind, op.name) == ("jagged", "rms_norm"):
                    continue  # which PyTorch takes for its own op of that name, and refuses
                for call in (op, lambda a: function_of(op.name)(**a)):
                    message = refusal(call, right | {name: make()})
                    assert re.match(rf"baraquant::{op.name}: expected {name} to ", message), message
                    assert WORDS.get(kind, "") in message.lower() and "::_" not in message, message

    def test_tensors_on_different_devices(self, op: Any, any_device: str) -> None:
        """Whichever of them lies elsewhere is named."""
        right, other = op.arguments(any_device), "meta" if any_device == "cpu" else "cpu"
        names = names_of_tensors(right)
        for name in names if len(names) > 1 else ():
            with pytest.raises(ValueError) as raised:
                op(right | {name: torch.ones_like(right[name], device=other)})
            assert type(raised.value) is ValueError  # no subclass: a plain builtin exception
            words = rf"(?=.*\b{name}\b)expected \w+ to be on .* got (cpu|meta|cuda:0)"
            message = str(raised.value)
            assert re.match(rf"baraquant::{op.name}(\.number)?: {words}", message), message


class RecordedCalls:
    """Of a family whose ops autograd computes by others, which no message may name."""

    def test_recorded_calls_say_the_same(self, op: Any, device: str) -> None:
        for bad in self.wrong_calls(op):  # type: ignore[attr-defined]
            message, _ = bad.call(op, device)
            right = op.arguments(device) | bad.also
            leaves = {"input", "bias"} & set(right) - {bad.argument}
            for leaf in sorted(k for k in leaves if right[k].is_floating_point()):
                wrong = {bad.argument: bad.change(right), leaf: right[leaf].requires_grad_()}
                with pytest.raises(bad.error, match=f"^{re.escape(message)}$"):
                    op(right | wrong)


class WrongCalls(BadCalls):
    """With other objects in place of each argument."""

    def test_none_and_other_objects(self, op: Any) -> None:
        """What PyTorch's schema refuses, and None, for which it passes an undefined tensor."""
        may_be_none, words = names_of_type(op, "Optional"), names_of_type(op, "str")
        for name in sorted(set(op.arguments("cpu")) - names_of_type(op, "bool")):
            objects = [3 + 2j, [1.0, 2.0], object()]
            objects += [] if name in may_be_none else [None]
            objects += [] if name in words else ["three"]  # a wrong word is among the bad cases
            for wrong in objects:
                refusal(op, op.arguments("cpu") | {name: wrong})


class RandomCalls:
    """Of a family with programs of random calls."""

    PROGRAMS: tuple[str, ...] = ("fuzz",)

    @pytest.mark.process
    def test_random_arguments_neither_crash_nor_give_a_wrong_number(self) -> None:
        """In a process of its own, whose death would be seen; see `fuzz.py`."""
        for program in self.PROGRAMS:
            done = run_program(f"{type(self).__module__.rpartition('.')[0]}.{program}")
            assert "calls passed" in done.stdout


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
