# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the ops of four-bit weights: the exception and its words, on all devices."""

from __future__ import annotations

import re

import pytest

from tests.support.bad_arguments.int4 import OPS, PAIRS
from tests.support.calls.int4 import INT4_CALLS, LINEARS, Int4Call
from tests.support.family_cases.wrong_calls import RandomCalls, WrongDtypes


class TestWrongCalls(WrongDtypes, RandomCalls):
    OPS, PAIRS = OPS, PAIRS


@pytest.mark.parametrize("call", [c for c in INT4_CALLS if c.differentiable], ids=str)
def test_recorded_calls_say_the_same(call: Int4Call) -> None:
    """The op for int8 computes those, but is not named."""
    _, right = call.arguments(*call.tensors((3, 10)))
    wrong = {
        "packed": right["packed"][:, 1:],
        "group_factor": right["group_factor"].int(),
        "weight_scale": right["weight_scale"][1:],
        "group_size": 3,
        "quant_max": 300,
    }
    for name, value in wrong.items():
        with pytest.raises((ValueError, TypeError)) as plain:
            call.function(**right | {name: value})
        recorded = right | {"input": right["input"].clone().requires_grad_()}
        with pytest.raises(type(plain.value), match=f"^{re.escape(str(plain.value))}$"):
            call.function(**recorded | {name: value})


@pytest.mark.parametrize("call", [c for c in INT4_CALLS if c.verb in LINEARS], ids=str)
def test_a_scale_that_requires_grad_is_refused(call: Int4Call) -> None:
    _, right = call.arguments(*call.tensors((3, 8)))
    for name in {"weight_scale", "input_scale", "act_scale"} & set(right):
        scale = right[name].clone().requires_grad_()
        with pytest.raises(NotImplementedError, match=rf"{call.verb}: .*{name}"):
            call.function(**right | {name: scale})
