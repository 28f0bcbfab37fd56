# SPDX-License-Identifier: BSD-3-Clause
"""What the CUDA tests of all families share: graphs, memory, inputs beyond 2^31 elements."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from tests.support.cases import PER_TENSOR, PER_TOKEN, per_channel, per_group

Result = TypeVar("Result")


def capture(run: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Warm up on a side stream, then capture; what was captured changes with each replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    return graph, captured


def rows_decoded_in_registers() -> int:
    """So many rows are multiplied by a weight of integers that is not decoded into memory first."""
    kernels = torch.ops.baraquant._int8_kernels()
    has_wgmma = any(name.startswith("hopper") for name in kernels)
    return 1024 if has_wgmma and torch.cuda.get_device_capability() == (9, 0) else 64


# --- device memory -------------------------------------------------------------------------------

MIB = 2**20


def measured(call: Callable[[], object]) -> tuple[int, int]:
    """Bytes that are held once `call` returned, and at its peak; what it returns stays alive."""
    gc.collect()  # what earlier tests left must not be freed meanwhile
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    del result
    return held, torch.cuda.max_memory_allocated() - before


# --- more than 2^31 elements ---------------------------------------------------------------------

LARGE = 2**31 + 129  # a prime
CHUNK = 2**26


def large_input(shape: tuple[int, ...]) -> Tensor:
    """float16 multiples of 1/8 from -50 to 50 whose pattern has no period near a power of two."""
    x = torch.empty(shape, dtype=torch.float16, device="cuda")
    flat = x.view(-1)
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK]
        part.copy_((torch.arange(start, start + part.numel(), device="cuda") % 801 - 400) / 8)
    return x


def spots(count: int) -> list[slice]:
    """The start, the surroundings of 2^31 and 2^30, and the tail."""
    middles = [4096, 2**30, 2**31 - 4096, 2**31, count - 64]
    return [slice(max(m - 64, 0), min(m + 64, count)) for m in middles]


LARGE_CASES = {
    "per_tensor": ((LARGE,), PER_TENSOR),
    "per_group": ((LARGE,), per_group(128)),
    "per_channel_first": ((3, 715_827_926), per_channel(0)),
    "per_channel_last": ((715_827_926, 3), per_channel(1)),
    "per_token": ((16_777_219, 128), PER_TOKEN),
}


def segment_of_elements(name: str, index: Tensor) -> Tensor:
    """The segments to which some elements of a large case belong."""
    shape, granularity = LARGE_CASES[name]
    if name == "per_channel_last":
        return index % shape[-1]
    return index // (granularity.group_size or shape[-1])  # one segment of a tensor
