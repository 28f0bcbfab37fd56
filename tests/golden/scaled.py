# SPDX-License-Identifier: BSD-3-Clause
"""The scaled family, and the gradients that come from integers."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tests.golden import values
from tests.golden.values import Case
from tests.support import cases
from tests.support.cases import name_of

ops = torch.ops.baraquant
# Rows and columns: whole tiles and packs, rests of them, long rows, none, one.
SIZES = ((128, 256), (37, 67), (130, 80), (5, 2064), (3, 17000), (1100, 24), (1, 1), (0, 8), (8, 0))
KINDS = ("tame", "wild", "poisoned")
LAYOUTS = ("contiguous", "misaligned", "transposed", "stepped", "expanded")
STATES = (None, (0, 0), (-(2**63), 2**63 - 1), (2**40 + 7, 3))


def state(numbers: tuple[int, int] | None, device: str) -> Tensor | None:
    return None if numbers is None else torch.tensor(numbers, device=device)


def quantized(
    size: tuple[int, int], layout: str, dtype: torch.dtype, device: str
) -> Iterator[Tensor]:
    """Both ops, rounding to the nearest and stochastically, and the transpose of their integers."""
    rows, columns = size
    compute = cases.compute_dtype(dtype)
    of_columns = values.scales((columns,), compute, 2).to(device)
    of_rows = values.scales((rows,), compute, 3).to(device)
    for seed, kind in enumerate(KINDS):
        x = values.lay_out(values.segments(size, dtype, kind, 10 * seed).to(device), layout)
        for numbers in STATES:
            random = state(numbers, device)
            made = ops.scaled_quantize_per_token(x, of_columns, random=random)
            yield from (*made, ops.transpose_int8(made[0]))
            yield from ops.scaled_quantize_transposed(x, of_rows, random=random)


# Tokens, outputs, inputs.
PRODUCTS = ((37, 67, 131), (128, 64, 96), (5, 9, 1030), (70_000, 2, 3), (2, 140_000, 3), (0, 5, 8))


def gradients(
    size: tuple[int, int, int], symmetric: bool, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """Of the input and the weight, to the nearest, and with a state that is given."""
    tokens, outputs, inputs = size
    x, w = values.spread((tokens, inputs), 1), values.spread((outputs, inputs), 2)
    leaves = [values.rounded(t, dtype).to(device).requires_grad_() for t in (x, w)]
    dy = values.rounded(values.spread((tokens, outputs), 3) * 0.01, dtype).to(device)
    y = ops.qat_linear(*leaves, symmetric=symmetric, backward="int8")
    found = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
    q, s, z = ops.dynamic_range_quantize_per_token(leaves[0].detach(), symmetric=symmetric)
    qw, sw, _ = ops.dynamic_range_quantize_per_channel(leaves[1].detach(), 0)
    for numbers in STATES[1:]:
        given = (q, s, None if symmetric else z, qw, sw, state(numbers, device))
        found += ops._integer_backward(dy, *given)[:2]
    return tuple(found)


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every call with inputs of a dtype."""
    for size in SIZES:
        for layout in LAYOUTS:
            run = partial(quantized, size, layout, dtype)
            yield Case(f"scaled {name_of(dtype)}", f"{list(size)} {layout}", run)
    for symmetric in (True, False):
        mode = "symmetric" if symmetric else "asymmetric"
        for size in PRODUCTS:
            run = partial(gradients, size, symmetric, dtype)
            title = f"gradients from integers {mode} {name_of(dtype)}"
            yield Case(title, f"{list(size)}", run)
