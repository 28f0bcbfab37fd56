# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to weight_only_linear: the exception and its words, on all devices."""

from tests.support.bad_arguments.weight_only import OPS, PAIRS
from tests.support.family_cases.wrong_calls import RandomCalls, RecordedCalls, WrongCalls


class TestWrongCalls(WrongCalls, RecordedCalls, RandomCalls):
    OPS, PAIRS = OPS, PAIRS
