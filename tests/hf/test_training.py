# SPDX-License-Identifier: BSD-3-Clause
"""prepare_, Trainer, convert_, a folder, from_pretrained: equal bits at every step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from tests.hf.models import TOKENS, load, logits, quantized, saved, transformers
from tests.support.optional_packages import package

pytestmark = pytest.mark.exhaustive

ROWS = [{"input_ids": row, "labels": row} for row in TOKENS.repeat(4, 1)]
SCHEME = {"lm_head": None, nn.Linear: baraquant.W4A16(32)}


def trained(model: nn.Module, folder: Path, **options: Any) -> nn.Module:
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=3, learning_rate=1e-2, per_device_train_batch_size=2,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    transformers.Trainer(model=model, args=arguments, train_dataset=ROWS).train()
    return model.eval()


def test_accelerate(tmp_path: Path) -> None:
    """A loop of one's own with Accelerator.prepare, and what it unwraps."""
    accelerate = package("accelerate")
    folder = saved(tmp_path / "float", "llama")
    results = []
    for with_accelerate in (False, True):
        model = load("llama", folder)
        baraquant.qat.prepare_(model, SCHEME)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        accelerator = accelerate.Accelerator(cpu=True) if with_accelerate else None
        wrapped = model
        if accelerator is not None:
            wrapped, optimizer = accelerator.prepare(model, optimizer)
        wrapped.train()
        for _ in range(2):
            loss = wrapped(TOKENS, labels=TOKENS).loss
            loss.backward() if accelerator is None else accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator is not None:
            model = accelerator.unwrap_model(wrapped)
        wanted = logits(model.eval())
        baraquant.qat.convert_(model)
        assert torch.equal(logits(model), wanted)
        results.append(wanted)
    assert torch.equal(*results)


@pytest.mark.parametrize("scheme", [baraquant.W8A8(), baraquant.W4A16(32)], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen3", "opt"])
def test_generate(name: str, scheme: Any, tmp_path: Path) -> None:
    """With and without the cache; where inputs are floating, the same tokens."""
    model = quantized(name, tmp_path, scheme)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    tokens = model.generate(TOKENS[:, :5], **options)
    assert tokens.shape == (2, 11)
    assert torch.equal(tokens, model.generate(TOKENS[:, :5], use_cache=False, **options))
    static = model.generate(TOKENS[:, :5], cache_implementation="static", **options)
    assert torch.equal(tokens, static)


@pytest.mark.parametrize("scheme", [baraquant.W8A8(), baraquant.W4A16(32)], ids=str)
def test_compiled_step_of_generation(scheme: Any, tmp_path: Path) -> None:
    """A decoding step with a static cache, compiled whole; its logits have the bits of eager."""
    model = quantized("llama", tmp_path, scheme)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    for run in (model, compiled):
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        with torch.no_grad():
            cache = model(TOKENS[:, :5], past_key_values=cache, use_cache=True).past_key_values
            step = run(TOKENS[:, 5:6], past_key_values=cache, cache_position=torch.tensor([5]))
        results.append(step.logits)
    assert torch.equal(*results)


def test_quantized_models_refuse_full_training_but_pass_gradients(tmp_path: Path) -> None:
    model = quantized("llama", tmp_path / "float", baraquant.W8A8())
    with pytest.raises(ValueError, match="purely quantized"):
        trained(model, tmp_path / "runs")
    embedded = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
    model(inputs_embeds=embedded).logits.square().mean().backward()
    assert embedded.grad is not None and embedded.grad.abs().sum() > 0
