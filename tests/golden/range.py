# SPDX-License-Identifier: BSD-3-Clause
"""The range family: scales from the data, and observers, by granularity, dtype and layout."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tests.golden import values
from tests.golden.values import Case, Shape
from tests.support import cases
from tests.support.cases import Granularity, name_of

KINDS = ("tame", "ties", "wild", "poisoned")
RANGES = ((-128, 127), (-8, 7), (0, 15))
ops = torch.ops.baraquant


def from_data(
    g: Granularity, symmetric: bool, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> Iterator[Tensor]:
    """The scale and zero point, the integers, the fake-quantized values and their gradient."""
    mode = {"symmetric": symmetric}
    dy = values.gradients(shape, dtype, 4).to(device)
    for seed, kind in enumerate(KINDS):
        x = values.lay_out(values.segments(shape, dtype, kind, 10 * seed).to(device), layout)
        for ends in RANGES:
            args = (*g.args, *ends)
            yield from g.op("choose_qparams")(x, *args, **mode)
            yield from g.op("dynamic_range_quantize")(x, *args, **mode)
            leaf = x.detach().requires_grad_()
            y = g.op("dynamic_fake_quantize")(leaf, *args, **mode)
            yield from (y, torch.autograd.grad(y, leaf, dy)[0])
        unsigned = {"dtype": torch.uint8, **mode}
        yield from g.op("dynamic_range_quantize")(x, *g.args, 0, 255, **unsigned)


def observed(
    axis: int | None, symmetric: bool, shape: Shape, layout: str, dtype: torch.dtype, device: str
) -> Iterator[Tensor]:
    """A running range of several batches, by both ops, with every switch on and off."""
    params = () if axis is None else (shape[axis],)
    compute = cases.compute_dtype(dtype)
    dy = values.gradients(shape, dtype, 4).to(device)
    for average in (None, 0.3):
        low, high = (torch.full(params, v, dtype=compute) for v in (math.inf, -math.inf))
        given = (low, high, torch.ones(params, dtype=compute), torch.zeros(params).int())
        state = [t.to(device) for t in (*given, torch.zeros((), dtype=torch.int64))]
        batches = ("tame", "poisoned", "ties", "wild", "tame")
        switches = ((1, 1), (1, 1), (0, 1), (1, 0), (0, 0))
        for seed, (kind, switch) in enumerate(zip(batches, switches, strict=True)):
            x = values.segments(shape, dtype, kind, 10 * seed + 1).to(device)
            x = values.lay_out(x, layout).requires_grad_()
            on = [torch.tensor([flag], dtype=torch.uint8, device=device) for flag in switch]
            y = ops.observe_fake_quantize(
                *(x, *state[:4], *on, axis, -100, 90),
                symmetric=symmetric,
                averaging_constant=average,
                skipped_batches=state[4],
            )
            yield from (y, torch.autograd.grad(y, x, dy)[0], *(t.clone() for t in state))
        ends = [t.clone() for t in (*state[:2], state[4])]
        x = values.lay_out((x.detach() * 2), layout)
        ops.observe_min_max_(x, *ends[:2], axis, average, skipped_batches=ends[2])
        ops.observe_min_max_(dy, *ends[:2], axis, average)
        yield from ends


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every call with inputs of a dtype."""
    for symmetric in (True, False):
        mode = "symmetric" if symmetric else "asymmetric"
        for g in values.GRANULARITIES:
            for shape, layout in values.places(g):
                title = f"from_data {g} {mode} {name_of(dtype)}"
                run = partial(from_data, g, symmetric, shape, layout, dtype)
                yield Case(title, f"{list(shape)} {layout}", run)
        for axis in (None, 0, 1, -1):
            g = cases.PER_TENSOR if axis is None else cases.per_channel(axis)
            for shape, layout in values.places(g):
                title = f"observe {g} {mode} {name_of(dtype)}"
                run = partial(observed, axis, symmetric, shape, layout, dtype)
                yield Case(title, f"{list(shape)} {layout}", run)
