# SPDX-License-Identifier: BSD-3-Clause
"""What all products share: constant scales, zero points beyond the integers, nothing to multiply.

A scale that requires grad, or has a tangent, is refused. So is every floating argument of
rescale_product, whose sums have no gradient.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from baraquant import ops, reference
from tests.support import bad_arguments, cases
from tests.support.bits import assert_all_same
from tests.support.calls.affine import outputs, value_and_gradients
from tests.support.calls.every import EVERY_CALL
from tests.support.core_calls import bound

LEARNED = ("input", "weight", "bias")
ENDINGS = ("_linear", "_conv", "_product")
OPS = [op for op in bad_arguments.every_op() if op.name.endswith(ENDINGS)]
by_op = pytest.mark.parametrize("op", OPS, ids=str)


def constants(op: Any, arguments: dict[str, Any]) -> list[str]:
    learned = () if op.name == "rescale_product" else LEARNED
    floating = (k for k, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point())
    return [name for name in floating if name not in learned]


@by_op
def test_what_requires_grad_is_refused(op: Any, device: str) -> None:
    """Whether something else is learned or not; without grad mode nothing is lost."""
    right = op.arguments(device)
    for name in constants(op, right):
        words = rf"^baraquant::{op.name}(\.number)?: expected {name} to be a constant, but got one "
        words += rf"that requires .*{name}\.detach\(\)"
        scale = right[name].clone().requires_grad_()
        recorded = {k: right[k].clone().requires_grad_() for k in ("bias",) if k in right}
        for given in (right, right | recorded):
            with pytest.raises(NotImplementedError, match=words):
                op(given | {name: scale})
        with torch.no_grad():
            assert torch.equal(op(right | {name: scale}), op(right))


@by_op
def test_tangents_are_refused_not_dropped(op: Any, device: str) -> None:
    right = op.arguments(device)
    for name in constants(op, right):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(right[name], torch.ones_like(right[name]))
            with pytest.raises(NotImplementedError, match=rf"{op.name}: expected {name}.* tangent"):
                op(right | {name: dual})


def test_every_product_has_constants() -> None:
    without = {op.name for op in OPS if not constants(op, op.arguments("meta"))}
    assert without == {"int8_product", "qat_linear", "qat_grouped_linear"}


# --- a zero point that the integers of the input cannot be counts as the nearest -----------------

POINTS = (-(2**63), -(2**40), cases.INT32_MIN, -300, -129, -1, 256, 300, cases.INT32_MAX, 2**40)
NAMES = ("input_zero_point", "act_zero_point")


def zero_point_of(op: Any) -> tuple[str, Tensor] | None:
    """The zero point tensor that a right call gives with an input of integers, and its name."""
    arguments = op.arguments("cpu")
    found = ((name, arguments[name]) for name in NAMES if isinstance(arguments.get(name), Tensor))
    is_float = "input" not in arguments or arguments["input"].is_floating_point()
    return None if is_float else next(found, None)


SHIFTED = [op for op in bad_arguments.every_op() if zero_point_of(op)]


@pytest.mark.parametrize("op", SHIFTED, ids=str)
def test_the_nearest_counts(op: Any, device: str) -> None:
    """One for all, and one for each row where the op takes that."""
    arguments, (name, given) = op.arguments(device), zero_point_of(op) or ("", torch.ones(()))
    ends = torch.iinfo(arguments["input"].dtype)
    for point in POINTS:
        nearest = min(max(point, ends.min), ends.max)
        for shape in {torch.Size([]), given.shape}:
            wrong, right = (torch.full(shape, p, device=device) for p in (point, nearest))
            results = (op(arguments | {name: z}) for z in (wrong, right))
            assert torch.equal(*results), point


def test_every_product_is_here() -> None:
    linear = {"int8_linear", "int8_product", "smoothquant_linear", "int4_linear"}
    assert {op.name for op in SHIFTED} == linear | {"int8_grouped_linear", "int8_conv"}


# --- ops of no rows, no columns, no outputs: results and gradients are those of the reference ----

SHAPES = {"no rows": (0, 8), "no columns": (3, 0), "nothing": (0, 0)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("call", EVERY_CALL, ids=str)
def test_no_rows_or_columns(call: Any, shape: str, device: str) -> None:
    def of_the_reference(*tensors: Tensor) -> Any:
        op, arguments = bound(call, tensors)
        return getattr(reference, op._schema.name.removeprefix("baraquant::"))(**arguments)

    expected = value_and_gradients(of_the_reference, call.tensors(SHAPES[shape]))
    found = value_and_gradients(call, call.tensors(SHAPES[shape], device=device))
    assert_all_same(found, expected)


OF_OUTPUTS = (  # the arguments with a row for each output
    *("packed", "weight", "group_factor", "group_zero_point"),
    *("weight_scale", "weight_zero_point", "weight_sum", "bias"),
)


def without_outputs(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same call of a weight without rows; those of groups come after the groups."""
    dim = 1 if "grouped" in name else 0
    rows = {key: arguments[key].narrow(dim, 0, 0) for key in OF_OUTPUTS if key in arguments}
    changed = arguments | rows
    if name == "rescale_product":
        changed["input"] = arguments["input"][..., :0]
    return changed


@pytest.mark.parametrize("rows", ["rows", "no rows"])
@by_op
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

    assert_all_same(results(ops, device), results(reference, "cpu"))


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
