# SPDX-License-Identifier: BSD-3-Clause
"""Weights of four bits: the choice of factors, the numbers, and products."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tests.golden import values
from tests.golden.int8_mm import floating_input
from tests.golden.values import Case
from tests.support import cases
from tests.support.cases import name_of

ops = torch.ops.baraquant
# Tokens, outputs, inputs, the size of a group: whole and partial groups, odd rows, one, none.
SIZES = ((1, 37, 131, 32), (9, 35, 83, 2), (33, 64, 256, 128), (5, 9, 4098, 64), (130, 24, 96, 96))
SIZES += ((1, 1, 1, 2), (0, 5, 8, 4), (4, 0, 8, 4), (3, 7, 0, 2))
KINDS = ("tame", "wild", "poisoned")


def packed(
    n: int, k: int, size: int, kind: str, symmetric: bool, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A weight, packed, with its scale, factors and zero points."""
    weight = values.segments((n, k), dtype, kind, 21).to(device)
    scale, factor, zeros = ops.choose_int4_qparams(weight, size, symmetric=symmetric)
    numbers = ops.quantize_int4(weight, scale, factor, size, group_zero_point=zeros)
    return numbers, scale, factor, zeros


def weights(
    given: tuple[int, int, int, int], symmetric: bool, dtype: torch.dtype, device: str
) -> Iterator[Tensor]:
    _, n, k, size = given
    for kind in KINDS:
        parts = packed(n, k, size, kind, symmetric, dtype, device)
        numbers, _, factor, zeros = parts
        w8 = ops.expand_int4(numbers, factor, size, k, group_zero_point=zeros)
        yield from (*parts, w8, ops.pack_int4((w8 >> 4).contiguous()))


def products(
    given: tuple[int, int, int, int], symmetric: bool, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """Of integers, and of floats with a dynamic and a static scale; and a layer in training."""
    m, n, k, size = given
    compute = cases.compute_dtype(dtype)
    numbers, scale, factor, zeros = packed(n, k, size, "tame", symmetric, dtype, device)
    weight = (numbers, scale, factor, size)
    zero = {"group_zero_point": zeros}
    bias = values.rounded(values.spread((n,), 3) * 100, dtype).to(device)
    x = floating_input(m, k, dtype).to(device)
    q = values.integers((m, k), -128, 127, 4, torch.int8).to(device)
    token = values.scales((m,), compute, 7).to(device)
    point = values.integers((m,), -128, 127, 5, torch.int32).to(device)
    one = torch.tensor(0.0625, dtype=compute, device=device)
    found = [
        ops.int4_linear(q, numbers, token, *weight[1:], bias, dtype=dtype, **zero),
        ops.int4_linear(
            q, numbers, token, *weight[1:], None, dtype=dtype, input_zero_point=point, **zero
        ),
        ops.quantized_int4_linear(x, *weight, bias, **zero),
        ops.quantized_int4_linear(x, *weight, None, symmetric=False, quant_min=-8, quant_max=7),
        ops.static_quantized_int4_linear(x, *weight, one, bias, **zero),
    ]
    w8 = ops.expand_int4(numbers, factor, size, k, group_zero_point=zeros)
    w = values.rounded(values.spread((n, k), 11), dtype).to(device)
    found.append(ops.qat_linear(x, w, bias, qweight=w8, weight_scale=scale))
    return tuple(found)


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every call with weights and inputs of a dtype."""
    for symmetric in (True, False):
        mode = "symmetric" if symmetric else "asymmetric"
        for size in SIZES:
            for name, function in (("weights", weights), ("products", products)):
                run = partial(function, size, symmetric, dtype)
                yield Case(f"int4 {name} {mode} {name_of(dtype)}", str(list(size)), run)
