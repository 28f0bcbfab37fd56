# SPDX-License-Identifier: BSD-3-Clause
"""Nothing is folded into a norm that the code may use elsewhere than in the calibration's call."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import AWQ, W4A16, SmoothQuant
from tests.support.models.outlier_models import seeded

SCHEMES = [SmoothQuant(0.5), AWQ(W4A16(8), steps=4)]


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head, self.extra = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2)
        nn.init.uniform_(self.norm.weight, 0.1, 20)


class Plain(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        return self.head(y)


class Direct(Base):
    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(x))


class Configured(Base):
    is_before = True

    def forward(self, x: Tensor) -> Any:
        if self.is_before:
            x = self.norm(x)
        x = self.head(x)
        if not self.is_before:
            x = self.norm(x)
        return x


class Recalled(Base):
    flag = False

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def forward(self, x: Tensor) -> Any:
        return self.hidden(x) if self.flag else self.head(self.norm(x))


class Finished(Base):
    flag = False

    def finish(self, y: Tensor) -> Any:
        z = self.head(y)
        return (z, y) if self.flag else z

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        return self.finish(y)


@dataclass
class Out:
    logits: Tensor
    more: Any


class Nested(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        return Out(self.head(y), {"hidden": [(y,)]})


class OtherMethod(Plain):
    def encode(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(x))


class PureMethod(Direct):
    def features(self, x: Tensor) -> Tensor:
        return self.norm(x)


class AuxHead(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        z = self.head(y)
        if self.training:
            return z, self.extra(y)
        return z


class Walrus(Base):
    def forward(self, x: Tensor, features: bool = False) -> Any:
        z = self.head(h := self.norm(x))
        return h if features else z


class Dict(Base):
    def forward(self, x: Tensor, features: bool = False) -> Any:
        out = {}
        out["h"] = self.norm(x)
        z = self.head(out["h"])
        return out if features else z


class Attr(Base):
    def forward(self, x: Tensor) -> Any:
        self.last = self.norm(x)
        z = self.head(self.last)
        if not self.training:
            self.last = None
        return z


class ByName(Direct):
    def features(self, x: Tensor, name: str = "norm") -> Tensor:
        return getattr(self, name)(x)


class Partial(Direct):
    def __init__(self) -> None:
        super().__init__()
        self.features = functools.partial(self.norm)


class Inherited(OtherMethod):
    pass


def hidden_by_a_decorator(function: Any) -> Any:
    return lambda *args: function(*args)


class Decorated(Direct):
    @hidden_by_a_decorator
    def features(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Items(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        one = Base()
        self.layers, self.norm, self.head = nn.ModuleList([one.norm, one.head]), None, None

    def forward(self, x: Tensor) -> Any:
        return self.layers[1](self.layers[0](x))


class ReadItems(Items):
    def features(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


SOURCE = """
class NoSource(Base):
    def forward(self, x):
        return self.head(self.norm(x))
"""
unknown: dict[str, Any] = {"Base": Base, "__name__": "unknown"}
exec(SOURCE, unknown)

READ = [Recalled, Finished, Nested, OtherMethod, PureMethod, AuxHead, Walrus, Dict, Attr]
KIN = [ByName, Partial, Inherited, Decorated, ReadItems, unknown["NoSource"]]


def changed(model: nn.Module, scheme: Any) -> tuple[bool, str]:
    """Return whether the norm is changed, and what the report says of the head."""
    layers = getattr(model, "layers", None)
    norm = model.norm if layers is None else layers[0]
    before = copy.deepcopy(norm.weight)
    data = [torch.randn(16, 8, generator=torch.Generator().manual_seed(1))]
    report = baraquant.quantize_(model.eval(), scheme, calibration=data, progress=False)
    assert isinstance(norm, nn.Module)
    return not torch.equal(norm.weight, before), report.changed[
        "head" if layers is None else "layers.1"
    ]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("kind", READ + KIN, ids=lambda kind: kind.__name__)
def test_what_others_may_use(kind: Any, scheme: Any) -> None:
    is_changed, about = changed(seeded(kind), scheme)
    assert not is_changed
    assert "folded into" not in about


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("kind", [Plain, Direct, Configured, Items], ids=lambda kind: kind.__name__)
def test_what_one_place_uses(kind: Any, scheme: Any) -> None:
    """The division is still folded."""
    assert changed(seeded(kind), scheme)[0]
