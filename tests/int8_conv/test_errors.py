# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of wrong sizes; ops/test_wrong_calls.py has what one argument does."""

from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.bad_arguments.int8_conv import Op
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED


def test_numbers_of_groups(any_device: str) -> None:
    """Those that the outputs allow, but not the input; a number that no integer counts."""
    for groups in (1, 4):
        with pytest.raises(ValueError, match=r"^baraquant::int8_conv: .*channels"):
            Op()(Op().arguments(any_device) | {"groups": groups})
    one = torch.ones((), device=any_device)
    x = torch.zeros(1, 0, 4, dtype=torch.int8, device=any_device)
    for of_group in (2, 4):  # of no weight: any number of groups divides its outputs
        weight = torch.zeros(0, of_group, 2, dtype=torch.int8, device=any_device)
        words = rf"^baraquant::int8_conv: .*got {of_group} \* {2**62}"
        with pytest.raises(ValueError, match=words):
            ops.int8_conv(x, weight, one, one.expand(0), groups=2**62)


def test_depth_beyond_the_exact_range(any_device: str) -> None:
    def of_depth(depth: int, integers: torch.dtype = torch.int8, **options: Any) -> Tensor:
        x = torch.zeros(1, depth // 2, 2, dtype=integers, device=any_device)
        w = torch.zeros(2, depth // 2, 2, dtype=torch.int8, device=any_device)
        one = torch.ones((), device=any_device)
        return ops.int8_conv(x, w, one, one.expand(2), **options)

    shifted = {"input_zero_point": torch.zeros((), dtype=torch.int32, device=any_device)}
    for limit, options in ((DEEPEST, {}), (DEEPEST_SHIFTED, shifted)):
        even = limit - limit % 2
        assert of_depth(even, **options).shape == (1, 2, 1)
        words = rf"^baraquant::int8_conv: .*weight\[0\].* at most {limit}"
        with pytest.raises(ValueError, match=words):
            of_depth(even + 2, **options)
    with pytest.raises(ValueError, match=f"at most {DEEPEST_SHIFTED} elements .for uint8"):
        of_depth(DEEPEST_SHIFTED + 2, torch.uint8)


def test_sizes_that_memory_cannot_hold() -> None:
    """A padded image of more bytes than an int64 counts is an error, not a crash."""
    x, one = torch.zeros(1, 2, 1, 1, 1, dtype=torch.int8), torch.ones(1)
    most = 2**31 - 1
    with pytest.raises(RuntimeError):
        ops.int8_conv(x, x, one, one, padding=most, stride=most)
