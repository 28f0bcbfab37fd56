# SPDX-License-Identifier: BSD-3-Clause
"""The ops in TorchScript: script, trace, freeze, save, load; and their gradients."""

import pytest
import torch
from torch import Tensor, nn

from tests.nn.test_quantizer_modules import saved
from tests.support import cases
from tests.support.calls.affine import ALL_CALLS, KINDS, Call, assert_equal, value_and_gradients
from tests.support.core_calls import scripted

SHAPE = (3, 4, 20)
by_call = pytest.mark.parametrize("call", ALL_CALLS, ids=str)


@by_call
def test_script(call: Call, device: str) -> None:
    tensors = call.tensors(SHAPE, device=device)
    function = scripted(call, tensors)
    expected = value_and_gradients(call, tensors)
    loaded = torch.jit.load(saved(torch.jit.save, function))
    for run in (function, function, loaded):  # twice: the profiling executor
        assert_equal(value_and_gradients(run, tensors), expected)


@by_call
def test_trace(call: Call, device: str) -> None:
    tensors = call.tensors(SHAPE, device=device)
    traced = torch.jit.trace(call.__call__, tensors)
    expected = value_and_gradients(call, tensors)
    for run in (traced, traced, torch.jit.load(saved(torch.jit.save, traced))):
        assert_equal(value_and_gradients(run, tensors), expected)
    other = call.tensors((5, 6, 24), device=device)
    assert_equal(value_and_gradients(traced, other), value_and_gradients(call, other))


@pytest.mark.parametrize("granularity", KINDS, ids=str)
def test_frozen_constants_are_folded_right(granularity: cases.Granularity, device: str) -> None:
    """Freezing may run the op at once where every argument is constant."""
    call = Call("quantize", granularity)
    weight, scale, zero_point = (t.detach() for t in call.tensors(SHAPE, device=device))

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight)
            self.register_buffer("scale", scale)
            self.register_buffer("zero_point", zero_point)

        def forward(self, x: Tensor) -> Tensor:
            return x + call(self.weight, self.scale, self.zero_point)

    x = torch.zeros(SHAPE, device=device)
    frozen = torch.jit.freeze(torch.jit.trace(Constant().eval(), x))
    assert torch.equal(frozen(x), call(weight, scale, zero_point).float())
