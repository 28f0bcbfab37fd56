# SPDX-License-Identifier: BSD-3-Clause
"""Four-bit weights in PyTorch."""

from tests.support.calls.int4 import INT4_CALLS
from tests.support.family_cases.torch_tools import Tools


class TestTools(Tools):
    CALLS, BATCHED = INT4_CALLS, ("input", "input_scale", "input_zero_point")
