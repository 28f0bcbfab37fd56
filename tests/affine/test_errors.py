# SPDX-License-Identifier: BSD-3-Clause
"""Scales that learn where an op has no gradient for them; ops/test_wrong_calls.py has the rest."""

import pytest
import torch

from tests.support.bad_arguments.affine import KINDS, OPS, Op
from tests.support.cases import Granularity


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
def test_the_scale_of_the_backward_of_dequantize_is_a_constant(op: Op, any_device: str) -> None:
    """It is computed by dequantize, which is not named."""
    arguments = op.arguments(any_device)
    arguments["scale"].requires_grad_()
    message = rf"^baraquant::{op.name}: .*a gradient in scale"
    with pytest.raises(NotImplementedError, match=message):
        op(arguments)
