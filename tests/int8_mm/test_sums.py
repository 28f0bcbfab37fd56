# SPDX-License-Identifier: BSD-3-Clause
"""int8_product and rescale_product, the halves of int8_linear: values and plans."""

from typing import Any

import pytest
import torch

from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import check
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases.int8_mm import Case
from tests.support.marks import by_dtype

exhaustive = pytest.mark.exhaustive
OF_PRODUCT = ("input", "weight", "input_zero_point", "weight_sum")
OF_RESCALE = ("input_scale", "weight_scale", "bias", "dtype")


def some(case: Case, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in case.arguments().items() if name in names}


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0, *(pytest.param(p, marks=exhaustive) for p in range(1, 6))])
def test_the_halves_of_every_random_case(part: int, device: str) -> None:
    """Against the oracle and the reference; one after the other they are int8_linear."""
    found = [c for c in int8_cases.RANDOM_CASES if not c.static][part::6]
    assert len(found) > 30
    for case in found:
        sums = check("int8_product", some(case, OF_PRODUCT), device, case)
        expected = check("int8_linear", case.arguments(), device, case)
        arguments = some(case, OF_RESCALE) | {"input": sums.cpu()}
        y = check("rescale_product", arguments, device, case)
        assert_same_bits(y, expected)
        own = reference.int8_product(**some(case, OF_PRODUCT))
        assert_same_bits(own, sums.cpu())
        assert_same_bits(reference.rescale_product(**arguments), y.cpu())


@pytest.mark.parametrize("part", range(4))
def test_edges_of_every_size(part: int, device: str) -> None:
    for case in int8_cases.edge_cases()[part::4]:
        check("int8_product", some(case, OF_PRODUCT), device, case)


@by_dtype
def test_sums_of_any_bits(dtype: torch.dtype, device: str) -> None:
    """And scales and biases of any bits, over sizes of whole packs and of parts of them."""
    compute = cases.compute_dtype(dtype)
    for rows, n in ((1, 1), (3, 7), (17, 64), (2, 1030), (90, 33), (3, 4096)):
        random = cases.generator(n)
        sums = torch.randint(-(2**31), 2**31, (rows, n), generator=random, dtype=torch.int64)
        arguments = {
            "input": sums.to(torch.int32),
            "input_scale": cases.bit_patterns(compute, rows, 1).reshape(rows, 1),
            "weight_scale": cases.bit_patterns(compute, n, 2),
            "dtype": dtype,
        }
        check("rescale_product", arguments, device)
        check("rescale_product", arguments | {"bias": cases.scales((n,), dtype, 3)}, device)
