# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix product on each CPU instruction set and with any number of threads.

As in `tests/ops/test_cpu_isa.py`, each runs this module as a program, which prints a digest of
every result. What is right, the tests against the oracle say.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.cases import PER_TOKEN
from tests.support.checks.int8_mm import call
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED, VALUES, Case, integers
from tests.support.family_cases.range import characterful
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, print_digests


def results() -> Iterator[tuple[object, Tensor]]:
    """Every option, size, extreme value and special value that the other tests know."""
    options = int8_cases.RANDOM_CASES[::2] + int8_cases.edge_cases()[::3]
    for case in options:
        yield case, call(case.op, case.arguments())
    for a in VALUES:
        for w in VALUES:
            for n, k in ((33, 1025), (3, 70), (130, 64)):
                case = Case((7,), n, k, torch.uint8, torch.float64, values=a)
                weight = integers((n, k), torch.int8, w, 5)
                yield f"{a} x {w}", call("int8_linear", case.arguments() | {"weight": weight})
    for depth, dtype in ((DEEPEST, torch.int8), (DEEPEST_SHIFTED, torch.uint8)):
        for values in ("lowest", "highest", "alternating"):
            case = Case((5,), 6, depth, dtype, torch.float64, values=values)
            yield values, call("int8_linear", case.arguments())
    for dtype in cases.FLOAT_DTYPES:
        special = cases.special_scales(cases.compute_dtype(dtype))
        case = Case((len(special),), len(special), 77, torch.uint8, dtype, "token", "token")
        scales = {"input_scale": special, "weight_scale": special.flip(0)}
        yield "special scales", call("int8_linear", case.arguments() | scales)
        bias = cases.special_values(dtype)
        case = Case((9,), len(bias), 21, dtype=dtype, values="sparse")
        yield "special biases", call("int8_linear", case.arguments() | {"bias": bias})
        for symmetric in (True, False):
            x = characterful((37, 259), dtype, PER_TOKEN, symmetric=symmetric)
            weight = characterful((29, 259), dtype, PER_TOKEN, seed=1).requires_grad_()
            arguments = {"input": x, "weight": weight, "symmetric": symmetric}
            yield "qat_linear", call("qat_linear", arguments)


@pytest.mark.process
@pytest.mark.parametrize("isa", ISAS)
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=500)


@pytest.mark.process
@pytest.mark.parametrize("threads", (1, 3))
def test_same_bits_with_any_number_of_threads(threads: int, lines_of: Lines) -> None:
    assert lines_of(None, threads) == lines_of(None)


if __name__ == "__main__":
    print_digests(results())
