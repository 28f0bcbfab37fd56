# SPDX-License-Identifier: BSD-3-Clause
"""weight_only_linear of any layout; what its bits do not depend on."""

import pytest
import torch

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.family_cases.int8_mm import integers
from tests.support.oracle import weight_only as oracle
from tests.weight_only.test_values import OWN_ROWS, by_dtype, linear, numbers


@by_dtype
@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_layouts_of_the_input(layout: str, dtype: torch.dtype, device: str) -> None:
    """Of few rows, the bits are those of a contiguous copy.

    PyTorch's product, which more rows take, may depend on where its input lies.
    """
    n, k = 13, 70
    w = integers((n, k), torch.int8, "random", 1)
    s = cases.scales((n, 3), cases.compute_dtype(dtype), 2)
    z, b = cases.zero_points((n, 3), (-128, 127), 3), numbers((n,), dtype, 4)
    for lead in ((1,), (2, 2), (3, 4), (6, 8), (7, 9)):
        x = cases.LAYOUTS[layout](numbers((*lead, k), dtype, 5).to(device))
        y = linear(x, w, s, b, weight_zero_point=z, group_size=32)
        assert y.shape == (*lead, n) and y.is_contiguous()
        rows = x.reshape(-1, k)
        if device == "cpu" and len(rows) <= OWN_ROWS.get(dtype, 0):
            copy = x.clone(memory_format=torch.contiguous_format)
            assert_same_bits(y, linear(copy, w, s, b, weight_zero_point=z, group_size=32))
        exact = oracle.dequantized(w, s, z, 32, dtype)
        oracle.assert_close(y.reshape(-1, n), oracle.linear(rows.cpu(), exact, b), str(lead))


@by_dtype
@pytest.mark.parametrize("layout", ("stepped", "transposed", "misaligned", "expanded"))
def test_layouts_of_the_rest(layout: str, dtype: torch.dtype, device: str) -> None:
    """Scale, zero point and bias; the weight may begin anywhere."""
    n, k = 13, 70
    w = integers((n, k), torch.int8, "random", 1).to(device)
    s = cases.scales((n, 3), cases.compute_dtype(dtype), 2).to(device)
    z, b = cases.zero_points((n, 3), (-128, 127), 3).to(device), numbers((n,), dtype, 4).to(device)
    change = cases.LAYOUTS[layout]
    for rows in (1, 4, 30, 60):
        x = numbers((rows, k), dtype, 5).to(device)
        for names, size in (((s, z), 32), ((s[:, 0], z[:, 0]), None)):
            laid = [change(t) for t in names]
            copies = [t.contiguous() for t in laid]
            bias = b if layout == "transposed" else change(b)
            weight = cases.LAYOUTS["misaligned"](w)
            given = {"group_size": size}
            y = linear(x, weight, laid[0], bias, weight_zero_point=laid[1], **given)
            right = linear(x, w, copies[0], bias.contiguous(), weight_zero_point=copies[1], **given)
            assert_same_bits(y, right)


# --- bits that repeat -----------------------------------------------------------------------------


@by_dtype
def test_twenty_runs(dtype: torch.dtype, device: str) -> None:
    n, k = 35, 515
    w = integers((n, k), torch.int8, "random", 1)
    s, b = cases.scales((n, 17), cases.compute_dtype(dtype), 2), numbers((n,), dtype, 3)
    for rows in (1, 4, 48, 49):
        x = numbers((rows, k), dtype, rows).to(device)
        first = linear(x, w, s, b, group_size=32)
        for _ in range(20):
            assert_same_bits(linear(x, w, s, b, group_size=32), first)
