# SPDX-License-Identifier: BSD-3-Clause
"""Any strides in; out come those of a dense input, or contiguous ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group
from tests.support.oracle import affine as oracle
from tests.support.oracle.affine import Affine

SHAPE = (4, 6, 5, 7)
RANGE = (-100, 90)
GRANULARITIES = (
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(-1),
    PER_TOKEN,
    per_group(3),
    per_group(4, 1),
    per_group(3, 0),
    per_group(2, -2),
)
by_granularity = pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)
by_layout = pytest.mark.parametrize("layout", cases.LAYOUTS_4D)
by_dtype = pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=cases.name_of)


def parameters(
    dtype: torch.dtype, granularity: Granularity, shape: tuple[int, ...] = SHAPE
) -> tuple[Tensor, Tensor, Tensor]:
    params = granularity.param_shape(shape)
    scale = cases.scales(params, cases.compute_dtype(dtype))
    x = cases.adversarial(cases.expand(scale, granularity, shape), dtype)
    return x, scale, cases.zero_points(params, RANGE)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def kept_strides(x: Tensor) -> tuple[int, ...]:
    """The rule for results that look like `x`."""
    return x.stride() if cases.is_dense(x) else contiguous_strides(tuple(x.shape))


def meta_like(t: Tensor | None) -> Tensor | None:
    """A tensor without data, of the same shape, strides and dtype."""
    if t is None:
        return None
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def assert_meta_agrees(op: Callable, got: Tensor | tuple, tensors: list, *rest: object) -> None:
    """The op on Meta gives the shapes, strides and dtypes that it gave here."""
    kwargs = rest[-1] if rest and isinstance(rest[-1], dict) else {}
    positional = rest[:-1] if kwargs else rest
    meta = op(*(meta_like(t) for t in tensors), *positional, **kwargs)
    pairs = zip(meta, got, strict=True) if isinstance(got, tuple) else [(meta, got)]
    for m, g in pairs:
        assert (m.shape, m.stride(), m.dtype) == (g.shape, g.stride(), g.dtype)
        assert m.device.type == "meta"


@by_layout
@by_granularity
@by_dtype
def test_forward(dtype: torch.dtype, granularity: Granularity, layout: str, device: str) -> None:
    base, scale, point = parameters(dtype, granularity)
    moved, *params = cases.to(device, base, scale, point)
    x = cases.LAYOUTS_4D[layout](moved)
    before, strides = x.clone(), kept_strides(x)
    rule = Affine(x, scale, point, granularity, *RANGE)

    op = granularity.op("fake_quantize")
    y = op(x, *params, *granularity.args, *RANGE)
    assert_same_bits(y, rule.fake_quantize())
    assert y.stride() == strides
    assert_meta_agrees(op, y, [x, *params], *granularity.args, *RANGE)

    op = granularity.op("quantize")
    for output in (torch.int8, torch.float64):
        options = {"dtype": output}
        q = op(x, *params, *granularity.args, *RANGE, **options)
        assert_same_bits(q, rule.quantize(output))
        assert q.stride() == strides
        assert_meta_agrees(op, q, [x, *params], *granularity.args, *RANGE, options)
    assert_same_bits(x, before)  # functional: the input is as it was


@by_layout
@by_granularity
def test_dequantize(granularity: Granularity, layout: str, device: str) -> None:
    for dtype in (torch.int8, torch.uint8, torch.float16):
        params = granularity.param_shape(SHAPE)
        scale, point = cases.scales(params, torch.float32), cases.zero_points(params, RANGE)
        low, high = cases.default_range(dtype)
        values = torch.randint(low, high + 1, SHAPE, generator=cases.generator(0)).to(dtype)
        q = cases.LAYOUTS_4D[layout](values.to(device))
        moved = [q, *cases.to(device, scale, point)]
        op = granularity.op("dequantize")
        for options in ({"dtype": None}, {"dtype": torch.bfloat16}):
            y = op(*moved, *granularity.args, **options)
            expected = oracle.dequantize(q, scale, point, granularity, options["dtype"])
            assert_same_bits(y, expected)
            assert y.stride() == kept_strides(q)
            assert_meta_agrees(op, y, moved, *granularity.args, options)


@by_layout
@by_granularity
def test_backward_with_gradients_of_another_layout(
    granularity: Granularity, layout: str, device: str
) -> None:
    """Gradient and input each have their own strides, in both directions of the mismatch."""
    base, scale, point = parameters(torch.float32, granularity)
    moved, *params = cases.to(device, base, scale, point)
    gradient = cases.gradients(SHAPE, torch.float32).to(device)
    others = ("contiguous", "channels_last", "expanded", "padded", layout)
    pairs = [(layout, other) for other in others] + [(other, layout) for other in others]
    for x_layout, grad_layout in pairs:
        x = cases.LAYOUTS_4D[x_layout](moved)
        dy = cases.LAYOUTS_4D[grad_layout](gradient)
        rule = Affine(x, scale, point, granularity, *RANGE)
        for verb in ("fake_quantize", "quantize"):
            op = granularity.op(f"{verb}_backward")
            dx = op(dy, x, *params, *granularity.args, *RANGE)
            assert_same_bits(dx, getattr(rule, f"{verb}_backward")(dy))
            assert_meta_agrees(op, dx, [dy, x, *params], *granularity.args, *RANGE)
        op = granularity.op("dequantize_backward")
        dq = op(dy, params[0], *granularity.args)
        assert_same_bits(dq, oracle.dequantize_backward(dy, scale, granularity))
        assert_meta_agrees(op, dq, [dy, params[0]], *granularity.args)


@by_layout
@by_granularity
def test_learned_parameters(granularity: Granularity, layout: str, device: str) -> None:
    """The sums do not depend on strides: the same values in the same segments."""
    base, scale, point = parameters(torch.float32, granularity)
    point = 5 * torch.randn(point.shape, generator=cases.generator(4))
    moved, *params = cases.to(device, base, scale, point)
    grad = torch.randn(SHAPE, generator=cases.generator(5)).to(device)
    op = granularity.op("fake_quantize_backward_qparams")
    x = cases.LAYOUTS_4D[layout](moved)
    rule = Affine(x, scale, point, granularity, *RANGE)
    for dy in (grad, cases.LAYOUTS_4D[layout](grad)):
        dx, ds, dz = found = op(dy, x, *params, *granularity.args, *RANGE)
        assert_same_bits(dx, rule.fake_quantize_backward(dy))
        oracle.assert_sum_close(ds, *rule.segment_sums(rule.scale_terms(dy)))
        oracle.assert_sum_close(dz, *rule.segment_sums(rule.zero_point_terms(dy)))
        assert_meta_agrees(op, found, [dy, x, *params], *granularity.args, *RANGE)


@pytest.mark.parametrize("save_mask", (None, True, False))
@pytest.mark.parametrize("leaf", (True, False), ids=("leaf", "activation"))
@by_layout
def test_autograd(layout: str, leaf: bool, save_mask: bool | None, device: str) -> None:
    """What is kept follows memory order, the incoming gradient may not."""
    for granularity in (PER_TENSOR, per_channel(1), PER_TOKEN, per_group(3)):
        base, scale, point = parameters(torch.float32, granularity)
        moved, *params = cases.to(device, base, scale, point)
        x = cases.LAYOUTS_4D[layout](moved).detach().requires_grad_()
        used = x if leaf else x.view_as(x)
        rule = Affine(x, scale, point, granularity, *RANGE)
        args = [used, *params, *granularity.args, *RANGE]
        fake = granularity.op("fake_quantize")(*args, save_mask=save_mask)
        q = granularity.op("quantize")(*args, dtype=torch.float32, save_mask=save_mask)
        gradient = cases.gradients(SHAPE, torch.float32).to(device)
        for dy_layout in ("contiguous", layout, "transposed", "expanded"):
            dy = cases.LAYOUTS_4D[dy_layout](gradient)
            (dx,) = torch.autograd.grad(fake, used, dy, retain_graph=True)
            assert_same_bits(dx, rule.fake_quantize_backward(dy), dy_layout)
            (dx,) = torch.autograd.grad(q, used, dy, retain_graph=True)
            assert_same_bits(dx, rule.quantize_backward(dy), dy_layout)


@by_granularity
def test_strided_parameters(granularity: Granularity, device: str) -> None:
    """Scale, zero point: transposed, stepped, misaligned, or one value expanded with stride 0."""
    base, scale, point = parameters(torch.float32, granularity)
    x, scale, point = cases.to(device, base, scale, point)
    makers = {
        "expanded": lambda t: t.reshape(-1)[0].expand(t.shape),
        "misaligned": cases.LAYOUTS["misaligned"],
    }
    if scale.ndim:
        makers |= {name: cases.LAYOUTS[name] for name in ("stepped", "padded", "transposed")}
    for make in makers.values():
        s, z = make(scale), make(point)
        rule = Affine(x, s, z, granularity, *RANGE)
        args = [*granularity.args, *RANGE]
        y = granularity.op("fake_quantize")(x, s, z, *args)
        assert_same_bits(y, rule.fake_quantize())
        q = granularity.op("quantize")(x, s, z, *args)
        assert_same_bits(q, rule.quantize())
        y = granularity.op("dequantize")(q, s, z, *granularity.args)
        assert_same_bits(y, oracle.dequantize(q, s, z, granularity))
        dy = cases.gradients(SHAPE, torch.float32).to(device)
        dx, ds, _ = granularity.op("fake_quantize_backward_qparams")(dy, x, s, z, *args)
        assert_same_bits(dx, rule.fake_quantize_backward(dy))
        fine = torch.where(dy.isfinite() & (dy.abs() < 1e9), dy, 1)
        _, ds, _ = granularity.op("fake_quantize_backward_qparams")(fine, x, s, z, *args)
        oracle.assert_sum_close(ds, *rule.segment_sums(rule.scale_terms(fine)))


@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_every_tail_and_misalignment(dtype: torch.dtype, device: str) -> None:
    """Lengths around any vector width, starting at any element of a 16-byte line."""
    scale = torch.tensor(0.07, dtype=cases.compute_dtype(dtype))
    base = cases.adversarial(scale.expand(200), dtype)
    grad = cases.gradients((200,), dtype)
    rule = Affine(base, scale, None, PER_TENSOR, *RANGE)
    fake, integers = rule.fake_quantize(), rule.quantize()
    dx, dq = rule.fake_quantize_backward(grad), rule.quantize_backward(grad)
    base, grad, scale = cases.to(device, base, grad, scale)
    ops = torch.ops.baraquant
    q = torch.from_numpy(integers).to(device)
    back = oracle.dequantize(q, scale, None, PER_TENSOR, dtype)
    for start in (0, 1, 3, 6, 8, 15):
        for length in (*range(1, 20), 31, 33, 63, 64, 65, 127, 129):
            at = slice(start, start + length)
            x, dy = base[at], grad[at]
            assert_same_bits(ops.fake_quantize_per_tensor(x, scale, None, *RANGE), fake[at])
            assert_same_bits(ops.quantize_per_tensor(x, scale, None, *RANGE), integers[at])
            y = ops.dequantize_per_tensor(q[at], scale, None, dtype=dtype)
            assert_same_bits(y, back[at])
            other = grad[:length]  # aligned, where x is not
            got = ops.fake_quantize_per_tensor_backward(other, x, scale, None, *RANGE)
            expected = to_numpy(other)
            assert_same_bits(got, oracle.np.where(rule.mask[at], expected, expected.dtype.type(0)))
            got = ops.fake_quantize_per_tensor_backward(dy, x, scale, None, *RANGE)
            assert_same_bits(got, dx[at])
            got = ops.quantize_per_tensor_backward(dy, x, scale, None, *RANGE)
            assert_same_bits(got, dq[at])


@pytest.mark.parametrize("save_mask", (True, False))
def test_every_tail_of_the_bit_mask(save_mask: bool, device: str) -> None:
    """Bits of the last byte or word, and groups that end inside one."""
    for length in (*range(1, 70), 255, 257, 1025):
        for rows in (1, 3):
            base, scale, point = parameters(torch.float32, per_channel(0), (rows, length))
            x, s, z = cases.to(device, base, scale, point)
            x.requires_grad_()
            args = (s, z, 0, *RANGE)
            y = torch.ops.baraquant.fake_quantize_per_channel(x, *args, save_mask=save_mask)
            dy = cases.gradients((rows, length), torch.float32).to(device)
            (dx,) = torch.autograd.grad(y, x, dy)
            rule = Affine(base, scale, point, per_channel(0), *RANGE)
            assert_same_bits(dx, rule.fake_quantize_backward(dy), f"{rows} x {length}")


@pytest.mark.parametrize("shape", (*cases.SHAPES, (1, 5, 1, 3), (2, 1, 1), (1, 0, 3)), ids=str)
def test_meta_agrees_on_every_shape(shape: tuple[int, ...], device: str) -> None:
    """Sizes 0 and 1, whose strides say nothing, too."""
    for granularity in cases.granularities(shape):
        base, scale, point = parameters(torch.float32, granularity, shape)
        moved, *params = cases.to(device, base, scale, point)
        for make in cases.LAYOUTS.values() if len(shape) > 1 and 0 not in shape else [lambda t: t]:
            x = make(moved)
            for verb in ("fake_quantize", "quantize"):
                op = granularity.op(verb)
                y = op(x, *params, *granularity.args, *RANGE)
                assert_meta_agrees(op, y, [x, *params], *granularity.args, *RANGE)
