# SPDX-License-Identifier: BSD-3-Clause
"""A new user's first hour: a model's first example, and the lines of the README."""

from __future__ import annotations

import pytest
import torch

import baraquant

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}


def bert():
    """`BertForSequenceClassification.from_pretrained(...)`, from a configuration."""
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, num_labels=2)
    )


def sentences():
    """What a tokenizer returns for four padded sentences, and their labels."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 100, (4, 10), generator=generator)
    mask = torch.ones(4, 10, dtype=torch.int64)
    mask[1, 7:] = mask[3, 4:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}, torch.tensor([0, 1, 1, 0])


def test_classification_by_the_readmes_lines(tmp_path, monkeypatch) -> None:
    """Quick start, with a model of transformers in the place of its `nn.Sequential`."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    inputs, labels = sentences()

    model = bert()
    baraquant.qat.prepare_(model, baraquant.W8A8())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]

    with torch.no_grad():
        prepared = model.eval()(**inputs).logits
        baraquant.qat.convert_(model)
        assert torch.equal(model(**inputs).logits, prepared)

        baraquant.save(model, "model.safetensors")
        fresh = bert().eval()
        assert torch.equal(baraquant.load_(fresh, "model.safetensors")(**inputs).logits, prepared)

    predicted = prepared.argmax(dim=-1)
    assert [model.config.id2label[i.item()] for i in predicted] == [
        fresh.config.id2label[i.item()] for i in fresh(**inputs).logits.argmax(dim=-1)
    ]


def test_masked_words(tmp_path) -> None:
    """The first example of BERT's page: the word behind the mask, without training."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES)
    model = transformers.BertForMaskedLM(config).eval()
    inputs, _ = sentences()
    with torch.no_grad():
        wanted = model(**inputs).logits
        report = baraquant.quantize_(model, baraquant.W8A8())
        logits = model(**inputs).logits
    assert "cls.predictions.decoder" in report.changed
    assert (logits - wanted).norm() < 0.1 * wanted.norm()
    baraquant.save(model, tmp_path / "model.safetensors")
    with torch.device("meta"):
        empty = transformers.BertForMaskedLM(config)
    loaded = baraquant.load_(empty, tmp_path / "model.safetensors").eval()
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, logits)


def test_image_classification(tmp_path) -> None:
    """The example that crashed: ViT asks its convolution's weight for its dtype."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
    )
    vit = transformers.ViTModel(config).eval()
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        wanted = vit(x).last_hidden_state
        baraquant.quantize_(vit, baraquant.W8A8())
        got = vit(x).last_hidden_state
        assert (got - wanted).norm() < 0.05 * wanted.norm()
        baraquant.save(vit, tmp_path / "vit.safetensors")
        loaded = baraquant.load_(
            lambda: transformers.ViTModel(config), tmp_path / "vit.safetensors"
        )
        assert torch.equal(loaded.eval()(x).last_hidden_state, got)


def test_generated_text() -> None:
    """A language model's first example: `generate` from a prompt, sampling with a seed."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0)
    ).eval()
    ids = torch.randint(5, 100, (1, 6))
    wanted = model.generate(ids, max_new_tokens=8, do_sample=False)
    baraquant.quantize_(model, baraquant.W8A8())
    got = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert got.shape == wanted.shape and torch.equal(got[:, :6], ids)
    torch.manual_seed(1)
    sampled = model.generate(ids, max_new_tokens=8, do_sample=True)
    torch.manual_seed(1)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=True), sampled)


def test_saving_as_transformers_does_says_what_to_call(tmp_path) -> None:
    model = bert()
    baraquant.quantize_(model, baraquant.W8A8())
    with pytest.raises(Exception, match=r"baraquant\.save"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
