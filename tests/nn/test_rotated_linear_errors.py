# SPDX-License-Identifier: BSD-3-Clause
"""What converted layers refuse for ``rotate``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baraquant import nn as bnn

BLOCKS = [(value, ValueError) for value in (0, 1, 3, -4, 8, 2**20, -(2**63))]
BLOCKS += [(value, TypeError) for value in (True, False, 2.0, "4", [4])]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("value", "error"), BLOCKS, ids=repr)
def test_blocks_that_a_converted_layer_refuses(value: Any, error: type[Exception]) -> None:
    weight, scale = torch.ones(3, 12, dtype=torch.int8), torch.ones(3)
    makers = {
        "QuantizedLinear": lambda: bnn.QuantizedLinear(weight, scale, rotate=value),
        "StaticQuantizedLinear": lambda: bnn.StaticQuantizedLinear(
            weight, scale, torch.tensor(1.0), rotate=value
        ),
        "WeightOnlyLinear": lambda: bnn.WeightOnlyLinear(weight, scale, rotate=value),
    }
    for name, make in makers.items():
        with pytest.raises(error, match=f"^{name}: expected rotate to be a"):
            make()


@pytest.mark.exhaustive
def test_a_layer_is_rotated_or_smoothed() -> None:
    weight, scale, smooth = torch.ones(3, 8, dtype=torch.int8), torch.ones(3), torch.ones(8)
    with pytest.raises(ValueError, match="QuantizedLinear: expected rotate or smooth, but got"):
        bnn.QuantizedLinear(weight, scale, smooth=smooth, rotate=4)
    with pytest.raises(ValueError, match=r"StaticQ.*: expected rotate or smooth_scale, but got"):
        bnn.StaticQuantizedLinear(weight, scale, scale[0], smooth_scale=smooth, rotate=4)
