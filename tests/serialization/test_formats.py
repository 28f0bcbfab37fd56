# SPDX-License-Identifier: BSD-3-Clause
"""Files of format 1, and what a file holds beside the state dict.

The files in ``data`` were written when 1 was the format: ``Every().quantize()`` of the seed 7, and
a ``Tied`` network quantized with W8A8; the others are ``Every`` in the formats of their names.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import baraquant
from tests.support.models.every_layer import Every, same

DATA = Path(__file__).resolve().parents[1] / "data"


class Tied(nn.Module):
    """Tied weights, a shared module, and an attention that is unpacked."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.again = self.block.linear1
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


def on_meta(build):
    with torch.device("meta"):
        return build()


def raw(path):
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        return json.loads(file.metadata()["baraquant"]), {n: file.get_tensor(n) for n in names}


@pytest.mark.parametrize("how", ["built", "function", "meta"])
def test_format_1_is_read(how):
    make = {"built": lambda b: b(), "function": lambda b: b, "meta": on_meta}[how]
    path = DATA / "format_1_every.safetensors"
    assert raw(path)[0]["format"] == 1
    torch.manual_seed(7)
    expected = Every().quantize()
    assert same(baraquant.load_(make(Every), path).eval(), expected)
    path = DATA / "format_1_tied.safetensors"
    config, tensors = raw(path)
    loaded = baraquant.load_(make(Tied), path).eval()
    assert loaded.head.qweight is loaded.embedding.qweight and loaded.again is loaded.block.linear1
    assert torch.equal(loaded.embedding.qweight, tensors["embedding.weight"])
    assert config["shared_tensors"]["head.weight"] == "embedding.weight"
    tokens = torch.tensor([[1, 5, 10]])
    assert torch.isfinite(loaded(tokens)).all()


@pytest.mark.parametrize("version", [2, 3])
def test_formats_2_and_3_are_read(version):
    path = DATA / f"format_{version}_every.safetensors"
    assert raw(path)[0]["format"] == version
    torch.manual_seed(7)
    assert same(baraquant.load_(Every, path).eval(), Every().quantize())


def test_format_3_is_read(tmp_path):
    """Its linear layers have no ``rotate``."""
    path = DATA / "format_3_every.safetensors"
    config = raw(path)[0]
    assert config["format"] == 3 and "rotate" not in config["modules"]["dynamic"]["options"]
    torch.manual_seed(7)
    assert same(baraquant.load_(Every, path).eval(), Every().quantize())


def test_old_formats_become_the_current_one(tmp_path):
    loaded = baraquant.load_(Tied, DATA / "format_1_tied.safetensors").eval()
    baraquant.save(loaded, tmp_path / "new")
    config, tensors = raw(tmp_path / "new")
    assert config["format"] == 4 and "embedding.qweight" in tensors
    assert same(baraquant.load_(Tied, tmp_path / "new").eval(), loaded)


class Rotary(nn.Module):
    """Buffers that are in no state dict, one under two names and a plain tensor besides."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.register_buffer("frequencies", torch.arange(8) / 8, persistent=False)
        self.register_buffer("positions", torch.arange(8), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("frequencies", self.frequencies, persistent=False)
        self.original = self.frequencies

    def forward(self, x):
        for layer in self.layers:
            x = layer(x * self.frequencies + self.inner.frequencies + self.original)
        return x + self.positions


class Plain(Rotary):
    def __init__(self):
        super().__init__()
        self.factors = torch.arange(8) / 4

    def forward(self, x):
        return super().forward(x) * self.factors


def quantized(build):
    torch.manual_seed(1)
    model = build()
    baraquant.quantize_(model, baraquant.W8A8())
    return model


X = torch.linspace(-1, 1, 24).reshape(3, 8)


@pytest.mark.parametrize("how", ["built", "function", "meta", "function of meta"])
def test_buffers_that_are_in_no_state_dict(how, tmp_path):
    model = quantized(Rotary)
    baraquant.save(model, tmp_path / "a")
    given = {
        "built": Rotary,
        "function": lambda: Rotary,
        "meta": lambda: on_meta(Rotary),
        "function of meta": lambda: lambda: on_meta(Rotary),
    }[how]()
    loaded = baraquant.load_(given, tmp_path / "a")
    assert torch.equal(loaded(X), model(X))
    assert loaded.original is loaded.frequencies is loaded.inner.frequencies
    assert list(loaded.state_dict()) == list(model.state_dict())


def test_constants_of_equal_values_are_stored_once(tmp_path):
    baraquant.save(quantized(Rotary), tmp_path / "a")
    config, tensors = raw(tmp_path / "a")
    constants = config["constants"]
    assert set(constants) == {"frequencies", "positions", "inner.frequencies"}
    assert constants["frequencies"] == constants["inner.frequencies"] != constants["positions"]
    assert torch.equal(tensors[constants["positions"]], torch.arange(8))


def test_a_plain_tensor_on_the_meta_device_is_refused_and_a_function_makes_it(tmp_path):
    model = quantized(Plain)
    baraquant.save(model, tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"factors: .* is no buffer .* baraquant.load_\(lambda: Model"
    ):
        baraquant.load_(on_meta(Plain), tmp_path / "a")
    assert torch.equal(baraquant.load_(Plain, tmp_path / "a")(X), model(X))


def test_a_second_name_that_to_left_on_the_meta_device(tmp_path):
    """`model.to(dtype)` replaces a buffer; a plain second name of it is the old one."""

    def build():
        return Rotary().to(torch.bfloat16)

    model = quantized(build)
    baraquant.save(model, tmp_path / "a")
    empty = on_meta(build)
    assert empty.original.is_meta and empty.original.dtype == torch.float32
    with pytest.raises(
        ValueError, match=r"original: .* is on the meta device, and is no buffer .* a function"
    ):
        baraquant.load_(empty, tmp_path / "a")
    assert all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers()))
    loaded = baraquant.load_(build, tmp_path / "a")
    assert torch.equal(loaded.original, torch.arange(8) / 8)
    x = X.to(torch.bfloat16)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("several", [list, tuple, lambda given: dict(enumerate(given))])
def test_plain_tensors_in_containers_on_the_meta_device(several, tmp_path):
    class Several(Rotary):
        def __init__(self):
            super().__init__()
            self.tables = several([torch.arange(8) / 4])

    baraquant.save(quantized(Several), tmp_path / "a")
    with pytest.raises(ValueError, match=r"tables: .* is no buffer that a file could hold"):
        baraquant.load_(on_meta(Several), tmp_path / "a")
    baraquant.load_(Several, tmp_path / "a")


def test_a_function_builds_no_weights(tmp_path):
    """Its parameters are on the meta device from the start; their devices are remembered."""
    model = quantized(Rotary)
    baraquant.save(model, tmp_path / "a")
    seen = []

    def build():
        built = Rotary()
        seen.extend(p.device.type for p in built.parameters())
        return built

    loaded = baraquant.load_(build, tmp_path / "a")
    assert set(seen) == {"meta"} and torch.equal(loaded(X), model(X))


def test_a_function_that_needs_its_parameters_gets_them(tmp_path):
    model = quantized(Rotary)
    baraquant.save(model, tmp_path / "a")

    def build():
        built = Rotary()
        assert built.layers[0].weight.sum().item() != 0  # needs a number
        return built

    assert torch.equal(baraquant.load_(build, tmp_path / "a")(X), model(X))


def test_a_buffer_that_the_file_lacks(tmp_path):
    baraquant.save(quantized(Rotary), tmp_path / "a")

    class More(Rotary):
        def __init__(self):
            super().__init__()
            self.register_buffer("more", torch.ones(3), persistent=False)

    with pytest.raises(ValueError, match=r"more: expected a buffer with data"):
        baraquant.load_(on_meta(More), tmp_path / "a")
    assert baraquant.load_(More, tmp_path / "a").more.sum() == 3


def test_a_buffer_of_another_shape(tmp_path):
    baraquant.save(quantized(Rotary), tmp_path / "a")

    class Longer(Rotary):
        def __init__(self):
            super().__init__()
            self.register_buffer("positions", torch.arange(9), persistent=False)

    with pytest.raises(ValueError, match=r"positions: expected torch.int64 \[9\] as in the model"):
        baraquant.load_(on_meta(Longer), tmp_path / "a")
