# SPDX-License-Identifier: BSD-3-Clause
"""One training step of a block, measured: its phases, its peak of memory, and within a CUDA graph.

A step is forward, backward and AdamW. The gradient that comes in is given, and the input needs one,
as inside a network. The optimizer is PyTorch's fused AdamW, whose two states have the dtype of the
parameters; it is the same for all.
"""

import contextlib
import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from benchmarks.bench import Timer, capture, free_memory, refuse_waiting, replay_seconds
from benchmarks.training_block import Block, Variant

# isort: split
from tests.support.saved_tensors import saved_tensors, storages

PHASES = ("forward", "backward", "optimizer")
WARM_UP = 3
# Steps in front of each measured one, without a wait between: as in training, the host is ahead and
# the chip at the power and clocks at which the variant itself holds it.
LEAD = 8


@dataclass
class Step:
    """What a step takes; ``forward`` is the block, or what was compiled of it.

    ``grad`` is the gradient of what it returns; None where that is a loss.
    """

    block: nn.Module
    forward: Callable[[Tensor], Tensor]
    x: Tensor
    grad: Tensor | None
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, variant: Variant, device: torch.device, dtype: torch.dtype, shape: list[int],
           compiled: bool = False) -> "Step":  # fmt: skip
        """The step of a variant for an input ``[batch, tokens, width]``; the same for all."""
        torch.manual_seed(0)
        block = Block(shape[-1], device, dtype)
        x, grad = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
        variant.prepare(block)
        block.train()
        options = {"capturable": True} if device.type == "cuda" else {}
        optimizer = torch.optim.AdamW(block.parameters(), lr=1e-5, fused=True, **options)
        forward = torch.compile(block, fullgraph=True, dynamic=False) if compiled else block
        return cls(block, forward, x.requires_grad_(), grad, optimizer)

    def clear(self) -> None:
        """Drops all gradients: what is left is the state between steps."""
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None

    def run(self, mark: Callable[[], object] = lambda: None) -> None:
        """A step; ``mark`` is called at its start and after each of :data:`PHASES`."""
        self.clear()
        mark()
        output = self.forward(self.x)
        mark()
        output.backward(self.grad)
        mark()
        self.optimizer.step()
        mark()


@dataclass
class Figures:
    """Of a variant: seconds of each phase in each round; bytes, None where they are not known."""

    phases: list[list[float]] = field(default_factory=list)
    peak: int | None = None
    held: int | None = None

    def medians(self) -> dict[str, float]:
        """Seconds by phase; nothing where they were not measured apart."""
        if not self.phases:
            return {}
        columns = zip(*self.phases, strict=True)
        return dict(zip(PHASES, map(statistics.median, columns), strict=True))


class Stepper:
    """Prepares variants in one mode, for :meth:`bench.Timer.in_turns`; ``make`` makes a step."""

    def __init__(
        self,
        mode: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: list[int],
        until: float,
        make: Callable[..., Step] = Step.of,
    ) -> None:
        self.make = make
        self.mode, self.device, self.dtype, self.shape = mode, device, dtype, shape
        self.until = until  # when, by time.monotonic(), nothing is compiled any more
        self.figures: dict[str, Figures] = {}
        self.skipped: dict[str, str] = {}  # why, by name

    def measure(self, chosen: list[Variant], timer: Timer) -> dict[str, float | str]:
        """Median seconds of the whole step of each variant, in turns; or why there are none."""
        with torch._dynamo.config.patch(recompile_limit=64):  # the blocks share their code
            torch._dynamo.reset()
            prepares = {v.name: functools.partial(self.prepare, v) for v in chosen}
            results = timer.in_turns(prepares, timer.rounds)
        free_memory(self.device)
        return results

    def prepare(self, variant: Variant) -> Callable[[], float]:
        """Warms up, looks at memory, and returns what measures a step."""
        compiled = self.mode == "compiled"
        if compiled and time.monotonic() > self.until:
            self.skipped[variant.name] = "not compiled: the time was used up"
            raise TimeoutError
        figures = self.figures[variant.name] = Figures()
        step = self.make(variant, self.device, self.dtype, self.shape, compiled)
        for _ in range(WARM_UP):
            step.run()
        if self.mode == "graph":
            return graph_measure(step)
        with contextlib.suppress(Exception):  # a figure less, not a row
            figures.held = held_bytes(step)
        figures.peak = peak_bytes(step)
        free_memory(self.device)
        return phases_measure(step, figures.phases)


def held_bytes(step: Step) -> int:
    """Bytes kept between forward and backward, but for parameters and buffers."""
    step.clear()
    with saved_tensors() as saved:
        output = step.forward(step.x)
    kept = storages(saved)
    for tensor in itertools.chain(step.block.parameters(), step.block.buffers()):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del output
    return sum(kept.values())


def peak_bytes(step: Step) -> int | None:
    """Bytes that a step takes at its peak, above the state between steps; None on the CPU."""
    if step.x.device.type != "cuda":
        return None
    step.clear()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step.run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    step.clear()
    return peak


def phases_measure(step: Step, samples: list[list[float]]) -> Callable[[], float]:
    """What measures a step, and appends the seconds of its phases to ``samples``."""

    def host() -> float:
        times: list[float] = []
        step.run(lambda: times.append(time.perf_counter()))
        return collect([after - before for before, after in itertools.pairwise(times)])

    def device() -> float:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(PHASES) + 1)]
        marks: Iterator[torch.cuda.Event] = iter(events)
        for _ in range(LEAD):
            step.run()
        step.run(lambda: next(marks).record())
        torch.cuda.synchronize()
        return collect([a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)])

    def collect(phases: list[float]) -> float:
        step.clear()  # the gradients of one variant must not stand in another's way
        samples.append(phases)
        return sum(phases)

    return device if step.x.device.type == "cuda" else host


def graph_measure(step: Step) -> Callable[[], float]:
    """What replays the whole step from a CUDA graph, and measures that."""
    refuse_waiting(lambda index: step.run())
    graph = capture(step.run, lambda: (step.run(), step.clear()))
    measure = functools.partial(replay_seconds, graph, lead=LEAD)
    measure()
    return measure
