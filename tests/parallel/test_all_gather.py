# SPDX-License-Identifier: BSD-3-Clause
"""``fully_shard`` with and without ``quantize_all_gather``, on two processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from baraquant import W8A8, QuantConfig, TensorConfig, W8A8Static
from baraquant import nn as bnn
from baraquant.parallel import quantize_all_gather
from baraquant.parallel._gather import GatheredWeight, ShardedWeight
from baraquant.qat import prepare_
from tests.parallel import models
from tests.parallel.test_layouts import mesh, place
from tests.support.ranks import results_fixture

SCHEMES = {
    "w8a8": W8A8(),
    "w8a8_asymmetric": W8A8(symmetric=False),
    "w4a8": QuantConfig(TensorConfig(4), TensorConfig(8, "per_token")),
    "rotated": W8A8(rotate=16),
}
POLICIES = {
    "float32": MixedPrecisionPolicy(),
    "bfloat16": MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32),
}
WAYS = ("plain", "kept", "checkpointed", "compiled")
STEPS = 3


def network(config: QuantConfig, policy: str = "float32") -> Any:
    """A prepared model; its master is the dtype of the parameters that a policy hands over."""
    config = replace(config, master=None if policy == "float32" else policy)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 7), nn.Linear(7, 6))
    prepare_(model, config)
    return model.to(place())


def is_even(module: nn.Module, name: str) -> bool:
    return name != "2"


def sharded(model: Any, policy: str, way: str = "plain") -> Any:
    options = {
        "mesh": mesh(),
        "mp_policy": POLICIES[policy],
        "reshard_after_forward": way != "kept",
    }
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def train(name: str, policy: str, way: str, quantized: bool) -> dict[str, Tensor]:
    model = network(SCHEMES[name], policy)
    kinds: list[bool] = []
    if quantized:
        assert quantize_all_gather(model, is_even) == ["0", "3"]
        model[0].register_forward_hook(
            lambda layer, *_: kinds.append(isinstance(layer._parameters["weight"], GatheredWeight))
        )
    if way == "compiled":
        torch._dynamo.reset()
        for layer in model:
            layer.compile(backend="aot_eager")
    sharded(model, policy, way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    found: dict[str, Tensor] = {}
    for step in range(STEPS):
        x = models.features(16, torch.float32)[dist.get_rank() :: 2].to(place()) + step
        x.requires_grad_()
        y = checkpoint(model, x, use_reentrant=False) if way == "checkpointed" else model(x)
        optimizer.zero_grad()
        y.float().square().mean().backward()
        for key, gradient in models.gradients(model).items():
            found[f"{step} {key} gradient"] = gradient
        optimizer.step()
        found |= {f"{step} y": y.detach(), f"{step} dx": x.grad}
    model.eval()
    with torch.no_grad():
        found["evaluated"] = model(models.features(16, torch.float32).to(place()))
    assert not quantized or (kinds and all(kinds)), "the layer gets integers"
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options)
    return found | {f"state {key}": tensor.detach().clone() for key, tensor in state.items()}


def refusals() -> dict[str, str]:
    """What the layer says where integers do not do."""
    messages = {}
    x = torch.randn(2, 16, device=place())
    model = network(SCHEMES["w8a8"])
    quantize_all_gather(model, is_even)
    sharded(model, "float32").apply(bnn.disable_fake_quant)
    messages["off"] = message_of(lambda: model(x))
    model.apply(bnn.enable_fake_quant)
    messages["twice"] = message_of(lambda: quantize_all_gather(sharded(network(W8A8()), "float32")))
    model = network(SCHEMES["w8a8"])
    quantize_all_gather(model)
    messages["uneven"] = message_of(lambda: sharded(model, "float32")(x))
    return messages


def message_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def compute(rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in SCHEMES:
        for policy in POLICIES:
            for way in WAYS if name == "w8a8_asymmetric" else WAYS[:1]:
                pair = [train(name, policy, way, quantized) for quantized in (False, True)]
                results[f"{name} {policy} {way}"] = pair
    results["refusals"] = refusals()
    return results


results = results_fixture("all_gather", compute)


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SCHEMES)
def test_no_bit_changes(name: str, policy: str, way: str, results: list[dict[str, Any]]) -> None:
    if name != "w8a8_asymmetric" and way != "plain":
        name = "w8a8_asymmetric"  # the other ways are run with one scheme
    for result in results:
        floats, integers = result[f"{name} {policy} {way}"]
        assert floats.keys() == integers.keys()
        for key, expected in floats.items():
            assert torch.equal(integers[key], expected), key
        assert not torch.equal(floats["0 y"], floats["2 y"]), "it trains"


@pytest.mark.exhaustive
@pytest.mark.process
def test_what_integers_cannot_do_is_refused(results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result["refusals"]
        assert "expected fake quantization to be on" in found["off"]
        assert "0: expected a plain weight, but it is sharded already" in found["twice"]
        assert (
            "expected out_features to be a multiple of the 2 processes, but got 7"
            in (found["uneven"])
        )


def test_models_without_such_layers_are_refused() -> None:
    with pytest.raises(TypeError, match="quantize_all_gather: expected model to be a Module"):
        quantize_all_gather(W8A8())  # type: ignore[arg-type]
    static = nn.Sequential(nn.Linear(4, 2))
    prepare_(static, W8A8Static())
    for model in (nn.Linear(4, 2), static):
        with pytest.raises(ValueError, match="quantize_all_gather: expected a model with"):
            quantize_all_gather(model)


def test_gradients_from_integers_are_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    prepare_(model, {"0": W8A8(backward="int8_input"), "1": W8A8()})
    with pytest.raises(
        NotImplementedError, match=r'0: expected backward="float", but got "int8_in'
    ):
        quantize_all_gather(model)
    assert quantize_all_gather(model, lambda module, name: name == "1") == ["1"]


def test_a_shared_weight_is_left_out() -> None:
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    prepare_(model, W8A8())
    assert quantize_all_gather(model) == ["2"]
    assert isinstance(model[2]._parameters["weight"], ShardedWeight)
    assert model[1]._parameters["weight"] is model[0]._parameters["weight"]
    x = torch.randn(2, 8)
    expected = nn.functional.linear(x, model[2].weight.detach() * 1, model[2].bias)
    assert (model[2](x) - expected).abs().max() < 0.1, "one process computes as before"
