# SPDX-License-Identifier: BSD-3-Clause
"""Fake quantizers with ``scale_dtype``: values, gradients, state, and the tools of PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import W8A16, QuantConfig, TensorConfig, ops
from baraquant.nn import FakeQuantize
from baraquant.nn.shared.range import rounded_scale
from baraquant.qat import prepare_
from tests.nn.test_quantizer_modules import KINDS, input_of
from tests.workflow.test_scale_dtype import DTYPES, rounded

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
by_dtype = pytest.mark.parametrize("dtype", DTYPES)
GRANULARITIES: dict[str, dict[str, Any]] = {
    "per_tensor": {},
    "per_channel": {"axis": 1},
    "per_token": {},
    "per_group": {"group_size": 4},
}
LIMITS = {"bfloat16": (2.0**-126, 3.3895313892515355e38), "float16": (2.0**-24, 65504.0)}


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@by_dtype
def test_the_rounding(dtype: str) -> None:
    """Against NumPy: ties, neighbours of ties, subnormal and large numbers."""
    bits = torch.randint(0x00800000, 0x7F800000, (200000,), dtype=torch.int32)
    ties = (torch.arange(0x33000000, 0x7F000000, 0x1000, dtype=torch.int64)).to(torch.int32)
    around = torch.cat([ties - 1, ties, ties + 1])
    scale = torch.cat([bits, around]).view(torch.float32)
    least, most = LIMITS[dtype]
    wanted = rounded(scale, dtype).clamp_min(least)
    got = rounded_scale(scale, dtype)
    assert got.dtype == torch.float32 and torch.equal(got, wanted)
    assert bool(got.isinf().any()) and bool((got == least).any()) and bool((got == most).any())
    assert torch.equal(rounded_scale(scale.double(), dtype), wanted.double())
    special = torch.tensor([float("nan"), float("inf")])
    assert rounded_scale(special, dtype)[0].isnan() and rounded_scale(special, dtype)[1].isinf()
    # float64 is rounded once: through float32 this would be a tie.
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    above = torch.tensor(1 + step + 2.0**-40, dtype=torch.float64)
    assert rounded_scale(above, dtype).item() == 1 + 2 * step
    assert rounded_scale(scale, "float32") is scale


@by_dtype
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (0, 8)], ids=str)
@pytest.mark.exhaustive
def test_a_dynamic_scale(
    granularity: str, symmetric: bool, dtype: str, shape: tuple[int, ...]
) -> None:
    how = {"granularity": granularity, **GRANULARITIES[granularity], "mode": "dynamic"}
    module = FakeQuantize(**how, symmetric=symmetric, scale_dtype=dtype)
    plain = FakeQuantize(**how, symmetric=symmetric)
    x = values(*shape).requires_grad_()
    integers, scale, zeros = module.quantize(x.detach())
    _, before, zeros_before = plain.quantize(x.detach())
    assert torch.equal(scale, rounded(before, dtype)) and scale.shape == before.shape
    assert zeros.shape == zeros_before.shape and zeros.dtype == torch.int32
    assert int((zeros - zeros_before).abs().max()) <= 1 if zeros.numel() else True
    fixed = FakeQuantize(scale, zeros, granularity, **GRANULARITIES[granularity])
    assert torch.equal(fixed.quantize(x.detach())[0], integers)
    got = module(x)
    assert torch.equal(got, fixed(x)) and torch.equal(module.round(x), got)
    gradient = torch.autograd.grad(got.sum(), x)[0]
    assert torch.equal(gradient, torch.autograd.grad(fixed(x).sum(), x)[0])
    if symmetric and x.numel():
        assert torch.equal(gradient, torch.ones_like(x))


@by_dtype
def test_a_given_scale_and_a_state(dtype: str) -> None:
    scale = torch.tensor([0.1, 0.3])
    module = FakeQuantize(scale, None, "per_channel", axis=0, scale_dtype=dtype)
    assert torch.equal(module.scale, rounded(scale, dtype)) and scale[0] == 0.1 * torch.ones(())
    x = values(2, 4)
    assert torch.equal(module(x), ops.fake_quantize_per_channel(x, module.scale, None, 0))
    other = FakeQuantize(scale + 0.05, None, "per_channel", axis=0)
    for assign in (False, True):
        module.load_state_dict(other.state_dict(), assign=assign)
        assert torch.equal(module.scale, rounded(other.scale, dtype))
        assert torch.equal(other.scale, scale + 0.05), "the state itself is as it was"


@by_dtype
@pytest.mark.inductor
@pytest.mark.exhaustive
def test_compiled(dtype: str) -> None:
    """TorchInductor removes a cast to bfloat16 and back; the rounding has to survive that."""
    for kind in (kind for kind in KINDS if kind.endswith(dtype)):
        module, x = KINDS[kind](1), input_of(kind)
        if kind.startswith("observed"):
            module.enable_observer()
        torch.compiler.reset()
        compiled = torch.compile(copy.deepcopy(module), fullgraph=True)
        for step in (1, 2):
            leaf, twin = (x * step).requires_grad_(), (x * step).requires_grad_()
            got, wanted = compiled(leaf), module(twin)
            assert torch.equal(got, wanted)
            got.sum().backward()
            wanted.sum().backward()
            assert torch.equal(leaf.grad, twin.grad)
    layer = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
    config = QuantConfig(TensorConfig(4, symmetric=False, learned=True), scale_dtype=dtype)
    prepare_(layer, {"0": config, "1": W8A16(scale_dtype=dtype)})
    compiled, x = torch.compile(layer, fullgraph=True), values(3, 8)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-6, atol=1e-6)
    weight = torch.compile(lambda: layer[0].fake_quantized_weight(), fullgraph=True)()
    assert torch.equal(weight, layer[0].fake_quantized_weight())
