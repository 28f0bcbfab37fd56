# SPDX-License-Identifier: BSD-3-Clause
"""What only CUDA has: streams, graphs, no synchronisation, memory, more than 2^31 elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cases import PER_TOKEN, Granularity, per_channel, per_group
from tests.support.cuda import (
    CHUNK,
    LARGE,
    LARGE_CASES,
    MIB,
    assert_all_same,
    capture,
    large_input,
    measured,
    segment_of_elements,
    spots,
)
from tests.support.oracle.affine import Affine

RANGE = (-100, 90)
SHAPE = (33, 67, 129)
VERBS = ("fake_quantize", "quantize", "dequantize", "learned")
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_verb = pytest.mark.parametrize("verb", VERBS)

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
        learned = [x]
        if verb == "learned":
            scale = scale.detach().requires_grad_()
            point = point.detach().float().requires_grad_()
            learned += [scale, point]
        op = granularity.op("fake_quantize" if verb == "learned" else verb)
        options = {} if verb in ("fake_quantize", "learned") else {"dtype": torch.float32}
        ends = () if verb == "dequantize" else RANGE
        y = op(x * 1, scale, point, *granularity.args, *ends, **options)
        return (y.detach(), *torch.autograd.grad(y, learned, dy))

    return run


@by_verb
@by_kind
def test_runs_on_the_current_stream(granularity: Granularity, verb: str, cuda: str) -> None:
    """The input only becomes right on the side stream, after a long wait there."""
    run = step(verb, granularity)
    cpu = arguments(granularity)
    expected = run(*cpu)
    args = [t.to(cuda) for t in cpu]
    late = torch.zeros_like(args[0])
    run(late, *args[1:])  # warm
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(args[0])
        got = run(late, *args[1:])
    stream.synchronize()
    assert_all_same(got, expected)


@by_verb
@by_kind
def test_never_makes_the_host_wait(
    granularity: Granularity, verb: str, cuda: str, request: pytest.FixtureRequest
) -> None:
    run = step(verb, granularity)
    args = [t.to(cuda) for t in arguments(granularity)]
    strided, wide_point = cases.LAYOUTS["stepped"](args[0]), args[3].long()
    first = run(*args)
    request.getfixturevalue("no_synchronisation")
    again = run(*args)
    forward = granularity.op("fake_quantize")
    forward(strided, *args[2:], *granularity.args, *RANGE)
    forward(strided, args[2], None, *granularity.args, *RANGE)
    forward(strided, args[2], wide_point, *granularity.args, *RANGE)
    torch.cuda.set_sync_debug_mode("default")
    assert_all_same(again, first)


def test_the_debug_mode_would_notice(no_synchronisation: None) -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(2, device="cuda").sum().item()


@by_verb
@by_kind
def test_graph_capture_and_replay(granularity: Granularity, verb: str, cuda: str) -> None:
    """Captured once, replayed on new data that is copied into the same tensors."""
    run = step(verb, granularity)
    static = [t.to(cuda) for t in arguments(granularity)]
    graph, captured = capture(lambda: run(*static))
    for seed in (5, 6, 7):
        fresh = arguments(granularity, seed)
        for target, source in zip(static, fresh, strict=True):
            target.copy_(source)
        graph.replay()
        assert_all_same(captured, run(*fresh), f"seed {seed}")


@by_verb
def test_streams_do_not_disturb_each_other(verb: str, cuda: str) -> None:
    """Scratch memory, if an op has any, belongs to a call and not to the process."""
    kinds = [*cases.KINDS, per_channel(-1), per_group(5, 0)]
    inputs = [[t.to(cuda) for t in arguments(kind, seed)] for seed, kind in enumerate(kinds)]
    runs = [step(verb, kind) for kind in kinds]
    expected = [run(*args) for run, args in zip(runs, inputs, strict=True)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in kinds]
    got: list[list[tuple[Tensor, ...]]] = [[] for _ in kinds]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got[i].append(runs[i](*inputs[i]))
    torch.cuda.synchronize()
    for found, right in zip(got, expected, strict=True):
        for result in found:
            assert_all_same(result, right)


def test_every_device_whichever_is_current(cuda: str) -> None:
    run = step("learned", PER_TOKEN)
    cpu = arguments(PER_TOKEN)
    expected = run(*cpu)
    current = torch.cuda.current_device()
    for index in range(torch.cuda.device_count()):
        got = run(*(t.to(f"cuda:{index}") for t in cpu))
        assert all(t.device.index == index for t in got)
        assert_all_same(got, expected)
        assert torch.cuda.current_device() == current


@by_kind
def test_tensors_on_two_devices(granularity: Granularity, cuda: str) -> None:
    """A scale on the CPU, even one of no dimensions, is an error and no hidden copy."""
    x, dy, scale, point = arguments(granularity)
    on_gpu = [t.to(cuda) for t in (scale, point)]
    op = granularity.op("fake_quantize")
    for s, z in ((scale, on_gpu[1]), (on_gpu[0], point)):
        with pytest.raises(ValueError, match=r"on cuda.* got cpu"):
            op(x.to(cuda), s, z, *granularity.args, *RANGE)
    backward = granularity.op("fake_quantize_backward")
    with pytest.raises(ValueError, match=r"grad.* got cpu"):
        backward(dy, x.to(cuda), *on_gpu, *granularity.args, *RANGE)
    op(x.to(cuda), *on_gpu, *granularity.args, *RANGE)  # no error is left behind
    torch.cuda.synchronize()


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
