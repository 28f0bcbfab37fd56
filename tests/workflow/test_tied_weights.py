# SPDX-License-Identifier: BSD-3-Clause
"""Tied weights stay tied: one parameter, one scale, one stored integer weight."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import W8A8, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support.models.one_layer import TRAINED

VOCABULARY, WIDTH = 24, 16


class Scaled(nn.Embedding):
    """An embedding whose forward calls its parent's, as Gemma's, BART's and Pegasus's."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * WIDTH**0.5


class Averaged(nn.Embedding):
    """An embedding that computes with its table, as no quantized one does."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) - self.weight.mean(0)


class Model(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, embedding: type[nn.Embedding] = nn.Embedding, tied: bool = True) -> None:
        super().__init__()
        self.embedding = embedding(VOCABULARY, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x + F.gelu(self.body(x)))


class Three(Model):
    """As encoders and decoders with one table and a head have it."""

    def __init__(self, embedding: type[nn.Embedding] = nn.Embedding) -> None:
        super().__init__(embedding)
        self.second = embedding(VOCABULARY, WIDTH)
        self.second.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + self.head(self.second(tokens.flip(1)))


TOKENS = torch.randint(0, VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(1))
SCHEMES = {
    **TRAINED,
    "learned_weight_only": QuantConfig(TensorConfig(4, learned=True)),
    "learned_tensor": QuantConfig(TensorConfig(4, "per_tensor", learned=True)),
    "learned_group": QuantConfig(TensorConfig(4, "per_group", group_size=8, learned=True)),
    "observed_tensor": QuantConfig(
        TensorConfig(8, "per_tensor", dynamic=False),
        TensorConfig(8, "per_tensor", dynamic=False),
    ),
}
MODELS: dict[str, Any] = {"two": Model, "three": Three}


def built(kind: str, *arguments: Any, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[kind](*arguments)


def train(model: nn.Module, steps: int = 4) -> None:
    """Learned scales get gradients from both layers; the first batch sets those of inputs."""
    model.train()
    with torch.no_grad():
        model(TOKENS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        optimizer.step()
    model.eval()


def layers(model: nn.Module) -> list[nn.Module]:
    return [m for n, m in model.named_children() if n in ("embedding", "second", "head")]


def one_weight(model: nn.Module) -> None:
    """All of the tied layers hold the same integers and scales: the same memory."""
    first, *others = layers(model)
    for other in others:
        assert other.qweight is first.qweight or (
            other.qweight.data_ptr() == first.qweight.data_ptr()
        )
        assert torch.equal(other.weight_scale.flatten(), first.weight_scale.flatten())
        assert other.weight_scale.data_ptr() == first.weight_scale.data_ptr()
        assert torch.equal(other.weight, first.weight)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_trained_converted_saved(kind: str, scheme: str, tmp_path) -> None:
    model = built(kind)
    report = prepare_(model, SCHEMES[scheme])
    assert {"embedding", "head"} <= set(report.changed), report
    first, *others = layers(model)
    for mode in (True, False):
        model.train(mode)
        names = dict(model.named_parameters(remove_duplicate=False))
        assert all(
            names[f"{n}.weight"] is names["embedding.weight"]
            for n in ("head", "second")[: len(others)]
        )
    train(model)
    for other in others:
        assert torch.equal(other.weight.detach(), first.weight.detach())
    evaluated = model(TOKENS)
    convert_(model)
    assert torch.equal(model(TOKENS), evaluated)
    one_weight(model)
    path = tmp_path / "model.safetensors"
    baraquant.save(model, path)
    for fresh in (built(kind, seed=5), on_meta(kind)):
        loaded = baraquant.load_(fresh, path).eval()
        assert torch.equal(loaded(TOKENS), evaluated)
        one_weight(loaded)
    copied = copy.deepcopy(model)
    one_weight(copied)
    assert copied.head.qweight.data_ptr() != model.head.qweight.data_ptr()


def on_meta(kind: str, *arguments: Any) -> nn.Module:
    with torch.device("meta"):
        return built(kind, *arguments)


@pytest.mark.parametrize("scheme", ["learned", "learned_asymmetric", "learned_tensor"])
def test_a_learned_scale_is_one_parameter(scheme: str) -> None:
    """It learns from both layers, and counts once."""
    model = built("two")
    prepare_(model, SCHEMES[scheme])
    model.train()
    model(TOKENS)
    names = [n for n, _ in model.named_parameters() if "scale" in n and "input" not in n]
    weights = [n for n in names if n.startswith(("embedding", "head"))]
    assert len(weights) == 1, weights
    scale = model.get_parameter(weights[0])
    grads = []
    for part in ("embedding", "head", "both"):
        model.zero_grad()
        x = model.embedding(TOKENS)
        x = x if part != "head" else x.detach()
        y = model.head(x) if part != "embedding" else x
        y.square().sum().backward()
        grads.append(scale.grad.clone())
    assert all(g.any() for g in grads)
    assert not torch.equal(grads[0], grads[2]) and not torch.equal(grads[1], grads[2])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "config", [W8A8(), W8A8Static(), SmoothQuant(0.5), SmoothQuant(0.5, W8A8Static())], ids=str
)
def test_quantized(kind: str, config: object, tmp_path) -> None:
    model = built(kind).eval()
    wanted = model(TOKENS).detach()
    calibration = None if config in (W8A8(), W8A8(False)) else [TOKENS]
    baraquant.quantize_(model, config, calibration=calibration, progress=False)
    served = model(TOKENS)
    assert (served - wanted).norm() < 0.05 * wanted.norm()
    sizes = {t.data_ptr(): t.nbytes for t in model.parameters() if t.dtype == torch.int8}
    if isinstance(config, QuantConfig):
        one_weight(model)
        assert sum(sizes.values()) == VOCABULARY * WIDTH + WIDTH * WIDTH
    baraquant.save(model, path := tmp_path / "model.safetensors")
    loaded = baraquant.load_(built(kind, seed=5), path).eval()
    assert torch.equal(loaded(TOKENS), served)
    if isinstance(config, QuantConfig):
        one_weight(loaded)


def names_a_table(reason: str) -> bool:
    """The reason says with which layer the head shares its weight."""
    return "embedding" in reason or "second" in reason


def check_agree(model: nn.Module, kind: str) -> None:
    """The head and the embedding are one tensor in memory."""
    held: dict[int, Tensor] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.shape == (VOCABULARY, WIDTH):
            held[tensor.untyped_storage().data_ptr()] = tensor
    assert len(held) == 1, {n: t.dtype for n, t in model.state_dict().items()}
    tables = [m.weight.detach() for m in layers(model)]
    assert all(torch.equal(t, tables[0]) for t in tables)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("scheme", ["w8a8", "w4_group", "learned", "learned_weight_only", "static"])
def test_an_embedding_that_is_left_out(kind: str, scheme: str, tmp_path) -> None:
    """Its head must not become a second copy that says something else."""
    model = built(kind, Averaged)
    report = prepare_(model, SCHEMES[scheme])
    assert "embedding" in report.left_out and "body" in report.changed
    assert names_a_table(report.left_out.get("head", "")), report
    train(model)
    check_agree(model, kind)
    evaluated = model(TOKENS)
    convert_(model)
    assert torch.equal(model(TOKENS), evaluated)
    check_agree(model, kind)
    baraquant.save(model, path := tmp_path / "model.safetensors")
    for fresh in (built(kind, Averaged, seed=5), on_meta(kind, Averaged)):
        loaded = baraquant.load_(fresh, path).eval()
        assert torch.equal(loaded(TOKENS), evaluated)
        check_agree(loaded, kind)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("scheme", ["w8a8", "w4_group", "learned", "learned_weight_only", "static"])
def test_an_embedding_that_calls_its_parents_forward(kind: str, scheme: str, tmp_path) -> None:
    """Gemma: swapped with its forward, and one table with the head."""
    model = built(kind, Scaled)
    report = prepare_(model, SCHEMES[scheme])
    assert not report.left_out and {"embedding", "body", "head"} <= set(report.changed)
    train(model)
    check_agree(model, kind)
    evaluated = model(TOKENS)
    convert_(model)
    assert torch.equal(model(TOKENS), evaluated)
    assert type(model.embedding).__name__ == "QuantizedEmbeddingOfScaled"
    assert model.head.qweight is model.embedding.qweight
    check_agree(model, kind)
    baraquant.save(model, path := tmp_path / "model.safetensors")
    for fresh in (built(kind, Scaled, seed=5), on_meta(kind, Scaled)):
        loaded = baraquant.load_(fresh, path).eval()
        assert torch.equal(loaded(TOKENS), evaluated)
        assert loaded.head.qweight is loaded.embedding.qweight
        check_agree(loaded, kind)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "config", [W8A8(), W8A8Static(), SmoothQuant(0.5), SmoothQuant(0.5, W8A8Static())], ids=str
)
def test_quantize_leaves_both_out(kind: str, config: object, tmp_path) -> None:
    model = built(kind, Averaged).eval()
    wanted = model(TOKENS).detach()
    calibration = None if config in (W8A8(), W8A8(False)) else [TOKENS]
    report = baraquant.quantize_(model, config, calibration=calibration, progress=False)
    assert set(report.changed) == {"body"} and names_a_table(report.left_out["head"])
    check_agree(model, kind)
    served = model(TOKENS)
    assert (served - wanted).norm() < 0.05 * wanted.norm()
    baraquant.save(model, path := tmp_path / "model.safetensors")
    loaded = baraquant.load_(built(kind, Averaged, seed=5), path).eval()
    assert torch.equal(loaded(TOKENS), served)
    check_agree(loaded, kind)


@pytest.mark.parametrize("left", ["embedding", "head"])
def test_a_filter_that_leaves_out_one_of_two(left: str) -> None:
    """The caller's choice: the other is swapped alone, or left out too, with the reason."""
    for call in (
        lambda m, f: baraquant.quantize_(m, W8A8(), filter_fn=f),
        lambda m, f: prepare_(m, W8A8(), filter_fn=f),
    ):
        model = built("two")
        report = call(model, lambda module, name: name != left)
        assert report.left_out[left] == "filter_fn"
        other = "head" if left == "embedding" else "embedding"
        assert isinstance(model.get_submodule(left), (nn.Embedding, nn.Linear)[left == "head"])
        if other in report.left_out:
            assert left in report.left_out[other], report
            check_agree(model, "two")
        evaluated = model.eval()(TOKENS)
        if any(".weight" in n and n.startswith(other) for n, _ in model.named_parameters()):
            convert_(model)
        assert torch.equal(model(TOKENS), evaluated)


def test_a_frozen_tie_stays_frozen() -> None:
    model = built("two")
    model.embedding.weight.requires_grad_(False)
    prepare_(model, SCHEMES["learned"])
    assert not model.head.weight.requires_grad and not model.embedding.weight.requires_grad


def test_what_was_not_tied_is_not_tied() -> None:
    torch.manual_seed(0)
    model = Model(tied=False)
    with torch.no_grad():
        model.head.weight.copy_(model.embedding.weight)
    baraquant.quantize_(model, W8A8())
    assert model.head.qweight.data_ptr() != model.embedding.qweight.data_ptr()
    assert torch.equal(model.head.qweight, model.embedding.qweight)


def test_a_tie_with_a_bare_parameter(tmp_path) -> None:
    """A parent that holds its child's weight under a name of its own: the two must not part."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.body = nn.Linear(WIDTH, WIDTH)
            self.table = self.head.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.body(self.table[tokens]))

    torch.manual_seed(0)
    model = Bare().eval()
    wanted = model(TOKENS).detach()
    report = baraquant.quantize_(model, W8A8())
    assert set(report.changed) == {"body"}, report
    assert "weight" in report.left_out["head"] and "table" in str(report)
    assert model.head.weight is model.table
    served = model(TOKENS)
    assert (served - wanted).norm() < 0.05 * wanted.norm()
    baraquant.save(model, path := tmp_path / "model.safetensors")
    loaded = baraquant.load_(Bare(), path).eval()
    assert torch.equal(loaded(TOKENS), served) and loaded.head.weight is loaded.table
