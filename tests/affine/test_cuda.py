# SPDX-License-Identifier: BSD-3-Clause
"""What only CUDA has: streams, graphs, no synchronisation, memory, more than 2^31 elements."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import Granularity, per_channel, per_group
from tests.support.cuda import (
    CHUNK,
    LARGE,
    LARGE_CASES,
    MIB,
    large_input,
    measured,
    segment_of_elements,
    spots,
)
from tests.support.family_cases.on_cuda import OnCuda, Step
from tests.support.marks import by_kind
from tests.support.oracle.affine import Affine

RANGE = (-100, 90)
SHAPE = (33, 67, 129)
VERBS = ("fake_quantize", "quantize", "dequantize", "learned")

pytestmark = pytest.mark.cuda


def arguments(granularity: Granularity, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, dy, scale and zero point on the CPU."""
    params = granularity.param_shape(SHAPE)
    scale = cases.scales(params, torch.float32, seed)
    x = cases.adversarial(cases.expand(scale, granularity, SHAPE), torch.float32, seed)
    dy = torch.randn(SHAPE, generator=cases.generator(seed + 1))
    return x, dy, scale, cases.zero_points(params, RANGE, seed)


def step(verb: str, granularity: Granularity) -> Callable[..., tuple[Tensor, ...]]:
    """Forward and backward of one op: the output and every gradient."""

    def run(x: Tensor, dy: Tensor, scale: Tensor, point: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        point = point.long() if verb == "quantize" else point
        learned = [x]
        if verb == "learned":
            scale = scale.detach().requires_grad_()
            point = point.detach().float().requires_grad_()
            learned += [scale, point]
        op = granularity.op("fake_quantize" if verb == "learned" else verb)
        options = {} if verb in ("fake_quantize", "learned") else {"dtype": torch.float32}
        ends = () if verb == "dequantize" else RANGE
        y = op(x * 1, scale, point, *granularity.args, *ends, **options)
        plain = op(x.detach(), scale.detach(), None, *granularity.args, *ends, **options)
        return (y.detach(), plain, *torch.autograd.grad(y, learned, dy))

    return run


KINDS = (*cases.KINDS, per_channel(-1), per_group(5, 0))


class TestOnCuda(OnCuda):
    STEPS = tuple(
        Step(f"{verb}-{kind}", partial(arguments, kind), step(verb, kind))
        for verb in VERBS
        for kind in KINDS
    )


def test_the_debug_mode_would_notice(no_synchronisation: None) -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(2, device="cuda").sum().item()


# --- device memory -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=cases.name_of)
@by_kind
def test_memory(granularity: Granularity, dtype: torch.dtype, cuda: str) -> None:
    """Output, one bit per element where asked for, and nothing else, not even for a moment."""
    shape = (64, 512, 512)
    x = torch.randn(shape, device=cuda, dtype=dtype)
    params = granularity.param_shape(shape)
    scale = torch.full(params, 0.05, device=cuda)
    point = torch.zeros(params, device=cuda, dtype=torch.int32)
    args = (scale, point, *granularity.args)
    size, mask = x.nbytes, x.numel() // 8
    op = granularity.op("fake_quantize")
    leaf = x.clone().requires_grad_()
    activation = leaf.clone()  # not a leaf, nor a view of one
    expectations = (
        (lambda: op(x, *args), size),
        (lambda: granularity.op("quantize")(x, *args), x.numel()),
        (lambda: op(leaf, *args), size),
        (lambda: op(leaf, *args, save_mask=True), size + mask),
        (lambda: op(activation, *args), size + mask),
        (lambda: op(activation, *args, save_mask=False), size),
    )
    for call, expected in expectations:
        held, peak = measured(call)
        assert expected <= held <= expected + MIB
        assert peak <= expected + MIB
    # The fused gradient writes dx and the sums; its scratch is small beside them.
    fused = granularity.op("fake_quantize_backward_qparams")
    sums = 2 * scale.nbytes
    _, peak = measured(lambda: fused(x, x, *args))
    assert peak <= size + 4 * sums + 32 * MIB


# --- more than 2^31 elements ---------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE_CASES)
def test_more_than_2_to_the_31_elements(name: str, room: None) -> None:
    shape, granularity = LARGE_CASES[name]
    x = large_input(shape)
    params = granularity.param_shape(shape)
    generator = torch.Generator("cuda").manual_seed(0)
    scale = 0.2 + torch.rand(params, device="cuda", generator=generator)
    point = torch.randint(-9, 9, params, device="cuda", generator=generator, dtype=torch.int32)
    args = (scale, point, *granularity.args, *RANGE)
    assert x.numel() > 2**31

    def at(where: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Input, scale and zero point of some elements, one entry each."""
        index = torch.arange(where.start, where.stop, device="cuda")
        segment = segment_of_elements(name, index)
        return x.view(-1)[where], scale.view(-1)[segment], point.view(-1)[segment]

    def whole(result: Tensor, small: Callable[..., Tensor]) -> None:
        """Every element, in pieces whose offsets are small."""
        flat = result.view(-1)
        for start in range(0, flat.numel(), CHUNK):
            where = slice(start, min(start + CHUNK, flat.numel()))
            assert torch.equal(flat[where], small(*at(where))), f"from {start}"

    ops = torch.ops.baraquant
    q = granularity.op("quantize")(x, *args)
    for where in spots(x.numel()):
        rule = Affine(*(t.cpu() for t in at(where)), per_channel(0), *RANGE)
        assert_same_bits(q.view(-1)[where], rule.quantize(), f"{where}")
    whole(q, lambda part, s, z: ops.quantize_per_channel(part, s, z, 0, *RANGE))
    y = granularity.op("dequantize")(q, *args[:-2], dtype=torch.float16)
    whole(y, lambda part, s, z: ops.fake_quantize_per_channel(part, s, z, 0, *RANGE))
    del q, y
    leaf = x.requires_grad_()
    for save_mask in (True, False):
        y = granularity.op("fake_quantize")(leaf, *args, save_mask=save_mask)
        (dx,) = torch.autograd.grad(y, leaf, y.detach())
        del y
        x = leaf.detach()

        def gradient(part: Tensor, s: Tensor, z: Tensor) -> Tensor:
            dy = ops.fake_quantize_per_channel(part, s, z, 0, *RANGE)
            return ops.fake_quantize_per_channel_backward(dy, part, s, z, 0, *RANGE)

        whole(dx, gradient)
        del dx


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE_CASES)
def test_sums_of_more_than_2_to_the_31_elements(name: str, room: None) -> None:
    """Each term is -1/4, so that every segment's sum is known exactly."""
    shape, granularity = LARGE_CASES[name]
    x = torch.full(shape, 0.25, dtype=torch.float16, device="cuda")
    dy = torch.ones((), dtype=torch.float16, device="cuda").expand(shape)
    params = granularity.param_shape(shape)
    scale = torch.ones(params, device="cuda")
    op = granularity.op("fake_quantize_backward_qparams")
    dx, ds, _ = op(dy, x, scale, None, *granularity.args, *RANGE)
    counts = torch.full(params, x.numel() // max(scale.numel(), 1), device="cuda")
    if name == "per_group":
        counts = torch.full(params, 128, device="cuda")
        counts[-1] = LARGE % 128
    assert torch.equal(ds, (-0.25 * counts.double()).float())
    assert int((dx == 1).sum()) == x.numel()
