# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the integer matrix family: the right exception and words, alike on all devices."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.bad_arguments.affine import Bad
from tests.support.bad_arguments.int8_mm import INTEGER_INPUT, LEAD, OPS, PAIRS, K, N, Op
from tests.support.checks.bad_calls import BadCalls
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED
from tests.support.processes import run_program

by_op = pytest.mark.parametrize("op", OPS, ids=str)


class TestBadCalls(BadCalls):
    OPS, PAIRS = OPS, PAIRS

    def check_result(self, op: Op, result: Tensor, device: str) -> None:
        assert result.shape == (*LEAD, N) and result.dtype == op.output and result.is_contiguous()
        assert result.device.type == device


@by_op
def test_an_input_without_dimensions(op: Op, any_device: str) -> None:
    arguments = op.arguments(any_device)
    arguments["input"] = arguments["input"].new_ones(())
    with pytest.raises((ValueError, IndexError), match=rf"^baraquant::{op.name}.*: .*input.*got"):
        op(arguments)


@by_op
def test_quantized_tensors(op: Op) -> None:
    """torch.nn.quantized's tensors carry scales of their own."""
    for name in ("input", "weight"):
        shape = (*LEAD, K) if name == "input" else (N, K)
        change = lambda a, shape=shape: torch.quantize_per_tensor(  # noqa: E731
            torch.ones(shape), 1.0, 0, torch.qint8
        )
        bad = Bad(name, "quantized", change, TypeError, "got .*[Qq](int8|Int8)")
        message, pattern = bad.call(op, "cpu")
        assert re.match(pattern, message)


# --- the depth of the sums -----------------------------------------------------------------------


def deep(op: Op, depth: int, device: str) -> dict[str, Any]:
    """A right call, but for the depth, of few rows."""
    arguments = op.arguments(device)
    for name in ("input", "weight"):
        arguments[name] = torch.zeros(2, depth, dtype=arguments[name].dtype, device=device)
    for name in ("weight_scale", "bias", "weight_sum"):
        if name in arguments:
            arguments[name] = arguments[name][:2].contiguous()
    if "smooth_scale" in arguments:
        arguments["smooth_scale"] = arguments["smooth_scale"].new_ones(depth)
    for name in ("input_scale", "input_zero_point"):
        if name in arguments:
            arguments[name] = arguments[name].new_ones(2, 1)
    return arguments


@by_op
def test_depth_beyond_the_exact_range(op: Op, any_device: str) -> None:
    """The limit is said; one less is computed."""
    shifted = op.full or (op.name in INTEGER_INPUT and op.input == torch.uint8)
    limit = DEEPEST_SHIFTED if shifted else DEEPEST
    assert op(deep(op, limit, any_device)).shape == (2, 2)
    for depth in (limit + 1, 2 * limit, 2**20):
        with pytest.raises(
            ValueError, match=rf"^baraquant::{op.name}.*: .*{limit}.* got .*{depth}"
        ):
            op(deep(op, depth, any_device))


def test_zero_points_decide_on_the_limit(any_device: str) -> None:
    """A zero point of 0 is one, as its value is not read; weight_sum alone is none."""
    full = deep(Op("int8_linear"), DEEPEST_SHIFTED + 1, any_device)
    full["input_zero_point"].zero_()
    with pytest.raises(ValueError, match=str(DEEPEST_SHIFTED)):
        torch.ops.baraquant.int8_linear(**full)
    del full["input_zero_point"]
    assert torch.ops.baraquant.int8_linear(**full).shape == (2, 2)
    symmetric = deep(Op("quantized_linear"), DEEPEST_SHIFTED + 1, any_device) | {"symmetric": True}
    assert torch.ops.baraquant.quantized_linear(**symmetric).shape == (2, 2)


def test_an_empty_product_is_checked_too(any_device: str) -> None:
    for op in OPS:
        arguments = op.arguments(any_device)
        arguments["input"] = arguments["input"][:0]
        for name in ("input_scale", "input_zero_point"):
            if name in arguments:
                arguments[name] = arguments[name][:0]
        assert op(arguments).shape == (0, LEAD[1], N)
        if "weight_scale" in arguments:
            arguments["weight_scale"] = arguments["weight_scale"][1:]
            with pytest.raises(ValueError, match="weight_scale"):
                op(arguments)


# --- other objects -------------------------------------------------------------------------------


@by_op
def test_none_and_other_objects(op: Op) -> None:
    """What PyTorch's schema refuses, and None, for which it passes an undefined tensor."""
    optional = {"bias", "weight_sum", "input_zero_point", "act_zero_point", "smooth_scale"}
    optional |= set() if op.name in INTEGER_INPUT else {"dtype"}
    for name in sorted(set(op.arguments("cpu")) - {"symmetric"}):  # a bool is any object's truth
        for wrong in (None, "three", [1.0, 2.0], object()):
            if wrong is None and name in optional:
                continue
            if isinstance(wrong, str) and name in ("backward", "rounding"):
                continue  # a wrong word is among the bad cases
            arguments = op.arguments("cpu") | {name: wrong}
            with pytest.raises((TypeError, RuntimeError)) as raised:
                op(arguments)
            if type(raised.value) is RuntimeError:
                assert re.search(r"Expected a value of type|match any schema", str(raised.value))


def refused(op: Op, arguments: dict[str, Any], name: str) -> str:
    """The message of a tensor that no kernel takes: public op and argument, no private name."""
    with pytest.raises(TypeError, match=rf"^baraquant::{op.name}: expected {name} to be") as raised:
        op(arguments)
    assert "::_" not in str(raised.value) and "Could not run" not in str(raised.value)
    return str(raised.value)


def is_learned(name: str, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and name in ("input", "weight", "bias")


def tensor_names(op: Op) -> list[str]:
    return [k for k, v in op.arguments("cpu").items() if isinstance(v, Tensor)]


@by_op
@pytest.mark.parametrize("requires_grad", (False, True))
def test_nested_tensors_are_refused(op: Op, requires_grad: bool) -> None:
    """Of both layouts, as any argument, also where autograd would record the call."""
    for name in tensor_names(op):
        for layout in (torch.strided, torch.jagged):
            arguments = op.arguments("cpu")
            dtype = arguments[name].dtype
            parts = [torch.ones(2, 3).to(dtype), torch.ones(4, 3).to(dtype)]
            nested = torch.nested.nested_tensor(parts, layout=layout)
            arguments[name] = nested.requires_grad_(requires_grad and is_learned(name, dtype))
            message = refused(op, arguments, name)
            assert "nested" in message and "unbind()" in message


@by_op
@pytest.mark.parametrize("requires_grad", (False, True))
def test_sparse_tensors_are_refused(op: Op, requires_grad: bool) -> None:
    for name in tensor_names(op):
        arguments = op.arguments("cpu")
        dtype = arguments[name].dtype
        sparse = torch.ones(2, 3).to(dtype).to_sparse()
        arguments[name] = sparse.requires_grad_(requires_grad and is_learned(name, dtype))
        assert "to_dense()" in refused(op, arguments, name)


@by_op
def test_numbers_are_no_dtypes(op: Op) -> None:
    """torch.ops takes them, and reads them as PyTorch's own enumeration."""
    if op.name == "qat_linear":
        return
    arguments = op.arguments("cpu")
    for number in (1000, -1, 6, 2**40, True, 6.5, "float32"):
        message = rf"^baraquant::{op.name}: expected dtype to be a torch.dtype, but got '?{number}"
        with pytest.raises(TypeError, match=message):
            getattr(ops, op.name)(**arguments | {"dtype": number})
    for number in (1000, -1, 127):
        with pytest.raises(TypeError, match=rf"^baraquant::{op.name}: expected dtype to be .*no d"):
            op(arguments | {"dtype": number})


@pytest.mark.process
@pytest.mark.parametrize("program", ("fuzz", "grouped_fuzz"))
def test_random_arguments_neither_crash_nor_give_a_wrong_number(program: str) -> None:
    """In a process of its own, whose death would be seen; see the program."""
    done = run_program(f"tests.int8_mm.{program}")
    assert "examples passed" in done.stdout
