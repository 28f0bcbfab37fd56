# SPDX-License-Identifier: BSD-3-Clause
"""Tied weights stay tied: one parameter, one scale, one stored integer weight."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import W8A8, QuantConfig, TensorConfig
from baraquant.qat import convert_, prepare_
from tests.support.checks.stored import assert_stored
from tests.support.models.one_layer import TRAINED
from tests.support.models.outlier_models import relative_error
from tests.support.models.training_models import train

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
    "observed_tensor": QuantConfig(*[TensorConfig(8, "per_tensor", dynamic=False)] * 2),
}
FEW = ("w8a8", "w4_group", "learned", "learned_weight_only", "static")
MODELS: dict[str, Any] = {"two": Model, "three": Three}
PAIRS = [(nn.Embedding, scheme) for scheme in SCHEMES]
PAIRS += [(embedding, scheme) for embedding in (Scaled, Averaged) for scheme in FEW]


def built(kind: str, *arguments: Any, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[kind](*arguments)


def layers(model: nn.Module) -> list[nn.Module]:
    return [m for n, m in model.named_children() if n in ("embedding", "second", "head")]


def check_one_table(model: nn.Module) -> None:
    """The tied layers hold one table in memory, with one scale, and say the same of it."""
    first, *others = layers(model)
    held = {
        tensor.untyped_storage().data_ptr()
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.shape == (VOCABULARY, WIDTH)
    }
    assert len(held) == 1, {n: t.dtype for n, t in model.state_dict().items()}
    for other in others:
        assert torch.equal(other.weight.detach(), first.weight.detach())
        if hasattr(first, "weight_scale"):
            assert other.weight_scale.data_ptr() == first.weight_scale.data_ptr()
            assert torch.equal(other.weight_scale.flatten(), first.weight_scale.flatten())


def check_report(report: Any, model: nn.Module, embedding: type[nn.Embedding]) -> None:
    """An embedding that stays floating keeps its head from becoming something else."""
    assert "body" in report.changed
    if embedding is Averaged:
        reason = report.left_out["head"]
        assert "embedding" in report.left_out
        assert "embedding" in reason or "second" in reason
    else:
        assert not report.left_out and {"embedding", "head"} <= set(report.changed)
        suffix = "OfScaled" if embedding is Scaled else "Embedding"
        assert type(model.embedding).__name__.endswith(suffix)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("embedding", "scheme"), PAIRS)
def test_trained_converted_saved(kind: str, embedding: Any, scheme: str, tmp_path: Path) -> None:
    model = built(kind, embedding)
    check_report(prepare_(model, SCHEMES[scheme]), model, embedding)
    for mode in (True, False):
        model.train(mode)
        names = dict(model.named_parameters(remove_duplicate=False))
        tied = [name for name in names if name in ("head.weight", "second.weight")]
        assert len(tied) == len(layers(model)) - 1
        assert all(names[name] is names["embedding.weight"] for name in tied)
    with torch.no_grad():
        model.train()(TOKENS)  # sets the ranges of the inputs
    train(model, *[TOKENS] * 4).eval()
    check_one_table(model)
    evaluated = model(TOKENS)
    convert_(model)
    assert torch.equal(model(TOKENS), evaluated)
    check_one_table(model)
    build = functools.partial(built, kind, embedding, seed=5)
    for loaded in assert_stored(model, build, TOKENS, tmp_path / "model.safetensors"):
        check_one_table(loaded)
    copied = copy.deepcopy(model)
    check_one_table(copied)
    assert copied.body.qweight.data_ptr() != model.body.qweight.data_ptr()


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


def test_a_frozen_tie_stays_frozen() -> None:
    model = built("two")
    model.embedding.weight.requires_grad_(False)
    prepare_(model, SCHEMES["learned"])
    assert not model.head.weight.requires_grad and not model.embedding.weight.requires_grad


def test_what_was_not_tied_is_not_tied() -> None:
    model = Model(tied=False)
    model.head.weight.data.copy_(model.embedding.weight)
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
    assert relative_error(served, wanted) < 0.05
    baraquant.save(model, path := tmp_path / "model.safetensors")
    loaded = baraquant.load_(Bare(), path).eval()
    assert torch.equal(loaded(TOKENS), served) and loaded.head.weight is loaded.table
