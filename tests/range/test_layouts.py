# SPDX-License-Identifier: BSD-3-Clause
"""Any strides in; out come those of a dense input, or contiguous ones, and contiguous scales."""

from typing import Any

from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support.calls.range import OBSERVE_CALLS, RangeCall
from tests.support.cases import PER_TENSOR, PER_TOKEN, per_channel, per_group
from tests.support.family_cases.layouts import AnyLayout
from tests.support.family_cases.range import MODES

GRANULARITIES = (
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(2),
    per_channel(-1),
    PER_TOKEN,
    per_group(3),
    per_group(4, 1),
    per_group(3, 0),
    per_group(2, -2),
)
VERBS = ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")


class TestAnyLayout(AnyLayout):
    KEEPS, PLANTS = True, 1 / 200
    CALLS = tuple(RangeCall(v, g, m) for v in VERBS for g in GRANULARITIES for m in MODES)


class TestObserversOfAnyLayout(AnyLayout):
    """What an input is fake-quantized to keeps its strides; the state is contiguous."""

    KEEPS, PLANTS = True, 1 / 200
    CALLS = OBSERVE_CALLS[::-1]

    def is_dense(self, call: Any, tensors: tuple[Tensor, ...], index: int) -> bool:
        return True
