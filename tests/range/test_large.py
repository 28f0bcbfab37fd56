# SPDX-License-Identifier: BSD-3-Clause
"""The range family on more than 2^31 elements, on CUDA."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support.bits import assert_same_bits
from tests.support.cases import per_channel
from tests.support.cuda import CHUNK, LARGE_CASES, large_input, segment_of_elements, spots
from tests.support.marks import by_mode
from tests.support.oracle.affine import Affine
from tests.support.oracle.range import qparams

RANGE = (-100, 90)
by_name = pytest.mark.parametrize("name", LARGE_CASES)

pytestmark = [pytest.mark.cuda, pytest.mark.exhaustive]


def outstanding_input(name: str) -> Tensor:
    """Numbers from -50 to 50, but larger ones around 2^31 and at the end: they decide."""
    x = large_input(LARGE_CASES[name][0])
    flat = x.view(-1)
    for index, value in ((2**31 - 1, -70), (2**31, 81), (2**31 + 1, 66.5), (-1, -90.5), (-2, 75)):
        flat[index] = value
    return x


def pieces(count: int) -> Iterator[slice]:
    """Of 2^26 elements, whose offsets 32 bits hold."""
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))


def extremes_in_pieces(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Minimum and maximum of each segment, put together from small parts (float32)."""
    if name in ("per_group", "per_token"):  # segments of 128 in memory order, the last shorter
        flat = x.view(-1)
        found = []
        for where in pieces(flat.numel()):
            part = flat[where]
            whole = part[: part.numel() // 128 * 128].view(-1, 128)
            found.append(torch.stack(torch.aminmax(whole, dim=1)))
            if part.numel() % 128:
                rest = part[part.numel() // 128 * 128 :]
                found.append(torch.stack(torch.aminmax(rest))[:, None])
        low, high = torch.cat(found, dim=1).float()
        return low, high
    rows = x if name == "per_channel_first" else x.view(1, -1)
    if name == "per_channel_last":
        parts = [torch.aminmax(x[where], dim=0) for where in pieces(x.shape[0])]
    else:
        parts = [torch.aminmax(rows[:, where], dim=1) for where in pieces(rows.shape[1])]
    low = torch.stack([p.min for p in parts]).amin(0)
    return low.float(), torch.stack([p.max for p in parts]).amax(0).float()


def right_qparams(x: Tensor, name: str, symmetric: bool) -> tuple[Tensor, Tensor]:
    """By the oracle, on the CPU, from the extremes."""
    params = LARGE_CASES[name][1].param_shape(tuple(x.shape))
    low, high = (e.reshape(params).cpu().numpy() for e in extremes_in_pieces(x, name))
    scale, point = qparams(low, high, RANGE, symmetric)
    return torch.from_numpy(scale).to(x.device), torch.from_numpy(point).to(x.device)


def check_whole(name: str, result: Tensor, x: Tensor, qparams: tuple[Tensor, Tensor]) -> None:
    """Every element, in pieces, against the affine family; some against the oracle."""
    ops = torch.ops.baraquant
    flat, values = result.view(-1), x.detach().view(-1)
    op = ops.quantize_per_channel if flat.dtype == torch.int8 else ops.fake_quantize_per_channel

    def at(where: slice) -> list[Tensor]:
        index = torch.arange(where.start, where.stop, device=x.device)
        segment = segment_of_elements(name, index)
        return [values[where], *(param.view(-1)[segment] for param in qparams)]

    for where in pieces(flat.numel()):
        assert torch.equal(flat[where], op(*at(where), 0, *RANGE)), f"from {where.start}"
    for where in spots(flat.numel()):
        rule = Affine(*(t.cpu() for t in at(where)), per_channel(0), *RANGE)
        right = rule.quantize() if flat.dtype == torch.int8 else rule.fake_quantize()
        assert_same_bits(flat[where], right, f"{where}")


@by_mode
@by_name
def test_values_and_gradients(name: str, symmetric: bool, room: None) -> None:
    x, granularity = outstanding_input(name), LARGE_CASES[name][1]
    assert x.numel() > 2**31
    args, mode = (*granularity.args, *RANGE), {"symmetric": symmetric}
    right = right_qparams(x, name, symmetric)
    ordinary = 50 / 90 if symmetric else 100 / 190  # the largest scale of numbers from -50 to 50
    assert right[0].max() > ordinary  # the outstanding elements did decide
    for got, expected in zip(
        granularity.op("choose_qparams")(x, *args, **mode), right, strict=True
    ):
        assert torch.equal(got, expected)
    q, *found = granularity.op("dynamic_range_quantize")(x, *args, **mode)
    for got, expected in zip(found, right, strict=True):
        assert torch.equal(got, expected)
    check_whole(name, q, x, right)
    del q
    x.requires_grad_()
    y = granularity.op("dynamic_fake_quantize")(x, *args, **mode)
    check_whole(name, y.detach(), x, right)
    (dx,) = torch.autograd.grad(y, x, y.detach())
    expected = y.detach()
    del y
    if symmetric:
        assert dx.data_ptr() == expected.data_ptr()
        return
    op = granularity.op("fake_quantize_backward")
    expected = op(expected, x.detach(), *right, *args)
    assert torch.equal(dx, expected)


@pytest.mark.parametrize("name", ("per_tensor", "per_channel_first", "per_channel_last"))
def test_observers(name: str, room: None) -> None:
    x, granularity = outstanding_input(name), LARGE_CASES[name][1]
    axis = None if name == "per_tensor" else granularity.axis
    params = granularity.param_shape(tuple(x.shape))
    low, high = (torch.full(params, v, device="cuda") for v in (math.inf, -math.inf))
    scale, point = torch.zeros(params, device="cuda"), torch.zeros(params, device="cuda").int()
    on = torch.ones(1, dtype=torch.uint8, device="cuda")
    state = (low, high, scale, point, on, on, axis, *RANGE)
    y = torch.ops.baraquant.observe_fake_quantize(x, *state, symmetric=False)
    for got, right in zip((low, high), extremes_in_pieces(x, name), strict=True):
        assert torch.equal(got.view(-1), right.view(-1))
    right = right_qparams(x, name, False)
    assert torch.equal(scale, right[0]) and torch.equal(point, right[1])
    check_whole(name, y, x, right)
    low.fill_(-1000), high.fill_(0)
    torch.ops.baraquant.observe_min_max_(x, low, high, axis)
    assert (low == -1000).all()
    assert torch.equal(high.view(-1), extremes_in_pieces(x, name)[1].view(-1))
