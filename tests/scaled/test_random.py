# SPDX-License-Identifier: BSD-3-Clause
"""Stochastic rounding: unbiased, independent bits, the same for the same state; and its states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support.oracle import scaled as oracle

# Salmon et al. publish these with the generator: counter, key, result.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
SEEDS = 4096
# |z| beyond this has a probability of 6e-5 for each number that is looked at.
SIGMAS = 4.0


def signed(high: int, low: int) -> int:
    number = high << 32 | low
    return number - 2**64 if number >= 2**63 else number


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_is_the_published_one(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert oracle.philox(counter, key) == expected
    words = reference.philox(
        torch.tensor(signed(key[1], key[0])),
        torch.tensor(signed(counter[1], counter[0])),
        torch.tensor([signed(counter[3], counter[2])]),
    )
    assert tuple(int(word) for word in words) == expected


@pytest.mark.parametrize(("seed", "offset"), ((0, 0), (7, 2**40 + 3), (-1, -1)))
def test_the_op_has_its_bits(seed: int, offset: int, device: str) -> None:
    """Numbers whose sum with u is just below or above 1, so that each shows its bits."""
    bits = torch.from_numpy(oracle.bits((seed, offset), 4001))
    random = torch.tensor([seed, offset], device=device)
    for over in (-1, 0):
        x = (65536 - bits + over).float().reshape(1, -1) / 65536  # + u = 1 + (over + 1/2) / 65536
        x[0, 0] = 127  # the scale is 1
        q, s = ops.scaled_quantize_per_token(
            x.to(device), torch.ones(4001, device=device), random=random
        )
        assert s.item() == 1
        assert (q[0, 1:] == over + 1).all()


def draws(x: Tensor, transposed: bool, count: int) -> Tensor:
    """The integers of `count` states, as float64 [count, ...]."""
    found = []
    for seed in range(count):
        random = torch.tensor([seed * 2**33 + 5, seed % 3], device=x.device)
        if transposed:
            q, _ = ops.scaled_quantize_transposed(x, x.new_ones(x.shape[0]), random=random)
            q = q.t()
        else:
            q, _ = ops.scaled_quantize_per_token(x, x.new_ones(x.shape[1]), random=random)
        found.append(q)
    return torch.stack(found).double()


@pytest.mark.exhaustive
@pytest.mark.parametrize("transposed", (False, True), ids=("rows", "columns"))
def test_mean_is_the_number(transposed: bool, device: str) -> None:
    """Over 4096 states the mean of each integer is its number within 4 sigma; so are all means."""
    rng = torch.Generator().manual_seed(11)
    x = (torch.rand((24, 24), generator=rng) * 2 - 1) * 3
    x[0], x[:, 0] = 127.0, 127.0  # all scales are 1
    ratio = x.double()
    q = draws(x.to(device), transposed, SEEDS).cpu()
    assert ((q == ratio.floor()) | (q == ratio.ceil())).all(), "one of the two neighbours"
    part = ratio - ratio.floor()
    sigma = (part * (1 - part) / SEEDS).sqrt()
    z = (q.mean(0) - ratio) / sigma.clamp(min=1e-12)
    inner = (part > 0.01) & (part < 0.99)
    assert inner.sum() > 400
    assert z[inner].abs().max() < SIGMAS + 0.5, "the largest of hundreds"
    assert (z[inner].abs() < SIGMAS).float().mean() > 0.995
    assert abs(z[inner].sum() / math.sqrt(inner.sum())) < SIGMAS, "no common bias"
    exact = part == 0
    assert (q[:, exact] == ratio[exact]).all(), "integers stay"


@pytest.mark.exhaustive
def test_bits_are_uniform_and_independent(device: str) -> None:
    """Chi-square of 8-bit halves of the rounding bits, and of pairs of neighbouring elements."""
    count = 1 << 16
    bits = torch.from_numpy(oracle.bits((2024, 9), count))
    for values in (bits >> 8, bits & 0xFF):
        seen = torch.bincount(values, minlength=256).double()
        chi = ((seen - count / 256) ** 2 / (count / 256)).sum()
        assert abs(chi - 255) < SIGMAS * math.sqrt(2 * 255)
    # What the op did at 1/2, seen as pairs of neighbours, of rows, and of two states.
    x = torch.full((64, 1024), 0.5, device=device)
    x[:, 0] = 127.0
    ones = torch.ones(1024, device=device)
    first, second = (
        ops.scaled_quantize_per_token(x, ones, random=torch.tensor([3, o], device=device))[0][:, 1:]
        for o in (0, 1)
    )
    pairs = (
        (first[:, :-1], first[:, 1:]),
        (first[:-1], first[1:]),
        (first, second),
        (first[:, :-8], first[:, 8:]),
    )
    for a, b in pairs:
        table = torch.bincount((2 * a.long() + b.long()).flatten(), minlength=4).double()
        expected = table.sum() / 4
        assert ((table - expected) ** 2 / expected).sum() < 3 + SIGMAS * math.sqrt(6)


def test_bits_belong_to_the_element(device: str) -> None:
    """The bits of an element depend on its number, and not on what else is in the matrix."""
    x = torch.full((9, 40), 0.5, device=device)
    x[:, 0], x[0] = 127.0, 127.0
    r = torch.tensor([17, 4], device=device)
    rows, _ = ops.scaled_quantize_per_token(x, x.new_ones(40), random=r)
    columns, _ = ops.scaled_quantize_transposed(x, x.new_ones(9), random=r)
    assert torch.equal(rows[1:, 1:], columns.t()[1:, 1:]), "both number elements alike"
    part, _ = ops.scaled_quantize_per_token(x[:4], x.new_ones(40), random=r)
    assert torch.equal(part, rows[:4])


def test_same_state_same_integers(device: str) -> None:
    x = torch.randn(50, 70, device=device)
    ones = torch.ones(70, device=device)
    first = torch.tensor([1, 2], device=device)
    a, b = (ops.scaled_quantize_per_token(x, ones, random=first.clone())[0] for _ in range(2))
    assert torch.equal(a, b)
    for other in ([2, 2], [1, 3]):
        c, _ = ops.scaled_quantize_per_token(x, ones, random=torch.tensor(other, device=device))
        assert not torch.equal(a, c)
        assert (a.int() - c.int()).abs().max() <= 1


def test_draw_random_follows_the_seed(device: str) -> None:
    like = torch.empty(0, device=device)
    torch.manual_seed(3)
    first = [ops.draw_random(like).tolist() for _ in range(4)]
    assert len({tuple(state) for state in first}) == 4
    torch.manual_seed(3)
    assert [ops.draw_random(like).tolist() for _ in range(4)] == first
    state = ops.draw_random(like, 5)
    assert state.shape == (2,) and state.dtype == torch.int64 and state.device.type == device


def test_draw_random_advances_the_generator() -> None:
    like = torch.empty(0)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    ops.draw_random(like)
    after = torch.get_rng_state()
    assert not torch.equal(before, after)
    torch.set_rng_state(before)
    ops.draw_random(like, 7)
    assert torch.equal(torch.get_rng_state(), after)
    with torch.random.fork_rng():
        ops.draw_random(like)
    assert torch.equal(torch.get_rng_state(), after)


def test_meta_draws_nothing() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert ops.draw_random(torch.empty(0, device="meta")).shape == (2,)
    assert torch.equal(torch.get_rng_state(), before)


def test_offsets_of_the_gpu_generator(cuda: str) -> None:
    """Four for each call; the state is the generator's seed and a quarter of its offset."""
    like = torch.empty(0, device=cuda)
    torch.cuda.manual_seed(77)
    generator = torch.cuda.default_generators[0]
    begin = generator.get_offset()
    assert ops.draw_random(like).tolist() == [77, begin // 4]
    assert generator.get_offset() == begin + 4
    assert ops.draw_random(like, 3).tolist() == [77, begin // 4 + 1]
    assert generator.get_offset() == begin + 16


def test_each_replay_of_a_graph_draws_anew(cuda: str) -> None:
    x = torch.randn(64, 128, device=cuda)
    ones = torch.ones(128, device=cuda)

    def step() -> Tensor:
        return ops.scaled_quantize_per_token(x, ones, random=ops.draw_random(x))[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q = step()
    found = []
    for _ in range(5):
        graph.replay()
        found.append(q.clone())
    assert all(not torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])
    torch.cuda.manual_seed(1)
    graph.replay()
    once = q.clone()
    torch.cuda.manual_seed(1)
    graph.replay()
    assert torch.equal(q, once)
    torch.cuda.manual_seed(1)
    assert torch.equal(step(), once), "as without a graph"
