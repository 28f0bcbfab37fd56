# SPDX-License-Identifier: BSD-3-Clause
"""weight_only_linear against the NumPy oracle: weights bit for bit, sums within their bound."""

import math
import platform
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits, to_numpy
from tests.support.family_cases.int8_mm import integers
from tests.support.marks import by_dtype
from tests.support.oracle import weight_only as oracle
from tests.support.oracle.affine import round_to

# Few rows have a kernel of their own: up to 48 of float32, up to 4 of bfloat16.
ROWS = (0, 1, 2, 3, 4, 5, 48, 49)
OWN_ROWS = {torch.float32: 48, torch.bfloat16: 4}
# Outputs and inputs: rests of vectors, of tiles and of groups.
SHAPES = ((3, 7), (35, 131), (1, 1), (9, 83), (17, 257), (64, 96))
GROUPS = (None, 1, 5, 32, 128, 1000)

by_shape = pytest.mark.parametrize(
    "shape",
    [*SHAPES[:2], *(pytest.param(shape, marks=pytest.mark.exhaustive) for shape in SHAPES[2:])],
    ids=str,
)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Of different size, along the last dimension too."""
    rng = cases.generator(seed)
    made = torch.randn(shape, generator=rng, dtype=torch.float64)
    made *= torch.exp(torch.randn(shape[-1:], generator=rng, dtype=torch.float64))
    return made.to(dtype)


def params_shape(shape: tuple[int, int], group_size: int | None) -> tuple[int, ...]:
    """That of scale and zero point for a weight of the shape."""
    n, k = shape
    return (n,) if group_size is None else (n, math.ceil(k / group_size))


def qparams(
    shape: tuple[int, int], dtype: torch.dtype, groups: tuple[int | None, ...] = GROUPS
) -> Iterator[tuple[Tensor, Tensor | None, int | None]]:
    """Scales of groups of each size, each without zero points and with some."""
    for size in groups:
        params = params_shape(shape, size)
        scale = cases.scales(params, cases.compute_dtype(dtype), 3)
        for zero_point in (None, cases.zero_points(params, (-128, 127), 4)):
            yield scale, zero_point, size


def linear(x: Tensor, w: Tensor, s: Tensor, b: Tensor | None = None, module=ops, **given) -> Tensor:  # type: ignore[no-untyped-def]
    """The op on the device of `x`."""
    here = {k: v.to(x.device) if isinstance(v, Tensor) else v for k, v in given.items()}
    b = None if b is None else b.to(x.device)
    result: Tensor = module.weight_only_linear(x, w.to(x.device), s.to(x.device), b, **here)
    return result


@by_shape
@by_dtype
def test_sums(shape: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    """All numbers of rows, groups, zero points, with a bias and without."""
    n, k = shape
    x, w = numbers((max(ROWS), k), dtype, k), integers((n, k), torch.int8, "random", n)
    bias = numbers((n,), dtype, 2) * 100
    on_device = x.to(device)
    for s, z, size in qparams(shape, dtype):
        given = {"weight_zero_point": z, "group_size": size}
        exact = oracle.dequantized(w, s, z, size, dtype)
        for b in (None, bias):
            expected = oracle.linear(x, exact, b)
            for rows in ROWS:
                y = linear(on_device[:rows], w, s, b, **given)
                assert y.shape == (rows, n) and y.is_contiguous()
                note = f"{rows} rows, groups of {size}, {z is None}, {b is None}"
                oracle.assert_close(y, expected.rows(rows), note)
            referred = linear(on_device[:5], w, s, b, module=reference, **given)
            oracle.assert_close(referred, expected.rows(5), f"the reference, {note}")


# --- the weight, bit for bit ---------------------------------------------------------------------


def positive_zeros(values: np.ndarray) -> np.ndarray:
    return values + values.dtype.type(0)


def one_hot(k: int, dtype: torch.dtype, device: str) -> Iterator[tuple[int, Tensor]]:
    """Rows that choose a column each: all columns at once, and a few of them."""
    every = torch.eye(k, dtype=dtype, device=device)
    yield 0, every
    for count in (1, 4, 43):
        for start in (0, k // 2, k - count):
            yield start, every[start : start + count]


@by_dtype
def test_the_weight_is_the_dequantized_one(dtype: torch.dtype, device: str) -> None:
    """A row with a single 1 gives a column of the weight: every integer, each kind of scale."""
    n, k = 37, 130
    w = torch.arange(-128, 128).to(torch.int8).repeat(k)[: n * k].reshape(n, k)
    for s, z, size in qparams((n, k), dtype, (None, 1, 7, 32, k + 1)):
        exact = oracle.dequantized(w, s, z, size, dtype)
        given = {"weight_zero_point": z, "group_size": size}
        for start, x in one_hot(k, dtype, device):
            y = linear(x, w, s, **given) + 0.0  # an added zero may have either sign
            assert_same_bits(y, positive_zeros(exact.T[start : start + len(x)]), f"{start}")
        # By the ops that the contract names, and by the reference.
        if size is None:
            found = ops.dequantize_per_channel(w, s, z, 0, dtype=dtype)
        else:
            found = ops.dequantize_per_group(w, s, z, size, 1, dtype=dtype)
        assert_same_bits(found, exact)
        y = linear(torch.eye(k, dtype=dtype), w, s, module=reference, **given) + 0.0
        assert_same_bits(y, positive_zeros(exact.T))


@by_dtype
@pytest.mark.parametrize("rows", (1, 4, 5, 49))
def test_any_scale_and_zero_point(rows: int, dtype: torch.dtype, device: str) -> None:
    """Of a single column, so that each product stands alone: each integer, each special number."""
    scales = cases.special_scales(cases.compute_dtype(dtype))
    points = torch.tensor(cases.SPECIAL_ZERO_POINTS)
    s = scales.repeat_interleave(len(points) * 256).reshape(-1, 1)
    z = points.repeat_interleave(256).repeat(len(scales)).reshape(-1, 1)
    w = torch.arange(-128, 128).to(torch.int8).repeat(len(s) // 256).reshape(-1, 1)
    x = torch.ones(rows, 1, dtype=dtype, device=device)
    exact = positive_zeros(oracle.dequantized(w, s, z, 1, dtype).T)
    for group_size, shape in ((1, (-1, 1)), (None, (-1,))):
        given = {"weight_zero_point": z.reshape(shape), "group_size": group_size}
        y = linear(x, w, s.reshape(shape), **given) + 0.0
        want, got = np.broadcast_to(exact, y.shape), to_numpy(y)
        if device != "cpu" or rows > OWN_ROWS.get(dtype, 0):
            subnormal = np.abs(exact) < float(torch.finfo(dtype).smallest_normal)
            want = np.where(subnormal & (got == 0), got, want)  # PyTorch may take it for a zero
        assert_same_bits(y, want)


# --- packed weights ------------------------------------------------------------------------------


@by_shape
@by_dtype
def test_packed_weights_give_the_bits_of_int8(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """All numbers of four bits, rows, groups, zero points; the gradient too."""
    n, k = shape
    w = (torch.arange(n * k) % 16 - 8).to(torch.int8).reshape(n, k)[:, torch.randperm(k)]
    packed, bias = ops.pack_int4(w), numbers((n,), dtype, 2).to(device)
    assert packed.shape == (n, (k + 1) // 2) and packed.dtype == torch.uint8
    for s, z, size in qparams(shape, dtype):
        given = {"b": bias, "weight_zero_point": z, "group_size": size}
        for rows in (*ROWS, 64, 65):
            x = numbers((rows, k), dtype, k).to(device).requires_grad_()
            results = []
            for weight in (w, packed):
                y = linear(x, weight, s, **given)
                referred = linear(x, weight, s, module=reference, **given)
                results.append((y, referred, *torch.autograd.grad(y.sum(), x)))
            assert_all_same(*results, f"{rows} rows, groups of {size}")


# --- sums that every order gives -----------------------------------------------------------------


def check_exact_sums(dtype: torch.dtype, rows: int, n: int, k: int, device: str) -> int:
    """Extreme weights times -1, 0 and 1, with scales of 1: integers; how many sums there are."""
    rng = cases.generator(k)
    w = torch.tensor([-128, 127, 0, 1])[torch.randint(0, 4, (n, k), generator=rng)]
    x = torch.randint(-1, 2, (rows, k), generator=rng)
    bias = torch.randint(-9, 10, (n,), generator=rng)
    count = 0
    for group_size in (32, k + 1):
        params = params_shape((n, k), group_size)
        z = torch.randint(-128, 129, params, generator=rng)  # w - z is a number of all dtypes
        points = z.repeat_interleave(group_size, 1)[:, :k]
        sums = x.double() @ (w - points).double().t()
        s = torch.ones(params, dtype=cases.compute_dtype(dtype))
        given = {"weight_zero_point": z, "group_size": group_size}
        for b in (None, bias):
            if b is not None and dtype.itemsize == 2:
                continue  # which may be rounded twice
            want = sums if b is None else sums + b
            on_device, own = x.to(device, dtype), None if b is None else b.to(dtype)
            got = linear(on_device, w.to(torch.int8), s, own, **given)
            assert_same_bits(got + 0.0, round_to(to_numpy(want + 0.0), dtype))
            count += got.numel()
    return count


def is_exact(dtype: torch.dtype, rows: int, device: str) -> bool:
    """Whether sums of integers are exact; those of more rows than ours are PyTorch's.

    An ARM's own products of bfloat16 round what they add, also in `F.linear` of torch 2.10.
    """
    is_arm = device == "cpu" and platform.machine() == "aarch64"
    return not (is_arm and dtype == torch.bfloat16) or rows <= OWN_ROWS[dtype]


@by_dtype
def test_sums_of_integers(dtype: torch.dtype, device: str) -> None:
    for rows in (rows for rows in ROWS[1:] if is_exact(dtype, rows, device)):
        for n, k in ((7, 33), (37, 1030)):
            check_exact_sums(dtype, rows, n, k, device)


@pytest.mark.exhaustive
@by_dtype
def test_long_rows(dtype: torch.dtype, device: str) -> None:
    """Of 10^5 inputs, scales of all sizes."""
    n, k = 33, 100_003
    w = integers((n, k), torch.int8, "random", 1)
    x, b = numbers((49, k), dtype, 2), numbers((n,), dtype, 3)
    for s, z, size in qparams((n, k), dtype, (None, 128)):
        expected = oracle.linear(x, oracle.dequantized(w, s, z, size, dtype), b)
        for rows in (1, 4, 5, 48, 49):
            y = linear(x[:rows].to(device), w, s, b, weight_zero_point=z, group_size=size)
            oracle.assert_close(y, expected.rows(rows), f"{rows} rows")


# --- NaN, infinities, nothing --------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "large"), ((torch.bfloat16, 257), (torch.float16, 2049)))
@pytest.mark.parametrize("rows", (1, 5, 300))
def test_the_bias_is_added_before_the_rounding(
    rows: int, dtype: torch.dtype, large: int, device: str
) -> None:
    """A sum that the dtype does not hold, less what leaves 1 of it, by every way of multiplying."""
    for k in (17, 31, 64, 65, 80, 256):
        w = torch.zeros(24, k, dtype=torch.int8)
        w[:, :17] = torch.tensor([127] * (large // 127) + [large % 127] + [0] * 17)[:17]
        x, s = torch.ones(rows, k, dtype=dtype), torch.ones(24)
        b = torch.full((24,), 1.0 - large, dtype=dtype)
        assert torch.equal(linear(x.to(device), w, s, b).cpu(), torch.ones(rows, 24, dtype=dtype))


def but_for_pytorch(
    y: Tensor, x: Tensor, weight: np.ndarray, bias: Tensor | None, expected: oracle.Expected
) -> Tensor:
    """A result without the NaN that PyTorch's product has too.

    On some processors it reads into the next row, and inf * 0 is NaN.
    """
    product = F.linear(x, torch.from_numpy(weight.astype(np.float64)).to(x.dtype), bias)
    with np.errstate(over="ignore"):
        taken = torch.from_numpy(expected.exact.astype(np.float64)).to(x.dtype)
    return torch.where(product.isnan() & y.isnan(), taken, y)


@by_dtype
@pytest.mark.parametrize("where", ("input", "scale", "bias"))
def test_what_is_not_finite_goes_through(where: str, dtype: torch.dtype, device: str) -> None:
    """0 * inf and inf - inf are NaN; what such a number does not meet stays as it is."""
    n, k = 21, 50
    x, b = numbers((49, k), dtype, 1), numbers((n,), dtype, 2)
    w = integers((n, k), torch.int8, "sparse", 3)
    s = cases.scales((n, 10), cases.compute_dtype(dtype), 4)
    x[7], x[8, :30], x[9] = 0, 0, -x[9].abs()
    for value in (math.nan, math.inf, -math.inf):
        x_, s_, b_ = x.clone(), s.clone(), b.clone()
        if where == "input":
            x_[0, 3], x_[1, 49], x_[2, 0], x_[4], x_[48, 17] = (value,) * 5
            x_[3, 5], x_[3, 6] = math.inf, value
        if where == "scale":
            s_[0, 0], s_[1, 9], s_[2], s_[20, 4] = (value,) * 4
            s_[3, 1], s_[3, 2] = math.inf, value
        if where == "bias":
            b_[0], b_[20] = value, value
        exact = oracle.dequantized(w, s_, None, 5, dtype)
        expected = oracle.linear(x_, exact, b_)
        assert not np.isfinite(expected.exact).all() and np.isfinite(expected.exact).any()
        for rows in ROWS:
            y = linear(x_[:rows].to(device), w, s_, b_, group_size=5)
            if device == "cpu" and rows > OWN_ROWS.get(dtype, 0):
                y = but_for_pytorch(y, x_[:rows], exact, b_, expected.rows(rows))
            oracle.assert_close(y, expected.rows(rows), f"{value} in {where}, {rows} rows")


# --- any layout, and what the bits do not depend on ----------------------------------------------


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
