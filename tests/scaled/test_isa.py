# SPDX-License-Identifier: BSD-3-Clause
"""The scaled family on each CPU instruction set and with any number of threads.

As in `tests/int8_mm/test_isa.py`, each runs this module as a program, which prints a digest of
every result.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.scaled.test_values import factors, numbers, state
from tests.support import cases
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, print_digests


def results() -> Iterator[tuple[str, Tensor]]:
    for dtype in cases.FLOAT_DTYPES:
        for shape in ((65, 131), (300, 400), (7, 2064)):
            x, f, g = numbers(shape, dtype), factors(shape[1], dtype), factors(shape[0], dtype)
            for random in (None, (3, 4)):
                r = state(random)
                for i, t in enumerate(ops.scaled_quantize_per_token(x, f, random=r)):
                    yield f"rows-{shape}-{random}-{i}", t
                for i, t in enumerate(ops.scaled_quantize_transposed(x, g, random=r)):
                    yield f"columns-{shape}-{random}-{i}", t
        for symmetric in (True, False):
            yield f"gradients-{dtype}-{symmetric}", gradients(dtype, symmetric)


def gradients(dtype: torch.dtype, symmetric: bool) -> Tensor:
    x, w = numbers((90, 75), dtype).nan_to_num(1, 1, 1), numbers((33, 75), dtype, 3)
    leaves = x.requires_grad_(), w.nan_to_num(1, 1, 1).requires_grad_()
    y = ops.qat_linear(*leaves, symmetric=symmetric, backward="int8")
    dy = numbers((90, 33), dtype, 5).nan_to_num(1, 1, 1)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(y, leaves, dy)])


@pytest.mark.process
@pytest.mark.parametrize("isa", ISAS)
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=90)


@pytest.mark.process
@pytest.mark.parametrize("threads", (1, 3))
def test_same_bits_with_any_number_of_threads(threads: int, lines_of: Lines) -> None:
    assert lines_of(None, threads) == lines_of(None)


if __name__ == "__main__":
    print_digests(results())
