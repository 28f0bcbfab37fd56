# SPDX-License-Identifier: BSD-3-Clause
"""torch.vmap over every op: the same values as a loop, and no warning about a slow fallback."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.bits import assert_all_same
from tests.support.calls.affine import ALL_CALLS, FORWARD_CALLS, Call, outputs
from tests.support.calls.int8_mm import INT8_CALLS, QAT_CALLS, Int8Call
from tests.support.cases import KINDS, Granularity, per_channel
from tests.support.family_cases.int8_mm import Case, integers

pytestmark = pytest.mark.filterwarnings("error")
SIZE, SAMPLE = 3, (4, 5, 20)


@pytest.fixture(autouse=True)
def no_slow_fallback(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """PyTorch writes that warning to stderr, past Python's filters."""
    yield
    assert "batching rule" not in capfd.readouterr().err


by_call = pytest.mark.parametrize("call", ALL_CALLS, ids=str)
by_differentiable = pytest.mark.parametrize(
    "call", [c for c in FORWARD_CALLS if c.differentiable], ids=str
)


def batched(call: Call, in_dims: tuple[int | None, ...], device: str) -> list[Tensor]:
    """The tensors of the call, with a batch dimension where `in_dims` has one."""
    samples = [[t.detach() for t in call.tensors(SAMPLE, device=device)] for _ in range(SIZE)]
    tensors = []
    for which, dim in enumerate(in_dims):
        own = [(s[which] * (1 + i)).to(s[which].dtype) for i, s in enumerate(samples)]
        tensors.append(own[0] if dim is None else torch.stack(own, dim))
    return tensors


def in_a_loop(
    function: Callable[..., Any], tensors: list[Tensor], in_dims: tuple[int | None, ...]
) -> tuple[Tensor, ...]:
    results = []
    for i in range(SIZE):
        pairs = zip(tensors, in_dims, strict=True)
        results.append(outputs(function(*(t if d is None else t.select(d, i) for t, d in pairs))))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def which_dims(call: Call) -> list[tuple[int | None, ...]]:
    """Over the input alone, over the scales alone, over all; the batch in front and elsewhere."""
    tensors = call.tensors(SAMPLE)
    if call.input_alone:
        return [(dim, *(None for _ in tensors[1:])) for dim in (0, 1, len(SAMPLE))]
    front = tuple(0 for _ in tensors)
    last = tuple(t.dim() for t in tensors)  # an index behind the last one
    n = 1 + ("backward" in call.verb and call.verb != "dequantize_backward")  # grad, input
    inputs = tuple(1 if i < n else None for i in range(len(tensors)))
    qparams = tuple(None if i < n else 0 for i in range(len(tensors)))
    one = tuple(2 if i == 0 else None for i in range(len(tensors)))
    scale_only = tuple(0 if i == n else None for i in range(len(tensors)))
    found = dict.fromkeys((front, last, inputs, qparams, one, scale_only))
    return [dims for dims in found if any(dim is not None for dim in dims)]


@by_call
def test_like_a_loop(call: Call, device: str) -> None:
    for in_dims in which_dims(call):
        tensors = batched(call, in_dims, device)
        expected = in_a_loop(call, tensors, in_dims)
        actual = outputs(torch.vmap(call.__call__, in_dims)(*tensors))
        assert_all_same(actual, expected, f"in_dims {in_dims}")


@by_call
def test_nested(call: Call, device: str) -> None:
    dims = which_dims(call)[0]
    pairs = list(zip(batched(call, dims, device), dims, strict=True))
    tensors = [t if d is None else torch.stack([t, t * 2]).to(t.dtype) for t, d in pairs]
    actual = outputs(torch.vmap(torch.vmap(call.__call__, dims), dims)(*tensors))
    for i in range(2):
        pairs = list(zip(tensors, dims, strict=True))
        expected = in_a_loop(call, [t if d is None else t[i] for t, d in pairs], dims)
        assert_all_same([a[i] for a in actual], expected)


@by_differentiable
def test_autograd_outside(call: Call, device: str) -> None:
    """Gradients through a vmap, as in a batched layer that is trained."""
    for in_dims in which_dims(call):
        leaves = [t.requires_grad_(t.is_floating_point()) for t in batched(call, in_dims, device)]
        if not call.learned:
            leaves[1:] = [t.detach() for t in leaves[1:]]
        wanted = [t for t in leaves if t.requires_grad]
        result = torch.vmap(call.__call__, in_dims)(*leaves)
        looped = in_a_loop(call, leaves, in_dims)[0]
        weights = torch.ones_like(looped).cumsum(-1)
        actual = torch.autograd.grad(result, wanted, weights)
        expected = torch.autograd.grad(looped, wanted, weights)
        for a, e in zip(actual, expected, strict=True):
            # A scale that the samples share: the loop adds up their gradients one by one.
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5 * e.abs().max().item())


@by_differentiable
@pytest.mark.parametrize("kept", ["input", "mask", "mask_of_permuted"])
def test_batch_of_gradients(call: Call, kept: str, device: str) -> None:
    """vmap over the backward: one vector-Jacobian product for each row of a batch."""
    tensors = call.tensors((5, 3, 7), device=device)
    x = tensors[0]
    if kept == "mask":
        x = x * 1
    if kept == "mask_of_permuted":  # the bits lie in the order of the memory
        x = x.permute(1, 2, 0).contiguous().permute(2, 0, 1) * 1
    y = call(x, *tensors[1:])
    wanted = [t for t in tensors if t.requires_grad]
    rows = torch.randn(SIZE, *y.shape, device=device, dtype=y.dtype)

    def product(row: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, wanted, row, retain_graph=True)

    batched = torch.autograd.grad(y, wanted, rows, is_grads_batched=True, retain_graph=True)
    for actual in (torch.vmap(product)(rows), batched):
        for i, row in enumerate(rows):
            for a, e in zip(actual, product(row), strict=True):
                if call.exact_gradients:
                    assert torch.equal(a[i], e)
                torch.testing.assert_close(a[i], e)


def test_batch_of_gradients_of_a_scale_alone(device: str) -> None:
    x, scale, zero_point = Call("fake_quantize", per_channel(0)).tensors((5, 7), device=device)
    scale.requires_grad_()
    y = ops.fake_quantize_per_channel(x, scale, zero_point, 0, -2, 1)
    rows = torch.randn(SIZE, *y.shape, device=device)

    def product(row: Tensor) -> Tensor:
        return torch.autograd.grad(y, scale, row, retain_graph=True)[0]

    actual = torch.vmap(product)(rows)
    assert all(torch.equal(actual[i], product(row)) for i, row in enumerate(rows))


# What is wrong for a sample, but would be right for the batch: an op, what follows the zero point,
# and the shapes of input and scale of a sample.
WRONG: list[tuple[type[Exception], str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    (IndexError, r"\[-2, 1\]", "fake_quantize_per_channel", (-3,), (4, 5), (4,)),
    (IndexError, r"\[-2, 1\]", "fake_quantize_per_channel", (2,), (4, 5), (5,)),
    (IndexError, "0 dimensions", "fake_quantize_per_token", (), (), ()),
    (ValueError, r"\[4\].*\[2, 2\]", "quantize_per_channel", (0,), (4, 5), (2, 2)),
    (ValueError, r"\[4\].*\[3\]", "quantize_per_channel", (0,), (4, 5), (3,)),
    (ValueError, r"\[\] or \[1\]", "quantize_per_tensor", (), (4, 5), (1, 1)),
    (ValueError, "expected scale", "quantize_per_group", (4,), (4, 5), (4, 1)),
]


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("shared", [False, True])
def test_wrong_for_a_sample(case: tuple[Any, ...], shared: bool) -> None:
    error, message, name, args, shape, scale_shape = case
    x = torch.randn(SIZE, *shape)
    scale = torch.ones(scale_shape if shared else (SIZE, *scale_shape))
    with pytest.raises(error, match=None if shared else message):
        dims = (0, None if shared else 0)
        torch.vmap(lambda x, s: getattr(ops, name)(x, s, None, *args), dims)(x, scale)


@pytest.mark.parametrize("granularity", KINDS, ids=str)
@pytest.mark.parametrize("sample", [(0, 5, 6), (4, 0, 6), (4, 5, 0)], ids=str)
def test_empty_samples(sample: tuple[int, ...], granularity: Granularity, device: str) -> None:
    def quantize(x: Tensor) -> tuple[Tensor, ...]:
        return granularity.op("dynamic_range_quantize", ops)(x, *granularity.args)

    x = torch.empty(3, *sample, device=device)
    assert_all_same(torch.vmap(quantize)(x), in_a_loop(quantize, [x], (0,)))


def test_vmap_refuses_an_axis_that_only_the_batch_has(device: str) -> None:
    x = torch.randn(3, 4, 5, device=device)
    for axis in (2, -3):
        with pytest.raises(IndexError, match=r"\[-2, 1\].* got " + str(axis)):
            torch.vmap(lambda x, axis=axis: ops.choose_qparams_per_channel(x, axis))(x)
    with pytest.raises(IndexError, match="0 dimensions"):
        torch.vmap(ops.dynamic_fake_quantize_per_token)(x[0, 0])
    with pytest.raises(ValueError, match="1 dimension"):
        torch.vmap(ops.gelu)(x[0, 0])


@pytest.mark.parametrize("call", (*INT8_CALLS, *QAT_CALLS), ids=str)
def test_products_refuse_a_batch_of_weights(call: Int8Call, device: str) -> None:
    tensors = [t.detach() for t in call.tensors(SAMPLE, device=device)]
    for index, name in enumerate(call.names):
        if name not in ("weight", "weight_scale", "bias", "weight_sum"):
            continue
        for with_input in (True, False):
            batched = [t.detach() for t in tensors]
            batched[index] = torch.stack([tensors[index]] * 2)
            dims = [0 if i == index else None for i in range(len(tensors))]
            if with_input:
                batched[0], dims[0] = torch.stack([tensors[0]] * 2), 0
            with pytest.raises(NotImplementedError, match=rf"baraquant::{call.verb}.*{name}"):
                torch.vmap(call.__call__, tuple(dims))(*batched)


def test_products_with_scales_of_each_sample(device: str) -> None:
    """Scales and zero points belong to the input's rows, so they may be batched with it."""
    names = ("input", "input_scale", "input_zero_point")
    for kind in ("token", "token_1", "one", "one_1"):
        options = {"scale": kind, "zero_point": kind}
        made = [Case((4, 5), 9, 21, torch.uint8, **options, seed=seed) for seed in range(SIZE)]
        samples = [case.arguments() for case in made]
        own = [torch.stack([s[name] for s in samples]).to(device) for name in names]
        weight = {name: samples[0][name].to(device) for name in ("weight", "weight_scale")}

        def run(*rows: Tensor, weight: dict[str, Tensor] = weight) -> Tensor:
            given = dict(zip(names, rows, strict=True))
            return torch.ops.baraquant.int8_linear(**given, **weight)

        for dims in ((0, 0, 0), (0, 0, None), (0, None, 0), (0, None, None)):
            given = [t if d == 0 else t[0] for t, d in zip(own, dims, strict=True)]
            expected = in_a_loop(run, given, dims)
            assert_all_same(torch.vmap(run, dims)(*given), expected, f"{kind} {dims}")


@pytest.mark.parametrize("sample", ((0, 6), (4, 0), (6,)), ids=str)
def test_products_of_empty_and_flat_samples(sample: tuple[int, ...], device: str) -> None:
    x = torch.randn(3, *sample, device=device)
    w = integers((5, sample[-1]), torch.int8, "random").to(device)
    scale = torch.ones(5, device=device)
    for function in (
        lambda x: ops.quantized_linear(x, w, scale, symmetric=False),
        lambda x: QAT_CALLS[1](x, w.float()),
    ):
        assert_all_same(torch.vmap(function)(x), in_a_loop(function, [x], (0,)))


@by_differentiable
def test_functional_grad_is_refused_clearly(call: Call, device: str) -> None:
    tensors = [t.detach() for t in call.tensors(SAMPLE, device=device)]

    def loss(*given: Tensor) -> Tensor:
        return call(*given).sum()

    gradient = torch.func.grad(loss)
    for run in (gradient, torch.vmap(gradient, (0, *(None for _ in tensors[1:])))):
        with pytest.raises(RuntimeError, match=r"C\+\+ torch::autograd::Function with functorch"):
            run(*tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_private_ops_that_call_others(dtype: str, device: str) -> None:
    low, high = -torch.rand(SIZE, 5, device=device), torch.rand(SIZE, 5, device=device)

    def qparams(low: Tensor, high: Tensor) -> Any:
        return torch.ops.baraquant._qparams_of_range(low, high, -8, 7, False, dtype)

    assert_all_same(torch.vmap(qparams)(low, high), in_a_loop(qparams, [low, high], (0, 0)))
