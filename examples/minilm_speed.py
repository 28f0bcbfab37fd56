# SPDX-License-Identifier: BSD-3-Clause
"""How fast several models are, measured in turns, so that a noisy machine treats them alike."""

import ctypes
import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Speed:
    """The time of one batch.

    Attributes:
        seconds: The median.
        faster: How many times as fast as the first model: the median over the rounds.
        spread: The first and the third quartile of that.
    """

    seconds: float
    faster: float
    spread: tuple[float, float]


def measure(
    models: Mapping[str, nn.Module], batch: Mapping[str, Tensor], rounds: int
) -> dict[str, Speed]:
    """Run each model on the batch once a round, in turns, and compare it with the first.

    Both times of a ratio are of one round: what slows the machine for a while slows both.

    Args:
        models: By name; the first is what the others are compared with.
        batch: What the models are called with.
        rounds: Their number; one more is run before, and not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in models}
    gc.collect()
    gc.disable()
    try:
        with torch.inference_mode():
            for _ in range(rounds + 1):
                for name, model in models.items():
                    times[name].append(_seconds(model, batch))
    finally:
        gc.enable()
    base = next(iter(times.values()))[1:]
    return {name: _speed(base, own[1:]) for name, own in times.items()}


def keep_memory() -> None:
    """Let the C library keep what is freed, as the allocators of some servers do.

    By default glibc gives large blocks back to the system and fetches them page by page again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        trim_threshold, mmap_threshold, most = -1, -3, 1 << 25
        mallopt(mmap_threshold, most)
        mallopt(trim_threshold, 1 << 30)


def _speed(base: list[float], own: list[float]) -> Speed:
    ratios = [a / b for a, b in zip(base, own, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Speed(statistics.median(own), median, (low, high))


def _seconds(model: nn.Module, batch: Mapping[str, Tensor]) -> float:
    is_cuda = next(iter(batch.values())).is_cuda
    if is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    model(**batch)
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
