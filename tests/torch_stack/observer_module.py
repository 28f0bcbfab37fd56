# SPDX-License-Identifier: BSD-3-Clause
"""A user's own module around the op `observe_fake_quantize`, and its comparison with eager mode."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from baraquant import ops
from tests.support import cases
from tests.support.calls.affine import assert_equal, value_and_gradients

SHAPE = (3, 4, 20)


class Observer(nn.Module):
    """The state is in buffers."""

    def __init__(self, axis: int | None = None, average: float | None = None) -> None:
        super().__init__()
        self.axis, self.average = axis, average
        shape = [] if axis is None else [SHAPE[axis]]
        self.register_buffer("min_val", torch.full(shape, math.inf))
        self.register_buffer("max_val", torch.full(shape, -math.inf))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("zero_point", torch.zeros(shape, dtype=torch.int32))
        self.register_buffer("observe", torch.tensor(True))
        self.register_buffer("quantize", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        return ops.observe_fake_quantize(
            x,
            self.min_val,
            self.max_val,
            self.scale,
            self.zero_point,
            self.observe,
            self.quantize,
            self.axis,
            -8,
            7,
            symmetric=False,
            averaging_constant=self.average,
        )


def state_of(module: nn.Module) -> tuple[Tensor, ...]:
    return tuple(b for _, b in sorted(module.named_buffers()))


def batches(device: str) -> list[Tensor]:
    gen = cases.generator(0)
    scales = (1.0, 3.0, 0.5, 8.0, 2.0)
    return [torch.randn(SHAPE, generator=gen).to(device).mul(s) for s in scales]


def assert_same_training(run: Callable[[Tensor], Tensor], module: nn.Module, device: str) -> None:
    """Forward, backward and state of `run`, made of `module`, against a fresh eager module."""
    eager = Observer(module.axis, module.average).to(device)  # type: ignore[arg-type]
    switches = [(True, True), (True, False), (False, True), (False, False), (True, True)]
    for x, (observe, quantize) in zip(batches(device), switches, strict=True):
        for m in (module, eager):
            m.observe.fill_(observe)
            m.quantize.fill_(quantize)
        leaf = x.requires_grad_()
        assert_equal(value_and_gradients(run, (leaf,)), value_and_gradients(eager, (leaf,)))
        assert_equal(state_of(module), state_of(eager))
    assert eager.min_val.isfinite().all()
