# SPDX-License-Identifier: BSD-3-Clause
"""How `baraquant.ops` may be called: every spelling, and everything that PyTorch lets intervene."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from baraquant import ops
from tests.support import cases
from tests.support.calls.affine import ALL_CALLS, Call, outputs
from tests.support.calls.range import OBSERVE_CALLS
from tests.support.core_calls import overload_of

SHAPE = (3, 4, 20)
by_call = pytest.mark.parametrize("call", ALL_CALLS, ids=str)
FAKE = Call("fake_quantize", cases.per_channel(1))


def same(actual: Any, expected: Any) -> bool:
    return all(map(torch.equal, outputs(actual), outputs(expected)))


@by_call
def test_positions_and_keywords_are_the_same(call: Call, device: str) -> None:
    args, kwargs = call.arguments(*call.tensors(SHAPE, device=device))
    names = [a.name for a in overload_of(call)._schema.arguments]
    expected = overload_of(call)(*args, **kwargs)
    for split in range(len(args) + 1):
        named = dict(zip(names[split : len(args)], args[split:], strict=True))
        for function in (call.function, overload_of(call).overloadpacket):
            assert same(function(*args[:split], **named, **kwargs), expected)


@by_call
def test_defaults_are_the_ops(call: Call, device: str) -> None:
    args, kwargs = call.arguments(*call.tensors(SHAPE, device=device))
    if call.ranged:
        args = args[:-2]
    for function in (call.function, overload_of(call).overloadpacket):
        assert same(function(*args, **kwargs), overload_of(call)(*args, **kwargs))


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("an argument missing", (), {}),
    ("one too many", (1, -8, 7, None, 5), {}),
    ("a keyword that is none", (1,), {"bits": 8}),
    ("one given twice", (1,), {"axis": 1}),
    ("a number for an integer", (1.0,), {}),
    ("text for an integer", ("1",), {}),
    ("an integer beyond 64 bits", (1, -(2**70)), {}),
]


@pytest.mark.parametrize(("args", "kwargs"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_calls(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises((TypeError, RuntimeError, ValueError, OverflowError)):
        ops.fake_quantize_per_channel(*FAKE.tensors(SHAPE), *args, **kwargs)


def test_a_wrong_type_is_named() -> None:
    x = torch.randn(4)
    with pytest.raises(TypeError, match=r"fake_quantize_per_tensor: expected scale .* got list$"):
        ops.fake_quantize_per_tensor(x, [0.1], 0)
    with pytest.raises(TypeError, match=r"quantize_per_tensor: expected zero_point .* got str"):
        ops.fake_quantize_per_tensor(x, 0.1, "0")
    with pytest.raises(TypeError, match=r"choose_qparams_per_channel: expected axis .* got float$"):
        ops.choose_qparams_per_channel(x, 0.0)
    with pytest.raises(ValueError, match=r"expected quant_min to fit in 64 bits"):
        ops.choose_qparams_per_tensor(x, -(2**70))


def test_torch_ops_stay_pytorchs() -> None:
    """Faster calls change neither what other code sees of an op nor the errors of wrong calls."""
    op = torch.ops.baraquant.fake_quantize_per_tensor
    assert isinstance(op, torch._ops.OpOverloadPacket)
    assert op.number.overloadpacket is op
    assert set(op.overloads()) == {"default", "scale_tensor", "number"}
    with pytest.raises(RuntimeError, match=r"(?s)failed to match any schema.*fake_quantize_per_t"):
        op(torch.randn(4), "0.1", 0)
    with pytest.raises(RuntimeError, match="missing value for argument 'scale'"):
        op(torch.randn(4))


def test_torch_ops_take_numbers_without_a_trial_of_each_overload() -> None:
    """PyTorch's own search would build a message for each overload that does not fit."""
    x = torch.randn(4)
    with mock.patch.object(torch._ops.OpOverloadPacket, "__call__") as search:
        result = torch.ops.baraquant.fake_quantize_per_tensor(x, 0.1, 0)
    search.assert_not_called()
    assert torch.equal(result, ops.fake_quantize_per_tensor(x, 0.1, 0))


def test_scalars_of_numpy_are_numbers() -> None:
    x = torch.randn(10)
    for scale in (np.float32(0.25), np.float64(0.25), np.float16(0.25)):
        actual = ops.fake_quantize_per_tensor(x, scale, np.int32(3), np.int64(-8), quant_max=7)
        assert torch.equal(actual, ops.fake_quantize_per_tensor(x, 0.25, 3, -8, 7))
    assert torch.equal(
        ops.quantize_per_tensor(x, np.int8(2), np.uint8(1)), ops.quantize_per_tensor(x, 2.0, 1)
    )


def test_number_like_arguments() -> None:
    """Integers for the scale, bools and one-element tensors do what torch.ops makes of them."""
    x = torch.randn(10)
    assert torch.equal(
        ops.fake_quantize_per_tensor(x, 1, 0), ops.fake_quantize_per_tensor(x, 1.0, 0)
    )
    scale = torch.nn.Parameter(torch.tensor(0.5))
    for op in (ops.fake_quantize_per_tensor, torch.ops.baraquant.fake_quantize_per_tensor):
        assert op(x, scale, None).requires_grad


class Wrapper(Tensor):
    """A subclass that records what reaches it."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


@by_call
def test_subclasses_intervene(call: Call) -> None:
    tensors = tuple(t.detach() for t in call.tensors(SHAPE))
    expected = call(*tensors)
    Wrapper.seen.clear()
    result = call(tensors[0].as_subclass(Wrapper), *tensors[1:])
    assert any(call.function.__name__ in name for name in Wrapper.seen)
    assert all(isinstance(r, Wrapper) for r in outputs(result))
    assert same(tuple(r.as_subclass(Tensor) for r in outputs(result)), expected)


SEEN: list[str] = []


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(str(func))
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", (*ALL_CALLS, *OBSERVE_CALLS), ids=str)
def test_modes_intervene(call: Any) -> None:
    tensors = call.tensors(SHAPE)
    expected = call(*tensors)
    for mode, name in ((Functions(), call.function.__name__), (Dispatches(), "baraquant")):
        SEEN.clear()
        with mode:
            assert same(call(*tensors), expected)
        assert any(name in seen for seen in SEEN), SEEN


def test_references_are_not_leaked() -> None:
    import sys

    tensors = FAKE.tensors(SHAPE)
    before = [sys.getrefcount(t) for t in tensors]
    for _ in range(20):
        FAKE(*tensors)
        with pytest.raises(ValueError, match="quant_min"):
            ops.fake_quantize_per_channel(*tensors, 1, 7, quant_max=7)
    assert [sys.getrefcount(t) for t in tensors] == before
