# SPDX-License-Identifier: BSD-3-Clause
"""Fake quantizers with ``scale_dtype``: values, gradients, state, and the tools of PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import W8A16, QuantConfig, TensorConfig, ops
from baraquant.nn import FakeQuantize, LearnedFakeQuantize
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
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.exhaustive
def test_an_observed_scale(dtype: str, symmetric: bool, channels: int | None) -> None:
    how: dict[str, Any] = {"mode": "observed", "symmetric": symmetric}
    if channels is not None:
        how |= {"granularity": "per_channel", "axis": 0, "channels": channels}
    module, plain = FakeQuantize(**how, scale_dtype=dtype), FakeQuantize(**how)
    for step in range(3):
        x = values(3, 8) * (step + 1)
        got = module(x)
        plain(x)
        assert torch.equal(module.min_val, plain.min_val)
        assert torch.equal(module.scale, rounded(plain.scale, dtype))
        assert not torch.equal(module.scale, plain.scale)
        assert torch.equal(got, module.round(x))
        assert all(
            torch.equal(one, two)
            for one, two in zip(
                module.calculate_qparams(), (module.scale, module.zero_point), strict=True
            )
        )
    scale = module.scale.clone()
    assert torch.equal(module(torch.full((3, 8), float("nan"))).isnan(), torch.ones(3, 8) > 0)
    assert torch.equal(module.scale, scale) and module.skipped_batches == 1
    module.disable_observer()
    module(x * 9)
    assert torch.equal(module.scale, scale)
    module.disable_fake_quant()
    assert torch.equal(module(x), x)
    module.enable_observer()
    module.enable_fake_quant()
    # A second forward pass before the first one's backward pass.
    leaf = values(3, 8).requires_grad_()
    (module(leaf).sum() + module(leaf * 2).sum()).backward()
    assert leaf.grad is not None and bool((leaf.grad == 3).all())
    frozen = module.eval().freeze()
    assert torch.equal(frozen.scale, module.scale) and torch.equal(frozen(x), module.round(x))


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
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.exhaustive
def test_a_learned_step_is_rounded_straight_through(dtype: str, symmetric: bool) -> None:
    how: dict[str, Any] = {"quant_min": -8, "quant_max": 7, "symmetric": symmetric}
    shape = {"granularity": "per_channel", "axis": 0, "shape": (3,)}
    module, twin = LearnedFakeQuantize(**how, **shape, scale_dtype=dtype), LearnedFakeQuantize(
        **how, **shape
    )  # fmt: skip
    x = values(3, 8)
    module(x)
    with torch.no_grad():
        module.scale.mul_(1.01)
    twin.load_state_dict(module.state_dict())
    with torch.no_grad():
        twin.scale.copy_(rounded(module.scale, dtype))
    assert not torch.equal(twin.scale, module.scale)
    results = []
    for one in (module, twin):
        leaf = x.clone().requires_grad_()
        output = one(leaf)
        output.square().sum().backward()
        results.append([output.detach(), leaf.grad, *(p.grad for p in one.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(module.quantize(x), twin.quantize(x), strict=True))
    assert torch.equal(module.calculate_qparams()[0], twin.scale)


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
