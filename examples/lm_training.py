# SPDX-License-Identifier: BSD-3-Clause
"""The training loop of ``language_model.py``: the same for a float model and a prepared one."""

import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from baraquant.qat import parameter_groups
from few_bits import Teach, taught

WARM_UP, LEAST_RATE = 0.1, 0.1  # shares of the steps and of the learning rate
POINTS = 50  # of a loss curve, at most
TEACHING = 0.3  # the weight of what a teacher says
WATCHED = 1  # the step whose memory is measured: the optimizer's state is there from the first on


@dataclass(frozen=True)
class Training:
    """What a training gave.

    Attributes:
        curve: Mean training loss of each chunk of steps.
        chunk: The steps of a chunk; the last one may have fewer.
        step_seconds: Of a step, forward, backward and optimizer: the median over the chunks.
        cpu_seconds: Processor time of a step, of all threads: the median over the chunks. On a CPU,
            other programs change it less than they change ``step_seconds``.
        peak_bytes: Peak memory of one step above the state between steps.
    """

    curve: list[float]
    chunk: int
    step_seconds: float
    cpu_seconds: float
    peak_bytes: int


def autocast(device: torch.device, dtype: torch.dtype) -> Any:
    """Return a context: float32 weights, products in ``dtype``."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def loss_of(model: nn.Module, batch: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mean cross-entropy in nats per byte; ``batch`` is int64 ``[rows, time + 1]``."""
    with autocast(batch.device, dtype):
        logits = model(batch[:, :-1])
    return cross_entropy(logits, batch)


def cross_entropy(logits: Tensor, batch: Tensor) -> Tensor:
    """Return the mean cross-entropy of the logits of a batch."""
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def taught_loss(model: nn.Module, batch: Tensor, dtype: torch.dtype, teach: Teach) -> Tensor:
    """Return the same loss, and the divergence from what a teacher gives."""
    with autocast(batch.device, dtype):
        logits = model(batch[:, :-1])
        divergence = taught(logits, model, batch[:, :-1], teach, TEACHING)
    return cross_entropy(logits, batch) + divergence


def train(
    model: nn.Module,
    batches: Iterator[Tensor],
    steps: int,
    learning_rate: float,
    dtype: torch.dtype,
    tick: Callable[[int, float], None],
    loss_fn: Callable[[nn.Module, Tensor, torch.dtype], Tensor] = loss_of,
) -> Training:
    """Train in place with AdamW, warm-up and a cosine schedule.

    Args:
        model: Float or prepared.
        batches: Where the batches come from.
        steps: At least 2.
        learning_rate: Its maximum.
        dtype: Of the products.
        tick: Hears after each chunk how many steps it had, and its mean loss.
        loss_fn: Returns the loss of a batch.
    """
    device = next(model.parameters()).device
    optimizer = adamw(model, learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    chunk, peak = -(-steps // POINTS), 0
    curve, seconds, cpu_seconds = [], [], []
    model.train()
    for first in range(0, steps, chunk):
        count = min(chunk, steps - first)
        total = torch.zeros((), device=device)
        start, cpu_start = time.perf_counter(), time.process_time()
        for step in range(first, first + count):
            optimizer.zero_grad()
            watch = peak_memory(device) if step == WATCHED else contextlib.nullcontext([0])
            with watch as found:
                loss = loss_fn(model, next(batches), dtype)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            schedule.step()
            total += loss.detach()
            peak = max(peak, found[0])
        curve.append(float(total) / count)  # waits for the device
        seconds.append((time.perf_counter() - start) / count)
        cpu_seconds.append((time.process_time() - cpu_start) / count)
        tick(count, curve[-1])
    times = statistics.median(seconds), statistics.median(cpu_seconds)
    return Training(curve, chunk, *times, peak)


def adamw(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Return AdamW whose weight decay leaves norms and learned scales alone."""
    groups = parameter_groups(model, learning_rate, weight_decay=0.1)
    is_cuda = groups[0]["params"][0].is_cuda
    return torch.optim.AdamW(groups, learning_rate, betas=(0.9, 0.95), fused=is_cuda)


def rate(step: int, steps: int) -> float:
    """Return the share of the learning rate in this step."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def validate(model: nn.Module, batches: list[Tensor], dtype: torch.dtype) -> float:
    """Return the mean loss of the validation text, in nats per byte."""
    model.eval()
    sums = [loss_of(model, batch, dtype) * len(batch) for batch in batches]
    return float(torch.stack(sums).sum()) / sum(map(len, batches))


@torch.no_grad()
def has_same_logits(
    model: nn.Module, other: nn.Module, batches: list[Tensor], dtype: torch.dtype
) -> bool:
    """Return whether both give the same bits for all of the validation text, in evaluation."""
    model.eval(), other.eval()
    for batch in batches:
        with autocast(batch.device, dtype):
            if not torch.equal(model(batch[:, :-1]), other(batch[:, :-1])):
                return False
    return True


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Measure within a ``with``; the list that it gives holds the bytes once it is left.

    They are what PyTorch's allocator held at the peak, above what it held at the start.
    """
    found = [0]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        torch.cuda.synchronize(device)
        found[0] = torch.cuda.max_memory_allocated(device) - before
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        yield found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]  # negative where memory is freed
        found[0] = max(found[0], held)
