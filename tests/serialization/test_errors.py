# SPDX-License-Identifier: BSD-3-Clause
"""``load`` and files that are damaged, lie, or belong to another model."""

import copy
import json
import sys

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8
from baraquant.nn import QuantizedLinear
from tests.serialization.contradictory_files import LIES
from tests.serialization.damaged_bytes import CORRUPTIONS, header_length, parts, signed, write
from tests.support.models.every_layer import Every, integers, same, scales
from tests.support.models.outlier_models import Block, Tied, seeded
from tests.support.processes import run_program


@pytest.fixture
def every(tmp_path):
    """A file with modules of every kind, and its model."""
    model = seeded(Every).quantize()
    baraquant.save(model, tmp_path / "every.safetensors")
    return tmp_path / "every.safetensors", model


def fails(path, message, build=Every):
    """Loading fails with a message that names the file, and the model stays as it was."""
    model = seeded(build)
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=message) as caught:
        baraquant.load_(model, path)
    assert str(caught.value).startswith(f"baraquant.load_: {path.name}: ")
    assert len(str(caught.value)) < 1000
    assert same(model, before)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_damaged_and_foreign_files(corruption, every):
    change, message = CORRUPTIONS[corruption]
    path, _ = every
    path.write_bytes(change(path.read_bytes()))
    fails(path, message)


def test_random_damage():
    """In a process of its own, whose death would be seen; with C++ in `tests/cpp_api`."""
    run_program("tests.serialization.fuzz", None, "--python", "--files", "300")


@pytest.mark.parametrize("lie", LIES)
def test_files_that_lie(lie, every):
    change, message = LIES[lie]
    path, _ = every
    header, data = change(*parts(path))
    write(path, header, data)
    fails(path, message)


def test_there_are_enough_corruptions(every):
    assert len(CORRUPTIONS) >= 30 and len(LIES) >= 30
    path, model = every
    header, config, data = parts(path)
    write(path, signed(header, config, data), data)  # the liar's tools write good files
    assert same(baraquant.load_(Every(), path).eval(), model)


class Narrow(nn.Sequential):
    """Nine integers of three bits: five bits of the fourth byte are to spare."""

    def __init__(self):
        super().__init__(nn.Linear(3, 3))


@pytest.fixture
def narrow(tmp_path):
    model = seeded(Narrow)
    model[0] = QuantizedLinear(integers(3, 3, bits=3), scales(3), torch.zeros(3), weight_bits=3)
    baraquant.save(model, tmp_path / "narrow.safetensors")
    return tmp_path / "narrow.safetensors", model


@pytest.mark.parametrize("bit", range(8))
def test_bits_behind_the_last_packed_integer(bit, narrow):
    path, model = narrow
    header, config, data = parts(path)
    last = header["0.qweight"]["data_offsets"][1] - 1
    data = data[:last] + bytes([data[last] ^ 1 << bit]) + data[last + 1 :]
    write(path, signed(header, config, data), data)
    if bit >= 3:
        fails(path, "0.qweight: expected the 5 bits behind the last integer to be 0", Narrow)
    else:  # a bit of the last integer
        loaded = baraquant.load_(Narrow, path)[0].qweight
        differs = (loaded != model[0].qweight).flatten()
        assert int(differs.sum()) == 1 and bool(differs[-1])


def test_a_shape_that_no_tensor_has(narrow):
    """Empty, so that its bytes are right, but its strides are too long for 64 bits."""
    path, _ = narrow
    header, config, data = parts(path)
    header["0.more"] = {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}
    write(path, signed_as_is(header, config), data)
    fails(path, "0.more: expected a shape that a tensor can have", Narrow)
    del header["0.more"]
    config["modules"]["0"]["packed"] = {"qweight": [0, 2**62, 2**62]}
    begin = header["0.qweight"]["data_offsets"][0]
    end = header["0.qweight"]["data_offsets"][1]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [place - (end - begin) for place in entry["data_offsets"]]
    header["0.qweight"] = {"dtype": "U8", "shape": [0], "data_offsets": [begin, begin]}
    write(path, signed_as_is(header, config), data[:begin] + data[end:])
    fails(path, "0.qweight: expected a shape that a tensor can have", Narrow)


def signed_as_is(header, config):
    """Put in a configuration with the old checksum: what is wrong is found before it is looked at.

    No tensor of such a shape can be made to compute the right one.
    """
    header["__metadata__"] = {"baraquant": json.dumps(config)}
    return header


class Wider(Tied):
    def __init__(self):
        super().__init__()
        self.first.down = nn.Linear(32, 17)


class NoBias(Tied):
    def __init__(self):
        super().__init__()
        self.first.query = nn.Linear(16, 16, bias=False)


class Bias(Tied):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 20)


class Longer(Tied):
    def __init__(self):
        super().__init__()
        self.more = nn.LayerNorm(3)


class Shorter(Tied):
    def __init__(self):
        super().__init__()
        del self.norm


class Convolution(Tied):
    def __init__(self):
        super().__init__()
        self.first.query = nn.Conv1d(16, 16, 1)


class Unshared(Tied):
    def __init__(self):
        super().__init__()
        self.second = Block()


class Resized(Tied):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(17)


OTHERS = {
    Wider: r"first.down: expected out_features to be 16, as in the file, but the model has 17",
    NoBias: r"first.query: expected a bias, as in the file, but the model has none",
    Bias: r"head: expected no bias, as in the file, but the model has one",
    Longer: r"more.bias, more.weight are missing in the file, and none are unknown to the model",
    Shorter: r"none are missing in the file, and norm.bias, norm.weight are unknown to the model",
    Convolution: r"first.query: expected a Linear for the QuantizedLinear of the file, but the "
    "model has a Conv1d",
    Unshared: r"expected a module shared by .*'second.\w+'.*, but the model's is shared by",
    Resized: r"norm.weight: expected torch.float32 \[17\] as in the model, but the file has",
    Block: r"embedding: expected a Embedding for the QuantizedEmbedding of the file, but the model "
    "has no such module",
}


@pytest.mark.parametrize("build", OTHERS, ids=lambda kind: kind.__name__)
def test_other_architectures(build, tmp_path):
    model = seeded(Tied)
    baraquant.quantize_(model, W8A8())
    path = tmp_path / "model.safetensors"
    baraquant.save(model, path)
    fails(path, OTHERS[build], build)


class Untied(Tied):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 20, bias=False)


def test_ties_that_the_file_does_not_have(tmp_path):
    model = seeded(Untied)
    path = tmp_path / "a"
    baraquant.quantize_(model, W8A8(), filter_fn=lambda m, name: "." in name)
    baraquant.save(model, path)
    fails(path, "embedding.weight: expected one tensor for embedding.weight, head.weight", Tied)


def test_what_is_no_model_and_no_file(every):
    path, _ = every
    for wrong in (3, "model", None):
        with pytest.raises(TypeError, match="expected model to be a Module or a function that"):
            baraquant.load_(wrong, path)
    with pytest.raises(TypeError, match="expected model to be a Module, but got int"):
        baraquant.load_(lambda: 3, path)
    with pytest.raises(FileNotFoundError):
        baraquant.load_(Every, path.with_name("none"))
    with pytest.raises(IsADirectoryError):
        baraquant.load_(Every, path.parent)


def test_a_buffer_of_no_state_dict(tmp_path):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("positions", torch.arange(3), persistent=False)

    model = Positions()
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    assert torch.equal(baraquant.load_(Positions, tmp_path / "a").positions, torch.arange(3))
    with torch.device("meta"):
        fresh = Positions()
    assert torch.equal(baraquant.load_(fresh, tmp_path / "a").positions, torch.arange(3))


def test_without_safetensors(every, monkeypatch):
    path, model = every
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: baraquant.save(model, path), lambda: baraquant.load_(Every, path)):
        with pytest.raises(ImportError, match="expected safetensors; pip install safetensors"):
            call()


def padded(padding):
    """A model whose header is longer by about the padding."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    model.register_buffer("p" * padding, torch.zeros(1))
    return model


@pytest.mark.parametrize("length", [0x10280, 0x480])
def test_a_header_whose_length_begins_as_a_pickle_does(length, tmp_path):
    r"""A file begins with its header's length: 66176 is b"\x80\x02\x01", 1152 is b"\x80\x04"."""

    def length_with(padding):
        model = padded(padding)
        baraquant.quantize_(model, W8A8())
        baraquant.save(model, tmp_path / "a")
        return model, header_length(tmp_path / "a")

    start = 1 + length - length_with(1)[1]
    for padding in range(start - 8, start + 9):
        model, got = length_with(padding)
        if got == length:
            break
    else:
        pytest.fail("no name gave that length")
    assert same(baraquant.load_(padded(padding), tmp_path / "a"), model)
