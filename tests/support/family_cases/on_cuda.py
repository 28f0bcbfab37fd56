# SPDX-License-Identifier: BSD-3-Clause
"""What every family promises on CUDA: the current stream and device, graphs, no synchronisation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_all_same
from tests.support.cuda import capture

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Step:
    """An op, with its gradients where it has any.

    Attributes:
        make: The tensors of a seed, on the CPU; the first is the input.
        run: The results of such tensors, on their device.
    """

    name: str
    make: Callable[[int], Tensors]
    run: Callable[..., Tensors]

    def __str__(self) -> str:
        return self.name


def moved(tensors: Tensors, device: str) -> Tensors:
    return tuple(t.to(device) for t in tensors)


def check_graph(step: Step, cuda: str) -> None:
    """Captured once, replayed on new data that is copied into the same tensors."""
    static = moved(step.make(0), cuda)
    graph, captured = capture(lambda: step.run(*static))
    for seed in (5, 6, 7):
        fresh = step.make(seed)
        for target, source in zip(static, fresh, strict=True):
            target.copy_(source)
        graph.replay()
        assert_all_same(captured, step.run(*fresh), f"{step}, seed {seed}")


def check_streams(steps: Sequence[Step], cuda: str) -> None:
    """Scratch memory, if an op has any, belongs to a call and not to the process."""
    made = [step.make(seed) for seed, step in enumerate(steps)]
    expected = [step.run(*tensors) for step, tensors in zip(steps, made, strict=True)]
    there = [moved(tensors, cuda) for tensors in made]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in steps]
    got: list[list[Tensors]] = [[] for _ in steps]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got[i].append(steps[i].run(*there[i]))
    torch.cuda.synchronize()
    for step, found, right in zip(steps, got, expected, strict=True):
        for result in found:
            assert_all_same(result, right, str(step))


class OnCuda:
    """The tests of a family's steps; each has a subclass that names them."""

    STEPS: ClassVar[Sequence[Step]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "step" in metafunc.fixturenames:
            metafunc.parametrize("step", self.STEPS, ids=str)

    def test_runs_on_the_current_stream(self, step: Step, cuda: str) -> None:
        """The input only becomes right on the side stream, after a long wait there."""
        cpu = step.make(0)
        expected = step.run(*cpu)
        first, *rest = moved(cpu, cuda)
        late = torch.zeros_like(first)
        step.run(late, *rest)  # warm
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late.copy_(first)
            got = step.run(late, *rest)
        stream.synchronize()
        assert_all_same(got, expected, str(step))

    def test_never_makes_the_host_wait(
        self, step: Step, cuda: str, request: pytest.FixtureRequest
    ) -> None:
        """Of inputs of several layouts."""
        first, *rest = moved(step.make(0), cuda)
        names = ("contiguous", "stepped", "transposed", "misaligned")
        inputs = [cases.LAYOUTS[name](first) for name in names]
        before = [step.run(t, *rest) for t in inputs]
        request.getfixturevalue("no_synchronisation")
        again = [step.run(t, *rest) for t in inputs]
        torch.cuda.set_sync_debug_mode("default")
        for a, b in zip(again, before, strict=True):
            assert_all_same(a, b, str(step))

    def test_graph_capture_and_replay(self, step: Step, cuda: str) -> None:
        check_graph(step, cuda)

    def test_streams_do_not_disturb_each_other(self, cuda: str) -> None:
        check_streams(self.STEPS, cuda)

    def test_every_device_whichever_is_current(self, step: Step, cuda: str) -> None:
        """Whichever is current."""
        current = torch.cuda.current_device()
        cpu = step.make(0)
        expected = step.run(*cpu)
        for index in range(torch.cuda.device_count()):
            got = step.run(*moved(cpu, f"cuda:{index}"))
            assert all(t.device.index == index for t in got)
            assert_all_same(got, expected, str(step))
            assert torch.cuda.current_device() == current
