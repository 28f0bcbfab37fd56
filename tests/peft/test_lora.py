# SPDX-License-Identifier: BSD-3-Clause
"""LoRA over every kind of quantized layer: it trains, is saved, is loaded, and merges."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import nn as bnn
from tests.peft import models
from tests.peft.models import SCHEMES, adapted, base, evaluate
from tests.support.models.made import quantized

DTYPES = (torch.float32, torch.bfloat16)
WEIGHTS = [baraquant.W8A16(), baraquant.W4A16(group_size=4)]
GROUPS = pytest.param("4 bits in groups", marks=pytest.mark.exhaustive)
KINDS = {
    "dynamic": bnn.QuantizedLinear,
    "dynamic asymmetric": bnn.QuantizedLinear,
    "static": bnn.StaticQuantizedLinear,
    "4 bits, int8 input": bnn.QuantizedLinear,
    "4 bits in groups": bnn.WeightOnlyInt4Linear,
}

AGAIN = {  # not rotated and not smoothed: that is undone in floating point
    "W8A8": baraquant.W8A8(), "W8A16": baraquant.W8A16(), "W4A16": baraquant.W4A16(16),
    "W4A16 asymmetric": baraquant.W4A16(16, symmetric=False), "W4A8(None)": baraquant.W4A8(None),
    "W4A8": baraquant.W4A8(16), "W4A8 asymmetric": baraquant.W4A8(16, symmetric=False),
}  # fmt: skip


def nearness(scheme: str, dtype: torch.dtype) -> float:
    """Integer products round the input too, float layers do not."""
    rounds = "int8" in scheme or "A8" in scheme or "bits" not in scheme
    return max(0.05 if rounds else 1e-5, 0.02 if dtype == torch.bfloat16 else 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_linear_layers(scheme: str, dtype: torch.dtype, tmp_path: Path, recwarn: Any) -> None:
    model = base(scheme, dtype)
    assert isinstance(model[0], KINDS.get(scheme, nn.Module))
    baraquant.save(model, tmp_path / "base.safetensors")
    again = baraquant.load_(models.mlp(dtype, seed=3), tmp_path / "base.safetensors")
    near = nearness(scheme, dtype)
    merged = models.check_life(model, models.inputs(dtype), tmp_path, near, again=again)
    assert [type(module) for module in merged] == [nn.Linear, nn.GELU, nn.Linear]
    assert merged[0].weight.dtype == dtype
    assert not [str(w.message) for w in recwarn if "Unsupported layer" in str(w.message)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_merged_weights_are_the_sum(scheme: str, dtype: torch.dtype) -> None:
    adapter = adapted(base(scheme, dtype), init_lora_weights=False)
    assert all(p.dtype == torch.float32 for p in adapter.parameters() if p.requires_grad)
    layers = list(models.lora_layers(adapter))
    deltas = [layer.get_delta_weight("default").float() for layer in layers]
    weights = [layer.base_layer.weight.float() for layer in layers]
    wanted = [(w + delta).to(dtype) for w, delta in zip(weights, deltas, strict=True)]
    adapter.merge_adapter()
    for layer, weight in zip(layers, wanted, strict=True):
        assert type(layer.base_layer) is nn.Linear and torch.equal(layer.base_layer.weight, weight)


@pytest.mark.parametrize("scheme", ["dynamic", GROUPS])
def test_computes_the_base_plus_the_adapter(scheme: str) -> None:
    """And passes the base's gradient on to the input."""
    model = base(scheme)
    layer, batch = copy.deepcopy(model[0]), models.inputs().requires_grad_()
    adapter = adapted(model, lora_alpha=12)
    models.train(adapter, batch.detach())
    lora = adapter.base_model.model[0]
    assert type(lora) is baraquant.peft.LoraLinear and "LoraLinear" in repr(lora)
    a, b = lora.lora_A.default.weight, lora.lora_B.default.weight
    wanted = layer(batch) + batch @ a.t() @ b.t() * 3.0
    got = lora(batch)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(y.square().sum(), batch)[0] for y in (got, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_unload_gives_the_integers_back() -> None:
    model = base("4 bits in groups")
    before, kinds = models.base_state(model), [type(m) for m in model]
    adapter = adapted(model)
    models.train(adapter, models.inputs())
    result = adapter.unload()
    assert [type(m) for m in result] == kinds and models.same(models.base_state(result), before)


@pytest.mark.exhaustive
def test_a_merged_model_moves_with_its_integers() -> None:
    """Conversions while merged reach the layer that waits to come back."""
    adapter = adapted(base("dynamic"))
    models.train(adapter, models.inputs())
    layer = adapter.base_model.model[0]
    adapter.merge_adapter()
    adapter.to(torch.bfloat16)
    adapter.unmerge_adapter()
    assert layer.base_layer.dtype == layer.base_layer.bias.dtype == torch.bfloat16
    assert layer.base_layer.weight_scale.dtype == torch.float32
    assert evaluate(adapter, models.inputs(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.exhaustive
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("scheme", WEIGHTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolutions(dimensions: int, scheme: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = quantized(models.conv(dimensions).to(dtype), scheme)
    batch = torch.randn(2, 8, *[7] * dimensions, dtype=dtype)
    near = 0.02 if dtype == torch.bfloat16 else 1e-5
    merged = models.check_life(model, batch, tmp_path, near, ["conv"]).conv
    assert type(merged) is type(models.conv(dimensions).conv)
    assert merged.stride == (2,) * dimensions and merged.padding == (1,) * dimensions


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", WEIGHTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embeddings(scheme: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = quantized(models.of_tokens().to(dtype), scheme)
    assert type(model.table) is bnn.QuantizedEmbedding
    near = 0.03 if dtype == torch.bfloat16 else 1e-5
    targets = ["table", "body.0"]
    table = models.check_life(model, models.tokens(), tmp_path, near, targets).table
    assert type(table) is nn.Embedding and table.padding_idx == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", AGAIN)
def test_merging_nothing_and_quantizing_again_is_the_identity(
    name: str, dtype: torch.dtype
) -> None:
    model = quantized(models.mlp(dtype), AGAIN[name])
    weights = [model[i].weight.clone() for i in (0, 2)]
    merged = adapted(model).merge_and_unload()  # B is zero
    assert type(merged[0]) is nn.Linear
    again = quantized(merged, AGAIN[name])
    assert all(torch.equal(again[i].weight, w) for i, w in zip((0, 2), weights, strict=True))
