# SPDX-License-Identifier: BSD-3-Clause
"""weight_only_linear in PyTorch."""

import pytest
import torch

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.weight_only import WEIGHT_ONLY_CALLS, WeightOnlyCall
from tests.support.family_cases.torch_tools import Tools
from tests.weight_only.test_gradients import FEW, MANY, by_call, leaves_of
from tests.weight_only.test_values import numbers


class TestTools(Tools):
    CALLS, SLOW, BATCHED = WEIGHT_ONLY_CALLS, WEIGHT_ONLY_CALLS, ("input",)


@by_call
@pytest.mark.parametrize("low", (torch.bfloat16, torch.float16), ids=cases.name_of)
def test_autocast(low: torch.dtype, call: WeightOnlyCall, device: str) -> None:
    """Input and bias are cast; with a scale of float64 nothing is."""
    for dtype in cases.FLOAT_DTYPES:
        for shape in (FEW, MANY):
            given, leaves = leaves_of(call, shape, dtype, device)
            with torch.autocast(device, dtype=low):
                y = call.function(**given)
            to = dtype if dtype == torch.float64 else low
            cast = {name: given[name].to(to) for name in ("input", "bias") if name in given}
            right = call.function(**given | cast)
            assert_same_bits(y, right)
            dy = numbers(tuple(y.shape), to, 5).to(device)
            found = (torch.autograd.grad(result, leaves, dy) for result in (y, right))
            for a, e, leaf in zip(*found, leaves, strict=True):
                assert a.dtype == leaf.dtype and torch.equal(a, e)
