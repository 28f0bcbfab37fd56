# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the range family: the right exception with the right words, alike on all devices."""

from __future__ import annotations

import re

import pytest
import torch

from baraquant import ops
from tests.support.bad_arguments.affine import Bad, not_plain, quantized
from tests.support.bad_arguments.range import BAD, OBSERVERS, OPS, PAIRS, WRITTEN, Op
from tests.support.checks.bad_calls import BadCalls
from tests.support.processes import run_program


class TestBadCalls(BadCalls):
    OPS, PAIRS = OPS, PAIRS


@pytest.mark.parametrize("op", [op for op in OPS if op.verb in OBSERVERS], ids=str)
def test_nothing_is_written_by_a_wrong_call(op: Op, device: str) -> None:
    """Arguments are checked before any of the tensors changes."""
    for bad in BAD:
        if not bad.applies(op):
            continue
        arguments = op.arguments(device) | bad.also
        arguments["input"] = 3 * arguments["input"]
        before = {n: arguments[n].clone() for n in WRITTEN if n in arguments}
        kept = {n: arguments[n] for n in before}
        arguments[bad.argument] = bad.change(arguments)
        with pytest.raises(bad.error):
            op(arguments)
        for name, value in before.items():
            assert torch.equal(kept[name], value), f"{bad}: {name}"


@pytest.mark.parametrize("op", OPS, ids=str)
def test_quantized_tensors(op: Op) -> None:
    bad = Bad("input", "quantized", quantized, TypeError, "got .*[Qq](int8|Int8)")
    message, pattern = bad.call(op, "cpu")
    assert re.match(pattern, message)


@pytest.mark.parametrize("op", [op for op in OPS if op.granularity.kind != "per_tensor"], ids=str)
def test_no_axis_in_a_0_dimensional_input(op: Op, any_device: str) -> None:
    arguments = op.arguments(any_device)
    arguments["input"] = arguments["input"].new_ones(())
    for shape in ((), (1,)):
        for name in set(WRITTEN) & set(arguments):
            arguments[name] = arguments[name].new_ones(shape)
        if "axis" in arguments:
            arguments["axis"] = -1
        with pytest.raises(IndexError, match=rf"^baraquant::{op.name}: .*got"):
            op(arguments)


def test_written_tensors_share_no_memory(any_device: str) -> None:
    """Whole or in part, seen through any view or dtype; neighbours in one buffer are fine."""
    ops = torch.ops.baraquant
    x = torch.ones(3, 4, device=any_device)
    buffer, other = (torch.ones(16, device=any_device) for _ in range(2))
    point = torch.zeros(4, dtype=torch.int32, device=any_device)
    on = torch.ones(1, dtype=torch.uint8, device=any_device)
    for second in (buffer[:4], buffer[3:7], buffer.view(2, 8)[0, 1:5]):
        with pytest.raises(ValueError, match=r"^baraquant::observe_min_max_: .*min_val.*max_val"):
            ops.observe_min_max_(x, buffer[:4], second, 1)
        state = (other[:4], other[4:8], buffer[:4], second.view(torch.int32), on, on, 1)
        with pytest.raises(ValueError, match=r"^baraquant::observe_fake_quantize: .*zero_point"):
            ops.observe_fake_quantize(x, *state)
        state = (other[:4], second, buffer[:4], point, on, on, 1)
        with pytest.raises(ValueError, match=r"^baraquant::observe_fake_quantize: .*max_val"):
            ops.observe_fake_quantize(x, *state)
    ops.observe_min_max_(x, buffer[:4], buffer[4:8], 1)
    integers = other[12:].view(torch.int32)
    ops.observe_fake_quantize(x, other[:4], other[4:8], other[8:12], integers, on, on, 1)


@pytest.mark.parametrize("op", [o for o in OPS if o.verb == "dynamic_range_quantize"], ids=str)
def test_default_range_does_not_fit_uint8(op: Op, any_device: str) -> None:
    arguments = op.arguments(any_device) | {"dtype": torch.uint8}
    del arguments["quant_min"], arguments["quant_max"]
    with pytest.raises(ValueError, match=rf"^baraquant::{op.name}.*-128"):
        op(arguments)


@pytest.mark.parametrize("op", [o for o in OPS if "quant_min" in o.arguments("meta")], ids=str)
def test_zero_points_beyond_int32(op: Op, any_device: str) -> None:
    """float64 holds wider ranges, but the zero point that is chosen is an int32."""
    arguments = op.arguments(any_device)
    for name in ("input", "min_val", "max_val", "scale"):
        if name in arguments:
            arguments[name] = arguments[name].double()
    for ends in ((2**40, 2**41), (-(2**31) - 1, 0), (0, 2**31), (-(2**53), 2**53)):
        wide = arguments | {"quant_min": ends[0], "quant_max": ends[1]}
        with pytest.raises(ValueError, match=rf"^baraquant::{op.name}.*quant_max.*got"):
            op(wide)
    if op.verb != "dynamic_range_quantize":
        op(arguments | {"quant_min": -(2**31), "quant_max": 2**31 - 1})


@pytest.mark.parametrize("op", [o for o in OPS if "symmetric" in o.arguments("meta")], ids=str)
def test_one_step_is_enough_for_asymmetric(op: Op, any_device: str) -> None:
    op(op.arguments(any_device) | {"quant_min": 0, "quant_max": 1, "symmetric": False})


@pytest.mark.parametrize("op", OPS, ids=str)
def test_none_and_other_objects(op: Op) -> None:
    """What PyTorch's schema refuses, and None, for which it passes an undefined tensor."""
    optional = {"averaging_constant", "axis", "skipped_batches"} if op.verb in OBSERVERS else set()
    for name in sorted(set(op.arguments("cpu")) - {"symmetric"}):  # a bool is any object's truth
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
            for call in (op, lambda a: getattr(ops, op.name)(**a)):
                with pytest.raises(TypeError, match=f"^baraquant::{op.name}: expected {name} to "):
                    call(right | {name: make()})


@pytest.mark.parametrize("op", [o for o in OPS if o.verb == "dynamic_range_quantize"], ids=str)
@pytest.mark.parametrize("wrong", [1000, -1, 255])
def test_a_number_that_is_no_dtype(op: Op, wrong: int) -> None:
    arguments = op.arguments("cpu") | {"dtype": wrong}
    message = f"^baraquant::{op.name}: expected dtype to be "
    with pytest.raises(TypeError, match=f"{message}a torch.dtype, but got {wrong}$"):
        getattr(ops, op.name)(**arguments)
    with pytest.raises(TypeError, match=f"{message}int8 or uint8, but got a number that is"):
        op(arguments)


@pytest.mark.process
def test_random_arguments_neither_crash_nor_give_a_wrong_number() -> None:
    """In a process of its own, whose death would be seen; see `fuzz.py`."""
    done = run_program("tests.range.fuzz")
    assert "examples passed" in done.stdout
