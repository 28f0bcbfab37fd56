# SPDX-License-Identifier: BSD-3-Clause
"""The scaled ops with any strides."""

import torch

from baraquant import ops
from tests.support.calls.scaled import SCALED_CALLS
from tests.support.family_cases.layouts import AnyLayout


class TestAnyLayout(AnyLayout):
    CALLS = SCALED_CALLS[:4]  # those that quantize
    test_gradients_of_another_layout = None  # integers have none


def test_shapes_of_the_factor(device: str) -> None:
    """With a last 1 for rows, or without."""
    x = torch.randn(6, 4, 20, device=device)
    factor = torch.rand(6, 4, device=device) + 0.5
    pairs = (ops.scaled_quantize_transposed(x, f) for f in (factor, factor.unsqueeze(-1)))
    for got, right in zip(*pairs, strict=True):
        assert torch.equal(got, right)
