# SPDX-License-Identifier: BSD-3-Clause
"""LoRA over every kind of quantized layer: it trains, is saved, is loaded, and merges."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import baraquant
from baraquant import nn as bnn
from baraquant.workflow.layers import is_converted, is_prepared
from tests.peft import models
from tests.peft.models import SCHEMES, WIDTH, adapted, evaluate, peft, quantized

DTYPES = (torch.float32, torch.bfloat16)
KINDS = {
    "dynamic": bnn.QuantizedLinear,
    "dynamic asymmetric": bnn.QuantizedLinear,
    "static": bnn.StaticQuantizedLinear,
    "4 bits, int8 input": bnn.QuantizedLinear,
    "4 bits in groups": bnn.WeightOnlyInt4Linear,
}


def base(scheme: str, dtype: torch.dtype = torch.float32) -> Any:
    model = quantized(models.mlp(dtype), SCHEMES[scheme], models.inputs(dtype, 32))
    wanted = KINDS.get(scheme)
    assert wanted is None or type(model[0]) is wanted
    return model


def check_trains(model: nn.Module, batch: Tensor) -> None:
    """Only the adapters get gradients and change; the loss falls."""
    before = models.base_state(model)
    adapters = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    assert adapters and all("lora_" in name for name in adapters)
    losses = models.train(model, batch, steps=5)
    assert losses[-1] < losses[0]
    assert models.same(models.base_state(model), before)
    assert all(p.grad is None for n, p in model.named_parameters() if n not in adapters)
    changed = dict(model.named_parameters())
    assert all(not torch.equal(changed[name], old) for name, old in adapters.items())


def check_file(folder: Path) -> None:
    """Nothing but the adapters is saved."""
    names = load_file(folder / "adapter_model.safetensors")
    assert names and all(".lora_" in name for name in names)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_trains_saves_and_loads(scheme: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = base(scheme, dtype)
    baraquant.save(model, tmp_path / "base.safetensors")
    batch = models.inputs(dtype)
    before = evaluate(model, batch)
    adapter = adapted(model)
    assert all(p.dtype == torch.float32 for p in adapter.parameters() if p.requires_grad)
    assert torch.equal(evaluate(adapter, batch), before), "an adapter starts as nothing"
    check_trains(adapter, batch)
    after = evaluate(adapter, batch)
    assert after.dtype == dtype and not torch.equal(after, before)
    adapter.save_pretrained(tmp_path)
    check_file(tmp_path)

    loaded_base = models.mlp(dtype, seed=3)
    baraquant.load_(loaded_base, tmp_path / "base.safetensors")
    loaded = peft.PeftModel.from_pretrained(loaded_base, tmp_path)
    assert torch.equal(evaluate(loaded, batch), after)
    assert not any(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize(
    "scheme", ["dynamic", pytest.param("4 bits in groups", marks=pytest.mark.exhaustive)]
)
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
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_merges_into_a_float_layer_and_back(scheme: str, dtype: torch.dtype) -> None:
    model, batch = base(scheme, dtype), models.inputs(dtype)
    adapter = adapted(model)
    models.train(adapter, batch)
    integers, before = models.base_state(adapter), evaluate(adapter, batch)
    layers = list(models.lora_layers(adapter))
    wanted = [
        (layer.base_layer.weight.float() + layer.get_delta_weight("default").float()).to(dtype)
        for layer in layers
    ]
    for safe in (False, True):
        adapter.merge_adapter(safe_merge=safe)
        assert all(type(layer.base_layer) is nn.Linear for layer in layers)
        for layer, weight in zip(layers, wanted, strict=True):
            assert torch.equal(layer.base_layer.weight, weight)
        merged = evaluate(adapter, batch)
        # Integer products round the input too, float layers do not.
        tolerance = 0.05 if "int8" in scheme or "A8" in scheme or "bits" not in scheme else 1e-5
        tolerance = max(tolerance, 0.02 if dtype == torch.bfloat16 else 0)
        error = (merged.float() - before.float()).norm() / before.float().norm()
        assert error < tolerance
        adapter.unmerge_adapter()
        assert models.same(models.base_state(adapter), integers)
        assert torch.equal(evaluate(adapter, batch), before)
    result = adapter.merge_and_unload()
    assert [type(module) for module in result] == [nn.Linear, nn.GELU, nn.Linear]
    assert all(torch.equal(result[int(i)].weight, w) for i, w in zip("02", wanted, strict=True))
    assert torch.equal(evaluate(result, batch), merged)
    assert result[0].weight.dtype == dtype


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
@pytest.mark.parametrize("scheme", [baraquant.W8A16(), baraquant.W4A16(group_size=4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolutions(dimensions: int, scheme: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = quantized(models.Conv(dimensions).to(dtype), scheme)
    again = copy.deepcopy(model)
    batch = torch.randn(2, 8, *[7] * dimensions, dtype=dtype)
    adapter = adapted(model, ["conv"])
    check_trains(adapter, batch)
    after, integers = evaluate(adapter, batch), models.base_state(adapter)
    adapter.save_pretrained(tmp_path)
    check_file(tmp_path)
    loaded = peft.PeftModel.from_pretrained(again, tmp_path)
    assert torch.equal(evaluate(loaded, batch), after)
    adapter.merge_adapter()
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(evaluate(adapter, batch), after, rtol=tolerance, atol=tolerance)
    adapter.unmerge_adapter()
    assert models.same(models.base_state(adapter), integers)
    merged = adapter.merge_and_unload().conv
    assert type(merged) is type(models.Conv(dimensions).conv)
    assert merged.stride == (2,) * dimensions and merged.padding == (1,) * dimensions


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", [baraquant.W8A16(), baraquant.W4A16(group_size=16)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embeddings(scheme: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = quantized(models.OfTokens(models.mlp()).to(dtype), scheme)
    again, batch = copy.deepcopy(model), models.tokens()
    assert type(model.table) is bnn.QuantizedEmbedding
    adapter = adapted(model, ["table", "body.0"])
    check_trains(adapter, batch)
    after, integers = evaluate(adapter, batch), models.base_state(adapter)
    adapter.save_pretrained(tmp_path, save_embedding_layers=False)
    check_file(tmp_path)
    loaded = peft.PeftModel.from_pretrained(again, tmp_path)
    assert torch.equal(evaluate(loaded, batch), after)
    adapter.merge_adapter()
    tolerance = 0.03 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(evaluate(adapter, batch), after, rtol=tolerance, atol=tolerance)
    adapter.unmerge_adapter()
    assert models.same(models.base_state(adapter), integers)
    table = adapter.merge_and_unload().table
    assert type(table) is nn.Embedding and table.padding_idx == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "scheme",
    ["dynamic", "static", "4 bits in groups", "rotated dynamic", "rotated static"],
)
@pytest.mark.parametrize("convert_first", [False, True])
def test_prepared_layers(scheme: str, convert_first: bool) -> None:
    """An adapter over a prepared layer keeps working when the layer is converted."""
    model, batch = models.mlp(), models.inputs()
    baraquant.qat.prepare_(model, SCHEMES[scheme])
    model(batch)
    adapter = adapted(model, list(models.MLP))
    assert all(is_prepared(layer.base_layer) for layer in models.lora_layers(adapter))
    check_trains(adapter, batch)
    after = evaluate(adapter, batch)
    weights = [p.detach().clone() for p in adapter.base_model.model[0].base_layer.parameters()]
    if convert_first:
        baraquant.qat.convert_(adapter)
        assert all(is_converted(layer.base_layer) for layer in models.lora_layers(adapter))
        assert torch.equal(evaluate(adapter, batch), after)
    for mode in (True, False):
        adapter.train(mode)
        adapter.merge_adapter()
        merged = evaluate(adapter, batch)
        assert (merged - after).norm() / after.norm() < 0.1
        adapter.train(mode)
        adapter.unmerge_adapter()
        torch.testing.assert_close(evaluate(adapter, batch), after, rtol=2e-2, atol=2e-2)
    if not convert_first:
        now = list(adapter.base_model.model[0].base_layer.parameters())
        torch.testing.assert_close(now, weights)


@pytest.mark.exhaustive
def test_target_sizes_are_known_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    adapted(base("dynamic"))
    assert not [str(w.message) for w in recwarn if "Unsupported layer" in str(w.message)]
    assert WIDTH == 32
