# SPDX-License-Identifier: BSD-3-Clause
"""What PEFT and PyTorch do with LoRA layers, over integers; and over models of transformers."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import nn as bnn
from tests.nn.test_quantizer_modules import copies
from tests.peft import models
from tests.peft.models import adapted, base, evaluate, peft, transformers
from tests.support.models.made import quantized

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
BASES = ("dynamic", "static asymmetric", "4 bits in groups")
every_base = pytest.mark.parametrize("scheme", BASES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
VARIANTS: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "dropout": {"lora_dropout": 0.3},
    "bias": {"lora_bias": True},
    "dora": {"use_dora": True},
    "dora with dropout": {"use_dora": True, "lora_dropout": 0.3},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "mica": {"init_lora_weights": "mica"},
    "not initialized": {"init_lora_weights": False},
    "ranks by name": {"rank_pattern": {"0": 2}, "alpha_pattern": {"0": 3}},
}


@every_dtype
@pytest.mark.parametrize("variant", VARIANTS)
@every_base
def test_variants(scheme: str, variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Each trains, is loaded with the same bits, and merges back and forth."""
    model, batch = base(scheme, dtype), models.inputs(dtype)
    models.check_life(model, batch, tmp_path, 0.05, **VARIANTS[variant])


@pytest.mark.parametrize("kind", ["conv", "embedding"])
def test_dora_over_other_kinds(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if kind == "conv":
        model, batch, target = models.conv(2), torch.randn(2, 8, 7, 7), "conv"
    else:
        model, batch, target = models.of_tokens(), models.tokens(), "table"
    quantized(model, baraquant.W4A16(group_size=4))
    models.check_life(model, batch, tmp_path, 1e-4, [target], use_dora=True)


@every_base
def test_several_adapters(scheme: str) -> None:
    batch = models.inputs()
    adapter = adapted(base(scheme))
    models.train(adapter, batch)
    first, integers = evaluate(adapter, batch), models.base_state(adapter)
    some = {"r": 2, "lora_alpha": 0.2, "init_lora_weights": False}
    config = peft.LoraConfig(target_modules="all-linear", **some)
    adapter.add_adapter("second", config)
    assert config.target_modules == {"0", "2"}
    assert torch.equal(evaluate(adapter, batch), first)
    adapter.set_adapter("second")
    second = evaluate(adapter, batch)
    with adapter.disable_adapter():
        plain = evaluate(adapter, batch)
    assert torch.equal(plain, evaluate(base(scheme), batch))
    assert not torch.equal(second, first) and not torch.equal(second, plain)
    adapter.base_model.set_adapter(["default", "second"])
    both = evaluate(adapter, batch)
    adapter.merge_adapter(adapter_names=["default"])
    adapter.merge_adapter(adapter_names=["second"])
    assert (evaluate(adapter, batch) - both).norm() / both.norm() < 0.05
    adapter.unmerge_adapter()
    now = {n: t for n, t in models.base_state(adapter).items() if "second" not in n}
    assert models.same(now, integers)
    assert torch.equal(evaluate(adapter, batch), both)
    adapter.add_weighted_adapter(["default", "second"], [0.5, 0.5], "mixed", "cat")
    adapter.set_adapter("mixed")
    assert torch.isfinite(evaluate(adapter, batch)).all()
    adapter.delete_adapter("mixed")
    adapter.delete_adapter("second")
    adapter.set_adapter("default")
    assert torch.equal(evaluate(adapter, batch), first)


def test_a_batch_of_several_adapters() -> None:
    batch = models.inputs(rows=4)
    adapter = adapted(base("dynamic"), init_lora_weights=False)
    adapter.add_adapter("b", peft.LoraConfig(target_modules="all-linear", init_lora_weights=False))
    names = ["default", "b", "__base__", "default"]
    with torch.no_grad():
        adapter.eval()
        mixed = adapter(batch, adapter_names=names)
    adapter.set_adapter("b")
    torch.testing.assert_close(mixed[1], evaluate(adapter, batch)[1])
    with adapter.disable_adapter():
        torch.testing.assert_close(mixed[2], evaluate(adapter, batch)[2])


def test_all_linear_finds_what_it_finds_in_the_float_model() -> None:
    for make in (models.llama, models.bert, models.gpt2):
        wanted = adapted(make()).peft_config["default"].target_modules
        for scheme in (baraquant.W8A8(), baraquant.W4A16(group_size=16)):
            got = adapted(quantized(make(), scheme)).peft_config["default"].target_modules
            assert got == wanted and wanted
    some = quantized(models.llama(), {"*.q_proj": None, "*": baraquant.W8A8()})
    whole = adapted(models.llama()).peft_config["default"].target_modules
    assert adapted(some).peft_config["default"].target_modules == whole


def test_all_linear_leaves_out_heads() -> None:
    for task in ("CAUSAL_LM", None):
        adapter = adapted(quantized(models.llama(), baraquant.W8A8()), task_type=task)
        assert "lm_head" not in adapter.peft_config["default"].target_modules
    model = quantized(models.bert(), baraquant.W8A8())
    assert type(model.classifier) is bnn.QuantizedLinear
    adapter = adapted(model, task_type="SEQ_CLS")
    assert "classifier" not in adapter.peft_config["default"].target_modules


def test_a_mixed_base() -> None:
    """Float layers keep PEFT's own adapters."""
    model = quantized(models.mlp(), {"0": None, "2": baraquant.W8A8()})
    adapter = adapted(model)
    kinds = [type(layer) for layer in models.lora_layers(adapter)]
    assert kinds == [peft.tuners.lora.Linear, baraquant.peft.LoraLinear]
    models.train(adapter, models.inputs())
    assert [type(m) for m in adapter.merge_and_unload()] == [nn.Linear, nn.GELU, nn.Linear]


def test_a_layer_with_two_names() -> None:
    """PEFT adapts a module under its first name alone; so it does over integers."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    for model in (Twice(), quantized(Twice(), baraquant.W8A8())):
        adapter = adapted(model, ["a", "b"])
        inner = adapter.base_model.model
        assert isinstance(inner.a, peft.tuners.lora.Linear) and inner.a.base_layer is inner.b


def test_tied_weights_stay_as_they_are() -> None:
    """An adapter of the embedding does not reach the head, and merging leaves the head alone."""
    model = quantized(models.gpt2(), baraquant.W8A16())
    assert model.lm_head.qweight is model.transformer.wte.qweight
    adapter = adapted(model, ["wte"])
    models.train(adapter, models.tokens())
    head = adapter.base_model.model.lm_head.qweight.clone()
    merged = adapter.merge_and_unload()
    assert type(merged.transformer.wte) is nn.Embedding
    assert torch.equal(merged.lm_head.qweight, head)


def test_registering_twice_changes_nothing() -> None:
    made = peft.tuners.lora.LoraModel._create_new_module
    baraquant.peft.register()
    assert peft.tuners.lora.LoraModel._create_new_module is made


@pytest.mark.parametrize("scheme", ["dynamic", "4 bits in groups"])
def test_modules_to_save_train_a_float_copy(scheme: str, tmp_path: Path) -> None:
    model, batch = base(scheme), models.inputs()
    again, integers = copy.deepcopy(model), model[2].qweight.clone()
    adapter = adapted(model, ["0"], modules_to_save=["2"])
    wrapper = adapter.base_model.model[2]
    trained = wrapper.modules_to_save.default
    assert type(trained) is nn.Linear and trained.weight.requires_grad
    assert torch.equal(trained.weight, wrapper.original_module.weight)
    before = trained.weight.detach().clone()
    models.train(adapter, batch)
    assert not torch.equal(trained.weight, before)
    assert torch.equal(wrapper.original_module.qweight, integers)
    after = evaluate(adapter, batch)
    adapter.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(again, tmp_path)
    assert torch.equal(evaluate(loaded, batch), after)
    assert not any(p.requires_grad for p in loaded.parameters())
    assert type(adapter.merge_and_unload()[2]) is nn.Linear


def test_modules_to_save_that_contain_integers() -> None:
    model = quantized(nn.Sequential(models.mlp(), models.mlp()), baraquant.W8A8())
    adapter = adapted(model, ["0.0"], modules_to_save=["1"])
    copied = adapter.base_model.model[1].modules_to_save.default
    assert [type(m) for m in copied] == [nn.Linear, nn.GELU, nn.Linear]
    losses = models.train(adapter, models.inputs())
    assert losses[-1] < losses[0] and all(p.requires_grad for p in copied.parameters())


@every_base
@pytest.mark.parametrize("low_memory", [False, True])
def test_loading_as_a_further_adapter(scheme: str, low_memory: bool, tmp_path: Path) -> None:
    model, batch = base(scheme), models.inputs()
    again = copy.deepcopy(model)
    adapter = adapted(model)
    models.train(adapter, batch)
    adapter.save_pretrained(tmp_path)
    other = adapted(again)
    other.load_adapter(tmp_path, "loaded", low_cpu_mem_usage=low_memory)
    other.set_adapter("loaded")
    assert torch.equal(evaluate(other, batch), evaluate(adapter, batch))


def test_an_adapter_of_the_float_model_loads_onto_integers(tmp_path: Path) -> None:
    """And one of the integers onto the float model: the files have the same names."""
    model, batch = models.gpt2(), models.tokens()
    folders = tmp_path / "float", tmp_path / "integers"
    adapters = [adapted(m) for m in (models.gpt2(), quantized(models.gpt2(), baraquant.W8A8()))]
    for adapter, folder in zip(adapters, folders, strict=True):
        models.train(adapter, batch)
        adapter.save_pretrained(folder)
    onto = peft.PeftModel.from_pretrained(quantized(model, baraquant.W8A8()), folders[0])
    back = peft.PeftModel.from_pretrained(models.gpt2(), folders[1])
    names = [set(peft.get_peft_model_state_dict(m)) for m in (*adapters, onto, back)]
    assert all(found == names[0] for found in names)
    fan = [m.peft_config["default"].fan_in_fan_out for m in (*adapters, onto, back)]
    assert fan == [True] * 4
    close = evaluate(onto, batch) - evaluate(adapters[0], batch)
    assert close.norm() / evaluate(adapters[0], batch).norm() < 0.05


def test_counts_what_the_integers_stand_for() -> None:
    for make in (models.llama, models.bert, models.gpt2, models.mlp):
        wanted = adapted(make()).get_nb_trainable_parameters()
        for scheme in (baraquant.W8A8(), baraquant.W4A16(group_size=16, symmetric=False)):
            adapter = adapted(quantized(make(), scheme))
            assert adapter.get_nb_trainable_parameters() == wanted
            adapter.merge_adapter()
            assert adapter.get_nb_trainable_parameters() == wanted


@every_base
def test_follows_conversions(scheme: str) -> None:
    adapter = adapted(base(scheme)).to(torch.bfloat16)
    lora = adapter.base_model.model[0]
    assert lora.lora_A.default.weight.dtype == lora.weight.dtype == torch.bfloat16
    assert lora.base_layer.weight_scale.dtype == torch.float32
    batch = models.inputs(torch.bfloat16)
    losses = models.train(adapter, batch)
    assert losses[-1] < losses[0] and evaluate(adapter, batch).dtype == torch.bfloat16


def test_adapters_of_the_bases_dtype() -> None:
    config = peft.LoraConfig(target_modules="all-linear")
    model = base("dynamic", torch.bfloat16)
    adapter = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    assert {p.dtype for p in adapter.parameters() if p.requires_grad} == {torch.bfloat16}


@every_base
@every_dtype
def test_autocast(scheme: str, dtype: torch.dtype) -> None:
    adapter, batch = adapted(base(scheme, dtype)), models.inputs(torch.float32)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        return (y.float() - 1).square().mean()

    losses = models.train(adapter, batch, 5, loss=loss)
    assert losses[-1] < losses[0]


@every_base
@pytest.mark.parametrize("variant", ["plain", "dora"])
def test_a_compiled_step(scheme: str, variant: str) -> None:
    torch._dynamo.reset()
    batch = models.inputs()
    adapter = adapted(base(scheme), init_lora_weights=False, use_dora=variant == "dora")
    adapters = [p for p in adapter.parameters() if p.requires_grad]
    compiled = torch.compile(adapter, backend="aot_eager")
    grads = []
    for model in (adapter, compiled):
        loss = models.loss_of(model, batch)
        grads.append([loss.detach(), *torch.autograd.grad(loss, adapters)])
    torch.testing.assert_close(*grads)


@every_base
def test_copies_and_pickles(scheme: str) -> None:
    adapter, batch = adapted(base(scheme), init_lora_weights=False), models.inputs()
    wanted = evaluate(adapter, batch)
    for copied in copies(adapter):
        assert torch.equal(evaluate(copied, batch), wanted)


# --- models of transformers, of random weights ---------------------------------------------------

SCHEMES = {
    "int8": baraquant.W8A8(),
    "int8 asymmetric": baraquant.W8A8(symmetric=False),
    "4 bits": baraquant.W4A16(group_size=16, symmetric=False),
}
TASKS = {"llama": "CAUSAL_LM", "bert": "SEQ_CLS", "gpt2": "CAUSAL_LM"}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_model = pytest.mark.parametrize("name", TASKS)


def made(name: str, scheme: str, dtype: torch.dtype = torch.float32) -> Any:
    return quantized(getattr(models, name)(dtype), SCHEMES[scheme])


def train(model: Any) -> None:
    losses = models.train(model, models.tokens(), 8)
    assert losses[-1] < losses[0]


@every_dtype
@every_scheme
@every_model
def test_trains_and_merges(name: str, scheme: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, batch = made(name, scheme, dtype), models.tokens()
    baraquant.save(model, tmp_path / "base.safetensors")
    adapter = adapted(model, task_type=TASKS[name])
    train(adapter)
    after = evaluate(adapter, batch)
    adapter.save_pretrained(tmp_path)
    fresh = baraquant.load_(getattr(models, name)(dtype), tmp_path / "base.safetensors")
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path)
    assert torch.equal(evaluate(loaded, batch), after)
    merged = evaluate(adapter.merge_and_unload(), batch)
    assert (merged.float() - after.float()).norm() / after.float().norm() < 0.1


@every_scheme
@every_model
def test_gradient_checkpointing(name: str, scheme: str) -> None:
    batch, grads = models.tokens(), []
    model = made(name, scheme)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    adapter = adapted(model, task_type=TASKS[name], init_lora_weights=False)
    adapter.train()
    for is_on in (False, True):
        if is_on:
            adapter.enable_input_require_grads()
            adapter.gradient_checkpointing_enable({"use_reentrant": False})
        adapter.zero_grad()
        models.loss_of(adapter, batch).backward()
        grads.append({n: p.grad.clone() for n, p in adapter.named_parameters() if p.requires_grad})
    assert grads[0].keys() == grads[1].keys() and models.same(*grads)


@every_scheme
@every_model
def test_prepare_model_for_kbit_training(name: str, scheme: str) -> None:
    """Floating parameters become float32: norms give float32 to layers of a bfloat16 model."""
    model = peft.prepare_model_for_kbit_training(made(name, scheme, torch.bfloat16))
    assert {p.dtype for p in model.parameters() if p.is_floating_point()} == {torch.float32}
    train(adapted(model, task_type=TASKS[name]))


def test_the_trainer(tmp_path: Path) -> None:
    model = adapted(made("llama", "int8"), task_type="CAUSAL_LM")
    row = models.tokens(1)[0]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=2, learning_rate=1e-2,
        report_to=[], use_cpu=True, save_steps=6, logging_steps=1, disable_tqdm=True,
        gradient_checkpointing=True,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row}] * 12
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    saved = tmp_path / "checkpoint-6"
    assert (saved / "adapter_model.safetensors").exists()
    loaded = peft.PeftModel.from_pretrained(made("llama", "int8"), saved)
    assert torch.equal(evaluate(loaded, row[None]), evaluate(model, row[None]))


def test_transformers_own_add_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The integration that transformers' models have without get_peft_model."""
    # NB: transformers can ask for a PEFT that has not been released (5.24 asks for 0.22).
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", "0")
    model = made("llama", "int8")
    again = copy.deepcopy(model)
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj", "down_proj"]))
    train(model)
    model.save_pretrained(tmp_path)
    again.load_adapter(str(tmp_path))
    batch = models.tokens()
    assert torch.equal(evaluate(again, batch), evaluate(model, batch))


def test_a_tied_embedding_is_saved_with_its_adapter(tmp_path: Path) -> None:
    """PEFT adds the embedding's base to the file; it loads onto integers again."""
    model, batch = made("llama", "4 bits"), models.tokens()
    again = copy.deepcopy(model)
    adapter = adapted(model, ["embed_tokens", "q_proj"], task_type="CAUSAL_LM")
    train(adapter)
    with pytest.warns(UserWarning, match="save_embedding_layers"):
        adapter.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(again, tmp_path)
    assert torch.equal(evaluate(loaded, batch), evaluate(adapter, batch))
