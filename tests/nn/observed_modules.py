# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.FakeQuantize` with mode "observed": modules, their inputs, their state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import ops
from baraquant.nn import FakeQuantize
from tests.support import cases

SHAPE = (3, 4, 10)
RANGE = ("min_val", "max_val")
QPARAMS = ("scale", "zero_point")
FLAGS = ("observer_enabled", "fake_quant_enabled")
COUNTER = "skipped_batches"
by_granularity = pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
by_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_averaging = pytest.mark.parametrize("averaging", [None, 0.25, 1.0])


def module_for(
    granularity: str, symmetric: bool = True, averaging: float | None = None
) -> FakeQuantize:
    kwargs: dict[str, Any] = {"axis": 1, "channels": 4} if granularity == "per_channel" else {}
    return FakeQuantize(
        granularity=granularity,
        quant_min=-8,
        quant_max=7,
        mode="observed",
        symmetric=symmetric,
        averaging_constant=averaging,
        **kwargs,
    )


def example(seed: int = 1, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    x = torch.randn(SHAPE, generator=cases.generator(seed)) * seed
    return (x + torch.arange(4.0)[:, None]).to(device, dtype)


def ends_of(x: Tensor, granularity: str) -> tuple[Tensor, Tensor]:
    dims = (0, 2) if granularity == "per_channel" else (0, 1, 2)
    return x.amin(dims), x.amax(dims)


def rounded(module: FakeQuantize, x: Tensor) -> Tensor:
    """What the module's scale and zero point make of x, by the op with a given scale."""
    if module.granularity == "per_tensor":
        return ops.fake_quantize_per_tensor(x, module.scale, module.zero_point, -8, 7)
    return ops.fake_quantize_per_channel(x, module.scale, module.zero_point, 1, -8, 7)


def qparams_of(module: FakeQuantize, ends: Tensor) -> tuple[Tensor, Tensor]:
    if module.granularity == "per_tensor":
        return ops.choose_qparams_per_tensor(ends, -8, 7, symmetric=module.symmetric)
    return ops.choose_qparams_per_channel(ends, 1, -8, 7, symmetric=module.symmetric)


def assert_same_state(one: nn.Module, other: nn.Module) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
