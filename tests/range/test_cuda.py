# SPDX-License-Identifier: BSD-3-Clause
"""The range family on CUDA: streams, graphs, no synchronisation, memory, many shapes as on CPU."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.range.test_observe import FLAGS, RANGE
from tests.support import cases
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.cuda import MIB, measured
from tests.support.family_cases.on_cuda import OnCuda, Step
from tests.support.family_cases.range import MODES, characterful
from tests.support.marks import by_dtype, by_mode

SHAPE = (33, 67, 129)
DATA = ("choose", "quantize", "fake")
KINDS = (PER_TENSOR, per_channel(0), per_channel(1), per_channel(-1), PER_TOKEN, per_group(8))
KINDS += (per_group(5, 0),)
by_kind = pytest.mark.parametrize("granularity", KINDS, ids=str)
by_axis = pytest.mark.parametrize("axis", (None, 0, 1, -1))

pytestmark = pytest.mark.cuda


def inputs(granularity: Granularity, symmetric: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x and dy on the CPU."""
    x = characterful(SHAPE, torch.float32, granularity, RANGE, symmetric, seed)
    return x, torch.randn(SHAPE, generator=cases.generator(seed + 1))


def step(verb: str, granularity: Granularity, symmetric: bool) -> Callable[..., tuple[Tensor, ...]]:
    """One op, with backward where it has one."""
    mode = {"symmetric": symmetric}

    def run(x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        args = (*granularity.args, *RANGE)
        if verb == "choose":
            return granularity.op("choose_qparams")(x, *args, **mode)
        if verb == "quantize":
            return granularity.op("dynamic_range_quantize")(x, *args, **mode)
        x = x.detach().requires_grad_()
        y = granularity.op("dynamic_fake_quantize")(x * 1, *args, **mode)
        return y.detach(), *torch.autograd.grad(y, x, dy)

    return run


# --- observers -----------------------------------------------------------------------------------


def observed(axis: int | None, symmetric: bool, seed: int) -> tuple[Tensor, ...]:
    """x, dy, the flags and a state on the CPU. The seed switches them: on and off, one and both."""
    granularity = PER_TENSOR if axis is None else per_channel(axis)
    clean = ("normal", "positive", "ties", "tiny", "negative")
    x = characterful(SHAPE, torch.float32, granularity, RANGE, symmetric, seed, clean)
    dy = torch.randn(SHAPE, generator=cases.generator(seed))
    flags = (torch.tensor([flag], dtype=torch.uint8) for flag in FLAGS[seed % len(FLAGS)])
    shape = () if axis is None else (SHAPE[axis],)
    low, high, scale = (torch.full(shape, value) for value in (math.inf, -math.inf, 0.5))
    return x, dy, *flags, low, high, scale, torch.zeros(shape, dtype=torch.int32)


def observing(axis: int | None, symmetric: bool) -> Callable[..., tuple[Tensor, ...]]:
    """Both ops on a copy of the state, which comes first in the result, with backward."""
    options = {"symmetric": symmetric, "averaging_constant": 0.25}
    ops = torch.ops.baraquant

    def run(x: Tensor, dy: Tensor, on: Tensor, rounds: Tensor, *given: Tensor) -> Any:
        x, state = x.detach().requires_grad_(), [t.clone() for t in given]
        y = ops.observe_fake_quantize(x * 1, *state, on, rounds, axis, *RANGE, **options)
        ops.observe_min_max_(dy, *state[:2], axis, 0.5)
        return *state, y.detach(), *torch.autograd.grad(y, x, dy)

    return run


class TestOnCuda(OnCuda):
    """Flags are read on the device: one graph observes, quantizes, both or neither."""

    STEPS = (
        *(
            Step(f"{verb}-{kind}-{mode}", partial(inputs, kind, mode), step(verb, kind, mode))
            for verb in DATA
            for kind in KINDS
            for mode in MODES
        ),
        *(
            Step(f"observe-{axis}-{mode}", partial(observed, axis, mode), observing(axis, mode))
            for axis in (None, 0, 1, -1)
            for mode in MODES
        ),
    )


# --- shapes of real layers -----------------------------------------------------------------------

WIDTHS = (512, 4096, 5120, 14336, 65536)
ROWS = (1, 2, 7, 64, 131, 2048)
TALL = ((65536, 512), (8192, 4096), (1, 5_000_011), (2, 1_000_003), (3, 33_333), (1_000_003, 3))


@by_dtype
@by_mode
def test_same_bits_as_on_the_cpu(symmetric: bool, dtype: torch.dtype, cuda: str) -> None:
    """Rows and widths of real layers, where the mapping to warps, blocks and clusters changes."""
    shapes = [(rows, width) for width in WIDTHS for rows in ROWS if rows * width <= 2**24]
    generator = torch.Generator(cuda).manual_seed(1)
    for shape in (*shapes, *TALL):
        x = torch.randn(shape, device=cuda, generator=generator, dtype=torch.float32).to(dtype)
        x *= torch.rand(shape[0], 1, device=cuda, generator=generator).to(dtype)
        host = x.cpu()
        kinds = [PER_TOKEN, PER_TENSOR, per_group(128)]
        kinds += [per_channel(0), per_channel(1)] if shape[0] in (7, 131, 8192) else []
        for granularity in kinds:
            args, mode = granularity.args, {"symmetric": symmetric}
            for verb in ("dynamic_range_quantize", "dynamic_fake_quantize", "choose_qparams"):
                op = granularity.op(verb)
                got, expected = op(x, *args, **mode), op(host, *args, **mode)
                if isinstance(got, Tensor):
                    got, expected = (got,), (expected,)
                for a, b in zip(got, expected, strict=True):
                    assert torch.equal(a.cpu(), b), f"{granularity} {shape} {verb}"


# --- device memory -------------------------------------------------------------------------------

SCRATCH = 8 * MIB  # beside inputs of 32 and 64 MiB


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=cases.name_of)
@by_kind
def test_memory(granularity: Granularity, dtype: torch.dtype, cuda: str) -> None:
    """Outputs, one bit per element where asymmetric, and nothing else, not even for a moment."""
    shape = (64, 512, 512)
    x = torch.randn(shape, device=cuda, dtype=dtype)
    size, mask, g = x.nbytes, x.numel() // 8, granularity.args
    # Each scale and zero point, for a while also what blocks hand to each other.
    params = 8 * math.prod(granularity.param_shape(shape))
    room = 3 * params + SCRATCH
    leaf = x.clone().requires_grad_()
    choose, quantize, fake = (
        granularity.op(v)
        for v in ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")
    )
    for symmetric in MODES:
        expectations = (
            (lambda s=symmetric: choose(x, *g, symmetric=s), 0),
            (lambda s=symmetric: quantize(x, *g, symmetric=s), x.numel()),
            (lambda s=symmetric: fake(x, *g, symmetric=s), size),
            (lambda s=symmetric: fake(leaf, *g, symmetric=s), size + (0 if symmetric else mask)),
        )
        for call, expected in expectations:
            torch.cuda.empty_cache()  # a larger block that is free would be taken as a whole
            held, peak = measured(call)
            # A block of the allocator may end up to a MiB behind its tensor, of three or four.
            assert expected <= held <= expected + params + 3 * MIB
            assert peak <= expected + room
    y = fake(leaf, *g)
    dy = torch.ones_like(y)
    held, peak = measured(lambda: torch.autograd.grad(y, leaf, dy))
    assert held == peak == 0  # symmetric: the incoming gradient itself


@by_axis
def test_memory_of_observers(axis: int | None, cuda: str) -> None:
    shape = (64, 512, 512)
    x = torch.randn(shape, device=cuda)
    leaf = x.clone().requires_grad_()
    params = () if axis is None else (shape[axis],)
    low, high = torch.full(params, math.inf, device=cuda), torch.full(params, -1.0, device=cuda)
    scale, point = torch.ones(params, device=cuda), torch.zeros(params, device=cuda).int()
    on = torch.ones(1, dtype=torch.bool, device=cuda)
    ops = torch.ops.baraquant
    args = (low, high, scale, point, on, on, axis)
    held, peak = measured(lambda: ops.observe_min_max_(x, low, high, axis))
    assert held == 0 and peak <= SCRATCH
    for given, expected in ((x, x.nbytes), (leaf, x.nbytes + x.numel() // 8)):
        held, peak = measured(lambda given=given: ops.observe_fake_quantize(given, *args))
        assert expected <= held <= expected + MIB
        assert peak <= expected + SCRATCH
