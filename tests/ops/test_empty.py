# SPDX-License-Identifier: BSD-3-Clause
"""Ops of no rows, no columns, no outputs: results and gradients are those of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support.calls.affine import ALL_CALLS, outputs, value_and_gradients
from tests.support.calls.int4 import INT4_CALLS
from tests.support.calls.int8_conv import CONV_CALLS
from tests.support.calls.scaled import INTEGER_QAT_CALLS, SCALED_CALLS
from tests.support.calls.weight_only import WEIGHT_ONLY_CALLS
from tests.support.core_calls import bound

PRODUCTS = (*INTEGER_QAT_CALLS, *INT4_CALLS, *CONV_CALLS, *WEIGHT_ONLY_CALLS)
CALLS: tuple[Any, ...] = (*ALL_CALLS, *SCALED_CALLS, *PRODUCTS)
SHAPES = {"no rows": (0, 8), "no columns": (3, 0), "nothing": (0, 0)}


def check(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert len(actual) == len(expected)
    for found, wanted in zip(actual, expected, strict=True):
        assert found.dtype == wanted.dtype and torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_no_rows_or_columns(call: Any, shape: str, device: str) -> None:
    def of_the_reference(*tensors: Tensor) -> Any:
        op, arguments = bound(call, tensors)
        return getattr(reference, op._schema.name.removeprefix("baraquant::"))(**arguments)

    expected = value_and_gradients(of_the_reference, call.tensors(SHAPES[shape]))
    check(value_and_gradients(call, call.tensors(SHAPES[shape], device=device)), expected)


def floats(*sizes: int) -> Tensor:
    return torch.linspace(-3, 2, torch.Size(sizes).numel()).reshape(sizes)


def scales(*sizes: int) -> Tensor:
    return floats(*sizes).abs() + 0.5


def integers(*sizes: int, dtype: torch.dtype = torch.int8) -> Tensor:
    return (floats(*sizes) + 3).to(dtype)


def some(t: int, k: int, n: int) -> dict[str, Tensor]:
    """What products take, by the names of their arguments."""
    return {
        "x": floats(t, k),
        "q": integers(t, k),
        "q3": integers(t, k, 4),
        "w": floats(n, k),
        "qw": integers(n, k),
        "qw3": integers(n, k, 3),
        "qw2": integers(2, n, k),
        "packed": integers(n, -(-k // 2), dtype=torch.uint8),
        "scale": scales(),
        "bias": floats(n),
        "sw": scales(n),
        "sw2": scales(2, n),
        "st": scales(t),
        "z": torch.tensor(2),
        "zt": integers(t, dtype=torch.int32),
        "factor": torch.ones(n, -(-k // 2), dtype=torch.uint8),
        "sums": integers(t, n, dtype=torch.int32),
        "ends": torch.tensor([0, t]).int(),
    }


# Of an op: its positional arguments and its keywords, by name of what `some` makes.
PRODUCTS_OF: dict[str, tuple[str, dict[str, Any]]] = {
    "int8_linear": ("q qw st sw bias", {"input_zero_point": "zt"}),
    "int8_product": ("q qw", {"input_zero_point": "zt"}),
    "rescale_product": ("sums st sw bias", {}),
    "int8_conv": ("q3 qw3 scale sw bias", {"padding": 1, "input_zero_point": "z"}),
    "smoothquant_linear": ("q qw sw scale bias", {"act_zero_point": "z"}),
    "static_quantized_linear": ("x qw sw scale bias", {"act_zero_point": "z"}),
    "qat_linear": ("x w bias", {"symmetric": False}),
    "quantized_linear": ("x qw sw bias", {"symmetric": False}),
    "quantized_grouped_linear": ("x qw2 ends sw2", {"symmetric": False}),
    "quantized_int4_linear": ("x packed sw factor", {"group_size": 2, "symmetric": False}),
    "weight_only_linear": ("x qw sw bias", {}),
}
SIZES = {"no outputs": (3, 8, 0), "outputs alone": (0, 0, 4), "nothing": (0, 0, 0)}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", PRODUCTS_OF)
def test_no_outputs(name: str, sizes: str, device: str) -> None:
    """With the gradients of all floating arguments that can have one."""
    words, named = PRODUCTS_OF[name]
    learned = {"qat_linear": ("x", "w", "bias")}.get(name, ("x",))

    def results(module: Any, to: str) -> tuple[Tensor, ...]:
        made = {key: t.to(to) for key, t in some(*SIZES[sizes]).items()}
        leaves = [made[key].requires_grad_() for key in learned if key in words.split()]
        keywords = {k: made[v] if isinstance(v, str) else v for k, v in named.items()}
        function: Callable[..., Any] = getattr(module, name)
        found = outputs(function(*(made[word] for word in words.split()), **keywords))
        if leaves:
            found += torch.autograd.grad(found[0], leaves, torch.ones_like(found[0]))
        return found

    check(results(ops, device), results(reference, "cpu"))
