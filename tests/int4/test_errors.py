# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the ops of four-bit weights: the exception and its words, on all devices."""

from tests.support.bad_arguments.int4 import OPS, PAIRS
from tests.support.family_cases.wrong_calls import RandomCalls, RecordedCalls, WrongDtypes


class TestWrongCalls(WrongDtypes, RecordedCalls, RandomCalls):
    OPS, PAIRS = OPS, PAIRS
