# SPDX-License-Identifier: BSD-3-Clause
"""Bad input: the right exception with the right words, before any kernel, alike on all devices."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.bad_arguments.affine import (
    KINDS,
    OPS,
    PAIRS,
    Bad,
    Op,
    not_plain,
    quantized,
)
from tests.support.cases import Granularity, function_of
from tests.support.checks.bad_calls import BadCalls
from tests.support.processes import run_program


class TestBadCalls(BadCalls):
    OPS, PAIRS = OPS, PAIRS


@pytest.mark.parametrize("op", OPS, ids=str)
def test_quantized_tensors(op: Op) -> None:
    name = "input" if "input" in op.arguments("cpu") else "grad"
    bad = Bad(name, "quantized", quantized, TypeError, "got .*[Qq](int8|Int8)")
    message, pattern = bad.call(op, "cpu")
    assert re.match(pattern, message)


@pytest.mark.parametrize("op", [op for op in OPS if op.granularity.kind != "per_tensor"], ids=str)
def test_no_axis_in_a_0_dimensional_input(op: Op, any_device: str) -> None:
    arguments = op.arguments(any_device)
    for shape in ((), (1,)):
        for name in {"grad", "input"} & set(arguments):
            arguments[name] = arguments[name].new_ones(())
        for name in {"scale", "zero_point"} & set(arguments):
            arguments[name] = arguments[name].new_ones(shape)
        if "axis" in arguments:
            arguments["axis"] = -1
        with pytest.raises(IndexError, match=rf"^baraquant::{op.name}: .*got"):
            op(arguments)


@pytest.mark.parametrize("op", [o for o in OPS if o.verb == "quantize"], ids=str)
def test_default_range_does_not_fit_uint8(op: Op, any_device: str) -> None:
    arguments = op.arguments(any_device) | {"dtype": torch.uint8}
    del arguments["quant_min"], arguments["quant_max"]
    with pytest.raises(ValueError, match=rf"^baraquant::{op.name}.*-128"):
        op(arguments)


@pytest.mark.parametrize("verb", ("quantize", "dequantize"))
@pytest.mark.parametrize("granularity", KINDS, ids=str)
def test_a_scale_that_learns_wants_fake_quantize(
    verb: str, granularity: Granularity, any_device: str
) -> None:
    """No silent loss of a gradient; without grad mode, or for integers, nothing is lost."""
    op = Op(verb, granularity)
    arguments = op.arguments(any_device) | {"dtype": torch.float32}
    arguments["scale"].requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"^baraquant::{op.name}.*fake_quantize"):
        op(arguments)
    with torch.no_grad():
        op(arguments)
    if verb == "quantize":
        assert not op(arguments | {"dtype": torch.int8}).requires_grad


@pytest.mark.parametrize("op", OPS, ids=str)
def test_none_and_other_objects(op: Op) -> None:
    """What PyTorch's schema refuses, and None, for which it passes an undefined tensor."""
    optional = {"dtype"} if op.verb.startswith("dequantize") else set()
    optional.add("zero_point")
    for name in op.arguments("cpu"):
        for wrong in (None, "three", [1.0, 2.0], object()):
            if wrong is None and name in optional:
                continue
            arguments = op.arguments("cpu") | {name: wrong}
            with pytest.raises((TypeError, RuntimeError)) as raised:
                op(arguments)
            if type(raised.value) is RuntimeError:
                assert re.search(r"Expected a value of type|match any schema", str(raised.value))


@pytest.mark.parametrize("op", OPS, ids=str)
def test_tensors_that_are_not_plain(op: Op) -> None:
    """The message names the public op and the argument, through torch.ops and baraquant.ops."""
    right = op.arguments("cpu")
    for name in [n for n, value in right.items() if isinstance(value, torch.Tensor)]:
        for make in not_plain(right[name]).values():
            for call in (op, lambda a: function_of(op.name)(**a)):
                with pytest.raises(TypeError, match=f"^baraquant::{op.name}: expected {name} to "):
                    call(right | {name: make()})


@pytest.mark.parametrize("op", [op for op in OPS if "dtype" in op.arguments("meta")], ids=str)
@pytest.mark.parametrize("wrong", [1000, -1, 255, 2**40])
def test_a_number_that_is_no_dtype(op: Op, wrong: int) -> None:
    arguments = op.arguments("cpu") | {"dtype": wrong}
    message = f"^baraquant::{op.name}: expected dtype to be "
    with pytest.raises(TypeError, match=f"{message}a torch.dtype, but got {wrong}$"):
        function_of(op.name)(**arguments)
    if wrong != 2**40:  # of which torch.ops takes the low byte, 0: uint8
        with pytest.raises(TypeError, match=f"{message}.* but got a number that is no dtype"):
            op(arguments)


@pytest.mark.parametrize("op", [o for o in OPS if o.verb == "dequantize_backward"], ids=str)
def test_the_backward_of_dequantize_names_itself_and_its_grad(op: Op, any_device: str) -> None:
    """It is computed by dequantize, whose input is called input."""
    right = op.arguments(any_device)
    wrong = [
        (TypeError, "grad to be float32", {"grad": right["grad"].to(torch.int32)}),
        (TypeError, "scale to be torch.float32", {"scale": right["scale"].half()}),
        (TypeError, "dtype to be float32", {"dtype": torch.int8}),
        (NotImplementedError, "a gradient in scale", {"scale": right["scale"].requires_grad_()}),
        (ValueError, "scale to (be on|have)", {"scale": right["scale"].new_ones(2, 2, 2, 2)}),
    ]
    if op.granularity.kind != "per_tensor":
        wrong.append((IndexError, "grad to have at least 1", {"grad": right["grad"].new_ones(())}))
    if "axis" in right:
        wrong.append((IndexError, r"axis to be in \[-3, 2\] for grad with 3", {"axis": 9}))
    for error, words, change in wrong:
        right["scale"] = right["scale"].detach()
        with pytest.raises(error) as raised:
            op(right | change)
        message = str(raised.value).splitlines()[0]
        assert message.startswith(f"baraquant::{op.name}: ") and re.search(words, message), message
        assert "input" not in message


@pytest.mark.process
def test_random_arguments_neither_crash_nor_give_a_wrong_number() -> None:
    """In a process of its own, whose death would be seen; see `fuzz.py`."""
    done = run_program("tests.affine.fuzz")
    assert "examples passed" in done.stdout
