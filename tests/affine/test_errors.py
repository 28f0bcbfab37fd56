# SPDX-License-Identifier: BSD-3-Clause
"""Bad input: the right exception with the right words, before any kernel, alike on all devices."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.bad_arguments.affine import KINDS, OPS, PAIRS, Op
from tests.support.cases import Granularity
from tests.support.family_cases.wrong_calls import RandomCalls, WrongGranularities


class TestWrongCalls(WrongGranularities, RandomCalls):
    OPS, PAIRS = OPS, PAIRS


@pytest.mark.parametrize("verb", ("quantize", "dequantize"))
@pytest.mark.parametrize("granularity", KINDS, ids=str)
def test_a_scale_that_learns_wants_fake_quantize(
    verb: str, granularity: Granularity, any_device: str
) -> None:
    """No silent loss of a gradient; without grad mode, or for integers, nothing is lost."""
    op = Op(verb, granularity)
    arguments = op.arguments(any_device) | {"dtype": torch.float32}
    arguments["scale"].requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"^baraquant::{op.name}.*fake_quantize"):
        op(arguments)
    with torch.no_grad():
        op(arguments)
    if verb == "quantize":
        assert not op(arguments | {"dtype": torch.int8}).requires_grad


@pytest.mark.parametrize("op", [o for o in OPS if o.verb == "dequantize_backward"], ids=str)
def test_the_backward_of_dequantize_names_itself_and_its_grad(op: Op, any_device: str) -> None:
    """It is computed by dequantize, whose input is called input."""
    right = op.arguments(any_device)
    wrong = [
        (TypeError, "grad to be float32", {"grad": right["grad"].to(torch.int32)}),
        (TypeError, "scale to be torch.float32", {"scale": right["scale"].half()}),
        (TypeError, "dtype to be float32", {"dtype": torch.int8}),
        (NotImplementedError, "a gradient in scale", {"scale": right["scale"].requires_grad_()}),
        (ValueError, "scale to (be on|have)", {"scale": right["scale"].new_ones(2, 2, 2, 2)}),
    ]
    if op.granularity.kind != "per_tensor":
        wrong.append((IndexError, "grad to have at least 1", {"grad": right["grad"].new_ones(())}))
    if "axis" in right:
        wrong.append((IndexError, r"axis to be in \[-3, 2\] for grad with 3", {"axis": 9}))
    for error, words, change in wrong:
        right["scale"] = right["scale"].detach()
        with pytest.raises(error) as raised:
            op(right | change)
        message = str(raised.value).splitlines()[0]
        assert message.startswith(f"baraquant::{op.name}: ") and re.search(words, message), message
        assert "input" not in message
