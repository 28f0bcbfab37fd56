# SPDX-License-Identifier: BSD-3-Clause
"""Stochastic rounding: unbiased, independent bits, the same for the same state; and its states."""

import math

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support.cuda import capture
from tests.support.oracle import scaled as oracle

# Salmon et al. publish these with the generator: counter, key, result.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
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

    graph, q = capture(step)
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
