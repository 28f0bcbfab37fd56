# SPDX-License-Identifier: BSD-3-Clause
"""The ops under autocast, activation checkpointing and a backward on several threads."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls import affine
from tests.support.calls.every import EVERY_CALL
from tests.support.calls.int8_mm import QAT_CALLS, Int8Call
from tests.support.calls.range import OBSERVE_CALLS
from tests.support.core_calls import bound
from tests.support.served_products import Served, by_kind, example
from tests.support.threads import side_by_side

SHAPE = (3, 4, 20)
by_differentiable = pytest.mark.parametrize(
    "call", [c for c in affine.FORWARD_CALLS if c.differentiable], ids=str
)
# But for qat_linear, which is a linear layer.
NOT_CAST = [*(c for c in affine.ALL_CALLS if c.verb != "qat_linear"), *OBSERVE_CALLS]


@pytest.mark.parametrize("call", NOT_CAST, ids=str)
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_autocast_changes_nothing(call: Any, dtype: torch.dtype, device: str) -> None:
    if dtype == torch.float64 and not getattr(call, "takes_float64", True):
        pytest.skip("the op takes no float64")
    tensors = call.tensors(SHAPE, dtype, device)
    expected = affine.value_and_gradients(call, tensors)
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype=low):
            affine.assert_equal(affine.value_and_gradients(call, tensors), expected)


@pytest.mark.parametrize("low", (torch.bfloat16, torch.float16), ids=cases.name_of)
@pytest.mark.parametrize("call", [call for call in QAT_CALLS if not call.given], ids=str)
def test_qat_linear_has_the_autocast_dtype(call: Int8Call, low: torch.dtype, device: str) -> None:
    """The input is cast, as linear's is, and the weight is not: its integers are those of the leaf.

    A float32 bias stays, too. Gradients come back in the leaves' dtypes.
    """
    single = torch.float32
    for dtypes in ((single,) * 3, (low, single, single), (single, low, low)):
        made = call.tensors(SHAPE, device=device)
        leaves = [t.detach().to(d).requires_grad_() for t, d in zip(made, dtypes, strict=False)]
        with torch.autocast(device, dtype=low):
            results = affine.value_and_gradients(call, tuple(leaves))
        x, *others = (t.detach() for t in leaves)
        cast = tuple(t.requires_grad_() for t in (x.to(low), *others))
        expected = affine.value_and_gradients(call, cast)
        torch.testing.assert_close(results, expected, check_dtype=False)
        assert_same_bits(results[0], expected[0])
        assert [t.dtype for t in results] == [low, *(t.dtype for t in leaves)]


def test_autocast_does_as_for_linear(device: str) -> None:
    """float64 is left alone, and so is everything where autocast is off."""
    for dtype in cases.FLOAT_DTYPES:
        x, w = (torch.randn(s, device=device, dtype=dtype) for s in ((5, 20), (7, 20)))
        for enabled in (True, False):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
                assert ops.qat_linear(x, w).dtype == nn.functional.linear(x, w).dtype


@by_differentiable
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("activation", [True, False], ids=["activation", "leaf"])
def test_checkpoint(call: affine.Call, reentrant: bool, activation: bool, device: str) -> None:
    tensors = call.tensors(SHAPE, device=device)

    def segment(x: Tensor, *rest: Tensor) -> Tensor:
        return call(torch.tanh(x) if activation else x, *rest)

    def recomputed(*given: Tensor) -> Tensor:
        return checkpoint(segment, *given, use_reentrant=reentrant)

    def gradients(function: object) -> list[Tensor]:
        for t in tensors:
            t.grad = None
        result = function(*tensors)  # type: ignore[operator]
        (result * torch.ones_like(result).cumsum(-1)).sum().backward()
        return [result.detach(), *(t.grad for t in tensors if t.grad is not None)]

    expected = gradients(segment)
    assert len(expected) == 1 + sum(t.requires_grad for t in tensors)
    affine.assert_equal(tuple(gradients(recomputed)), tuple(expected))


def learned_names(call: Any, given: dict[str, Any]) -> list[str]:
    floating = {k: v for k, v in given.items() if isinstance(v, Tensor) and v.is_floating_point()}
    # A gradient has a mask of its input.
    can = () if "_backward" in call.verb else ("input", "bias")
    return [name for name, value in floating.items() if value.requires_grad or name in can]


@pytest.mark.parametrize("call", [c for c in EVERY_CALL if c.differentiable], ids=str)
def test_only_what_requires_grad_gets_one(call: Any, device: str) -> None:
    """Each subset of what can be learned; the others get none, and nothing changes."""
    op, given = bound(call, call.tensors((3, 2, 8), device=device))
    names = learned_names(call, given)

    def gradients(wanted: tuple[str, ...]) -> dict[str, Tensor]:
        leaves = {name: given[name].detach().requires_grad_(name in wanted) for name in names}
        result = affine.outputs(op(**given | leaves))[0]
        assert result.requires_grad
        found = torch.autograd.grad(result, [leaves[n] for n in wanted], affine.ramp(result))
        return dict(zip(wanted, found, strict=True))

    whole = gradients(tuple(names))
    for count in range(1, len(names)):
        for wanted in itertools.combinations(names, count):
            for name, gradient in gradients(wanted).items():
                assert_same_bits(gradient, whole[name], f"{name} of {wanted}")
    nothing = {name: given[name].detach() for name in names}
    assert not any(t.requires_grad for t in affine.outputs(op(**given | nothing)))


@pytest.mark.parametrize("granularity", affine.KINDS, ids=str)
@pytest.mark.parametrize("learned", [False, True])
def test_threads_share_a_graph(granularity: cases.Granularity, learned: bool, device: str) -> None:
    call = affine.Call("fake_quantize", granularity, learned=learned)
    tensors = call.tensors((16, 4, 200), device=device)
    wanted = [t for t in tensors if t.requires_grad]
    y = call(torch.tanh(tensors[0]), *tensors[1:])
    expected = torch.autograd.grad(y, wanted, torch.ones_like(y), retain_graph=True)

    def run(_: int) -> None:
        for _ in range(10):
            gradients = torch.autograd.grad(y, wanted, torch.ones_like(y), retain_graph=True)
            affine.assert_equal(gradients, expected)

    side_by_side(4, run)


@by_differentiable
def test_forward_mode_is_refused_clearly(call: affine.Call, device: str) -> None:
    x, *rest = (t.detach() for t in call.tensors(SHAPE, device=device))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp is not implemented"):
        call(forward_ad.make_dual(x, torch.ones_like(x)), *rest)


@by_kind
@pytest.mark.parametrize(
    ("dtype", "to"),
    (
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
    ),
)
def test_a_served_product_in_another_dtype(
    dtype: torch.dtype, to: torch.dtype, kind: str, device: str
) -> None:
    """As linear(x^, w^).to(dtype) in the input's dtype."""
    served = Served(kind, dtype, device)
    x, dy = example(served)
    dy = dy.to(to)
    y = served(x, dtype=to)
    assert y.dtype == to
    (dx,) = torch.autograd.grad(y, x, dy)
    assert dx.dtype == dtype and torch.equal(dx, served.rule(x, dy))
