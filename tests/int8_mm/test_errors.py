# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the integer matrix family that no argument alone makes bad."""

from typing import Any

import pytest
import torch

from baraquant import ops
from tests.support.bad_arguments import grouped, int8_product
from tests.support.bad_arguments.int8_mm import INTEGER_INPUT, OPS, K, Op
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED

# --- the depth of the sums -----------------------------------------------------------------------


def deep(op: Any, depth: int, device: str) -> dict[str, Any]:
    """A right call, but for the depth, of few rows."""
    arguments = op.arguments(device)
    for name in ("input", "weight"):
        arguments[name] = torch.zeros(2, depth, dtype=arguments[name].dtype, device=device)
    for name in {"weight_scale", "bias", "weight_sum"} & set(arguments):
        arguments[name] = arguments[name][:2].contiguous()
    if "smooth_scale" in arguments:
        arguments["smooth_scale"] = arguments["smooth_scale"].new_ones(depth)
    for name in {"input_scale", "input_zero_point"} & set(arguments):
        arguments[name] = arguments[name].new_ones(2, 1)
    return arguments


@pytest.mark.parametrize("op", (*OPS, *int8_product.OPS[:3]), ids=str)
def test_depth_beyond_the_exact_range(op: Any, any_device: str) -> None:
    """The limit is said; one less is computed."""
    integers = op.name in INTEGER_INPUT or op.name == "int8_product"
    shifted = op.full or (integers and op.input == torch.uint8)
    limit = DEEPEST_SHIFTED if shifted else DEEPEST
    assert op(deep(op, limit, any_device)).shape == (2, 2)
    for depth in (limit + 1, 2 * limit, 2**20):
        with pytest.raises(
            ValueError, match=rf"^baraquant::{op.name}.*: .*{limit}.* got .*{depth}"
        ):
            op(deep(op, depth, any_device))


# --- other objects -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS, ids=str)
def test_nested_and_sparse_tensors_that_autograd_would_record(op: Op) -> None:
    for name in ("input", "weight", "bias"):
        value = op.arguments("cpu").get(name)
        if value is None or not value.is_floating_point():
            continue
        parts = [torch.ones(n, K, dtype=value.dtype) for n in (2, 4)]
        wrong = [torch.nested.nested_tensor(parts, layout=t) for t in (torch.strided, torch.jagged)]
        for tensor in (*wrong, parts[0].to_sparse()):
            with pytest.raises(TypeError, match=rf"^baraquant::{op.name}: expected {name} to be"):
                op(op.arguments("cpu") | {name: tensor.requires_grad_()})


@pytest.mark.parametrize("name", sorted({op.name for op in grouped.OPS}))
def test_offsets_that_do_not_ascend(name: str) -> None:
    op = next(op for op in grouped.OPS if op.name == name)
    for bad, words in (
        ([3, 2, 7], "got 2 at index 1 behind 3"),
        ([-1, 2, 7], "got -1 at index 0"),
        ([3, 5, 8], "got 8 at index 2 behind 5"),
    ):
        given = op.arguments("cpu") | {"offsets": torch.tensor(bad, dtype=torch.int32)}
        message = rf"^baraquant::{name}: expected offsets to ascend from 0 to input\.size\(0\) "
        with pytest.raises(ValueError, match=rf"{message}\({grouped.T}\) at most, but {words}$"):
            op(given)


@pytest.mark.parametrize("name", ("backward", "rounding"))
def test_options_of_other_types(name: str) -> None:
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    for value in (1, None, 2.0, True):
        with pytest.raises(TypeError, match=rf"qat_linear: expected {name} to be of type str"):
            ops.qat_linear(x, w, **{name: value})
