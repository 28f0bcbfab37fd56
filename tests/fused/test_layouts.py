# SPDX-License-Identifier: BSD-3-Clause
"""Any strides and sizes: the values of the contiguous copy, contiguous; Meta says so too."""

import pytest
import torch

import baraquant
from baraquant import ops
from tests.support import cases
from tests.support.calls.fused import FLOAT_CALLS, QUANTIZE_CALLS
from tests.support.family_cases.fused import ACTIVATION_DTYPES
from tests.support.family_cases.layouts import AnyLayout

CALLS = (*FLOAT_CALLS, *QUANTIZE_CALLS)


class TestAnyLayout(AnyLayout):
    CALLS, SHAPE = CALLS, (4, 6, 5, 8)
    test_gradients_of_another_layout = None  # sums: test_gradients.py


@pytest.mark.parametrize("dtype", ACTIVATION_DTYPES, ids=cases.name_of)
def test_a_chunk_is_not_copied(dtype: torch.dtype, device: str) -> None:
    """One kernel for `silu_mul(*x.chunk(2, -1))`, aligned or not."""
    for length in (64, 33):
        x = torch.zeros(4, 5, 2 * length, dtype=dtype, device=device)
        plans = baraquant.plan(ops.silu_mul_quantize_per_token, *x.chunk(2, -1))
        assert [p.name.removesuffix("_rows") for p in plans] == ["silu_mul_quantize"]
