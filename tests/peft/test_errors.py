# SPDX-License-Identifier: BSD-3-Clause
"""What adapters over integers cannot do says so, before anything has changed."""

import contextlib
import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import nn as bnn
from baraquant.workflow import transaction
from tests.nn.expert_models import experts
from tests.peft import models
from tests.peft.models import adapted, base, evaluate, peft
from tests.support.checks.refused import refused
from tests.support.models.made import prepared, quantized


@pytest.mark.exhaustive
def test_initial_values_out_of_gradients() -> None:
    config = {"init_lora_weights": "lora_ga", "lora_ga_config": peft.LoraGAConfig()}
    adapted(base(), **config)  # without a gradient PEFT takes plain initial values
    model = base()
    model[2]._peft_loraga_grad = torch.zeros(32, 64)
    refused(adapted, "baraquant.peft: 2: expected initial values", model, **config)


def with_transposed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ConvTranspose1d(8, 8, 3))


def of_experts() -> nn.Module:
    model = quantized(nn.Sequential(nn.Linear(8, 8), experts()), W8)
    assert isinstance(model[1], bnn.QuantizedExperts)
    return model


W8 = baraquant.W8A16()
BOTH = {"targets": ["0", "1"]}
NO_LORA = "1: expected a layer that PEFT has a LoRA for.*"
OF_TOKENS = "expected a float embedding for trainable_token_indices"
Refused = tuple[Callable[[], Any], type[Exception], str, Callable[[], dict[str, Any]]]
REFUSED: dict[str, Refused] = {
    **{f"initial values {name}": (base, ValueError,
        rf"baraquant.peft: 0: expected initial values .* init_lora_weights='{name}': the weight",
        lambda name=name: {"init_lora_weights": name, "loftq_config": {"loftq_bits": 4}
            if name == "loftq" else {}})
        for name in ("pissa", "pissa_niter_4", "olora", "corda", "loftq")},
    **{f"bias {bias}, {scheme}": (partial(base, scheme), ValueError,
        rf"baraquant.peft: 0: expected bias='none', but got '{bias}'.*lora_bias=True",
        lambda bias=bias: {"bias": bias})
        for bias in ("all", "lora_only") for scheme in ("dynamic", "4 bits in groups")},
    "kasa": (base, ValueError, "baraquant.peft: 0: expected kasa_config=None",
        lambda: {"kasa_config": peft.tuners.lora.config.KasaConfig()}),
    "transposed": (lambda: quantized(with_transposed(), W8), NotImplementedError,
        NO_LORA + "ConvTranspose1d; leave it out", lambda: BOTH),
    "transposed, prepared": (lambda: prepared(with_transposed(), W8), NotImplementedError,
        NO_LORA + "ConvTranspose1d; leave it out", lambda: BOTH),
    "rank of groups": (lambda: quantized(
        nn.Sequential(nn.Conv1d(8, 8, 1), nn.Conv1d(9, 9, 1, groups=3)), W8), ValueError,
        "1: expected a rank that is a multiple of the convolution's 3 groups, but got r=4",
        lambda: BOTH),
    "parameters": (base, NotImplementedError,
        "0: expected target_parameters .* but got '0.weight', and weight is quantized",
        lambda: {"targets": None, "target_parameters": ["0.weight"]}),
    "experts": (of_experts, NotImplementedError, NO_LORA + "QuantizedExperts", lambda: BOTH),
    "parameters of experts": (of_experts, NotImplementedError,
        "1: expected target_parameters to name parameters of float layers, but got '1.down_proj'",
        lambda: {"targets": ["0"], "target_parameters": ["1.down_proj"]}),
    "tokens": (lambda: quantized(models.of_tokens(), W8), ValueError,
        f"baraquant.peft: table: {OF_TOKENS}",
        lambda: {"targets": ["0"], "trainable_token_indices": {"table": [1]}}),
    "tokens of a whole model": (lambda: quantized(models.llama(), W8), ValueError,
        f"embed_tokens: {OF_TOKENS}",
        lambda: {"targets": ["q_proj"], "trainable_token_indices": [1]}),
    "targets that are not there": (base, ValueError, "(?i)target modules .*nothing",
        lambda: {"targets": ["nothing"]}),
}  # fmt: skip
LONG = [pytest.param(n, marks=[pytest.mark.exhaustive] * (n[-5:] != "pissa")) for n in REFUSED]


@pytest.mark.parametrize("case", LONG)
def test_what_is_refused(case: str) -> None:
    make, error, text, options = REFUSED[case]
    refused(adapted, text, make(), error=error, **options())


@pytest.mark.exhaustive
def test_what_is_near_to_that_is_taken() -> None:
    for bias in ("all", "lora_only"):
        adapted(quantized(nn.Sequential(nn.Linear(32, 32, bias=False)), W8), bias=bias)
    floating = {"*embed_tokens": None, "*": W8}
    adapted(quantized(models.llama(), floating), ["q_proj"], trainable_token_indices=[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["IA3Config", "LoHaConfig", "LoKrConfig", "OFTConfig"])
def test_other_adapters(name: str) -> None:
    extra = {"feedforward_modules": []} if name == "IA3Config" else {}
    config = getattr(peft, name)(target_modules="all-linear", **extra)
    text = rf"baraquant.peft: 0: expected a LoRA adapter \(LoraConfig\), but got {name}"
    refused(peft.get_peft_model, text, base(), config, error=NotImplementedError)


@pytest.mark.exhaustive
def test_unmerging_what_was_converted() -> None:
    model = prepared(models.mlp(), baraquant.W8A8())
    adapter = adapted(model, list(models.MLP), init_lora_weights=False)
    adapter.merge_adapter()
    baraquant.qat.convert_(adapter)
    merged = evaluate(adapter, models.inputs())
    with pytest.raises(RuntimeError, match=r"merged and then became a QuantizedLinear"):
        adapter.unmerge_adapter()
    assert torch.equal(evaluate(adapter, models.inputs()), merged)


FAILING = {
    "not finite": (ValueError, "NaNs detected"),
    "groups": (NotImplementedError, "groups > 1"),
    "no bias": (RuntimeError, "Impossible to merge"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", FAILING)
def test_a_merge_that_fails_leaves_the_integers(case: str) -> None:
    error, text = FAILING[case]
    options: dict[str, Any] = {"targets": ["0"]}
    if case == "groups":
        model, batch = nn.Sequential(nn.Conv1d(8, 8, 1, groups=2)), torch.randn(2, 8, 5)
    else:
        model, batch = nn.Sequential(nn.Linear(32, 32, bias=case != "no bias")), models.inputs()
        options["lora_bias"] = case == "no bias"
    quantized(model, baraquant.W8A16())
    kind = type(model[0])
    with pytest.warns(UserWarning) if case != "not finite" else contextlib.nullcontext():
        adapter = adapted(model, **options)
    layer = adapter.base_model.model[0]
    before = evaluate(adapter, batch)
    if case == "not finite":
        layer.lora_B.default.weight.data.fill_(float("nan"))
    state = models.base_state(adapter)
    with pytest.raises(error, match=text):
        adapter.merge_adapter(safe_merge=True)
    assert type(layer.base_layer) is kind and not layer.merged and layer._kept == ()
    assert models.same(models.base_state(adapter), state)
    if case != "not finite":
        assert torch.equal(evaluate(adapter, batch), before)


@pytest.mark.parametrize("size", ["kept", "freed"])
@pytest.mark.parametrize("is_trained", [False, True])
def test_a_merge_that_fails_in_the_second(size: str, is_trained: bool, monkeypatch: Any) -> None:
    """No layer is merged, or, of a large model, the first as a whole and the second not at all."""
    if size == "freed":
        monkeypatch.setattr(transaction, "KEPT_BYTES", 0)
    make = prepared if is_trained else quantized
    adapter = adapted(make(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), baraquant.W8A8()))
    layers = list(models.lora_layers(adapter))
    for layer, value in zip(layers, (1.0, float("nan")), strict=True):
        layer.lora_B.default.weight.data.fill_(value)
    state = models.base_state(adapter)
    with pytest.raises(ValueError, match="NaNs detected"):
        adapter.merge_adapter(safe_merge=True)
    assert [layer.merged for layer in layers] == [size == "freed", False]
    assert layers[1]._kept == ()
    now = models.base_state(adapter)
    for name in state if size == "kept" else [name for name in state if ".1." in name]:
        assert torch.equal(now[name], state[name])


@pytest.mark.exhaustive
def test_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [name for name in sys.modules if name.startswith("baraquant.peft")]
    for name in own:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r'baraquant\.peft: .*pip install "baraquant\[peft\]"'):
        importlib.import_module("baraquant.peft")


@pytest.mark.exhaustive
def test_a_peft_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(peft.tuners.tuners_utils, "_maybe_include_all_linear_layers")
    with pytest.raises(ImportError, match=r"expected PEFT 0\.21 or a newer one.*but got 0\."):
        baraquant.peft.register()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["dynamic", "4 bits in groups"])
def test_writing_into_a_weight_is_refused(name: str) -> None:
    """As PEFT's own layers would do it, which a user's mapping may name: that comes first."""
    config = peft.LoraConfig(target_modules=["0"])
    kind = type(base(name)[0])
    config._register_custom_module({kind: peft.tuners.lora.Linear})
    with pytest.warns(UserWarning, match="Unsupported layer type"):
        adapter = peft.get_peft_model(base(name), config)
    assert type(adapter.base_model.model[0]) is peft.tuners.lora.Linear
    with pytest.raises(RuntimeError, match="expected weight to be read only"):
        adapter.merge_adapter()
