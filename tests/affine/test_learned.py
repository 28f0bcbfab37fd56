# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of a learned scale and a learned (floating) zero point in fake_quantize.

The order of summation is the library's own, so a sum is compared twice: on data whose float64 sums
are exact in any order, bit for bit; on any data, within the error that a float64 sum can have.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.marks import by_dtype
from tests.support.oracle.affine import Affine, assert_sum_close, round_to
from tests.support.saved_tensors import saved_tensors, storages

RANGE = (-8, 7)
SHAPE = (21, 67, 101)  # 142,107 elements: more than one chunk for any way of splitting the work
GRANULARITIES = (
    *(PER_TENSOR, per_channel(0), per_channel(1), per_channel(-1), PER_TOKEN),
    *(per_group(32), per_group(5, 0), per_group(11, 1), per_group(10**6)),
)
by_granularity = pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)


def exact_arguments(
    shape: tuple[int, ...], dtype: torch.dtype, granularity: Granularity, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """grad, x, scale and floating zero point for which every term and sum is exact.

    x / s is a multiple of 1/16 below 16, dy a multiple of 1/8 up to 2, s a power of two.
    """
    gen = cases.generator(seed)
    params = granularity.param_shape(shape)
    compute = cases.compute_dtype(dtype)
    scale = 2.0 ** torch.randint(-3, 1, params, generator=gen).to(compute)
    sixteenths = torch.randint(-255, 256, shape, generator=gen) / 16
    x = (sixteenths * cases.expand(scale, granularity, shape)).to(dtype)
    grad = (torch.randint(-16, 17, shape, generator=gen) / 8).to(dtype)
    point = torch.randint(-8, 8, params, generator=gen).to(compute)
    return grad, x, scale, point


def hostile_arguments(
    shape: tuple[int, ...], dtype: torch.dtype, granularity: Granularity, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Any finite grad, x with all specials, a zero point that is rounded and often clamped."""
    params = granularity.param_shape(shape)
    scale = cases.scales(params, cases.compute_dtype(dtype), seed)
    x = cases.adversarial(cases.expand(scale, granularity, shape), dtype, seed)
    grad = torch.randn(shape, generator=cases.generator(seed + 1), dtype=torch.float64).to(dtype)
    point = 6 * torch.randn(params, generator=cases.generator(seed + 2), dtype=scale.dtype)
    return grad, x, scale, point


def backward(
    device: str, granularity: Granularity, grad: Tensor, x: Tensor, *params: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    op = granularity.op("fake_quantize_backward_qparams")
    return op(*cases.to(device, grad, x, *params), *granularity.args, *RANGE)


def check_close(
    device: str,
    granularity: Granularity,
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    point: Tensor | None = None,
) -> None:
    """Sums within the error that a float64 sum can have; the gradient of the input bit for bit."""
    rule = Affine(x, scale, point, granularity, *RANGE)
    dx, ds, dz = backward(device, granularity, grad, x, scale, point)
    assert_same_bits(dx, rule.fake_quantize_backward(grad))
    assert ds.dtype == scale.dtype
    assert_sum_close(ds, *rule.segment_sums(rule.scale_terms(grad)))
    if point is not None and point.is_floating_point():
        assert dz.dtype == point.dtype
        assert_sum_close(dz, *rule.segment_sums(rule.zero_point_terms(grad)))


@by_granularity
@by_dtype
def test_any_sums_within_their_bound(
    dtype: torch.dtype, granularity: Granularity, device: str
) -> None:
    *tensors, point = hostile_arguments(SHAPE, dtype, granularity)
    for zero_point in (point, None):
        check_close(device, granularity, *tensors, zero_point)


@pytest.mark.parametrize("layout", cases.LAYOUTS_4D)
@pytest.mark.parametrize("granularity", cases.granularities((4, 6, 5, 7)), ids=str)
def test_sums_of_any_layout(granularity: Granularity, layout: str, device: str) -> None:
    """They do not depend on strides: the same values in the same segments."""
    given = hostile_arguments((4, 6, 5, 7), torch.float32, granularity)
    grad, x, *params = cases.to(device, *given)
    laid = cases.LAYOUTS_4D[layout]
    for dy in (grad, laid(grad)):
        check_close(device, granularity, dy, laid(x), *params)


# More segments than 16 bits count, along each axis, and segments longer than any block.
MANY = ((70001, 3), (3, 70001), (2, 70001, 2), (140002,))


@pytest.mark.parametrize("shape", (SHAPE, *cases.SHAPES, *MANY), ids=str)
@by_dtype
def test_exact_sums_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    """An empty segment sums to 0; the gradients have the shapes of their parameters."""
    found = GRANULARITIES if shape == SHAPE else cases.granularities(shape)
    if shape in MANY:  # every other one for each dtype
        turn = cases.FLOAT_DTYPES.index(dtype) + MANY.index(shape)
        of_many = (PER_TENSOR, per_channel(0), per_channel(-1), PER_TOKEN, per_group(2, 0))
        found = of_many[turn % 2 :: 2]
    for granularity in found:  # + 0: no sign of zero
        grad, x, scale, point = exact_arguments(shape, dtype, granularity)
        rule = Affine(x, scale, point, granularity, *RANGE)
        dx, ds, dz = backward(device, granularity, grad, x, scale, point)
        assert_same_bits(dx, rule.fake_quantize_backward(grad))
        for got, terms in ((ds, rule.scale_terms(grad)), (dz, rule.zero_point_terms(grad))):
            sums, _ = rule.segment_sums(terms)
            assert got.dtype == scale.dtype
            assert_same_bits(got + 0, round_to(sums, got.dtype) + 0, str(granularity))


@by_dtype
def test_integer_zero_points_and_their_extremes(dtype: torch.dtype, device: str) -> None:
    for point_dtype in (torch.int8, torch.int32, torch.int64):
        grad, x, scale, _ = hostile_arguments((40, 33), dtype, per_channel(0))
        point = cases.zero_points(tuple(scale.shape), RANGE).clamp(-128, 127).to(point_dtype)
        if point_dtype != torch.int8:
            point[:2] = torch.tensor([cases.INT32_MIN, cases.INT32_MAX])
        check_close(device, per_channel(0), grad, x, scale, point)


@by_dtype
def test_special_scales(dtype: torch.dtype, device: str) -> None:
    """Zero, negative, NaN and infinite scales: what the formula gives, segment by segment."""
    scale = cases.special_scales(cases.compute_dtype(dtype))
    scale = scale[(scale.abs() < 1e30) | ~scale.isfinite()]  # no overflow within the sums
    values = cases.special_values(dtype)
    x = values[values.abs() < 1e20].expand(len(scale), -1)
    grad = torch.randn(x.shape, generator=cases.generator(1)).to(dtype)
    check_close(device, per_channel(0), grad, x, scale)


@by_dtype
def test_nan_contributes_nothing_and_infinity_shows(dtype: torch.dtype, device: str) -> None:
    """A NaN v adds 0 even where dy is NaN or infinite; an infinite x is clipped like any other."""
    nan, inf = torch.nan, torch.inf
    x = torch.tensor([[nan, 1.0], [nan, 1.0], [inf, 0.25], [-inf, 0.25], [0.25, 1.0]], dtype=dtype)
    grad = torch.tensor([[nan, 1], [inf, 1], [1, 2], [1, 2], [inf, 1]], dtype=dtype)
    scale = torch.ones(5, dtype=cases.compute_dtype(dtype))
    _, ds, _ = backward(device, per_channel(0), grad, x, scale, None)
    assert ds.tolist() == [0.0, 0.0, 7 - 0.5, -8 - 0.5, -inf]


def test_gradients_by_hand(device: str) -> None:
    x = torch.tensor([0.3, 1.6, 9.0, -20.0], device=device)
    grad = torch.tensor([1.0, 2.0, 4.0, 8.0], device=device)
    scale, point = torch.tensor(0.5, device=device), torch.tensor(1.25, device=device)
    dx, ds, dz = torch.ops.baraquant.fake_quantize_per_tensor_backward_qparams(
        grad, x, scale, point, -8, 7
    )
    assert dx.tolist() == [1, 2, 0, 0]  # x / s + 1 is 1.6, 4.2, 19, -39
    # r - x/s is 0.4 and -0.2 inside, q - z is 6 and -9 outside.
    assert ds.item() == pytest.approx(1 * 0.4 - 2 * 0.2 + 4 * 6 - 8 * 9, rel=1e-6)
    assert dz.item() == -0.5 * (4 + 8)


# --- through autograd ----------------------------------------------------------------------------


@by_granularity
@by_dtype
def test_autograd_equals_the_fused_op(
    dtype: torch.dtype, granularity: Granularity, device: str
) -> None:
    """Whichever of input, scale and zero point want a gradient: the same bits."""
    arguments = hostile_arguments((9, 41, 53), dtype, granularity)
    fused = backward(device, granularity, *arguments)
    grad, *inputs = cases.to(device, *arguments)
    op = granularity.op("fake_quantize")
    for wanted in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (1,), (2,)):
        for save_mask in (None, True, False):
            leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
            y = op(*leaves, *granularity.args, *RANGE, save_mask=save_mask)
            found = torch.autograd.grad(y, [leaves[i] for i in wanted], grad)
            for i, got in zip(wanted, found, strict=True):
                assert_same_bits(got, fused[i], f"input {i} of {wanted}")


@pytest.mark.parametrize("point_dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
@by_dtype
def test_zero_point_gradient_has_its_own_dtype(
    dtype: torch.dtype, point_dtype: torch.dtype, device: str
) -> None:
    grad, x, scale, point = exact_arguments((6, 33), dtype, per_channel(0))
    rule = Affine(x, scale, point, per_channel(0), *RANGE)
    sums, bound = rule.segment_sums(rule.zero_point_terms(grad))
    leaf = point.to(point_dtype).to(device).requires_grad_()
    moved = cases.to(device, x, scale)
    y = torch.ops.baraquant.fake_quantize_per_channel(*moved, leaf, 0, *RANGE)
    y.backward(grad.to(device))
    assert leaf.grad is not None
    assert leaf.grad.dtype == point_dtype
    assert_sum_close(leaf.grad, sums, bound)


@by_dtype
def test_gradients_take_the_shapes_of_their_parameters(dtype: torch.dtype, device: str) -> None:
    """`[1]` or `[]`, `[...]` or `[..., 1]`: each parameter's own."""
    for granularity, shapes in ((PER_TENSOR, ((), (1,))), (PER_TOKEN, ((4, 1), (4,)))):
        grad, x, scale, point = exact_arguments((4, 30), dtype, granularity)
        reference = backward(device, granularity, grad, x, scale, point)
        for s_shape in shapes:
            for z_shape in shapes:
                s, z = scale.reshape(s_shape), point.reshape(z_shape)
                _, ds, dz = backward(device, granularity, grad, x, s, z)
                assert (tuple(ds.shape), tuple(dz.shape)) == (s_shape, z_shape)
                assert_same_bits(ds.reshape(scale.shape), reference[1])
                assert_same_bits(dz.reshape(point.shape), reference[2])


def test_learned_parameters_keep_the_input(device: str) -> None:
    """No mask can serve them; the input and the parameters are all that is held."""
    for save_mask in (None, True, False):
        _, x, scale, point = cases.to(device, *exact_arguments((64, 64), torch.float32, PER_TOKEN))
        activation = x.requires_grad_().clone()
        scale.requires_grad_()
        with saved_tensors() as kept:
            torch.ops.baraquant.fake_quantize_per_token(
                activation, scale, point, *RANGE, save_mask=save_mask
            )
        held = storages(kept)
        assert activation.untyped_storage().data_ptr() in held
        assert set(held) <= set(storages([activation, scale, point]))


def test_double_backward_through_the_sums_is_refused(device: str) -> None:
    _, x, scale, point = cases.to(device, *exact_arguments((8, 8), torch.float32, PER_TENSOR))
    scale.requires_grad_()
    x.requires_grad_()
    y = torch.ops.baraquant.fake_quantize_per_tensor(x, scale, point, *RANGE)
    dy = torch.ones_like(y, requires_grad=True)
    dx, ds = torch.autograd.grad(y, (x, scale), dy, create_graph=True)
    again = torch.autograd.grad(dx.sum(), dy, retain_graph=True)
    assert_all_same(again, torch.autograd.grad(y, x, torch.ones_like(y)))
    with pytest.raises(NotImplementedError, match=r"baraquant::fake_quantize.*scale"):
        torch.autograd.grad(ds, dy)


# --- the same bits in every run ------------------------------------------------------------------


@pytest.fixture
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@by_granularity
def test_twenty_runs_agree(granularity: Granularity, device: str, restore_threads: None) -> None:
    """And on the CPU, any number of threads."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        arguments = cases.to(device, *hostile_arguments(SHAPE, dtype, granularity))
        first = backward(device, granularity, *arguments)
        for run in range(1, 20):
            torch.set_num_threads(1 + run % 4)
            assert_all_same(backward(device, granularity, *arguments), first, f"run {run}")
