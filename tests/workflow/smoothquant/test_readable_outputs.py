# SPDX-License-Identifier: BSD-3-Clause
"""What calls that calibration did not make can read is as it was: nothing is folded into it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import AWQ, W4A16, SmoothQuant, W8A8Static
from tests.support.models.outlier_models import seeded
from tests.support.tiny_transformers.build import TINY, build, liven, outputs, relative_error

SCHEMES = [SmoothQuant(0.5), SmoothQuant("search", W8A8Static()), AWQ(W4A16(8), steps=4)]


class Branches(nn.Module):
    """A norm and a head, and a flag by which a call gets the output of the norm."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.kind, self.extra = kind, nn.Linear(8, 2)
        nn.init.uniform_(self.norm.weight, 0.1, 20)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.body(x))

    def forward(self, x: Tensor, features: bool = False) -> Any:
        return getattr(self, self.kind)(x, features)

    def early(self, x: Tensor, features: bool) -> Any:
        y = self.norm(self.body(x))
        if features:
            return y
        return self.head(y)

    def late(self, x: Tensor, features: bool) -> Any:
        y = self.norm(self.body(x))
        z = self.head(y)
        return y if features else z

    def both(self, x: Tensor, features: bool) -> Any:
        y = self.norm(self.body(x))
        y = F.relu(y)
        z = self.head(y)
        if features:
            z = y, z
        return z

    def method(self, x: Tensor, features: bool) -> Any:
        y = self.features(x)
        return y if features else self.head(y)

    def called(self, x: Tensor, features: bool) -> Any:
        return self.features(x) if features else self.head(self.features(x))

    def other_head(self, x: Tensor, features: bool) -> Any:
        y = self.norm(self.body(x))
        return (self.head(y), self.extra(y) if features else None)

    def deferred(self, x: Tensor, features: bool) -> Any:
        y = self.norm(self.body(x))
        z = self.head(y)
        read = lambda: y  # noqa: E731
        return read() if features else z


class Around(nn.Module):
    """A model that has another one as a part or as a block."""

    def __init__(self, model: nn.Module, place: str) -> None:
        super().__init__()
        self.part = model if place == "part" else nn.ModuleList([model])

    def forward(self, x: Tensor, features: bool = False) -> Any:
        return (self.part if isinstance(self.part, Branches) else self.part[0])(x, features)


KINDS = ["early", "late", "both", "method", "called", "other_head", "deferred"]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("place", ["root", "part", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_branches_that_calibration_did_not_take(kind: str, place: str, scheme: Any) -> None:
    model = seeded(Branches, kind)
    root = model if place == "root" else seeded(Around, model, place)
    before = copy.deepcopy(model.norm)
    data = [torch.randn(16, 8, generator=torch.Generator().manual_seed(1))]
    head = next(name for name, one in root.named_modules() if one is model.head)
    report = baraquant.quantize_(root, scheme, calibration=data)
    assert torch.equal(model.norm.weight, before.weight)
    assert "as other calls may read the output of" in report.changed[head]


class Flagged(nn.Module):
    """A norm and a head, and an attribute by which the norm's output is used elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head, self.flag = nn.LayerNorm(8), nn.Linear(8, 8), False
        self.kept: list[Tensor] = []
        nn.init.uniform_(self.norm.weight, 0.1, 20)


class Returns(Flagged):
    def forward(self, x: Tensor) -> Tensor:
        if self.flag:
            return self.norm(x)
        else:  # noqa: RET505
            return self.head(self.norm(x))


class ReturnsName(Flagged):
    def forward(self, x: Tensor) -> Tensor:
        if not self.flag:
            x = self.head(self.norm(x))
        else:
            y = self.norm(x)
            return y  # noqa: RET504
        return x


class Appends(Flagged):
    def forward(self, x: Tensor) -> Tensor:
        if not self.flag:
            return self.head(self.norm(x))
        self.kept.append(self.norm(x))
        return x


class AppendsInBranch(Flagged):
    def forward(self, x: Tensor) -> Tensor:
        if self.flag:
            self.kept.append(self.norm(x))
        else:
            x = self.head(self.norm(x))
        return x


class NormFirst(Flagged):
    def forward(self, x: Tensor) -> Tensor:
        residual = x
        if not self.flag:
            x = self.norm(x)
        x = residual + self.head(x)
        if self.flag:
            x = self.norm(x)
        return x


class Blocks(nn.Module):
    """A model of blocks, and each has the module as its part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(part)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x)


class Block(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(x)


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("kind", [Returns, ReturnsName, Appends, AppendsInBranch, NormFirst])
def test_branches_by_an_attribute(kind: type[Flagged], is_part: bool) -> None:
    """Only one that binds local names is excused: an attribute may change later."""
    model = seeded(kind)
    root = seeded(Blocks, model) if is_part else model
    before = copy.deepcopy(model.norm)
    data = [torch.randn(16, 8, generator=torch.Generator().manual_seed(1))]
    baraquant.quantize_(root, SmoothQuant(0.5), calibration=data)
    assert torch.equal(model.norm.weight, before.weight) == (kind is not NormFirst)


@pytest.mark.parametrize("scheme", SCHEMES[:2], ids=str)
@pytest.mark.parametrize(
    "name", ["llama", "bert", "bert_classifier", "vit", "opt", "clip", "whisper", "gpt2"]
)
def test_hidden_states_of_transformers(name: str, scheme: Any) -> None:
    """Each tensor that a call with other flags returns is near the float model's."""
    pytest.importorskip("transformers")
    model, inputs = liven(build(name)), TINY[name].inputs()
    norms = [
        m for m in model.modules() if type(m).__name__.endswith("Norm") and hasattr(m, "weight")
    ]
    for index, norm in enumerate(norms):
        generator = torch.Generator().manual_seed(index)
        with torch.no_grad():
            norm.weight.copy_(torch.rand(norm.weight.shape, generator=generator) * 3 + 0.1)
    more = inputs | {"output_hidden_states": True, "use_cache": False}
    if name in ("bert", "bert_classifier", "vit", "clip"):
        del more["use_cache"]
    wanted = outputs(model, more)
    baraquant.quantize_(model, scheme, calibration=[inputs], progress=False)
    got = outputs(model, more)
    assert len(got) == len(wanted)
    assert relative_error(got, wanted) < 0.25


def test_the_layers_of_a_block_stay_folded() -> None:
    pytest.importorskip("transformers")
    model = build("llama")
    report = baraquant.quantize_(model, SmoothQuant(0.5), calibration=[TINY["llama"].inputs()])
    block = "model.layers.0"
    for layer, producer in {
        "self_attn.q_proj": "input_layernorm",
        "self_attn.v_proj": "input_layernorm",
        "mlp.gate_proj": "post_attention_layernorm",
        "mlp.down_proj": "mlp.up_proj",
    }.items():
        assert report.changed[f"{block}.{layer}"].endswith(f"folded into {block}.{producer}")
    assert report.changed["lm_head"].endswith("as other calls may read the output of model.norm")
