# SPDX-License-Identifier: BSD-3-Clause
"""LoRA over quantized models of transformers, of random weights."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from tests.peft import models
from tests.peft.models import adapted, evaluate, peft, transformers
from tests.support.models.made import quantized

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
SCHEMES = {
    "int8": baraquant.W8A8(),
    "int8 asymmetric": baraquant.W8A8(symmetric=False),
    "4 bits": baraquant.W4A16(group_size=16, symmetric=False),
}
MODELS = {"llama": models.llama, "bert": models.bert, "gpt2": models.gpt2}
TASKS = {"llama": "CAUSAL_LM", "bert": "SEQ_CLS", "gpt2": "CAUSAL_LM"}
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_model = pytest.mark.parametrize("name", MODELS)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    labels = batch[:, 0] % 3 if model.config.model_type == "bert" else batch
    loss: Tensor = model(input_ids=batch, labels=labels).loss
    return loss


def made(name: str, scheme: str, dtype: torch.dtype = torch.float32) -> Any:
    return quantized(MODELS[name](dtype), SCHEMES[scheme])


def train(model: Any) -> list[float]:
    return models.train(model, models.tokens(), 8, loss=loss_of)


@every_dtype
@every_scheme
@every_model
def test_trains_and_merges(name: str, scheme: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, batch = made(name, scheme, dtype), models.tokens()
    baraquant.save(model, tmp_path / "base.safetensors")
    adapter = adapted(model, task_type=TASKS[name])
    losses = train(adapter)
    assert losses[-1] < losses[0]
    after = evaluate(adapter, batch)
    adapter.save_pretrained(tmp_path)
    fresh = MODELS[name](dtype)
    baraquant.load_(fresh, tmp_path / "base.safetensors")
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
        loss_of(adapter, batch).backward()
        grads.append({n: p.grad.clone() for n, p in adapter.named_parameters() if p.requires_grad})
    assert grads[0].keys() == grads[1].keys() and models.same(*grads)


@every_scheme
@every_model
def test_prepare_model_for_kbit_training(name: str, scheme: str) -> None:
    """Floating parameters become float32: norms give float32 to layers of a bfloat16 model."""
    model = peft.prepare_model_for_kbit_training(made(name, scheme, torch.bfloat16))
    assert {p.dtype for p in model.parameters() if p.is_floating_point()} == {torch.float32}
    losses = train(adapted(model, task_type=TASKS[name]))
    assert losses[-1] < losses[0]


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
    losses = train(model)
    assert losses[-1] < losses[0]
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
