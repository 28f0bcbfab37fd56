# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family: products for one weight and for groups, and their gradients.

A product of integers is exact, and so any input will do. A gradient is a product of floating
matrices, which PyTorch sums in an order of its own: its inputs are such that every sum is exact.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.golden import values
from tests.golden.values import Case
from tests.support import cases
from tests.support.cases import name_of
from tests.support.checks.int8_mm import moved

ops = torch.ops.baraquant
Arguments = dict[str, Any]
# Rows, outputs, inputs: vectors and tiles with and without a rest, none, one.
SIZES = ((1, 37, 131), (3, 150, 65), (5, 9, 4099), (37, 67, 257), (130, 64, 128), (530, 5, 70))
SIZES += ((0, 5, 8), (4, 0, 8), (3, 7, 0), (1, 1, 1))
LAYOUTS = ("contiguous", "misaligned", "transposed", "stepped", "padded", "expanded")
# Rows of each group, and rows behind the last.
GROUPS = (((3, 0, 70, 1, 130, 17), 0), ((0, 33, 0), 9), ((0, 0), 0), ((5,), 0))


def weights(lead: tuple[int, ...], n: int, k: int, compute: torch.dtype) -> Arguments:
    """An int8 weight with its scale, for each group where there are some."""
    return {
        "weight": values.integers((*lead, n, k), -128, 127, 1, torch.int8),
        "weight_scale": values.scales((*lead, n), compute, 2),
    }


def bias(lead: tuple[int, ...], n: int, dtype: torch.dtype) -> Tensor:
    return values.rounded(values.spread((*lead, n), 3) * 100, dtype)


def offsets(sizes: tuple[int, ...]) -> Tensor:
    return torch.tensor(sizes, dtype=torch.int64).cumsum(0).to(torch.int32)


def integer_product(
    m: int, k: int, lead: tuple[int, ...], n: int, dtype: torch.dtype, kind: torch.dtype
) -> Iterator[Arguments]:
    """Arguments of int8_linear: every kind of scale, zero point, bias."""
    compute, ends = cases.compute_dtype(dtype), cases.default_range(kind)
    plain = {
        "input": values.integers((m, k), *ends, 4, kind),
        **weights(lead, n, k, compute),
        "dtype": dtype,
    }
    point = values.integers((m,), *ends, 5, torch.int32)
    one, token = values.scales((), compute, 6), values.scales((m,), compute, 7)
    sums = plain["weight"].sum(-1, dtype=torch.int32)
    yield plain | {"input_scale": one}
    yield plain | {"input_scale": token, "bias": bias(lead, n, compute)}
    yield plain | {"input_scale": token, "input_zero_point": point, "bias": bias(lead, n, dtype)}
    shared = {"input_scale": one, "input_zero_point": point[:1].reshape(-1)[:1].sum().int()}
    yield plain | shared | {"weight_sum": sums}
    column = {"input_scale": token[:, None], "input_zero_point": point[:, None].long()}
    yield plain | column | {"weight_sum": sums, "bias": bias(lead, n, compute)}


def int8_linear(
    size: tuple[int, int, int], layout: str, kind: torch.dtype, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """And smoothquant_linear, which is the same with one scale."""
    m, n, k = size
    found = []
    for given in integer_product(m, k, (), n, dtype, kind):
        own = moved(given, device)
        own["input"] = values.lay_out(own["input"], layout)
        if layout == "misaligned":  # the weight's rows must follow each other
            own["weight"] = values.lay_out(own["weight"], layout)
        found.append(ops.int8_linear(**own))
        if own["input_scale"].ndim == 0:
            names = {"input_scale": "act_scale", "input_zero_point": "act_zero_point"}
            own = {names.get(name, name): value for name, value in own.items()}
            found.append(ops.smoothquant_linear(**own))
            numbers = {"act_scale": 0.0371, "dtype": dtype, "act_zero_point": 3}
            found.append(ops.smoothquant_linear(**{**own, **numbers}))
    return tuple(found)


def int8_grouped_linear(
    groups: tuple[tuple[int, ...], int], kind: torch.dtype, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    sizes, behind = groups
    found = []
    for n, k in ((24, 33), (64, 128)):
        for given in integer_product(sum(sizes) + behind, k, (len(sizes),), n, dtype, kind):
            own = given | {"offsets": offsets(sizes)}
            found.append(ops.int8_grouped_linear(**moved(own, device)))
    return tuple(found)


def floating_input(m: int, k: int, dtype: torch.dtype) -> Tensor:
    """Rows of each kind that a range is taken from, in turn."""
    kinds = [values.segments((m, k), dtype, kind, 8) for kind in ("tame", "ties", "wild")]
    kinds.append(values.segments((m, k), dtype, "poisoned", 9))
    turn = (torch.arange(m) % 4)[:, None]
    found = kinds[0]
    for index, other in enumerate(kinds):
        found = torch.where(turn == index, other, found)
    return found


def served(
    m: int, k: int, lead: tuple[int, ...], n: int, dtype: torch.dtype
) -> Iterator[tuple[str, Arguments]]:
    """Arguments of quantized_linear and of static_quantized_linear."""
    compute = cases.compute_dtype(dtype)
    plain = {"input": floating_input(m, k, dtype), **weights(lead, n, k, compute)}
    sums = plain["weight"].sum(-1, dtype=torch.int32)
    for symmetric in (True, False):
        dynamic = plain | {"symmetric": symmetric}
        yield "quantized", dynamic | {"bias": bias(lead, n, dtype)}
        yield "quantized", dynamic | {"weight_sum": sums, "quant_min": -8, "quant_max": 7}
    if lead:
        return
    static = plain | {"act_scale": torch.tensor(0.0625, dtype=compute)}
    yield "static_quantized", static
    more = {"bias": bias(lead, n, compute), "weight_sum": sums, "quant_min": -100, "quant_max": 90}
    more |= {"act_zero_point": torch.tensor(11), "smooth_scale": values.scales((k,), compute, 10)}
    yield "static_quantized", static | more
    yield "static_quantized", static | {"dtype": torch.float64 if compute.itemsize > 4 else compute}


def from_floats(
    size: tuple[int, int, int], layout: str, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    """The served products, and that of a layer in training."""
    m, n, k = size
    found = []
    for name, given in served(m, k, (), n, dtype):
        own = moved(given, device)
        own["input"] = values.lay_out(own["input"], layout)
        found.append(getattr(ops, f"{name}_linear")(**own))
    x = values.lay_out(floating_input(m, k, dtype).to(device), layout)
    w = values.lay_out(values.rounded(values.spread((n, k), 11), dtype).to(device), layout)
    b = bias((), n, dtype).to(device)
    for symmetric in (True, False):
        found.append(ops.qat_linear(x, w, b, symmetric=symmetric))
        found.append(ops.qat_linear(x, w, None, symmetric=symmetric, weight_quant_min=-8,
                                    weight_quant_max=7, quant_min=-4, quant_max=3))  # fmt: skip
    return tuple(found)


def grouped_from_floats(
    groups: tuple[tuple[int, ...], int], dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    sizes, behind = groups
    m, n, k, ends = sum(sizes) + behind, 24, 40, offsets(sizes).to(device)
    found = []
    for _, given in served(m, k, (len(sizes),), n, dtype):
        found.append(ops.quantized_grouped_linear(offsets=ends, **moved(given, device)))
    w = values.rounded(values.spread((len(sizes), n, k), 11), dtype).to(device)
    x, b = floating_input(m, k, dtype).to(device), bias((len(sizes),), n, dtype).to(device)
    for symmetric in (True, False):
        found.append(ops.qat_grouped_linear(x, w, ends, b, symmetric=symmetric))
    return tuple(found)


# --- gradients whose sums are exact --------------------------------------------------------------


def exact_rows(shape: tuple[int, ...], dtype: torch.dtype, seed: int, low: int = -127) -> Tensor:
    """Quarters of integers up to 127, whose symmetric scale of eight bits is 1/4.

    With `low` = -128 the asymmetric one is.
    """
    found = values.integers(shape, -100, 100, seed)
    found[..., :1], found[..., 1:2] = 127, low
    return (found.double() / 4).to(dtype)


def sparse(m: int, n: int, dtype: torch.dtype) -> Tensor:
    """An incoming gradient of two numbers in each row, and as few in each column as can be."""
    found = torch.zeros(m, n, dtype=torch.float64)
    row = torch.arange(m)
    for step, value in ((0, 1.0), (1, -1.0)):
        found[row, (row + step) % n] = value
    return found.to(dtype)


def exact_weights(n: int, k: int, compute: torch.dtype) -> Arguments:
    return {
        "weight": values.integers((n, k), -100, 100, 12, torch.int8),
        "weight_scale": torch.full((n,), 0.125, dtype=compute),
    }


def gradients(dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Of every product of floating inputs; m = n, so that no column holds more than a row."""
    m = n = 12
    k, compute = 40, cases.compute_dtype(dtype)
    dy, own = sparse(m, n, dtype).to(device), moved(exact_weights(n, k, compute), device)
    found: list[Tensor] = []

    def grad(y: Tensor, leaves: list[Tensor]) -> None:
        found.extend((y, *torch.autograd.grad(y, leaves, dy)))

    for symmetric in (True, False):
        x = exact_rows((m, k), dtype, 13, -127 if symmetric else -128).to(device)
        leaves = [x, exact_rows((n, k), dtype, 14).to(device), bias((), n, dtype).to(device)]
        for leaf in leaves:
            leaf.requires_grad_()
        grad(ops.qat_linear(*leaves, symmetric=symmetric), leaves)
        both = [leaves[0], leaves[2]]
        y = ops.quantized_linear(leaves[0], **own, bias=leaves[2], symmetric=symmetric)
        grad(y, both)
    smooth = values.powers((k,), compute, 15).to(device)
    for options in ({}, {"smooth_scale": smooth, "act_zero_point": torch.tensor(11).to(device)}):
        scale = torch.tensor(0.25, dtype=compute, device=device)
        ends = {"quant_min": -100, "quant_max": 90}
        y = ops.static_quantized_linear(x, **own, act_scale=scale, **ends, **options)
        grad(y, [x])
    return tuple(found)


def grouped_gradients(dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    sizes, n, k = (5, 0, 12, 3), 16, 48
    m, groups, compute = sum(sizes) + 2, len(sizes), cases.compute_dtype(dtype)
    ends, dy = offsets(sizes).to(device), sparse(m, n, dtype).to(device)
    own = exact_weights(groups * n, k, compute)
    w8 = own["weight"].reshape(groups, n, k).to(device)
    s8 = own["weight_scale"].reshape(groups, n).to(device)
    found: list[Tensor] = []
    for symmetric in (True, False):
        x = exact_rows((m, k), dtype, 13, -127 if symmetric else -128).to(device).requires_grad_()
        w = exact_rows((groups, n, k), dtype, 14).to(device).requires_grad_()
        b = bias((groups,), n, dtype).to(device).requires_grad_()
        y = ops.qat_grouped_linear(x, w, ends, b, symmetric=symmetric)
        found += [y, *torch.autograd.grad(y, [x, w, b], dy)]
        y = ops.quantized_grouped_linear(x, w8, ends, s8, b, symmetric=symmetric)
        found += [y, *torch.autograd.grad(y, [x, b], dy)]
    rows, few = values.integers((m, k), -7, 7, 16).to(device, dtype), dy
    matrices = values.integers((groups, k, n), -1, 1, 17).to(device, dtype)
    found.append(ops._grouped_matmul(rows[:, :k], matrices, ends))
    found.append(ops._grouped_outer(few, rows, ends))
    found += [ops._grouped_sum(rows, ends, kind) for kind in (dtype, compute)]
    return tuple(found)


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every product whose output or floating input has a dtype."""
    name = name_of(dtype)
    found: list[tuple[str, str, Callable[[str], tuple[Tensor, ...]]]] = []
    places = [(size, "contiguous") for size in SIZES]
    places += [((9, 35, 83), layout) for layout in LAYOUTS]
    for size, layout in places:
        title = f"{list(size)} {layout}"
        for kind in cases.INTEGER_DTYPES:
            run = partial(int8_linear, size, layout, kind, dtype)
            found.append((f"int8_linear {name_of(kind)}", title, run))
        if math.prod(size[1:]):
            found.append(("from_floats", title, partial(from_floats, size, layout, dtype)))
    for groups in GROUPS:
        for kind in cases.INTEGER_DTYPES:
            run = partial(int8_grouped_linear, groups, kind, dtype)
            found.append((f"int8_grouped_linear {name_of(kind)}", str(groups), run))
        run = partial(grouped_from_floats, groups, dtype)
        found.append(("grouped_from_floats", str(groups), run))
    found.append(("gradients", "", partial(gradients, dtype)))
    found.append(("gradients of groups", "", partial(grouped_gradients, dtype)))
    for group, title, run in found:
        yield Case(f"{group} {name}", title, run)
