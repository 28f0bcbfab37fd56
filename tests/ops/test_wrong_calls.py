# SPDX-License-Identifier: BSD-3-Clause
"""What every op refuses: other objects, tensors of other kinds, numbers for dtypes, wrong values.

A wrong call has an exception's type and words, on Meta the same. Random calls, of each family with
a program of them, are right or wrong too.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import bad_arguments
from tests.support.bad_arguments import int4, weight_only
from tests.support.bad_arguments.affine import Bad, names_of, not_plain
from tests.support.cases import function_of
from tests.support.processes import ROOT, run_program

OPS = bad_arguments.every_op()
WRONG: dict[Any, list[Bad]] = {op: [] for op in OPS}
for _module in bad_arguments.modules():
    for _op, _bad in _module.PAIRS:
        WRONG[_op].append(_bad)
# Autograd computes these by other ops, which no message may name.
RECORDED = [*int4.OPS, *weight_only.OPS]
TO_INTEGERS = ("quantize", "dynamic_range_quantize")
# What the message says of tensors of other kinds.
WORDS = {"nested": "unbind()", "jagged": "unbind()", "coo": "to_dense()", "quantized": "int8"}
OF_PYTORCH = re.compile(r"Expected a value of type|match any schema")


def by_op(wanted: Callable[[Any], bool] = lambda op: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", [op for op in OPS if wanted(op)], ids=str)


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


@by_op()
def test_right_arguments_are_taken(op: Any, any_device: str) -> None:
    """So that each wrong call below is wrong in one way only."""
    op(op.arguments(any_device))


@by_op()
def test_type_and_words(op: Any, any_device: str) -> None:
    """Of each: the exception's type; op, argument, expectation and what came."""
    failures = []
    for bad in WRONG[op]:
        try:
            message, pattern = bad.call(op, any_device)
        except BaseException as error:  # pytest.raises fails with an exception that is none
            failures.append(f"{bad}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if not re.match(pattern, message, re.DOTALL):
            failures.append(f"{bad}: {message!r} does not match {pattern!r}")
    assert not failures, "\n".join(failures)


@by_op()
def test_meta_says_the_same(op: Any) -> None:
    for bad in WRONG[op]:
        assert bad.call(op, "cpu") == bad.call(op, "meta"), str(bad)


@by_op(lambda op: op in RECORDED)
def test_recorded_calls_say_the_same(op: Any, device: str) -> None:
    for bad in WRONG[op]:
        message, _ = bad.call(op, device)
        right = op.arguments(device) | bad.also
        leaves = {"input", "bias"} & set(right) - {bad.argument}
        for leaf in sorted(k for k in leaves if right[k].is_floating_point()):
            wrong = {bad.argument: bad.change(right), leaf: right[leaf].requires_grad_()}
            with pytest.raises(bad.error, match=f"^{re.escape(message)}$"):
                op(right | wrong)


@by_op()
def test_tensors_that_are_not_plain(op: Any, any_device: str) -> None:
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


@by_op()
def test_tensors_on_different_devices(op: Any, any_device: str) -> None:
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


@by_op()
def test_none_and_other_objects(op: Any) -> None:
    """What PyTorch's schema refuses, and None, for which it passes an undefined tensor."""
    may_be_none, words = names_of_type(op, "Optional"), names_of_type(op, "str")
    for name in sorted(set(op.arguments("cpu")) - names_of_type(op, "bool")):
        objects = [3 + 2j, [1.0, 2.0], object()]
        objects += [] if name in may_be_none else [None]
        objects += [] if name in words else ["three"]  # a wrong word is among the bad cases
        for wrong in objects:
            refusal(op, op.arguments("cpu") | {name: wrong})


@by_op(lambda op: "dtype" in names_of(op))
def test_a_number_that_is_no_dtype(op: Any) -> None:
    """torch.ops takes numbers, and reads them as PyTorch's own enumeration."""
    message = f"^baraquant::{op.name}: expected dtype to be "
    for wrong in (1000, -1, 255, 2**40, True, 6.5, "float32"):
        with pytest.raises(TypeError, match=f"{message}a torch.dtype, but got '?{wrong}"):
            function_of(op.name)(**op.arguments("cpu") | {"dtype": wrong})
    for wrong in (1000, -1, 127, 255):
        with pytest.raises(TypeError, match=f"{message}.* but got a number that is no dtype"):
            op(op.arguments("cpu") | {"dtype": wrong})


@by_op(lambda op: hasattr(op, "granularity") and op.granularity.kind != "per_tensor")
def test_no_axis_in_a_0_dimensional_input(op: Any, any_device: str) -> None:
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


@by_op(lambda op: getattr(op, "verb", "") in TO_INTEGERS)
def test_default_range_does_not_fit_uint8(op: Any, any_device: str) -> None:
    arguments = op.arguments(any_device) | {"dtype": torch.uint8}
    del arguments["quant_min"], arguments["quant_max"]
    with pytest.raises(ValueError, match=rf"^baraquant::{op.name}.*-128"):
        op(arguments)


PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for family in {path.parent for path in (ROOT / "tests").glob("*/fuzz.py")}
    for path in family.glob("*fuzz.py")
    if "random_calls" in path.read_text()
)


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS)
def test_random_calls_neither_crash_nor_give_a_wrong_number(program: str) -> None:
    """In a process of its own, whose death would be seen; see `random_calls.py`."""
    assert "calls passed" in run_program(program).stdout
