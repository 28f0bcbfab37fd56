# SPDX-License-Identifier: BSD-3-Clause
"""qat_linear and autograd: what is kept, what is computed, and when; autocast and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from baraquant import ops, reference
from baraquant.nn import FakeQuantizedLinear
from tests.support import cases
from tests.support.family_cases.int8_mm import clipped
from tests.support.saved_tensors import saved_tensors, storages

TOKENS, OUTPUTS, DEPTH = 6, 8, 32
by_scheme = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)


def arguments(
    dtype: torch.dtype = torch.float32, device: str = "cpu", grads: str = "xwb"
) -> tuple[Tensor, Tensor, Tensor]:
    """Input (two leading dimensions), weight and bias; those that `grads` names require grad."""
    gen = cases.generator(1)
    x = clipped().reshape(2, 3, DEPTH).to(device, dtype)
    w = torch.randn(OUTPUTS, DEPTH, generator=gen, dtype=torch.float64).to(device, dtype)
    b = torch.randn(OUTPUTS, generator=gen, dtype=torch.float64).to(device, dtype)
    return (
        x.requires_grad_("x" in grads),
        w.requires_grad_("w" in grads),
        b.requires_grad_("b" in grads),
    )


def of_fake_quantize(x: Tensor, w: Tensor, b: Tensor, *, symmetric: bool, bits: int = 8) -> Tensor:
    """With weights of so many bits."""
    rounded = ops.dynamic_fake_quantize_per_token(x, symmetric=symmetric)
    high = (1 << (bits - 1)) - 1
    return linear(rounded, ops.dynamic_fake_quantize_per_channel(w, 0, -high - 1, high), b)


def trained(x: Tensor, w: Tensor, b: Tensor, *, symmetric: bool, bits: int = 8) -> Tensor:
    """The same, as the op."""
    high = (1 << (bits - 1)) - 1
    ends = {"weight_quant_min": -high - 1, "weight_quant_max": high}
    return ops.qat_linear(x, w, b, symmetric=symmetric, **ends)


def gradients_twice(
    function: Callable[..., Tensor], tensors: tuple[Tensor, ...], symmetric: bool
) -> tuple[Tensor, ...]:
    """First gradients, then the gradients of a function of them, cross terms included."""
    y = function(*tensors, symmetric=symmetric)
    weights = torch.randn(y.shape, generator=cases.generator(2)).to(y.device, y.dtype)
    weights.requires_grad_()
    first = torch.autograd.grad(y, tensors, weights, create_graph=True)
    gen = cases.generator(3)
    total = sum(
        (g * torch.randn(g.shape, generator=gen).to(g.device, g.dtype)).sum() for g in first
    )
    second = torch.autograd.grad(total, (*tensors[:2], weights))
    return (*(g.detach() for g in first), *second)


def test_the_input_is_clipped() -> None:
    """Else the mask would be tested by no case."""
    x = clipped().requires_grad_()
    y = ops.dynamic_fake_quantize_per_token(x, symmetric=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert (gradient == 0).sum() == 2 * TOKENS


@by_dtype
@by_scheme
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("parameter", [True, False], ids=["parameter", "computed"])
def test_gradients_are_those_of_fake_quantize(
    parameter: bool, bits: int, symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    """Once and twice, to the rounding of the matrix products."""
    tensors = arguments(dtype, device)

    def qat(x: Tensor, w: Tensor, b: Tensor, *, symmetric: bool) -> Tensor:
        return trained(x, w if parameter else w * 1, b, symmetric=symmetric, bits=bits)

    actual = gradients_twice(qat, tensors, symmetric)
    expected = gradients_twice(partial(of_fake_quantize, bits=bits), tensors, symmetric)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        assert e.abs().max() > 0
        scale = e.abs().max().item()
        torch.testing.assert_close(a, e, rtol=0, atol=8 * torch.finfo(dtype).eps * scale)


@by_scheme
def test_reference_has_the_same_gradients(symmetric: bool, device: str) -> None:
    tensors = arguments(torch.float64, device)
    actual = gradients_twice(reference.qat_linear, tensors, symmetric)
    expected = gradients_twice(ops.qat_linear, tensors, symmetric)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12 * e.abs().max().item())


@by_dtype
@by_scheme
@pytest.mark.parametrize("parameter", [True, False], ids=["parameter", "computed"])
def test_memory_held(parameter: bool, symmetric: bool, dtype: torch.dtype, device: str) -> None:
    """A byte per element, scales and zero points, and where asymmetric a bit per element.

    Of a parameter, which is alive anyway, the scales alone; of another weight its integers.
    """
    x, w, b = arguments(dtype, device)
    if not parameter:
        w = w * 1
    with saved_tensors() as kept:
        y = ops.qat_linear(x * 1, w, b, symmetric=symmetric)
    kept = [t for t in kept if t.dtype != x.dtype or t.shape != x.shape]  # of `x * 1`
    itself = [t for t in kept if t.data_ptr() == w.data_ptr()]
    assert len(itself) == parameter
    kept = [t for t in kept if t.data_ptr() != w.data_ptr()]
    scale = 8 if dtype == torch.float64 else 4
    expected = TOKENS * DEPTH + TOKENS * scale + OUTPUTS * scale
    if not parameter:
        expected += OUTPUTS * DEPTH
    if not symmetric:
        expected += TOKENS * 4 + TOKENS * DEPTH // 8
    assert sum(t.numel() * t.element_size() for t in kept) == expected
    if device == "cpu":
        assert sum(storages(kept).values()) == expected
    assert y.requires_grad


def test_a_compiled_layer_holds_no_copy_of_its_weight(device: str) -> None:
    """A parameter is no leaf while it is traced, but alive anyway all the same."""
    torch._dynamo.reset()
    layer = FakeQuantizedLinear(DEPTH, OUTPUTS).to(device)
    compiled = torch.compile(layer, backend="aot_eager_decomp_partition", fullgraph=True)
    x = arguments(device=device)[0]
    with saved_tensors() as kept:
        y = compiled(x)
    of_weight = [t for t in kept if t.shape == layer.weight.shape]
    assert [t.data_ptr() for t in of_weight] == [layer.weight.data_ptr()]
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, torch.autograd.grad(layer(x).sum(), x)[0])


WANTED = {
    "x": (torch.float32, (OUTPUTS, DEPTH)),  # needs the weight, which is alive anyway
    "w": (torch.int8, (2, 3, DEPTH)),  # needs the input
    "b": None,
}


@pytest.mark.parametrize("wanted", WANTED)
@by_scheme
def test_only_what_is_wanted_is_kept_and_computed(
    symmetric: bool, wanted: str, device: str
) -> None:
    tensors = arguments(device=device, grads=wanted)
    with saved_tensors() as kept:
        y = ops.qat_linear(*tensors, symmetric=symmetric)
    matrices = [(t.dtype, tuple(t.shape)) for t in kept if t.shape[-1:] == (DEPTH,)]
    assert matrices == ([WANTED[wanted]] if WANTED[wanted] else [])
    y.backward(torch.ones_like(y))
    whole = arguments(device=device)
    ops.qat_linear(*whole, symmetric=symmetric).backward(torch.ones_like(y))
    for tensor, full, name in zip(tensors, whole, "xwb", strict=True):
        if name == wanted:
            assert tensor.grad is not None and full.grad is not None
            assert torch.equal(tensor.grad, full.grad)
        else:
            assert tensor.grad is None


def test_nothing_is_recorded_without_need(device: str) -> None:
    x, w, b = arguments(device=device)
    with torch.no_grad():
        assert not ops.qat_linear(x, w, b).requires_grad
    assert not ops.qat_linear(x.detach(), w.detach(), b.detach()).requires_grad
    with torch.inference_mode():
        assert not ops.qat_linear(x, w, b).requires_grad


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 0), (3, 1, 2)])
@by_scheme
def test_shapes_of_gradients(symmetric: bool, lead: tuple[int, ...], device: str) -> None:
    _, w, b = arguments(device=device)
    x = torch.randn((*lead, DEPTH), device=device, requires_grad=True)
    y = ops.qat_linear(x, w, b, symmetric=symmetric)
    weights = torch.randn_like(y)
    actual = torch.autograd.grad(y, (x, w, b), weights)
    expected = torch.autograd.grad(
        of_fake_quantize(x, w, b, symmetric=symmetric), (x, w, b), weights
    )
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("outputs", [0, 3])
@pytest.mark.parametrize("depth", [0, 5])
def test_gradients_of_empty_matrices(outputs: int, depth: int, device: str) -> None:
    x = torch.randn(4, depth, device=device, requires_grad=True)
    w = torch.randn(outputs, depth, device=device, requires_grad=True)
    b = torch.randn(outputs, device=device, requires_grad=True)
    y = ops.qat_linear(x, w, b, symmetric=False)
    assert y.shape == (4, outputs)
    grads = torch.autograd.grad(y.sum(), (x, w, b))
    assert [g.shape for g in grads] == [x.shape, w.shape, b.shape]
    assert torch.equal(grads[2], torch.full_like(b, 4.0))


def test_a_bias_of_the_compute_type_gets_its_gradient_in_it(device: str) -> None:
    x, w, b = arguments(torch.bfloat16, device)
    wide = b.detach().float().requires_grad_()
    y = ops.qat_linear(x, w, wide)
    y.backward(torch.full_like(y, 1.0 / 3))
    assert wide.grad is not None and wide.grad.dtype == torch.float32
    third = torch.tensor(1.0 / 3).to(torch.bfloat16).float()
    assert torch.allclose(wide.grad.cpu(), (TOKENS * third).expand(OUTPUTS), rtol=1e-6)


@by_scheme
def test_autocast_casts_the_input_alone(symmetric: bool, device: str) -> None:
    """The weight has the integers of the parameter, and a float32 bias is added in float32."""
    x, w, b = arguments(torch.float32, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = ops.qat_linear(x, w, b, symmetric=symmetric)
        fake = ops.dynamic_fake_quantize_per_token(x)
    assert y.dtype == torch.bfloat16 and fake.dtype == torch.float32
    low = x.detach().bfloat16().requires_grad_()
    q, s, _ = ops.dynamic_range_quantize_per_channel(w.detach(), 0)
    assert torch.equal(y, ops.quantized_linear(low, q, s, b.detach(), symmetric=symmetric))
    assert not torch.equal(
        y, ops.qat_linear(low, w.detach().bfloat16(), b.detach(), symmetric=symmetric)
    )
    y.backward(torch.ones_like(y))
    rounded = ops.dequantize_per_channel(q, s, None, 0, dtype=torch.bfloat16)
    stand_in = rounded.requires_grad_()
    tokens = ops.dynamic_fake_quantize_per_token(low, symmetric=symmetric)
    torch.nn.functional.linear(tokens, stand_in).backward(torch.ones_like(y))
    for tensor, like in ((x, low), (w, stand_in)):
        assert tensor.grad is not None and tensor.grad.dtype == torch.float32
        assert like.grad is not None and torch.equal(tensor.grad, like.grad.float())
    assert b.grad is not None and torch.equal(b.grad, torch.full_like(b, TOKENS))
    with torch.autocast(device, dtype=torch.bfloat16, enabled=False):
        assert ops.qat_linear(x, w, b).dtype == torch.float32


@pytest.mark.parametrize("reentrant", [True, False])
@by_scheme
def test_checkpoint(symmetric: bool, reentrant: bool, device: str) -> None:
    from torch.utils.checkpoint import checkpoint

    tensors = arguments(device=device)

    def layer(*t: Tensor) -> Tensor:
        return ops.qat_linear(*t, symmetric=symmetric).sin()

    expected = torch.autograd.grad(layer(*tensors).sum(), tensors)
    checkpoint(layer, *tensors, use_reentrant=reentrant).sum().backward()
    for tensor, e in zip(tensors, expected, strict=True):
        assert tensor.grad is not None and torch.equal(tensor.grad, e)


def test_forward_mode_is_refused(device: str) -> None:
    x, w, b = (t.detach() for t in arguments(device=device))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises((NotImplementedError, RuntimeError), match="jvp is not implemented"):
            ops.qat_linear(dual, w, b)


@by_scheme
def test_gradient_penalty_trains_the_weight(symmetric: bool, device: str) -> None:
    """The double backward reaches leaves by `backward` as well, and through what came before."""
    x, w, b = arguments(torch.float64, device)
    results = []
    for function in (ops.qat_linear, of_fake_quantize):
        for leaf in (x, w, b):
            leaf.grad = None
        y = function((x * 1.0).tanh() * 60, w * 2, b, symmetric=symmetric)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        dx.square().sum().backward()
        assert x.grad is not None and w.grad is not None and b.grad is not None
        results.append((x.grad.clone(), w.grad.clone(), b.grad.clone()))
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-10 * e.abs().max().item())
