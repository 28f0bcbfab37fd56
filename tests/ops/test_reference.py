# SPDX-License-Identifier: BSD-3-Clause
"""Ops of no rows, no columns, no outputs: results and gradients are those of the reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import bad_arguments
from tests.support.calls.affine import outputs, value_and_gradients
from tests.support.calls.every import EVERY_CALL
from tests.support.core_calls import bound

SHAPES = {"no rows": (0, 8), "no columns": (3, 0), "nothing": (0, 0)}


def check(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert len(actual) == len(expected)
    for found, wanted in zip(actual, expected, strict=True):
        assert found.dtype == wanted.dtype and torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("call", EVERY_CALL, ids=str)
def test_no_rows_or_columns(call: Any, shape: str, device: str) -> None:
    def of_the_reference(*tensors: Tensor) -> Any:
        op, arguments = bound(call, tensors)
        return getattr(reference, op._schema.name.removeprefix("baraquant::"))(**arguments)

    expected = value_and_gradients(of_the_reference, call.tensors(SHAPES[shape]))
    check(value_and_gradients(call, call.tensors(SHAPES[shape], device=device)), expected)


OF_OUTPUTS = (  # the arguments with a row for each output
    *("packed", "weight", "group_factor", "group_zero_point"),
    *("weight_scale", "weight_zero_point", "weight_sum", "bias"),
)
LINEAR = [
    op
    for module in bad_arguments.modules()
    for op in module.OPS
    if op.name.endswith(("_linear", "_product", "_conv"))
]


def without_outputs(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same call of a weight without rows; those of groups come after the groups."""
    dim = 1 if "grouped" in name else 0
    rows = {key: arguments[key].narrow(dim, 0, 0) for key in OF_OUTPUTS if key in arguments}
    changed = arguments | rows
    if name == "rescale_product":
        changed["input"] = arguments["input"][..., :0]
    return changed


@pytest.mark.parametrize("rows", ["rows", "no rows"])
@pytest.mark.parametrize("op", LINEAR, ids=str)
def test_no_outputs(op: Any, rows: str, device: str) -> None:
    """With the gradients of all floating arguments that can have one."""
    learned = ("input", "weight", "bias") if "qat" in op.name else ("input",)

    def results(module: Any, to: str) -> tuple[Tensor, ...]:
        given = without_outputs(op.name, op.arguments(to))
        if rows == "no rows":
            of_rows = ("input", "input_scale", "input_zero_point")
            given |= {k: given[k][:0] for k in of_rows if k in given and given[k].dim() > 1}
            given |= {k: torch.zeros_like(given[k]) for k in ("offsets",) if k in given}
        leaves = [given[k].requires_grad_() for k in learned if is_floating(given.get(k))]
        found = outputs(getattr(module, op.name)(**given))
        if leaves:
            found += torch.autograd.grad(found[0], leaves, torch.ones_like(found[0]))
        return found

    check(results(ops, device), results(reference, "cpu"))


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
