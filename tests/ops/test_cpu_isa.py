# SPDX-License-Identifier: BSD-3-Clause
"""The CPU kernels give the same bits for every instruction set and any number of threads.

BARAQUANT_CPU_ISA chooses the instruction set once per process, so each one runs this module as a
program, which prints a digest of the results of golden cases, and of rows that threads share. The
cases hold every two of an op, its mode, granularity, shape and layout, for each dtype; all of them
are run by test_golden.py, under the machine's own instruction set.
"""

from collections.abc import Iterator
from functools import partial
from itertools import combinations

import pytest
import torch

from baraquant import _C
from tests.golden import range as ranges
from tests.golden.hashes import FAMILIES, case_digest
from tests.golden.values import Case
from tests.support import cases
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, missing
from tests.support.short_run.cover import cover

LONG = (3, 70_001)  # threads share a segment


def pairs_of_words(case: Case) -> set[object]:
    """Every two of what a case's title says: op, granularity, mode, shape, layout."""
    words = (*enumerate(case.group.split()), *enumerate(case.name.rsplit(" ", 1), 100))
    return {*combinations(words, 2)}


def chosen_cases() -> Iterator[Case]:
    """Some of every family of ops, by dtype; of modules the golden hashes are enough."""
    for dtype in cases.FLOAT_DTYPES:
        for family in FAMILIES.keys() - {"modules"}:
            found = list(FAMILIES[family](dtype))
            yield from (found[i] for i in cover([pairs_of_words(case) for case in found]))
    for dtype in (torch.float32, torch.bfloat16):
        for symmetric in (True, False):
            name = f"{cases.name_of(dtype)} symmetric={symmetric}"
            for g in (*cases.KINDS, cases.per_channel(0)):
                run = partial(ranges.from_data, g, symmetric, LONG, "contiguous", dtype)
                yield Case(f"long rows {g}", name, run)
            for axis in (None, 0, 1):
                run = partial(ranges.observed, axis, symmetric, LONG, "contiguous", dtype)
                yield Case(f"observed long rows {axis}", name, run)


@pytest.mark.process
@pytest.mark.parametrize("isa", ISAS)
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=1800)


@pytest.mark.process
@pytest.mark.parametrize("threads", (1, 3))
def test_same_bits_with_any_number_of_threads(threads: int, lines_of: Lines) -> None:
    assert lines_of(None, threads) == lines_of(None)


@pytest.mark.process
def test_the_machine_runs_its_best(lines_of: Lines) -> None:
    """Of the instruction sets that it takes without being told: AMX has to be asked for."""
    best = [isa for isa in ISAS if isa != "amx" and missing(isa) is None][-1]
    assert lines_of(None)[0] == best


if __name__ == "__main__":
    print(_C.cpu_isa())
    print(*sorted(f"{c.group} {c.name} {case_digest(c, 'cpu')}" for c in chosen_cases()), sep="\n")
