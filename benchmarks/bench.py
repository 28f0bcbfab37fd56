# SPDX-License-Identifier: BSD-3-Clause
"""The timing that all benchmarks share.

Everything that is compared is timed in turns within one run: a call, the copy that bounds it, and
what a user would call instead. On CUDA the times come from device events, over batches that are
queued behind a short sleep, so that the host is ahead; calls under 50 µs are timed inside a CUDA
graph. On the CPU they come from the host's clock, in a process that allocates as all do by default:
large results are fresh pages, whose first touch is a part of the time. Reported is the median over
the rounds.
"""

import contextlib
import ctypes
import functools
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Call = Callable[[int], object]  # takes the number of the call, to pick one of the rotated inputs

ROTATED_BYTES = 256 << 20  # several times the L2 of an H200 (60 MB) and the L3 of most CPUs
GRAPH_BELOW = 50e-6  # seconds; from there on launch gaps are hidden by the queue
HEAD_START = 2_000_000  # clock cycles that the device sleeps while the host queues: about 1 ms
MIN_ROUNDS = 3
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc, malloc.h


class Timer:
    """Times calls in turns.

    Args:
        device: Where the calls run.
        rounds: Over how many rounds the median is taken.
        batch_seconds: How long one call is repeated in a round, at least.
        budget: Seconds for the rounds of one comparison; slow calls get fewer rounds, but three.
        graphs: True times every call in a CUDA graph. False does so for calls under 50 µs: what
            keeps the host busy for longer is timed with the host.
        clock: Seconds, for calls on a CPU.
    """

    def __init__(
        self,
        device: torch.device,
        rounds: int = 7,
        batch_seconds: float = 1e-3,
        budget: float = 2.0,
        graphs: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device = device
        self.rounds = rounds
        self.batch_seconds = batch_seconds
        self.budget = budget
        self.graphs = graphs
        self.clock = clock

    def compare(self, calls: dict[str, Call], rotation: int = 1) -> dict[str, float | str]:
        """Times each call on the device.

        Args:
            calls: What to time, by name.
            rotation: How many results are kept alive, so that outputs rotate as inputs do.

        Returns:
            Median seconds of a call, or the text of its error: one that fails hinders no other.
        """
        return self.in_turns(
            {n: (lambda call=call: self.prepare(call, rotation)) for n, call in calls.items()},
            self.rounds,
        )

    def prepare(self, call: Call, rotation: int = 1) -> Callable[[], float]:
        """Warms a call up; returns what measures it once, for :meth:`in_turns`: seconds a call."""
        prepare = self._prepare_cuda if self.device.type == "cuda" else self._prepare_host
        return prepare(call, rotation)

    def compare_overhead(
        self, calls: dict[str, Call], repeats: int = 40, rounds: int = 151
    ) -> dict[str, float | str]:
        """Times how long each call keeps the host, whatever the device still has to do."""

        def prepare(call: Call) -> Callable[[], float]:
            def measure() -> float:
                start = time.perf_counter()
                for index in range(repeats):
                    call(index)
                elapsed = time.perf_counter() - start
                self._synchronize()
                return elapsed / repeats

            measure()
            return measure

        return self.in_turns(
            {name: (lambda call=call: prepare(call)) for name, call in calls.items()}, rounds
        )

    def in_turns(
        self, prepares: dict[str, Callable[[], Callable[[], float]]], rounds: int
    ) -> dict[str, float | str]:
        """Median seconds of what each preparation returns, round by round; or an error's text.

        A round takes them in an order of its own: what came before has warmed or cooled the chip.
        """
        results: dict[str, float | str] = {}
        measures: dict[str, Callable[[], float]] = {}
        samples: dict[str, list[float]] = {}
        for name, prepare in prepares.items():
            try:
                measures[name], samples[name] = prepare(), []
            except Exception as error:  # recorded in the row
                results[name] = describe(error)
        start, order = time.perf_counter(), random.Random(0)
        with _no_garbage_collection():
            for done in range(rounds):
                if done >= MIN_ROUNDS and time.perf_counter() - start > self.budget:
                    break
                for name in order.sample(list(measures), len(measures)):
                    try:
                        samples[name].append(measures[name]())
                    except Exception as error:  # recorded in the row
                        results[name] = describe(error)
                        del measures[name]
        for name in measures:
            results[name] = statistics.median(samples[name])
        return results

    def _prepare_host(self, call: Call, rotation: int) -> Callable[[], float]:
        kept = _Kept(call, rotation)
        kept(0)
        start = self.clock()
        kept(1)
        batch = self._batch(self.clock() - start)

        def measure() -> float:
            start = self.clock()
            for index in range(batch):
                kept(index)
            return (self.clock() - start) / batch

        return measure

    def _prepare_cuda(self, call: Call, rotation: int) -> Callable[[], float]:
        kept = _Kept(call, rotation)
        for index in range(3):
            kept(index)
        torch.cuda.synchronize()
        sleep = getattr(torch.cuda, "_sleep", lambda cycles: None)

        def loop(count: int) -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            sleep(HEAD_START)
            start.record()
            for index in range(count):
                kept(index)
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3 / count

        estimate = min(loop(3), loop(3))
        if self.graphs:
            refuse_waiting(call)
            # The loop above had the host's time in it.
            estimate = self._prepare_graph(call, rotation, max(3, rotation))()
        elif estimate >= GRAPH_BELOW or synchronizes(call):
            return functools.partial(loop, self._batch(estimate))
        return self._prepare_graph(call, rotation, max(self._batch(estimate), rotation))

    def _prepare_graph(self, call: Call, rotation: int, batch: int) -> Callable[[], float]:
        kept = _Kept(call, rotation)

        def run(count: int) -> None:
            for index in range(count):
                kept(index)

        graph = capture(lambda: run(batch), lambda: run(3))
        graph.replay()
        torch.cuda.synchronize()
        return lambda: replay_seconds(graph) / batch

    def _batch(self, estimate: float) -> int:
        return min(max(math.ceil(self.batch_seconds / max(estimate, 1e-9)), 1), 200)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class _Kept:
    """A call that keeps its last ``rotation`` results alive: each lands in other memory."""

    def __init__(self, call: Call, rotation: int) -> None:
        self.call = call
        self.results: list[object] = [None] * rotation

    def __call__(self, index: int) -> None:
        self.results[index % len(self.results)] = self.call(index)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def describe(error: Exception) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]


def free_memory(device: torch.device) -> None:
    """Hands the memory of the last row back; a device that has failed is left alone."""
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def synchronizes(call: Call) -> bool:
    """Whether a call makes the host wait for the device: it cannot be captured in a CUDA graph.

    This has to be known before: a capture that fails leaves the random generator unusable.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(0)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return False


def refuse_waiting(call: Call) -> None:
    """Raises RuntimeError where a call cannot be captured in a CUDA graph."""
    if synchronizes(call):
        raise RuntimeError("the call waits for the device: it cannot be captured in a CUDA graph")


def capture(run: Callable[[], object], warm_up: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of what ``run`` launches, after ``warm_up`` on the stream of the capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm_up()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


def replay_seconds(graph: torch.cuda.CUDAGraph, count: int = 1, lead: int = 0) -> float:
    """Seconds of ``count`` replays together, queued behind ``lead`` others."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(lead):
        graph.replay()
    start.record()
    for _ in range(count):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory for the next allocation; elsewhere does nothing.

    By default it gives blocks of 32 MiB and more back to the system at once. A server's allocator
    may keep them; then no page of a result is touched for the first time.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def rotation_for(nbytes: int) -> int:
    """How many tensors of this many bytes to rotate, so that none is still in a cache."""
    return min(max(math.ceil(ROTATED_BYTES / max(nbytes, 1)), 1), 64)


def copy_call(sources: list[Tensor]) -> Call:
    """The bound: a copy of tensors that are rotated, into others that are rotated too."""
    destinations = [torch.empty_like(source) for source in sources]

    def copy(index: int) -> None:
        destinations[index % len(sources)].copy_(sources[index % len(sources)])

    return copy


def empty_launch(index: int) -> None:
    """A kernel that does nothing: what a launch costs the device, as the bound of tiny calls."""
    torch.cuda._sleep(0)  # of one thread, which reads the clock once


class Compiler:
    """Compiles functions, each for one shape, while there is time.

    Args:
        seconds: How long after its making it goes on.
    """

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def __call__(self, function: Callable) -> Callable | None:
        """The function under ``torch.compile``, alone in its cache; None when time is up."""
        if time.monotonic() > self.deadline:
            return None
        torch._dynamo.reset()  # else the shapes of a function share a limit
        return torch.compile(function, fullgraph=True, dynamic=False)
