# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.ops` calls its ops past `torch.ops`: whatever it is given, the outcome is the same."""

import enum
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.bad_arguments.affine import OPS, Op
from tests.support.bits import assert_same_bits
from tests.support.cases import function_of


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


def functions(op: Op) -> tuple[Any, Any]:
    return function_of(op.name), getattr(torch.ops.baraquant, op.name)


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
    fast, plain = functions(op)
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
