# SPDX-License-Identifier: BSD-3-Clause
"""What only CUDA has here: the kernel that dequantizes the weight in registers for few rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cuda import capture, rows_decoded_in_registers
from tests.support.family_cases.int8_mm import integers
from tests.support.oracle import weight_only as oracle
from tests.weight_only import test_values as values
from tests.weight_only.test_values import linear, numbers, one_hot, positive_zeros, qparams

pytestmark = pytest.mark.cuda

ROWS = (1, 7, 8, 9, 16, 17, 33, 64, 65, 130, 256)
SIZES = ((1, 32), (16, 96), (37, 160), (40, 1056), (130, 4096), (6400, 288), (9, 14_336))
SIZES += ((8300, 544),)
by_size = pytest.mark.parametrize("size", SIZES, ids=str)
by_half = pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=cases.name_of)


def is_taken(x: Tensor, w: Tensor, s: Tensor, **given: Any) -> bool:
    here = {k: v.to(x.device) if isinstance(v, Tensor) else v for k, v in given.items()}
    kernels = baraquant.plan("weight_only_linear", x, w.to(x.device), s.to(x.device), **here)
    return kernels[-1].name == "weight_only_linear"  # before it, zero points may become int32


@by_half
@by_size
def test_sums(size: tuple[int, int], dtype: torch.dtype, cuda: str) -> None:
    n, k = size
    w, bias = integers((n, k), torch.int8, "random", 1), numbers((n,), dtype, 2)
    for group_size in (None, 32, 128):
        params = values.params_shape((n, k), group_size)
        s, z = cases.scales(params, torch.float32, 3), cases.zero_points(params, (-128, 127), 4)
        for point, b in ((None, None), (z, bias)):
            given = {"weight_zero_point": point, "group_size": group_size}
            all_rows = [m for m in ROWS if m <= rows_decoded_in_registers()]
            x = numbers((all_rows[-1], k), dtype, 5)
            exact = oracle.linear(x, oracle.dequantized(w, s, point, group_size, dtype), b)
            results = []
            for m in all_rows:
                rows = x[:m].to(cuda)
                assert is_taken(rows, w, s, **given), "or this test shows nothing"
                results.append(linear(rows, w, s, b, **given))
                oracle.assert_close(results[-1], exact.rows(m), f"{m} rows, groups of {group_size}")
            # A row does not depend on the others that the same kernel multiplies.
            for rows in (range(1, 17), range(33, 65)):
                same = [result for result in results if len(result) in rows]
                for result in same:
                    assert_same_bits(result, same[-1][: len(result)])


@by_half
def test_the_weight_is_the_dequantized_one(dtype: torch.dtype, cuda: str) -> None:
    """A row with a single 1 gives a column of the weight: every integer, any scale, any zero."""
    n, k = 37, 160
    w = torch.arange(-128, 128).to(torch.int8).repeat(k)[: n * k].reshape(n, k)
    for s, z, size in qparams((n, k), dtype, (None, 32, 64, k + 1)):
        exact = oracle.dequantized(w, s, z, size, dtype)
        given = {"weight_zero_point": z, "group_size": size}
        for start, x in one_hot(k, dtype, cuda):
            if len(x) > rows_decoded_in_registers():
                continue
            assert is_taken(x, w, s, **given), "or this test shows nothing"
            y = linear(x, w, s, **given) + 0.0
            assert_same_bits(y, positive_zeros(exact.T[start : start + len(x)]), f"{start}")


@by_half
def test_any_scale_and_zero_point(dtype: torch.dtype, cuda: str) -> None:
    """32 columns of which one counts, so that a product stands alone."""
    scales, points = cases.special_scales(torch.float32), torch.tensor(cases.SPECIAL_ZERO_POINTS)
    scales = scales[scales.isfinite()]
    s = scales.repeat_interleave(len(points) * 8)
    z = points.repeat_interleave(8).repeat(len(scales))
    w = torch.arange(-128, 128).to(torch.int8).reshape(8, 32).repeat(len(s) // 8, 1)
    exact = oracle.dequantized(w, s, z, None, dtype)
    finite = torch.from_numpy((abs(exact) < float("inf")).all(1))
    for column in range(32):
        x = torch.zeros(1, 32, dtype=dtype, device=cuda)
        x[0, column] = 1
        assert is_taken(x, w, s, weight_zero_point=z)
        y = linear(x, w, s, weight_zero_point=z) + 0.0
        want = positive_zeros(exact.T[column : column + 1])
        assert_same_bits(y[:, finite.to(cuda)], want[:, to_numpy(finite).astype(bool)])


@by_half
def test_what_it_does_not_take(dtype: torch.dtype, cuda: str) -> None:
    """More rows, other columns and groups, rows that begin anywhere, other dtypes."""
    most = rows_decoded_in_registers()
    for m, k, group_size in ((most + 1, 64, 32), (3, 80, None), (3, 96, 48), (3, 64, 16)):
        w = integers((20, k), torch.int8, "random", 1)
        s = cases.scales(values.params_shape((20, k), group_size), torch.float32, 2)
        x = numbers((m, k), dtype, 3)
        assert not is_taken(x.to(cuda), w, s, group_size=group_size)
        exact = oracle.linear(x, oracle.dequantized(w, s, None, group_size, dtype))
        oracle.assert_close(linear(x.to(cuda), w, s, group_size=group_size), exact)
    w, s = integers((20, 64), torch.int8, "random", 1), torch.ones(20)
    x = numbers((3, 64), dtype, 3)
    exact = oracle.linear(x, oracle.dequantized(w, s, None, None, dtype))
    moved = torch.empty(3 * 64 + 1, dtype=dtype, device=cuda)[1:].view(3, 64).copy_(x)
    assert not is_taken(moved, w, s)
    oracle.assert_close(linear(moved, w, s), exact)
    assert not is_taken(x.float().to(cuda), w, s)


@by_half
@by_size
def test_packed_weights_give_the_bits_of_int8(
    size: tuple[int, int], dtype: torch.dtype, cuda: str
) -> None:
    """In the kernel for few rows, and after the kernel that dequantizes for more."""
    k = size[1]
    w = torch.randint(-8, 8, size, generator=cases.generator(k)).to(torch.int8)
    packed = ops.pack_int4(w)
    for s, z, group_size in qparams(size, dtype, (None, 8, 32, 128)):
        given = {"weight_zero_point": z, "group_size": group_size}
        for m in (*ROWS, 300, 1025):
            x = numbers((m, k), dtype, 5).to(cuda)
            few = m <= rows_decoded_in_registers() and group_size != 8
            assert is_taken(x, packed, s, **given) == is_taken(x, w, s, **given) == few
            got, right = linear(x, packed, s, **given), linear(x, w, s, **given)
            assert_same_bits(got, right, f"{m} rows, groups of {group_size}")


@by_half
@pytest.mark.parametrize("size", ((65_536, 1056), (2048, 32_768)), ids=str)
def test_a_large_weight(size: tuple[int, int], dtype: torch.dtype, cuda: str) -> None:
    """Other kernels multiply 9 to 16, and 300 rows by it. Sums of integers are exact."""
    n, k = size
    w = torch.randint(-8, 8, size, dtype=torch.int8, device=cuda)
    packed, bias = ops.pack_int4(w), torch.randint(-9, 9, (n,), device=cuda).to(dtype)
    x = torch.randint(-1, 2, (300, k), device=cuda).to(dtype)
    for group_size in (None, 32, 128):
        params = values.params_shape(size, group_size)
        s = 0.5 ** torch.randint(0, 3, params, device=cuda).float()
        z = torch.randint(-8, 8, params, dtype=torch.int32, device=cuda)
        if group_size is None:
            wide = ops.dequantize_per_channel(w, s, z, 0)
        else:
            wide = ops.dequantize_per_group(w, s, z, group_size)
        exact = torch.addmm(bias.double(), x.double(), wide.double().T).to(dtype)
        given = {"weight_zero_point": z, "group_size": group_size}
        for m in (1, 8, 9, 16, 17, 300):
            for weight in (w, packed):
                few = m <= rows_decoded_in_registers()
                assert is_taken(x[:m], weight, s, **given) == few, "or this test shows nothing"
                got = linear(x[:m], weight, s, bias, **given)
                assert_same_bits(got + 0.0, exact[:m] + 0.0, f"{m} rows, groups of {group_size}")


@by_half
def test_in_a_graph(dtype: torch.dtype, cuda: str) -> None:
    w, s = integers((512, 1024), torch.int8, "random", 1).to(cuda), torch.rand(512, device=cuda)
    x = torch.randn(4, 1024, device=cuda, dtype=dtype)
    graph, result = capture(lambda: linear(x, w, s))
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert_same_bits(result, linear(x, w, s))
