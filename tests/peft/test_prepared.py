# SPDX-License-Identifier: BSD-3-Clause
"""Over a prepared layer, adapters are inside the rounding: merging and converting change no bit."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import baraquant
from baraquant import TensorConfig
from baraquant import nn as bnn
from baraquant.workflow.layers import is_converted, is_prepared
from tests.nn.test_quantizer_modules import copies
from tests.peft import models
from tests.peft.models import MLP, adapted, evaluate, peft
from tests.support.checks.refused import refused
from tests.support.models.made import prepared
from tests.support.ranks import results_fixture

DTYPES = (torch.float32, torch.bfloat16)
GROUPED = {"granularity": "per_group", "group_size": 16}
SCHEMES: dict[str, Any] = {
    **{name: one for name, one in models.SCHEMES.items() if "smoothed" not in name},
    "whole factors": baraquant.W4A8(group_size=16),
    "scales in bfloat16": baraquant.W4A16(group_size=16, scale_dtype="bfloat16"),
    "learned": baraquant.QuantConfig(TensorConfig(4, learned=True, **GROUPED), None),
    "observed": baraquant.QuantConfig(TensorConfig(8, dynamic=False), None),
    "observed groups": baraquant.QuantConfig(TensorConfig(4, dynamic=False, **GROUPED), None),
    "ternary": baraquant.QuantConfig(TensorConfig(2, ternary=True)),
    "rounded master": baraquant.W8A8(master="bfloat16"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True},
    "bias": {"lora_bias": True}, "mica": {"init_lora_weights": "mica"},
}  # fmt: skip
SHORT = ("dynamic", "4 bits in groups", "rotated 4 bits in groups")


def long(names: Any, short: Any) -> list[Any]:
    return [n if n in short else pytest.param(n, marks=pytest.mark.exhaustive) for n in names]


def trained(model: Any, scheme: Any, batch: Tensor) -> Any:
    """The model prepared, with the ranges of a batch."""
    prepared(model, scheme).train()(batch)
    return model


def over(scheme: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Adapters of any values over the linear layers of a prepared model."""
    model = trained(models.mlp(dtype), scheme, models.inputs(dtype))
    return adapted(model, list(MLP), init_lora_weights=False, **options)


def check_bits(
    make: Callable[[], Any], scheme: Any, batch: Tensor, folder: Path, targets: Any, **options: Any
) -> None:
    """The same bits before merging, merged, unmerged, unloaded, converted, saved and loaded."""
    model = trained(make(), scheme, batch)
    before = evaluate(copy.deepcopy(model), batch)
    adapter = adapted(model, targets, **options)
    assert torch.equal(evaluate(adapter, batch), before), "an adapter starts as nothing"
    losses = models.train(adapter, batch, 4)
    wanted = evaluate(adapter, batch)
    assert losses[-1] < losses[0] and not torch.equal(wanted, before)
    base = models.base_state(adapter)
    for safe in (False, True):
        adapter.merge_adapter(safe_merge=safe)
        assert torch.equal(evaluate(adapter, batch), wanted)
        adapter.unmerge_adapter()
        assert models.same(models.base_state(adapter), base)
        assert torch.equal(evaluate(adapter, batch), wanted)
    adapter.save_pretrained(folder / "adapter", save_embedding_layers=False)
    again = peft.PeftModel.from_pretrained(trained(make(), scheme, batch), folder / "adapter")
    ranges = {n: t for n, t in adapter.state_dict().items() if "_fake_quant" in n}
    again.load_state_dict(ranges, strict=False)  # they belong to the base
    assert torch.equal(evaluate(again, batch), wanted)
    baraquant.qat.convert_(again)
    assert torch.equal(evaluate(again, batch), wanted), "the integers hold the adapter"
    assert torch.equal(evaluate(again.merge_and_unload(), batch), wanted)
    model = adapter.merge_and_unload()
    assert any(map(is_prepared, model.modules())) and torch.equal(evaluate(model, batch), wanted)
    assert not any(getattr(module, "adapters", ()) for module in model.modules())
    baraquant.qat.convert_(model)
    assert torch.equal(evaluate(model, batch), wanted)
    baraquant.save(model, folder / "model.safetensors")
    loaded = baraquant.load_(make(), folder / "model.safetensors")
    assert torch.equal(evaluate(loaded, batch), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("option", long(OPTIONS, ("plain", "dora")))
@pytest.mark.parametrize("scheme", long(SCHEMES, SHORT))
def test_linear_layers(scheme: str, option: str, dtype: torch.dtype, tmp_path: Path) -> None:
    make, options = lambda: models.mlp(dtype), OPTIONS[option]
    check_bits(make, SCHEMES[scheme], models.inputs(dtype), tmp_path, list(MLP), **options)


WEIGHTS = [baraquant.W8A16(), baraquant.W4A16(group_size=4), baraquant.W8A8Static()]
every_option = pytest.mark.parametrize("option", ["plain", "dora"])


@pytest.mark.exhaustive
@every_option
@pytest.mark.parametrize("scheme", WEIGHTS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolutions(dimensions: int, scheme: Any, option: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    start, batch = models.conv(dimensions), torch.randn(2, 8, *[7] * dimensions)
    check_bits(lambda: copy.deepcopy(start), scheme, batch, tmp_path, ["conv"], **OPTIONS[option])


@pytest.mark.exhaustive
@every_option
@pytest.mark.parametrize("scheme", WEIGHTS[:2], ids=str)
@pytest.mark.parametrize("name", ["of_tokens", "gpt2", "llama"])
def test_tables_and_whole_models(name: str, scheme: Any, option: str, tmp_path: Path) -> None:
    """GPT-2 has linear layers of transposed weights, and a table that is tied to the head."""
    targets: Any = {"of_tokens": ["table", "body.0"], "gpt2": ["c_attn", "c_fc", "wte"]}
    start = getattr(models, name)()
    options = OPTIONS[option] | ({} if name == "of_tokens" else {"task_type": "CAUSAL_LM"})
    targets = targets.get(name, "all-linear")
    make = lambda: copy.deepcopy(start)  # noqa: E731
    check_bits(make, scheme, models.tokens(), tmp_path, targets, **options)


# --- gradients -----------------------------------------------------------------------------------


def straight(values: Tensor, rounded: Tensor) -> Tensor:
    return values + (rounded - values).detach()


def rounded_in_groups(weight: Tensor, size: int, largest: int) -> Tensor:
    groups = weight.detach().unflatten(1, (-1, size))
    scale = groups.abs().amax(-1, keepdim=True) / largest
    return ((groups / scale).round().clamp(-largest - 1, largest) * scale).flatten(1)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("option", ["plain", "dora", "bias"])
@pytest.mark.parametrize("bits", [4, 8])
def test_gradients(bits: int, option: str, mode: bool) -> None:
    """Against the formula: those of the sum pass straight through the rounding."""
    scheme = baraquant.W4A16(group_size=16) if bits == 4 else baraquant.W8A16()
    model = prepared(nn.Sequential(nn.Linear(32, 48)).double(), scheme)
    adapter = adapted(model, ["0"], init_lora_weights=False, lora_alpha=12, **OPTIONS[option])
    layer = adapter.train(mode).base_model.model[0]
    layer.base_layer.weight_fake_quant.train(mode)
    own = {name: p for name, p in adapter.named_parameters() if p.requires_grad}
    for parameter in own.values():
        parameter.data = parameter.data.double()
    x = models.inputs(torch.float64).requires_grad_()
    weight, bias = layer.base_layer.float_weight(), layer.base_layer.bias
    total = weight + 3.0 * layer.lora_B.default.weight @ layer.lora_A.default.weight
    if option == "dora":
        norm = total.norm(dim=1, keepdim=True).detach()
        total = layer.lora_magnitude_vector.default.weight[:, None] / norm * total
    if option == "bias":
        bias = bias + 3.0 * layer.lora_B.default.bias
    rounded = rounded_in_groups(total, 16 if bits == 4 else 32, 7 if bits == 4 else 127)
    wanted = x @ straight(total, rounded).t() + bias
    got = layer(x)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(y.square().sum(), [x, *own.values()]) for y in (got, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scheme", long(SCHEMES, ("dynamic", "learned", "rotated static")))
def test_no_second_weight_is_kept(scheme: str) -> None:
    """Between forward and backward neither the sum nor the rounded sum is in memory."""
    adapter = over(SCHEMES[scheme]).train()
    alive: list[StorageWeakRef] = []
    for layer in models.lora_layers(adapter):
        sums = layer.adapted_weight

        def noted(weight: Tensor, sums: Any = sums) -> Tensor:
            result: Tensor = sums(weight)
            alive.append(StorageWeakRef(result.untyped_storage()))
            return result

        layer.adapted_weight = noted
        layer.base_layer.weight_fake_quant.register_forward_hook(
            lambda module, args, result: alive.append(StorageWeakRef(result.untyped_storage()))
        )
    loss = models.loss_of(adapter, models.inputs())
    assert alive and all(one.expired() for one in alive)
    loss.backward()
    assert all(p.grad is not None for p in adapter.parameters() if p.requires_grad)


# --- PEFT and PyTorch around it ------------------------------------------------------------------


def test_several_adapters(tmp_path: Path) -> None:
    adapter, batch = over(SCHEMES["4 bits in groups"]), models.inputs(rows=4)
    plain = evaluate(adapter.unload(), batch)
    adapter = over(SCHEMES["4 bits in groups"])
    adapter.add_adapter("b", peft.LoraConfig(target_modules=list(MLP), init_lora_weights=False))
    first = evaluate(adapter, batch)
    adapter.set_adapter("b")
    second = evaluate(adapter, batch)
    with adapter.disable_adapter():
        assert torch.equal(evaluate(adapter, batch), plain)
    adapter.base_model.set_adapter(["default", "b"])
    both = evaluate(adapter, batch)
    assert len({tuple(y.flatten().tolist()) for y in (plain, first, second, both)}) == 4
    with torch.no_grad():
        mixed = adapter(batch, adapter_names=["b", "default", "__base__", "b"])
    assert torch.equal(mixed, torch.stack([second[0], first[1], plain[2], second[3]]))
    adapter.merge_adapter(adapter_names=["default"])
    assert torch.equal(evaluate(adapter, batch), first)
    with pytest.warns(UserWarning, match="additionally merging b"):
        adapter.merge_adapter(adapter_names=["b"])
    assert torch.equal(evaluate(adapter, batch), both)
    with adapter.disable_adapter():  # which unmerges
        assert torch.equal(evaluate(adapter, batch), plain)
    assert torch.equal(evaluate(adapter, batch), both)
    adapter.delete_adapter("b")
    adapter.set_adapter("default")
    assert torch.equal(evaluate(adapter, batch), first)


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("name", ["mlp", "of_tokens"])
def test_adapters_before_prepare(name: str, is_merged: bool) -> None:
    """Those of the float model are in the rounding from then on, and no part of them is rounded."""
    batch = models.inputs() if name == "mlp" else models.tokens()
    targets = list(MLP) if name == "mlp" else ["table", "body.0"]
    adapter = adapted(getattr(models, name)(), targets, init_lora_weights=False)
    whole = prepared(copy.deepcopy(adapter).merge_and_unload(), SCHEMES["4 bits in groups"])
    if is_merged:
        adapter.merge_adapter()
    report = baraquant.qat.prepare_(adapter, SCHEMES["4 bits in groups"])
    assert not any("lora_" in path for path in report.changed)
    kinds = {"mlp": [baraquant.peft.LoraLinear] * 2}
    kinds["of_tokens"] = [baraquant.peft.LoraEmbedding, baraquant.peft.LoraLinear]
    assert [type(layer) for layer in models.lora_layers(adapter)] == kinds[name]
    assert torch.equal(evaluate(adapter, batch), evaluate(whole, batch))
    if is_merged:
        with pytest.raises(RuntimeError, match="merged and then became a FakeQuantized"):
            adapter.unmerge_adapter()
    else:
        losses = models.train(adapter, batch)
        assert losses[-1] < losses[0]
    wanted = evaluate(adapter, batch)
    baraquant.qat.convert_(adapter)
    assert torch.equal(evaluate(adapter, batch), wanted)


def test_a_quantized_model_knows_its_adapters() -> None:
    """quantize_ of a model with adapters: they stay beside the integers, and merging works."""
    adapter, batch = adapted(models.mlp(), list(MLP), init_lora_weights=False), models.inputs()
    report = baraquant.quantize_(adapter, baraquant.W4A16(group_size=16))
    assert not any("lora_" in path for path in report.changed)
    before = evaluate(adapter, batch)
    adapter.merge_adapter()
    torch.testing.assert_close(evaluate(adapter, batch), before, rtol=1e-4, atol=1e-5)
    adapter.unmerge_adapter()
    assert torch.equal(evaluate(adapter, batch), before)
    assert all(is_converted(layer.base_layer) for layer in models.lora_layers(adapter))


def test_tied_weights() -> None:
    """The adapter of a table is no part of the head that shares its parameter."""
    model = trained(models.gpt2(), baraquant.W8A16(), models.tokens())
    head = evaluate(model.lm_head, models.inputs())
    adapter = adapted(model, ["wte"], init_lora_weights=False)
    wanted = evaluate(adapter, models.tokens())
    model = adapter.merge_and_unload()
    baraquant.qat.convert_(model)
    assert torch.equal(evaluate(model, models.tokens()), wanted)
    assert torch.equal(evaluate(model.lm_head, models.inputs()), head)


def test_a_weight_that_is_computed() -> None:
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))
    model = prepared(nn.Sequential(OrderedDict(layer=computed)), baraquant.W8A16())
    adapter = adapted(model, ["layer"], init_lora_weights=False)
    wanted = evaluate(adapter, models.inputs())
    with pytest.raises(NotImplementedError, match="expected a weight that is a parameter"):
        adapter.merge_adapter()
    baraquant.qat.convert_(adapter)
    assert torch.equal(evaluate(adapter, models.inputs()), wanted)


@pytest.mark.parametrize("scheme", SHORT)
def test_autocast(scheme: str) -> None:
    """Merging is done without it, and has the same bits under it."""
    adapter = over(SCHEMES[scheme])
    with torch.autocast("cpu", torch.bfloat16):
        losses = models.train(adapter, models.inputs())
        wanted = evaluate(adapter, models.inputs())
        merged = evaluate(copy.deepcopy(adapter).merge_and_unload(), models.inputs())
    assert losses[-1] < losses[0] and torch.equal(merged, wanted)


def step(model: nn.Module, batch: Tensor, own: list[nn.Parameter]) -> list[Tensor]:
    loss = models.loss_of(model, batch)
    return [loss.detach(), *torch.autograd.grad(loss, own)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_activation_checkpointing(scheme: str, reentrant: bool) -> None:
    adapter = over(SCHEMES[scheme]).train()
    adapter.apply(bnn.disable_observer)
    batch = models.inputs().requires_grad_()
    own = [p for p in adapter.parameters() if p.requires_grad]
    grads = []
    for call in (adapter, lambda x: checkpoint(adapter, x, use_reentrant=reentrant)):
        models.loss_of(call, batch).backward()
        grads.append([p.grad.clone() for p in own])
        adapter.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


@pytest.mark.exhaustive
@every_option
@pytest.mark.parametrize("scheme", ["dynamic", "rotated 4 bits in groups"])
def test_compiled(scheme: str, option: str) -> None:
    """Compiled, the adapter has the bits of the compiled merged model."""
    torch._dynamo.reset()
    adapter, batch = over(SCHEMES[scheme], **OPTIONS[option]), models.inputs()
    own = [p for p in adapter.parameters() if p.requires_grad]
    merged = copy.deepcopy(adapter).merge_and_unload()
    compiled = torch.compile(adapter, fullgraph=True)
    wanted = evaluate(torch.compile(merged, fullgraph=True), batch)
    assert torch.equal(evaluate(compiled, batch), wanted)
    adapter.train()
    torch.testing.assert_close(step(adapter, batch, own), step(compiled, batch, own))


def test_copies_and_pickles() -> None:
    adapter, batch = over(SCHEMES["4 bits in groups"]), models.inputs()
    wanted = evaluate(adapter, batch)
    for copied in copies(adapter):
        assert torch.equal(evaluate(copied, batch), wanted)
        models.train(copied, batch)
        assert not torch.equal(evaluate(copied, batch), wanted)
        assert torch.equal(evaluate(adapter, batch), wanted), "a copy has adapters of its own"


def of_rank(rank: int) -> dict[str, Any]:
    """The gradients of two processes that each have half of the batch."""
    adapter = over(SCHEMES["4 bits in groups"]).train()
    model = DistributedDataParallel(adapter)
    half = models.inputs().chunk(dist.get_world_size())[rank]
    models.loss_of(model, half).backward()
    return {n: p.grad for n, p in adapter.named_parameters() if p.requires_grad}


grads_of_ranks = results_fixture("adapters", of_rank)


@pytest.mark.exhaustive
def test_several_processes(grads_of_ranks: list[dict[str, Tensor]]) -> None:
    adapter = over(SCHEMES["4 bits in groups"]).train()
    models.loss_of(adapter, models.inputs()).backward()
    for grads in grads_of_ranks:
        wanted = {n: p.grad for n, p in adapter.named_parameters() if n in grads}
        torch.testing.assert_close(grads, wanted, check_device=False)


# --- what is refused -----------------------------------------------------------------------------


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv1d(8, 8, 1, groups=2))


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8, bias=False))


Refused = tuple[Callable[[], Any], type[Exception], str, dict[str, Any]]
REFUSED: dict[str, Refused] = {
    "dropout": (models.mlp, ValueError, "expected lora_dropout=0 for a prepared layer, but got 0.1",
        {"lora_dropout": 0.1}),
    "tokens that activate": (models.mlp, NotImplementedError, "but got alora_invocation_tokens",
        {"alora_invocation_tokens": [1], "task_type": "CAUSAL_LM"}),
    "groups": (grouped, NotImplementedError, "convolution of one group, but got 2 groups", {}),
    "no bias": (without_bias, ValueError, "expected lora_bias=False", {"lora_bias": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, error, text, options = REFUSED[case]
    model = prepared(make(), baraquant.W8A16())
    refused(adapted, f"baraquant.peft: 0: .*{text}", model, ["0"], error=error, **options)


@pytest.mark.parametrize("case", ["dropout", "groups"])
def test_what_prepare_refuses(case: str) -> None:
    make, error, text, options = REFUSED[case]
    with pytest.warns(UserWarning) if case == "groups" else nullcontext():
        adapter = adapted(make(), ["0"], **options)
    kinds = [type(module) for module in adapter.modules()]
    with pytest.raises(error, match=text):
        baraquant.qat.prepare_(adapter, baraquant.W8A16())
    assert [type(module) for module in adapter.modules()] == kinds
