# SPDX-License-Identifier: BSD-3-Clause
"""The norms, activations and gated MLPs of the fused ops, and layers that take integers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baraquant import W4A8, W8A8, ops, quantize_
from baraquant import nn as bnn
from tests.nn.test_quantizer_modules import copies
from tests.support.bits import assert_same_bits
from tests.support.models.norms import numbers, random_norm

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def gated(scheme=None, *, bias=True, dtype=torch.float32, device="cpu"):
    torch.manual_seed(3)
    layers = nn.Linear(8, 16, bias), nn.Linear(8, 16, bias), nn.Linear(16, 8, bias)
    model = nn.Sequential(bnn.GatedMLP(*layers)).to(device, dtype)
    if scheme is not None:
        quantize_(model, scheme)
    return model[0]


# ---- The modules alone --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_norms_are_the_ops_and_near_pytorch(dtype, affine, device):
    x = numbers(3, 7, 24, dtype=dtype, device=device)
    for eps in (None, 1e-6, 0.1):
        theirs = random_norm(nn.RMSNorm(24, eps, affine).to(dtype)).to(device)
        ours = bnn.RMSNorm.from_float(theirs, eps)
        assert ours.weight is theirs.weight
        default = 2.0**-52 if dtype == torch.float64 else 2.0**-23
        wanted = ops.rms_norm(x, theirs.weight, default if eps is None else eps)
        assert_same_bits(ours(x), wanted)
        torch.testing.assert_close(ours(x), theirs(x), rtol=TOLERANCE[dtype], atol=1e-2)
    for bias in (True, False):
        theirs = random_norm(nn.LayerNorm(24, 1e-5, affine, bias).to(dtype)).to(device)
        ours = bnn.LayerNorm.from_float(theirs, 1e-5)
        assert ours.weight is theirs.weight and ours.bias is theirs.bias
        assert_same_bits(ours(x), ops.layer_norm(x, theirs.weight, theirs.bias, 1e-5))
        torch.testing.assert_close(ours(x), theirs(x), rtol=TOLERANCE[dtype], atol=3e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_offset_of_an_rms_norm_is_added_in_the_compute_type(dtype):
    norm = bnn.RMSNorm(6, 1e-6, offset=1.0, dtype=dtype)
    norm.weight.data.copy_(numbers(6) * 1e-3)
    x = numbers(2, 6, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert_same_bits(norm(x), ops.rms_norm(x, norm.weight.to(wide) + 1, 1e-6))
    assert "offset=1.0" in repr(norm)


@pytest.mark.parametrize("kind", [bnn.RMSNorm, bnn.LayerNorm])
def test_parameters_of_another_dtype(kind):
    norm = random_norm(kind(6, 1e-6))
    x = numbers(2, 6, dtype=torch.bfloat16)
    assert norm(x).dtype == torch.bfloat16  # float32 parameters, the input's dtype
    low = copy.deepcopy(norm).to(torch.bfloat16)
    y = low(x.float())
    assert y.dtype == torch.float32
    assert_same_bits(y, copy.deepcopy(low).float()(x.float()))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate, device):
    x = numbers(5, 9, device=device)
    module = bnn.GELU(approximate)
    assert_same_bits(module(x), ops.gelu(x, approximate=approximate))
    torch.testing.assert_close(module(x), F.gelu(x, approximate=approximate))
    assert_same_bits(module(x.double()), F.gelu(x.double(), approximate=approximate))


def test_modules_are_trained_scripted_copied_and_pickled():
    model = nn.Sequential(bnn.RMSNorm(8), bnn.GELU(), bnn.LayerNorm(8), bnn.GELU("tanh"))
    x = numbers(4, 8).requires_grad_()
    model(x).sum().backward()
    assert x.grad.isfinite().all() and model[0].weight.grad.abs().max() > 0
    scripted = torch.jit.script(model)
    assert_same_bits(scripted(x), model(x))
    for other in copies(model):
        assert_same_bits(other(x), model(x))
        assert other[0].weight is not model[0].weight


# ---- Layers that take integers ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("change", ["none", "smooth", "rotate"])
def test_a_layer_takes_the_integers_of_an_input(dtype, symmetric, change, device):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weight = torch.randint(-127, 128, (5, 12), generator=torch.Generator().manual_seed(1))
    scale, smooth = (numbers(n, seed=seed).abs().to(wide) + 0.1 for n, seed in ((5, 2), (12, 4)))
    more = {"none": {}, "smooth": {"smooth": smooth}, "rotate": {"rotate": 4}}[change]
    tensors = weight.to(torch.int8), scale, numbers(5, seed=3, dtype=dtype)
    layer = bnn.QuantizedLinear(*tensors, symmetric=symmetric, **more).to(device)
    x = numbers(2, 3, 12, dtype=dtype, device=device)
    integers = layer.quantize(x)
    assert integers.values.dtype == torch.int8 and integers.scale.shape == (2, 3, 1)
    assert_same_bits(layer(integers), layer(x))
    assert layer(integers).dtype == dtype
    assert not layer(integers).requires_grad


def test_layers_with_the_same_integers_share_them():
    x = numbers(4, 8)
    model = nn.ModuleList(nn.Linear(8, n) for n in (3, 5, 8))
    quantize_(model, W8A8())
    shared = model[0].quantize(x)
    for layer in model:
        assert_same_bits(layer(shared), layer(x))


def test_a_layer_with_one_scale_takes_no_integers():
    weight = torch.ones(2, 4, dtype=torch.int8), torch.ones(2)
    layer = bnn.QuantizedLinear(*weight, granularity="per_tensor")
    with pytest.raises(ValueError, match="expected granularity per_token for an input of integers"):
        layer.quantize(numbers(3, 4))
    with pytest.raises(ValueError, match="expected granularity per_token"):
        layer(bnn.QuantizedLinear(*weight).quantize(numbers(3, 4)))


# ---- The gated MLP ------------------------------------------------------------------------------


def composed(mlp, x):
    """What a gated MLP computes, layer by layer."""
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    return mlp.down_proj(F.silu(gate) * up if x.dtype == torch.float64 else ops.silu_mul(gate, up))


SCHEMES = {
    "float": None,
    "W8A8": W8A8(),
    "W8A8, zero points": W8A8(symmetric=False),
    "W4A8": W4A8(None),
    "groups": W4A8(8, group_factors=False),
    "factors": W4A8(4),
    "only down": {"*down_proj": W8A8()},
    "only gate": {"*gate_proj": W8A8()},
    "all but down": {"*down_proj": None, "*": W8A8()},
    "rotated": W8A8(rotate=4),
    "rotated gate": {"*gate_proj": W8A8(rotate=8), "*": W8A8()},
    "rotated down": {"*down_proj": W8A8(rotate=8), "*": W8A8()},
    "gate and up differ": {"*gate_proj": W8A8(symmetric=False), "*": W8A8()},
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_mlp_has_the_bits_of_its_layers(scheme, dtype, device):
    mlp = gated(SCHEMES[scheme], dtype=dtype, device=device)
    x = numbers(3, 5, 8, dtype=dtype, device=device)
    with torch.no_grad():
        assert_same_bits(mlp(x), composed(mlp, x))
    recorded = x.clone().requires_grad_()
    assert_same_bits(mlp(recorded), composed(mlp, x))
    if scheme == "float":
        wanted = mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
        torch.testing.assert_close(mlp(x), wanted, rtol=2e-2, atol=2e-2)


def test_gated_mlp_gives_gradients_and_calls_hooks():
    mlp, x = gated(W8A8()), numbers(4, 8).requires_grad_()
    mlp(x).sum().backward()
    assert x.grad.abs().max() > 0
    seen = []
    for layer in (mlp.gate_proj, mlp.down_proj):
        layer.register_forward_hook(lambda module, args, output: seen.append(args[0].dtype))
    with torch.no_grad():
        y = mlp(x)
    assert seen == [torch.float32, torch.float32]
    assert_same_bits(y, composed(mlp, x))


@pytest.mark.exhaustive
def test_gated_mlp_compiled_and_exported():
    mlp, x = gated(W8A8(symmetric=False)), numbers(6, 8)
    with torch.no_grad():
        wanted = composed(mlp, x)
        assert_same_bits(torch.compile(mlp, fullgraph=True)(x), wanted)
        program = torch.export.export(nn.Sequential(mlp), (x,))
        assert_same_bits(program.module()(x), wanted)
