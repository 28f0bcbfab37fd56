# SPDX-License-Identifier: BSD-3-Clause
"""qat_linear with a backward of integers: gradients against the oracle and floating ones."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits, to_numpy
from tests.support.cases import PER_TOKEN, per_channel
from tests.support.marks import by_dtype, by_mode
from tests.support.oracle import affine as affine_oracle
from tests.support.oracle import scaled as oracle
from tests.support.oracle.range import Dynamic

by_backward = pytest.mark.parametrize("backward", ("int8_input", "int8"))
by_rounding = pytest.mark.parametrize("rounding", ("nearest", "stochastic"))
SHAPES = (
    *(((40,), 19, 24), ((2, 9), 7, 33), ((), 5, 16), ((0,), 3, 8), ((5,), 4, 0)),
    *(((128,), 64, 32), ((3, 0), 4, 6), ((17,), 1, 1), ((1,), 48, 80), ((2, 3, 4), 16, 48)),
)
by_shape = pytest.mark.parametrize(("tokens", "n", "k"), SHAPES)


def leaves(
    tokens: tuple[int, ...], n: int, k: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Input, weight, bias, and a gradient of the output."""
    rng = torch.Generator().manual_seed(math.prod(tokens) + 100 * n + k)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(device, dtype)

    x, w, b, dy = made(*tokens, k), made(n, k), made(n), made(*tokens, n)
    if dy.dim() > 1:  # tokens of different size
        dy = dy * torch.exp(made(*tokens, 1))
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), dy.to(dtype)


def expected(
    x: Tensor,
    w: Tensor,
    dy: Tensor,
    symmetric: bool,
    random: tuple[int, int] | None,
    ends: dict[str, int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """dx and dw by the oracle."""
    ends = ends or {}
    of_weight = (ends.get("weight_quant_min", -128), ends.get("weight_quant_max", 127))
    of_input = (ends.get("quant_min", -128), ends.get("quant_max", 127))
    x, w, dy = x.detach().cpu(), w.detach().cpu(), dy.cpu()
    rule = Dynamic(w, per_channel(0), *of_weight)
    token = Dynamic(x, PER_TOKEN, *of_input, symmetric)
    rows = dy.numel() // max(w.shape[0], 1) if w.shape[0] else math.prod(dy.shape[:-1])
    dx = oracle.input_gradient(dy, rule.quantize(), to_numpy(rule.scale), random)
    dx = dx.reshape(x.shape)
    if not symmetric:
        dx = np.where(token.mask, dx, np.zeros((), dx.dtype))
    q = token.quantize().reshape(rows, x.shape[-1])
    zero_point = None if symmetric else to_numpy(token.zero_point).reshape(rows)
    dw = oracle.weight_gradient(dy, q, to_numpy(token.scale).reshape(rows), zero_point, random)
    return dx, dw


def state_of(dy: Tensor) -> tuple[int, int]:
    """What a backward pass would draw now; nothing is drawn."""
    if dy.is_cuda:
        generator = torch.cuda.default_generators[dy.get_device()]
        return generator.initial_seed(), generator.get_offset() // 4
    before = torch.get_rng_state()
    state = ops.draw_random(dy, 2).tolist()
    torch.set_rng_state(before)
    return state[0], state[1]


def gradients(x: Tensor, w: Tensor, b: Tensor | None, dy: Tensor, **options: Any) -> list[Tensor]:
    y = ops.qat_linear(x, w, b, **options)
    return list(torch.autograd.grad(y, [t for t in (x, w, b) if t is not None], dy))


@by_shape
@by_dtype
@by_backward
@by_rounding
@by_mode
def test_bits(tokens, n, k, dtype, backward, rounding, symmetric, device) -> None:  # type: ignore[no-untyped-def]
    x, w, b, dy = leaves(tokens, n, k, dtype, device)
    options: dict[str, Any] = {"symmetric": symmetric}
    random = state_of(dy) if rounding == "stochastic" else None
    dx, dw, db = gradients(x, w, b, dy, backward=backward, rounding=rounding, **options)
    of_float = gradients(x, w, b, dy, **options)
    wanted = expected(x, w, dy, symmetric, random)
    assert_same_bits(dx, wanted[0], "dx")
    assert_same_bits(dw, wanted[1] if backward == "int8" else of_float[1], "dw")
    assert_same_bits(db, oracle.bias_gradient(dy.cpu(), dtype), "db")
    torch.testing.assert_close(db, of_float[2])
    assert dx.dtype == dw.dtype == dtype and dx.shape == x.shape and dw.shape == w.shape


@by_mode
@by_rounding
@by_dtype
def test_close_to_the_floating_gradients(dtype, rounding, symmetric, device) -> None:  # type: ignore[no-untyped-def]
    x, w, b, dy = leaves((512,), 96, 128, dtype, device)
    exact = gradients(
        *(t.detach().double().requires_grad_() for t in (x, w, b)), dy.double(), symmetric=symmetric
    )
    found = gradients(x, w, b, dy, symmetric=symmetric, backward="int8", rounding=rounding)
    # Rounding to the nearest has a variance of 1/12 of a step, stochastic rounding of 1/6.
    share = 0.03 if rounding == "nearest" else 0.03 * math.sqrt(2)
    for got, want in zip(found[:2], exact[:2], strict=True):
        cosine = torch.nn.functional.cosine_similarity(got.double().flatten(), want.flatten(), 0)
        assert cosine > 0.999
        assert (got.double() - want).norm() < share * want.norm()


@pytest.mark.exhaustive
@by_dtype
@pytest.mark.parametrize("n", (1, 8, 83, 512, 520, 8200, 16_400, 40_000))
def test_gradient_of_the_bias(n: int, dtype: torch.dtype, device: str) -> None:
    """Rows of a warp, of a block, longer ones; each number of rows at the ends of pieces."""
    backward = torch.ops.baraquant._integer_backward
    w = torch.ones(n, 4, dtype=torch.int8, device=device)
    compute = cases.compute_dtype(dtype)
    sw = torch.ones(n, dtype=compute, device=device)
    counts = (1, 2, 31, 32, 33, 64, 255, 256, 257, 300, 1000, 5000)
    turn = cases.FLOAT_DTYPES.index(dtype) % 2
    for tokens in counts if n <= 520 else counts[turn:10:2]:  # in long rows half for each dtype
        dy = torch.randn(tokens, n, dtype=torch.float64).exp().to(device, dtype)
        dy[:: max(tokens // 3, 1), 0] = torch.tensor([-0.0, math.inf][tokens % 2], dtype=dtype)
        q = torch.ones(tokens, 4, dtype=torch.int8, device=device)
        of_input = (q, torch.ones(tokens, 1, dtype=compute, device=device), None)
        want = oracle.bias_gradient(dy.cpu(), dtype)
        with_dx = (None, None, None, w, sw, None)
        for given in (with_dx, (*of_input, w, sw, None), (*of_input, None, None, None)):
            got = backward(dy, *given, bias_dtype=dtype)
            assert_same_bits(got[2], want, f"{tokens} tokens")
            assert_all_same(got[:2], backward(dy, *given)[:2], f"{tokens} tokens")
        padded = torch.nn.functional.pad(dy, (1, 0))[:, 1:]
        got = backward(padded, *with_dx, bias_dtype=torch.float64)[2]
        assert_same_bits(got, oracle.bias_gradient(dy.cpu(), torch.float64))


@by_backward
def test_gradient_of_the_bias_alone(backward: str, device: str) -> None:
    x, w, b, dy = leaves((70,), 12, 20, torch.bfloat16, device)
    b = b.detach().float().requires_grad_()
    y = ops.qat_linear(x.detach(), w.detach(), b, backward=backward, rounding="stochastic")
    state = state_of(dy)
    (db,) = torch.autograd.grad(y, [b], dy)
    assert_same_bits(db, oracle.bias_gradient(dy.cpu(), torch.float32))
    assert state == state_of(dy), "nothing is drawn where nothing is rounded"


@by_backward
def test_twice_is_an_error_that_names_the_option(backward: str, device: str) -> None:
    x, w, b, _ = leaves((5,), 6, 16, torch.float32, device)
    y = ops.qat_linear(x, w, b, backward=backward)
    with pytest.raises(NotImplementedError, match=f"backward='{backward}'.*backward='float'"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.autograd.grad(y.sum(), x)  # once is fine


def test_a_weight_that_changes_before_backward_is_an_error(device: str) -> None:
    """A parameter stays in memory, so its integers are not kept: as with PyTorch's own layer."""
    x, w, b, dy = leaves((9,), 6, 16, torch.float32, device)
    y = ops.qat_linear(x, w, b, backward="int8")
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, dy)


@pytest.mark.parametrize("bits", (8, 4, 2))
@by_dtype
def test_a_kept_weight_gives_the_bits_of_its_integers(
    dtype: torch.dtype, bits: int, device: str
) -> None:
    """Whole packs and others, rows of all magnitudes, and rows whose scale is 1, inf or NaN."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    for outputs, inputs in ((128, 64), (131, 200), (5, 3), (1, 1), (260, 1030)):
        w = torch.randn(outputs, inputs, dtype=torch.float64)
        w *= torch.logspace(-30, 30, outputs, dtype=torch.float64)[:, None]
        w = w.clamp(-1e4, 1e4) if dtype == torch.float16 else w
        w = w.to(device, dtype)
        for row, value in zip(range(outputs), (0.0, torch.inf, torch.nan, 1e-45), strict=False):
            w[row, -1] = value
        w[0] = 0
        dy = torch.randn(7, outputs, device=device).to(dtype)
        q, s, _ = ops.dynamic_range_quantize_per_channel(w, 0, low, high)
        backward = torch.ops.baraquant._integer_backward
        got = backward(dy, None, None, None, w, s, None, low, high)[0]
        assert_same_bits(got, backward(dy, None, None, None, q, s, None)[0])


def test_integers_have_no_gradient() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    made = ops.scaled_quantize_per_token(x, torch.ones(4))
    made += ops.scaled_quantize_transposed(x, torch.ones(3, requires_grad=True))
    assert not any(t.requires_grad for t in (*made, ops.draw_random(x)))


# --- sums that have more terms, or are greater, than one int32 holds ------------------------------


@pytest.mark.exhaustive
@by_mode
@by_rounding
def test_more_tokens_than_a_sum_holds(symmetric: bool, rounding: str, device: str) -> None:
    tokens = 131_100 if symmetric else 65_600
    x, w, b, dy = leaves((tokens,), 2, 3, torch.float32, device)
    dy = dy.sign() + 0.1 * dy.clamp(-3, 3)  # no token outweighs the others
    random = state_of(dy) if rounding == "stochastic" else None
    _, dw, _ = gradients(x, w, b, dy, symmetric=symmetric, backward="int8", rounding=rounding)
    assert_same_bits(dw, expected(x, w, dy, symmetric, random)[1])


@pytest.mark.exhaustive
@by_rounding
def test_more_outputs_than_a_sum_holds(rounding: str, device: str) -> None:
    """The head of a language model has 151936, for example."""
    x, w, b, dy = leaves((3,), 151_936, 5, torch.bfloat16, device)
    random = state_of(dy) if rounding == "stochastic" else None
    *found, _ = gradients(x, w, b, dy, backward="int8", rounding=rounding)
    assert_all_same(found, expected(x, w, dy, True, random))


def test_the_greatest_sums_are_exact(device: str) -> None:
    """All products have one sign and the greatest magnitude."""
    tokens = 131_071
    x = torch.ones(tokens, 2, device=device, requires_grad=True)
    w = torch.ones(3, 2, device=device, requires_grad=True)
    dy = torch.ones(tokens, 3, device=device)
    dw = torch.autograd.grad(ops.qat_linear(x, w, backward="int8"), w, dy)[0]
    rule = affine_oracle.round_to(np.float32(127 * 127 * tokens), torch.float32)
    scale = np.float32(1) / np.float32(127) / np.float32(127)
    assert dw.unique().tolist() == [float(np.float32(rule) * np.float32(scale))]
