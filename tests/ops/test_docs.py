# SPDX-License-Identifier: BSD-3-Clause
"""The documentation of the public functions: true to the schemas, and its examples run.

scripts/ops.py writes every section of a docstring, and fails where an argument has no text.
"""

import inspect
import typing

import pytest
import torch

from baraquant import reference
from tests.support.cases import OP_NAMES, function_of
from tests.support.docstrings import run_examples


def public_op_names() -> set[str]:
    """The registered ops whose names do not start with an underscore, without overloads."""
    registered = torch._C._dispatch_get_all_op_names()
    names = {n.removeprefix("baraquant::").split(".")[0] for n in registered if "baraquant::" in n}
    return {n for n in names if not n.startswith("_")}


def overloads(name: str) -> list[torch.FunctionSchema]:
    packet = getattr(torch.ops.baraquant, name)
    return [getattr(packet, overload)._schema for overload in packet.overloads()]


def test_every_op_has_a_function() -> None:
    assert set(OP_NAMES) == public_op_names()
    assert all(callable(getattr(reference, name)) for name in OP_NAMES)


@pytest.mark.parametrize("name", OP_NAMES)
def test_example_runs(name: str) -> None:
    run_examples(function_of(name), name)


@pytest.mark.parametrize("name", OP_NAMES)
def test_signature_is_the_schema(name: str) -> None:
    """Names, order, defaults and keyword-only arguments are those of the op."""
    function = function_of(name)
    signature = inspect.signature(function).parameters.values()
    for schema in overloads(name):
        has_residual = schema.overload_name == "residual"  # which returns one tensor more
        parameters = [p for p in signature if p.name != "residual" or has_residual]
        assert [p.name for p in parameters] == [a.name for a in schema.arguments]
        for parameter, argument in zip(parameters, schema.arguments, strict=True):
            assert (parameter.kind is parameter.KEYWORD_ONLY) == argument.kwarg_only
            if argument.name == "residual":
                continue
            default = None if parameter.default is parameter.empty else parameter.default
            if isinstance(default, torch.dtype):
                numbers = {torch.int8: 1, torch.float32: 6}  # dtypes, as schemas write them
                assert argument.default_value == numbers[default]
            else:
                wanted = argument.default_value  # of int[1] a list, for which a number may stand
                assert default == (wanted[0] if isinstance(wanted, list) else wanted)
                assert (parameter.default is not parameter.empty) == argument.has_default_value()


@pytest.mark.parametrize("name", OP_NAMES)
def test_every_argument_is_typed(name: str) -> None:
    function = function_of(name)
    hints = typing.get_type_hints(function)
    assert set(hints) == {*inspect.signature(function).parameters, "return"}
