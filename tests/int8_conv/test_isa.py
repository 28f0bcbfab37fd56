# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers on each CPU instruction set and with one thread or two.

As in `tests/ops/test_cpu_isa.py`, each runs this module as a program, which prints a digest of
every result. What is right, `test_values.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.family_cases.int8_conv import Case, options
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, print_digests


def results() -> Iterator[tuple[str, Tensor]]:
    """Every option, the largest sums, and images that several threads share."""
    for seed, case in enumerate(options()[::2]):
        yield str(case), ops.int8_conv(**case.arguments(seed))
    for values in ("lowest", "highest"):
        for dtype in (torch.int8, torch.uint8):
            case = Case(65536 // 9, 5, 1, (3, 4), (3, 3), input=dtype, values=values)
            yield str(case), ops.int8_conv(**case.arguments())
    for case in (
        Case(64, 80, 1, (40, 50), (3, 3), padding=(1,), dtype=torch.float32, shift=True),
        Case(150, 150, 150, (40, 50), (3, 3), padding=(1,), dtype=torch.float32, shift=True),
    ):
        yield str(case), ops.int8_conv(**case.arguments())


@pytest.mark.process
@pytest.mark.parametrize("isa", ISAS)
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=100)


@pytest.mark.process
def test_same_bits_with_one_thread(lines_of: Lines) -> None:
    assert lines_of(None, 1) == lines_of(None)


if __name__ == "__main__":
    print_digests(results())
