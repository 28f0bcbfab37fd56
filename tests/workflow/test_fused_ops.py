# SPDX-License-Identifier: BSD-3-Clause
"""``use_fused_ops_``: what it swaps, what it leaves, and that files know of it."""

import collections

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8
from baraquant import nn as bnn
from tests.support.bits import assert_same_bits
from tests.support.checks.refused import refused
from tests.support.checks.stored import assert_stored
from tests.support.models.norms import numbers, random_norm
from tests.support.optional_packages import package
from tests.support.tiny_transformers import build as tiny


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = random_norm(nn.RMSNorm(8))
        self.mlp = Mlp()
        self.last = random_norm(nn.LayerNorm(8))
        self.gelu = nn.GELU("tanh")
        self.group = nn.GroupNorm(2, 8)
        self.plane = nn.LayerNorm([4, 8])

    def forward(self, x):
        x = self.plane(x + self.gelu(self.mlp(self.norm(x))))
        return self.last(self.group(x.transpose(1, 2)).transpose(1, 2))


class Mlp(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 16), nn.Linear(8, 16)
        self.down_proj, self.act_fn, self.scale = nn.Linear(16, 8), nn.SiLU(), 7
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.down_proj(self.drop(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


def test_modules_of_a_model_are_swapped_in_place():
    torch.manual_seed(0)
    model = Block()
    x, names = numbers(2, 4, 8), list(model.state_dict())
    before, weights = model(x), [p.data_ptr() for p in model.parameters()]
    seen = []
    model.norm.register_forward_hook(lambda *args: seen.append(1))
    report = baraquant.use_fused_ops_(model.train())
    swapped = {"norm": "RMSNorm", "mlp": "GatedMLP", "last": "LayerNorm", "gelu": "GELU"}
    assert report.changed == swapped
    assert report.left_out == {"plane": "it normalizes over more than the last dimension"}
    assert list(model.state_dict()) == names and model.mlp.scale == 7
    assert [p.data_ptr() for p in model.parameters()] == weights
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    assert seen == [1] and model.mlp.training
    with pytest.raises(ValueError, match="use_fused_ops_: expected a model with a LayerNorm"):
        baraquant.use_fused_ops_(model)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "mlp", Mlp(dropout=0.5)),
        lambda model: setattr(model.mlp, "act_fn", nn.GELU()),
        lambda model: setattr(model.mlp, "forward", lambda x: x),
        lambda model: model.mlp.register_buffer("extra", torch.ones(1)),
    ],
    ids=["dropout", "gelu", "forward", "buffer"],
)
def test_an_mlp_that_computes_something_else_stays(change):
    model = Block()
    change(model)
    assert "mlp" in baraquant.use_fused_ops_(model).left_out and type(model.mlp) is Mlp


def test_a_norm_that_computes_something_else_stays():
    class StrangeLayerNorm(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) * 1.001

    class HalfRMSNorm(nn.RMSNorm):
        def forward(self, x):
            return super().forward(x) * (2 if self.training else 1)

    model = nn.Sequential(StrangeLayerNorm(8), HalfRMSNorm(8), nn.LayerNorm(8))
    report = baraquant.use_fused_ops_(model.eval())
    assert report.changed == {"2": "LayerNorm"}
    reason = "it computes something else than a LayerNorm or an RMSNorm"
    assert report.left_out == {"0": reason, "1": reason}


def test_filter_and_shared_modules():
    shared = nn.LayerNorm(8)
    model = nn.ModuleDict({"a": shared, "b": shared, "c": nn.LayerNorm(8)})
    report = baraquant.use_fused_ops_(model, lambda module, name: name != "c")
    assert report.changed == {"a": "LayerNorm"} and model["a"] is model["b"]
    assert type(model["c"]) is nn.LayerNorm


@torch.no_grad()
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_the_fast_path_of_an_encoder_is_left(kind):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=nn.GELU())
    model = nn.TransformerEncoder(layer, 1).eval()
    baraquant.use_fused_ops_(model)
    calls = []
    model.layers[0].norm1.register_forward_hook(lambda *args: calls.append(1))
    model(numbers(2, 3, 8))
    assert calls == [1]


@pytest.mark.parametrize("order", ["before", "after"])
def test_evaluation_equals_the_converted_and_the_loaded_model(order, tmp_path):
    torch.manual_seed(1)
    model, x = Block(), numbers(2, 4, 8)
    if order == "before":
        baraquant.use_fused_ops_(model)
    baraquant.qat.prepare_(model, W8A8())
    if order == "after":
        baraquant.use_fused_ops_(model)
    model.train()(x).square().mean().backward()
    with torch.no_grad():
        wanted = model.eval()(x)
        baraquant.qat.convert_(model)
        assert isinstance(model.mlp, bnn.GatedMLP)
        assert_same_bits(model(x), wanted)
        for loaded in assert_stored(model, Block, x, tmp_path / "model.safetensors"):
            assert type(loaded.norm) is bnn.RMSNorm


def test_a_file_that_does_not_fit_leaves_the_model_as_it_was(tmp_path):
    model = Block()
    baraquant.use_fused_ops_(model)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "model.safetensors")
    other, smaller = Block(), Block()
    other.gelu = nn.ReLU()
    smaller.mlp.down_proj = nn.Linear(16, 4)
    message = "gelu: expected a norm, a GELU or a gated MLP, which use"
    refused(baraquant.load_, message, other, tmp_path / "model.safetensors")
    refused(baraquant.load_, "down_proj", smaller, tmp_path / "model.safetensors")


NOTHING = {"mobilebert", "resnet", "regnet", "mobilenet_v2", "efficientnet", "encodec"}
COUNTS = {
    "llama": {"RMSNorm": 5, "GatedMLP": 2},
    "gemma": {"RMSNorm": 5, "GELU": 2},
    "qwen3": {"RMSNorm": 9, "GatedMLP": 2},
    "bert": {"LayerNorm": 6, "GELU": 3},
    "cohere": {"LayerNorm": 3, "GatedMLP": 2},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", tiny.TINY)
def test_transformers(name):
    """A model with fused ops gives what it gave, but for the last bits."""
    package("transformers")
    inputs, model = tiny.TINY[name].inputs(), tiny.liven(tiny.build(name))
    if name in NOTHING:
        refused(baraquant.use_fused_ops_, "expected a model with a LayerNorm", model)
        return
    wanted = tiny.outputs(model, inputs)
    counts = dict(collections.Counter(baraquant.use_fused_ops_(model).changed.values()))
    assert tiny.relative_error(tiny.outputs(model, inputs), wanted) < 1e-3
    assert counts == COUNTS.get(name, counts)
