# SPDX-License-Identifier: BSD-3-Clause
"""In every product a zero point that the integers of the input cannot be counts as the nearest."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import bad_arguments, cases

POINTS = (-(2**63), -(2**40), cases.INT32_MIN, -300, -129, -1, 256, 300, cases.INT32_MAX, 2**40)
NAMES = ("input_zero_point", "act_zero_point")


def zero_point_of(op: Any) -> tuple[str, Tensor] | None:
    """The zero point tensor that a right call gives with an input of integers, and its name."""
    arguments = op.arguments("cpu")
    found = ((name, arguments[name]) for name in NAMES if isinstance(arguments.get(name), Tensor))
    is_float = "input" not in arguments or arguments["input"].is_floating_point()
    return None if is_float else next(found, None)


OPS = [op for module in bad_arguments.modules() for op in module.OPS if zero_point_of(op)]


@pytest.mark.parametrize("op", OPS, ids=str)
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
    assert {op.name for op in OPS} == linear | {"int8_grouped_linear", "int8_conv"}
