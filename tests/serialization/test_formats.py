# SPDX-License-Identifier: BSD-3-Clause
"""The format of files, and what a file holds beside the state dict.

The file in ``data`` is ``Every().quantize()`` of the seed 7.
"""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import baraquant
from tests.support.models.every_layer import Every, same

DATA = Path(__file__).resolve().parents[1] / "data"


def on_meta(build):
    with torch.device("meta"):
        return build()


def raw(path):
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        return json.loads(file.metadata()["baraquant"]), {n: file.get_tensor(n) for n in names}


MADE = {"built": lambda build: build(), "function": lambda build: build, "meta": on_meta}
MORE = {"function of meta": lambda build: partial(on_meta, build), "within meta": MADE["function"]}


@pytest.mark.parametrize("how", MADE)
def test_a_file_of_format_1_is_read(how):
    path = DATA / "format_1_every.safetensors"
    assert raw(path)[0]["format"] == 1
    loaded = baraquant.load_(MADE[how](Every), path).eval()
    torch.manual_seed(7)
    assert same(loaded, Every().quantize())


class Rotary(nn.Module):
    """Buffers that are in no state dict, one under two names and a plain tensor besides.

    Among them are a random one, a mask and ids that are a view; those of the norm are in it.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.register_buffer("frequencies", torch.arange(8) / 8, persistent=False)
        self.register_buffer("positions", torch.arange(8), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("frequencies", self.frequencies, persistent=False)
        self.original = self.frequencies
        self.register_buffer("ids", torch.arange(8).flip(0).expand((1, -1)), persistent=False)
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril(), persistent=False)
        self.register_buffer("directions", torch.randn(8, 8), persistent=False)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        x = self.norm(x @ (self.directions * self.mask))[:, self.ids[0]]
        for layer in self.layers:
            x = layer(x * self.frequencies + self.inner.frequencies + self.original)
        return x + self.positions


def quantized(build):
    torch.manual_seed(1)
    model = build()
    baraquant.quantize_(model, baraquant.W8A8())
    with torch.no_grad():
        model.frequencies.mul_(0.5)  # a file has what a buffer is now
        model(X.to(model.frequencies.dtype))  # the statistics of the norm move
    return model.eval()


X = torch.linspace(-1, 1, 24).reshape(3, 8)


@pytest.mark.parametrize("how", MADE | MORE)
def test_buffers_that_are_in_no_state_dict(how, tmp_path):
    model = quantized(Rotary)
    baraquant.save(model, tmp_path / "a")
    given = (MADE | MORE)[how](Rotary)
    state = torch.get_rng_state()
    with torch.device("meta" if how == "within meta" else "cpu"):
        loaded = baraquant.load_(given, tmp_path / "a").eval()
    assert how != "meta" or torch.equal(torch.get_rng_state(), state), "nothing is built aside"
    assert not any(t.is_meta for t in (*loaded.parameters(), *loaded.buffers()))
    assert torch.equal(loaded(X), model(X))
    assert loaded.original is loaded.frequencies is loaded.inner.frequencies
    assert list(loaded.state_dict()) == list(model.state_dict())


def test_constants_of_equal_values_are_stored_once(tmp_path):
    baraquant.save(quantized(Rotary), tmp_path / "a")
    config, tensors = raw(tmp_path / "a")
    constants = config["constants"]
    others = {"ids", "mask", "directions"}
    assert set(constants) == {"frequencies", "positions", "inner.frequencies"} | others
    assert constants["frequencies"] == constants["inner.frequencies"] != constants["positions"]
    assert torch.equal(tensors[constants["positions"]], torch.arange(8))


PLACES = {"attribute": lambda tensor: tensor, "list": lambda tensor: [tensor]}
PLACES |= {"tuple": lambda tensor: (tensor,), "dictionary": lambda tensor: {0: tensor}}


@pytest.mark.parametrize("place", PLACES)
def test_a_plain_tensor_on_the_meta_device_is_refused_and_a_function_makes_it(place, tmp_path):
    class Plain(Rotary):
        def __init__(self):
            super().__init__()
            self.factors = PLACES[place](torch.arange(8) / 4)

    baraquant.save(quantized(Plain), tmp_path / "a")
    message = r"factors: .* is no buffer that a file could hold.* baraquant.load_\(lambda: Model"
    with pytest.raises(ValueError, match=message):
        baraquant.load_(on_meta(Plain), tmp_path / "a")
    made = baraquant.load_(Plain, tmp_path / "a").factors
    assert torch.equal(made if place == "attribute" else made[0], torch.arange(8) / 4)


def test_a_second_name_that_to_left_on_the_meta_device(tmp_path):
    """`model.to(dtype)` replaces a buffer; a plain second name of it is the old one."""

    def build():
        return Rotary().to(torch.bfloat16)

    model = quantized(build)
    baraquant.save(model, tmp_path / "a")
    empty = on_meta(build)
    assert empty.original.is_meta and empty.original.dtype == torch.float32
    message = r"original: .* is on the meta device, and is no buffer .* a function"
    with pytest.raises(ValueError, match=message):
        baraquant.load_(empty, tmp_path / "a")
    assert all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers()))
    loaded = baraquant.load_(build, tmp_path / "a").eval()
    assert torch.equal(loaded.original, torch.arange(8) / 8)
    x = X.to(torch.bfloat16)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize("needs_a_number", [False, True])
def test_a_function_builds_no_weights_but_what_it_needs(needs_a_number, tmp_path):
    """Its parameters are on the meta device from the start; their devices are remembered."""
    model = quantized(Rotary)
    baraquant.save(model, tmp_path / "a")
    seen = set()

    def build():
        built = Rotary()
        seen.update(p.device.type for p in built.parameters())
        assert not needs_a_number or built.layers[0].weight.sum().item() != 0
        return built

    loaded = baraquant.load_(build, tmp_path / "a").eval()
    assert seen == ({"meta", "cpu"} if needs_a_number else {"meta"})
    assert torch.equal(loaded(X), model(X))


@pytest.mark.parametrize(
    ("name", "buffer", "message"),
    [
        ("more", torch.ones(3), "more: expected a buffer with data"),
        ("positions", torch.arange(9), r"positions: expected torch.int64 \[9\] as in the model"),
    ],
)
def test_buffers_that_do_not_fit(name, buffer, message, tmp_path):
    baraquant.save(quantized(Rotary), tmp_path / "a")

    class Other(Rotary):
        def __init__(self):
            super().__init__()
            self.register_buffer(name, buffer.to(self.mask.device), persistent=False)

    with pytest.raises(ValueError, match=message):
        baraquant.load_(on_meta(Other), tmp_path / "a")
    if name == "more":
        assert baraquant.load_(Other, tmp_path / "a").more.sum() == 3
