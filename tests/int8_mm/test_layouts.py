# SPDX-License-Identifier: BSD-3-Clause
"""Any leading shape and strides of the input, any alignment, and any strides of what is small."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.support.bits import assert_same_bits
from tests.support.calls.int8_mm import INT8_CALLS, QAT_CALLS, SERVED_CALLS, Int8Call
from tests.support.checks.int8_mm import moved
from tests.support.family_cases.int8_mm import Case
from tests.support.family_cases.layouts import AnyLayout


class TestAnyLayout(AnyLayout):
    CALLS = (*QAT_CALLS[:3], *SERVED_CALLS, *INT8_CALLS)
    MATRICES = ((70, 130), (257, 65), (1, 1030), (3, 2049))
    test_gradients_of_another_layout = None  # sums: test_gradients.py::test_layouts

    def large(self, tensors: Sequence[Tensor]) -> list[int]:
        return [0]

    def is_dense(self, call: Int8Call, tensors: tuple[Tensor, ...], index: int) -> bool:
        return call.names[index] == "weight" and not call.trained


@pytest.mark.parametrize("start", (1, 2, 3, 4, 5, 8, 12, 15))
@pytest.mark.parametrize("call", TestAnyLayout.CALLS, ids=str)
def test_every_misalignment(call: Int8Call, start: int, device: str) -> None:
    """Input, weight and all vectors begin at any byte of a 16-byte line; around them lies NaN."""

    def shifted(t: Tensor) -> Tensor:
        around = float("nan") if t.is_floating_point() else 77
        wide = torch.full((t.numel() + 32,), around, dtype=t.dtype, device=device)
        return wide[start : start + t.numel()].view(t.shape).copy_(t)

    for shape in ((1, 16), (3, 33), (17, 64), (2, 1, 129)):
        tensors = [t.detach() for t in call.tensors(shape, device=device)]
        assert_same_bits(call(*map(shifted, tensors)), call(*tensors), f"{shape} {start}")


def test_strides_of_a_single_row_or_column_say_nothing(device: str) -> None:
    """So such a weight is contiguous, however it came about."""
    for n, k in ((1, 7), (7, 1), (1, 1), (0, 5), (5, 0)):
        given = moved(Case((3,), n, k).arguments(), device)
        expected = torch.ops.baraquant.int8_linear(**given)
        weight = given["weight"]
        given["weight"] = weight.new_zeros(3 * n, k)[::3].copy_(weight)
        if n in (5, 7):
            given["weight"] = weight.new_zeros(k, n).t().copy_(weight)
        assert torch.equal(torch.ops.baraquant.int8_linear(**given), expected)
