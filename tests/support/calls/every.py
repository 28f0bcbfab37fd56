# SPDX-License-Identifier: BSD-3-Clause
"""The calls of all families, but for those that write a tensor: `OBSERVE_CALLS` of `range.py`."""

from typing import Any

from tests.support.calls.affine import ALL_CALLS
from tests.support.calls.int4 import INT4_CALLS
from tests.support.calls.int8_conv import CONV_CALLS
from tests.support.calls.scaled import INTEGER_QAT_CALLS, SCALED_CALLS
from tests.support.calls.weight_only import WEIGHT_ONLY_CALLS

PRODUCTS = (*INTEGER_QAT_CALLS, *INT4_CALLS, *CONV_CALLS, *WEIGHT_ONLY_CALLS)
EVERY_CALL: tuple[Any, ...] = (*ALL_CALLS, *SCALED_CALLS, *PRODUCTS)
