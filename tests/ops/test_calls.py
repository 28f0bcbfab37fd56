# SPDX-License-Identifier: BSD-3-Clause
"""How `baraquant.ops` may be called: every spelling, and everything that PyTorch lets intervene.

It calls its ops past `torch.ops`: whatever it is given, the outcome is the same.
"""

import enum
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
from tests.support.bad_arguments.affine import OPS, Op
from tests.support.bits import assert_same_bits
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


# --- odd objects ---------------------------------------------------------------------------------


class Subclass(Tensor):
    """A tensor whose calls go through `__torch_function__`."""


class Number(enum.IntEnum):
    TWO = 2


class Index:
    def __index__(self) -> int:
        return 1


def odd_objects() -> list[Any]:
    numbers = [True, False, 1, -1, 2, 2**31, 2**63 - 1, -(2**63), 2**63, 2**70, 1.0, 0.5, -0.0]
    numbers += [float("nan"), 1e400, 1j, np.float32(0.5), np.float64(0.5)]
    numbers += [np.int64(1), np.bool_(True)]
    tensors = [torch.tensor(0.5), torch.tensor(1), torch.ones(1)]
    tensors += [torch.nn.Parameter(torch.ones(()))]
    tensors += [torch.ones(4, 6, 8).as_subclass(Subclass), torch.tensor(0.5, dtype=torch.float64)]
    others = [None, "three", b"3", [1.0], (1,), {}, object(), Number.TWO, Index(), np.ones(3)]
    others += [torch.float32, torch.int8, torch.strided, torch.device("cpu"), int, float, ...]
    return numbers + tensors + others


def outcome(call: Any, *args: Any, **kwargs: Any) -> tuple[Any, BaseException | None]:
    try:
        return call(*args, **kwargs), None
    except Exception as error:
        return None, error


def assert_same(got: Any, expected: Any, note: str) -> None:
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for a, b in pairs:
        assert type(a) is type(b), note
        assert (a.stride(), a.requires_grad) == (b.stride(), b.requires_grad), note
        assert_same_bits(a, b, note)


def ways(arguments: dict[str, Any]) -> list[tuple[tuple, dict[str, Any]]]:
    """By name; by position as far as the signature goes; half of each."""
    keyword = {k: arguments[k] for k in ("dtype",) if k in arguments}
    rest = {k: v for k, v in arguments.items() if k not in keyword}
    names = list(rest)
    splits = (0, len(names), len(names) // 2)
    return [
        (tuple(rest[n] for n in names[:i]), {n: rest[n] for n in names[i:]} | keyword)
        for i in splits
    ]


def documented(right: Any, value: Any) -> bool:
    """Whether `value` is of the annotated type of an argument for which `right` is right."""
    kinds = {Tensor: Tensor, float: (int, float), int: int, torch.dtype: torch.dtype}
    return isinstance(value, next(k for t, k in kinds.items() if isinstance(right, t)))


@pytest.mark.parametrize("op", OPS, ids=str)
def test_odd_objects(op: Op) -> None:
    """No result but that of `torch.ops`, none where it refuses, one for all documented types.

    `torch.ops` converts other objects too, such as a dtype to an integer; functions need not.
    """
    fast, plain = cases.function_of(op.name), getattr(torch.ops.baraquant, op.name)
    differ = []
    for name, right in op.arguments("cpu").items():
        for value in odd_objects():
            arguments = op.arguments("cpu") | {name: value}
            expected, refused = outcome(plain, **arguments)
            for args, kwargs in ways(arguments):
                got, error = outcome(fast, *args, **kwargs)
                note = f"{name}={value!r}: {error!r}, but torch.ops: {refused!r}"[:300]
                if refused is None and error is None:
                    assert_same(got, expected, note)
                    continue
                allowed = (type(error), RuntimeError)  # RuntimeError: the schema's own refusal
                if error is None or (documented(right, value) and type(refused) not in allowed):
                    differ.append(note)
    assert not differ, "\n".join(differ)
