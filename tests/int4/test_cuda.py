# SPDX-License-Identifier: BSD-3-Clause
"""What only CUDA has for four bits: the kernel that decodes the weight in registers."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops
from tests.int4.test_values import bytes_of, weight
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cuda import capture, rows_decoded_in_registers
from tests.support.marks import by_dtype

pytestmark = pytest.mark.cuda

# Rows of the input: a tile of eight, two, four, and blocks of 32, 64 and 128 rows on Hopper.
ROWS = (1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256)
# Outputs and columns: rests of tiles, warps without a share, rests of rounds of a warp.
SIZES = ((1, 32), (16, 96), (37, 128), (40, 1056), (130, 4096), (6400, 1184), (9, 14_336))
SIZES += ((17_000, 160), (8200, 992))  # several rows of the weight for each multiprocessor
by_size = pytest.mark.parametrize("size", SIZES, ids=str)


def planned(*args: Any, **kwargs: Any) -> list[str]:
    return [kernel.name for kernel in baraquant.plan(*args, **kwargs)]


def product(x: Tensor, packed: Tensor, groups: dict[str, Any], **given: Any) -> tuple[Tensor, ...]:
    """The op, and that of int8 with the expanded weight."""
    n, device = packed.shape[0], packed.device
    s = torch.rand(x.shape[0], 1, generator=cases.generator(1)).to(device)
    sw = torch.rand(n, generator=cases.generator(2)).to(device)
    w8 = ops.expand_int4(packed, in_features=x.shape[1], **groups)
    names = planned("int4_linear", x, packed, s, sw, **groups, **given)
    assert names == ["int8_product_packed"], "or this test shows nothing"
    own = ops.int4_linear(x, packed, s, sw, **groups, **given)
    return own, ops.int8_linear(x, w8, s, sw, **given)


@by_size
@pytest.mark.parametrize("kind", (torch.int8, torch.uint8), ids=cases.name_of)
def test_the_bits_of_int8(size: tuple[int, int], kind: torch.dtype, cuda: str) -> None:
    """With groups whose numbers all fit int8, groups with others, and factors that none allows."""
    n, k = size
    for m, group_size, extreme, bytes_are in itertools.product(
        ROWS, (32, 64, 128, k), (False, True), ("allowed", "any")
    ):
        if m > rows_decoded_in_registers():
            continue
        packed, groups = weight(n, k, group_size, cuda, extreme)
        if bytes_are == "any":
            shape = groups["group_factor"].shape
            groups["group_factor"] = bytes_of(0, 256, *shape, seed=5).to(cuda)
            groups["group_zero_point"] = bytes_of(0, 256, *shape, seed=6).to(cuda)
        x = bytes_of(0, 256, m, k, seed=m).view(kind).to(cuda)
        if extreme:
            x = torch.full_like(x, -128 if kind == torch.int8 else 255)
        for given in (groups, {**groups, "group_zero_point": None}):
            assert_same_bits(*product(x, packed, given), f"{m} {group_size} {bytes_are}")


@by_dtype
def test_all_that_follows_the_sum(dtype: torch.dtype, cuda: str) -> None:
    n, k, m = 200, 512, 13
    packed, groups = weight(n, k, 64, cuda)
    w8 = ops.expand_int4(packed, in_features=k, **groups)
    x = bytes_of(0, 256, m, k, seed=1).to(cuda)
    compute = cases.compute_dtype(dtype)
    s, sw = torch.rand(m, 1, device=cuda, dtype=compute), torch.rand(n, device=cuda, dtype=compute)
    given = {"input_zero_point": bytes_of(0, 256, m, 1, seed=2).int().to(cuda), "dtype": dtype}
    given["bias"] = torch.randn(n, device=cuda, dtype=compute)
    want = ops.int8_linear(x, w8, s, sw, **given)
    sums = w8.sum(1, dtype=torch.int32)
    assert_same_bits(ops.int4_linear(x, packed, s, sw, **groups, **given), want)
    given["weight_sum"] = sums
    assert planned("int4_linear", x, packed, s, sw, **groups, **given) == ["int8_product_packed"]
    assert_same_bits(ops.int4_linear(x, packed, s, sw, **groups, **given), want)


def test_what_it_does_not_take(cuda: str) -> None:
    """More rows, other groups and columns, rows that begin anywhere: the same bits."""
    most = rows_decoded_in_registers()
    for m, k, group_size in ((most + 1, 128, 32), (3, 130, 32), (3, 192, 96), (3, 128, 34)):
        packed, groups = weight(20, k, group_size, cuda)
        x = bytes_of(0, 256, m, k, seed=m).view(torch.int8).to(cuda)
        s, sw = torch.ones(1, device=cuda), torch.ones(20, device=cuda)
        want = ops.int8_linear(x, ops.expand_int4(packed, in_features=k, **groups), s, sw)
        assert "int8_product_packed" not in planned("int4_linear", x, packed, s, sw, **groups)
        assert_same_bits(ops.int4_linear(x, packed, s, sw, **groups), want)
    packed, groups = weight(20, 128, 32, cuda)
    x = bytes_of(0, 256, 3, 128, seed=1).view(torch.int8).to(cuda)
    want = ops.int4_linear(x, packed, s, sw, **groups)
    for offset in (1, 4, 8):
        for tensors in ((x, packed), (packed, x)):
            shifted = torch.empty(tensors[0].numel() + offset, dtype=tensors[0].dtype, device=cuda)
            shifted = shifted[offset:].view(tensors[0].shape).copy_(tensors[0])
            pair = (shifted, tensors[1]) if tensors[0] is x else (tensors[1], shifted)
            assert_same_bits(ops.int4_linear(*pair, s, sw, **groups), want)


@pytest.mark.parametrize("m", (1, 16, 40, 100, 1000))
def test_what_was_just_written(m: int, cuda: str) -> None:
    """The weight may be loaded before the kernel ends that quantizes the input."""
    n, k = 1056, 2048
    packed, groups = weight(n, k, 128, cuda)
    x, sw = torch.empty(m, k, device=cuda, dtype=torch.bfloat16), torch.rand(n, device=cuda)
    for _ in range(100):
        x.normal_()
        groups["group_factor"].random_(1, 16)
        packed.random_(0, 256)
        y = ops.quantized_int4_linear(x, packed, sw, **groups)
        want = ops.quantized_linear(x, ops.expand_int4(packed, in_features=k, **groups), sw)
        assert_same_bits(y, want)


def test_in_a_graph(cuda: str) -> None:
    packed, groups = weight(512, 1024, 128, cuda, asymmetric=False)
    x, sw = torch.randn(4, 1024, device=cuda), torch.rand(512, device=cuda)
    graph, result = capture(lambda: ops.quantized_int4_linear(x, packed, sw, **groups))
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert_same_bits(result, ops.quantized_int4_linear(x, packed, sw, **groups))
