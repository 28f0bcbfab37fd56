# SPDX-License-Identifier: BSD-3-Clause
"""The product by `torch._int_mm`, for CPUs with AMX: the bits of the kernels of this package.

A private op makes other machines choose it too.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import _C, ops
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import call
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases.int8_mm import DEEPEST, VALUES, Case, integers
from tests.support.instruction_sets import missing

pytestmark = pytest.mark.skipif(
    missing("avx512_vnni") is not None, reason="without VNNI torch._int_mm may saturate"
)


@pytest.fixture
def forced() -> Iterator[None]:
    torch.ops.baraquant._force_int_mm(True)
    yield
    torch.ops.baraquant._force_int_mm(False)


OWN = {"avx2": "int8_mm_avx2", "avx_vnni": "int8_mm_avx_vnni", "avx512": "int8_mm_avx512",
       "default": "int8_mm_portable"}.get(_C.cpu_isa(), "int8_mm_vnni")  # fmt: skip


def kernel(case: Case) -> str:
    return baraquant.plan(case.op, **case.arguments())[-1].name


def both(case: Case) -> tuple[Tensor, Tensor]:
    """By `torch._int_mm`, then as without it."""
    torch.ops.baraquant._force_int_mm(True)
    assert kernel(case) == "int_mm"
    found = call(case.op, case.arguments())
    torch.ops.baraquant._force_int_mm(False)
    assert kernel(case) == OWN or case.rows >= 64
    return found, call(case.op, case.arguments())


OPTIONS = [
    c for c in int8_cases.RANDOM_CASES if c.input_dtype == torch.int8 and c.rows * c.n and c.k >= 64
]


@pytest.mark.parametrize("case", OPTIONS[::4], ids=str)
def test_every_option(case: Case, forced: None) -> None:
    assert_same_bits(*both(case))


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize(("rows", "n", "k"), [(3, 5, DEEPEST), (70, 33, 1025), (130, 257, 64)])
def test_extreme_integers(values: str, rows: int, n: int, k: int, forced: None) -> None:
    assert_same_bits(*both(Case((rows,), n, k, dtype=torch.float64, values=values)))


def test_groups(forced: None) -> None:
    x = integers((90, 70), torch.int8, "random")
    weight = integers((3, 45, 70), torch.int8, "random", 1)
    offsets = torch.tensor([20, 20, 85], dtype=torch.int32)
    input_scale, scale = cases.scales((90,), torch.float32), cases.scales((3, 45), torch.float32, 1)

    def product() -> Tensor:
        return ops.int8_grouped_linear(x, weight, offsets, input_scale, scale)

    found = product()
    torch.ops.baraquant._force_int_mm(False)
    assert_same_bits(found, product())


def test_what_it_does_not_take(forced: None) -> None:
    """uint8, which it has no product of; short sums; and anything where oneDNN is switched off."""
    assert kernel(Case((70,), 8, 63)) == OWN
    assert kernel(Case((70,), 8, 99, torch.uint8)) == OWN
    with torch.backends.mkldnn.flags(enabled=False):
        assert kernel(Case((70,), 8, 99)) == OWN
    assert kernel(Case((70,), 8, 99)) == "int_mm"


def test_it_is_chosen_for_many_rows_with_amx() -> None:
    expected = "int_mm" if _C.cpu_isa() == "amx" else OWN
    assert kernel(Case((64,), 8, 99)) == expected
    assert kernel(Case((63,), 8, 99)) == OWN
