# SPDX-License-Identifier: BSD-3-Clause
"""Nothing is folded into a norm whose output other code may read than the calibration's calls."""

import copy
import functools
from dataclasses import dataclass
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


class Base(nn.Module):
    """A norm and a head, and a flag by which a call may use the norm's output elsewhere."""

    flag = False

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head, self.extra = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.kept: list[Tensor] = []
        nn.init.uniform_(self.norm.weight, 0.1, 20)


class Free:
    """Forwards in which the head alone reads it."""

    def plain(self, x: Tensor) -> Any:
        y = self.norm(x)
        return self.head(y)

    def direct(self, x: Tensor) -> Any:
        return self.head(self.norm(x))

    def norm_first(self, x: Tensor) -> Any:  # a branch that binds local names alone is excused
        residual = x
        if not self.flag:
            x = self.norm(x)
        x = residual + self.head(x)
        if self.flag:
            x = self.norm(x)
        return x


class ByArgument:
    """Forwards with branches by an argument, which calibration did not take."""

    def early(self, x: Tensor, features: bool = False) -> Any:
        y = self.norm(x)
        if features:
            return y
        return self.head(y)

    def late(self, x: Tensor, features: bool = False) -> Any:
        y = self.norm(x)
        z = self.head(y)
        return y if features else z

    def both(self, x: Tensor, features: bool = False) -> Any:
        y = self.norm(x)
        y = F.relu(y)
        z = self.head(y)
        if features:
            z = y, z
        return z

    def deferred(self, x: Tensor, features: bool = False) -> Any:
        y = self.norm(x)
        z = self.head(y)
        read = lambda: y  # noqa: E731
        return read() if features else z

    def walrus(self, x: Tensor, features: bool = False) -> Any:
        z = self.head(h := self.norm(x))
        return h if features else z

    def in_a_dict(self, x: Tensor, features: bool = False) -> Any:
        out = {}
        out["h"] = self.norm(x)
        z = self.head(out["h"])
        return out if features else z


class ByAttribute:
    """Forwards with branches by an attribute, which may change later."""

    def returns(self, x: Tensor) -> Any:
        if self.flag:
            return self.norm(x)
        else:  # noqa: RET505
            return self.head(self.norm(x))

    def returns_name(self, x: Tensor) -> Any:
        if not self.flag:
            x = self.head(self.norm(x))
        else:
            y = self.norm(x)
            return y  # noqa: RET504
        return x

    def appends_in_branch(self, x: Tensor) -> Any:
        if self.flag:
            self.kept.append(self.norm(x))
        else:
            x = self.head(self.norm(x))
        return x

    def aux_head(self, x: Tensor) -> Any:
        y = self.norm(x)
        z = self.head(y)
        if self.training:
            return z, self.extra(y)
        return z

    def attr(self, x: Tensor) -> Any:
        self.last = self.norm(x)
        z = self.head(self.last)
        if not self.training:
            self.last = None
        return z

    def nested(self, x: Tensor) -> Any:  # no branch: a result that holds it
        y = self.norm(x)
        return Out(self.head(y), {"hidden": [(y,)]})


def of(forwards: type) -> list[type[nn.Module]]:
    """A subclass of Base for each of these forwards."""
    return [type(n, (Base,), {"forward": f}) for n, f in vars(forwards).items() if callable(f)]


@dataclass
class Out:
    logits: Tensor
    more: Any


# Other methods, and what the source does not show.
class Direct(Base):
    forward = Free.direct


class Finished(Base):
    def finish(self, y: Tensor) -> Any:
        z = self.head(y)
        return (z, y) if self.flag else z

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        return self.finish(y)


class Recalled(Base):
    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def forward(self, x: Tensor) -> Any:
        return self.hidden(x) if self.flag else self.head(self.norm(x))


class PureMethod(Direct):
    def features(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Inherited(PureMethod):
    pass


class OfMethod(PureMethod):
    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x))


class ByName(Direct):
    def features(self, x: Tensor, name: str = "norm") -> Tensor:
        return getattr(self, name)(x)


class Partial(Direct):
    def __init__(self) -> None:
        super().__init__()
        self.features = functools.partial(self.norm)


def hidden_by_a_decorator(function: Any) -> Any:
    return lambda *args: function(*args)


class Decorated(Direct):
    features = hidden_by_a_decorator(PureMethod.features)


class Items(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        one = Base()
        self.layers = nn.ModuleList([one.norm, one.head])

    def forward(self, x: Tensor) -> Any:
        return self.layers[1](self.layers[0](x))


class ReadItems(Items):
    def features(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


unknown: dict[str, Any] = {"Base": Base, "__name__": "unknown"}
SOURCE = "class NoSource(Base):\n    def forward(self, x):\n        return self.head(self.norm(x))"
exec(SOURCE, unknown)

FREE, BY_ARGUMENT = [*of(Free), Items], of(ByArgument)
OTHERS = [*of(ByAttribute), Finished, Recalled, Inherited, PureMethod, OfMethod, ByName, Partial]
OTHERS += [Decorated, ReadItems, unknown["NoSource"]]


class Around(nn.Module):
    def __init__(self, model: nn.Module, is_block: bool) -> None:
        super().__init__()
        self.part = nn.ModuleList([model]) if is_block else model

    def forward(self, x: Tensor) -> Any:
        return self.part[0](x) if isinstance(self.part, nn.ModuleList) else self.part(x)


PLACES = "root", "part", "block"
by_place = pytest.mark.parametrize("place", PLACES)
by_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=str)


def quantize(model: nn.Module, place: str, scheme: Any) -> tuple[bool, str]:
    """Return whether the norm is changed, and what the report says of the head."""
    norm, head = model.layers if isinstance(model, Items) else (model.norm, model.head)
    before = copy.deepcopy(norm.weight)
    root = (model if place == "root" else Around(model, is_block=place == "block")).eval()
    path = next(name for name, one in root.named_modules() if one is head)
    data = [torch.randn(16, 8, generator=torch.Generator().manual_seed(1))]
    report = baraquant.quantize_(root, scheme, calibration=data, progress=False)
    return not torch.equal(norm.weight, before), report.changed[path]


@by_scheme
@by_place
@pytest.mark.parametrize("kind", BY_ARGUMENT + OTHERS, ids=lambda kind: kind.__name__)
def test_what_others_may_read_is_as_it_was(kind: Any, place: str, scheme: Any) -> None:
    is_changed, about = quantize(seeded(kind), place, scheme)
    assert not is_changed and "folded into" not in about
    if kind in BY_ARGUMENT:
        assert "as other calls may read the output of" in about


@by_scheme
@by_place
@pytest.mark.parametrize("kind", FREE, ids=lambda kind: kind.__name__)
def test_what_one_place_reads_is_folded(kind: Any, place: str, scheme: Any) -> None:
    is_changed, about = quantize(seeded(kind), place, scheme)
    assert is_changed and "folded into" in about


OF_TRANSFORMERS = ["llama", "bert", "bert_classifier", "vit", "opt", "clip", "whisper", "gpt2"]


@pytest.mark.parametrize("scheme", SCHEMES[:2], ids=str)
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_hidden_states_of_transformers(name: str, scheme: Any) -> None:
    """Each tensor that a call with other flags returns is near the float model's."""
    pytest.importorskip("transformers")
    model, inputs = liven(build(name)), TINY[name].inputs()
    norms = [m for m in model.modules() if type(m).__name__.endswith("Norm")]
    for index, norm in enumerate(norm for norm in norms if hasattr(norm, "weight")):
        generator = torch.Generator().manual_seed(index)
        norm.weight.data.copy_(torch.rand(norm.weight.shape, generator=generator) * 3 + 0.1)
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
    o_proj = report.changed[f"{block}.self_attn.o_proj"]
    assert o_proj.endswith("in its input"), "its heads share a value"
    assert report.changed["lm_head"].endswith("as other calls may read the output of model.norm")
