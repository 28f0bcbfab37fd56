# SPDX-License-Identifier: BSD-3-Clause
"""``load_`` and files that are damaged, lie, or belong to another model: what each error says.

`fuzz.py` makes many more such files; here is one for each rule and wording.
"""

import copy
import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8
from baraquant.nn import QuantizedLinear
from tests.cpp_api.file_models import LINE, TIED, Network
from tests.serialization.damages import Contents, Tensor, joined, split
from tests.support.models.every_layer import Every, integers, same, scales
from tests.support.models.outlier_models import seeded
from tests.support.processes import run_program


def fails(path: Path, message: str, build: Callable[[], nn.Module] = Every) -> None:
    """Loading fails with a message that names the file, and the model stays as it was."""
    model = seeded(build)
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=message) as caught:
        baraquant.load_(model, path)
    assert str(caught.value).startswith(f"baraquant.load_: {path.name}: ")
    assert len(str(caught.value)) < 1000
    assert same(model, before)


# --- bytes and texts ------------------------------------------------------------------------------


def header(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def changed(raw: bytes) -> bytes:
        text, data = split(raw)
        return joined(change(text), data)

    return changed


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return header(lambda text: text.replace(old, new, 1))


def configuration(change: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """Change the text of the configuration, its checksum with it or not."""

    def changed(text: bytes) -> bytes:
        header = json.loads(text)
        header["__metadata__"]["baraquant"] = change(header["__metadata__"]["baraquant"])
        return json.dumps(header).encode()

    return header(changed)


def length(value: int) -> Callable[[bytes], bytes]:
    return lambda raw: struct.pack("<Q", value) + raw[8:]


NO_JSON = "expected its header to be JSON, but "
CHECKSUM = "its checksum differs: damaged"
BYTES: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("expected at least 8 bytes, but it has 0: it is cut off", lambda raw: b""),
    ("bytes for the header, but it has 400: it is cut off", lambda raw: raw[:400]),
    ("bytes of data, but it has .*: it is cut off", lambda raw: raw[:-1]),
    ("bytes of data, but it has .*: the rest has no name", lambda raw: raw + b"x"),
    ("expected a header of at most 100000000 bytes, but .* no safetensors file", length(2**63)),
    ("expected 90000008 bytes for the header", length(90_000_000)),
    ("it is a zip archive, as torch.save writes it", lambda raw: b"PK\x03\x04" + raw),
    ("it is a pickle", lambda raw: b"\x80\x04" + raw),
    ("it is a pickle", lambda raw: b"\x80\x02" + raw),
    ("it is a GGUF file", lambda raw: b"GGUF" + raw),
    ("it is an HDF5 file", lambda raw: b"\x89HDF\r\n\x1a\n" + raw),
    ("it is a gzip file", lambda raw: b"\x1f\x8b" + raw),
    (NO_JSON, lambda raw: bytes(len(raw))),
    (f"{NO_JSON}.*utf-8", replaced(b"F32", b"\xff32")),
    (NO_JSON, replaced(b":", b";")),
    (f"{NO_JSON}NaN is no JSON", replaced(b"[7,8]", b"[NaN,8]")),
    (f"{NO_JSON}the key 'norm.weight' stands there twice", replaced(b"{", b'{"norm.weight":1,')),
    (f"{NO_JSON}it is nested too deeply", header(lambda text: b"[" * 101 + b"]" * 101)),
    (f"{NO_JSON}.*surrogates not allowed", replaced(b'"norm.weight"', b'"\\udc00"')),
    ("expected its header to be an object, but got list", header(lambda text: b"[1]")),
    ("expected __metadata__ to hold texts", header(lambda text: b'{"__metadata__": []}')),
    ("expected __metadata__ to hold texts", header(lambda text: b'{"__metadata__": {"a": 1}}')),
    ("it is a safetensors file without its configuration", replaced(b'"baraquant":', b'"x":')),
    ("a: expected an entry with dtype, shape", header(lambda text: b'{"a": "b"}')),
    ("norm.weight: expected a shape of whole", header(lambda text: re.sub(
        rb'(norm.weight":{[^}]*)\[8\]', rb"\1[%s]" % (b"8" * 5000), text
    ))),
    ("expected its configuration to be JSON", configuration(lambda text: "{")),
    ("to be JSON.* surrogates", configuration(lambda text: text.replace("dynamic", "\\ud83d"))),
    ("expected format 1, but got None", configuration(lambda text: "{}")),
    (CHECKSUM, configuration(lambda text: json.dumps(json.loads(text), indent=1))),
    (CHECKSUM, configuration(lambda text: text[:-3] + ("1" if text[-3] == "0" else "0") + '"}')),
    (CHECKSUM, lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
]  # fmt: skip


@pytest.mark.parametrize(("message", "change"), BYTES)
def test_damaged_and_foreign_files(message: str, change: Any, every: tuple[Path, Every]) -> None:
    path, _ = every
    path.write_bytes(change(path.read_bytes()))
    fails(path, message)


# --- files with a right checksum ------------------------------------------------------------------

Lie = Callable[[Contents], Any]


def config(**values: Any) -> Lie:
    return lambda contents: contents.config.update(values)


def member(key: str, name: str, value: Any) -> Lie:
    return lambda contents: contents.config[key].update({name: value})


def module(path: str, key: str, value: Any) -> Lie:
    return lambda contents: contents.config["modules"][path].update({key: value})


def option(path: str, **values: Any) -> Lie:
    return lambda contents: contents.config["modules"][path]["options"].update(values)


def rounder(path: str, **values: Any) -> Lie:
    return lambda c: c.config["modules"][path]["options"]["input_fake_quant"].update(values)


def entry(name: str, **lies: Any) -> Lie:
    """Change members of a tensor's entry in the header."""
    return lambda contents: contents.tensors[name].lies.update(lies)


def renamed(old: str, new: str) -> Lie:
    return lambda contents: contents.tensors.update({new: contents.tensors.pop(old)})


def number(name: str, place: int, format: str, value: float) -> Lie:
    def lie(contents: Contents) -> None:
        data = bytearray(contents.tensors[name].data)
        struct.pack_into(format, data, place * struct.calcsize(format), value)
        contents.tensors[name].data = bytes(data)

    return lie


LIES: list[tuple[str, Lie]] = [
    # The header.
    ("norm.weight: expected an entry with", entry("norm.weight", more=1)),
    ("norm.weight: expected a dtype of", entry("norm.weight", dtype="F7")),
    ("norm.weight: expected 64 bytes", entry("norm.weight", dtype="F64")),
    *(("norm.weight: expected a shape of whole sizes", entry("norm.weight", shape=shape))
      for shape in ([-8], [True], 8)),
    ("norm.weight: expected .* bytes", entry("norm.weight", shape=[2**62, 2**62])),
    ("norm.weight: expected a begin and an end", entry("norm.weight", data_offsets=[32, 0])),
    ("expected its data to begin at", entry("norm.weight", data_offsets=[0, 32])),
    # The configuration.
    ("expected format 1, but got 2, which 'b 9' has", config(format=2, writer="b 9", more=[])),
    ("expected format 1, but got 1.0", config(format=1.0)),
    ("expected writer to be a text", config(writer=[3])),
    ("expected its configuration to have", config(code="x")),
    ("expected its configuration to name modules", config(modules={})),
    ("expected unpacked to hold paths, but got 3", config(unpacked=3)),
    ("expected fused to hold paths", config(fused=[3])),
    ("expected constants to hold names", config(constants={"a": 1})),
    ("expected shared_tensors to name the first", member("shared_tensors", "a", "a")),
    ("conv: expected a convolution, as it is in channels_last", config(channels_last=["conv"])),
    ("dynamic: expected a convolution, as it", config(channels_last=["conv1", "dynamic"])),
    # A module.
    ("dynamic: expected class, further, options, packed", member("modules", "dynamic", {})),
    (r"dynamic: expected a class of .*QuantizedLinear, .*, but got .Linear.; one of your own",
     module("dynamic", "class", "Linear")),
    ("dynamic: expected the options", module("dynamic", "class", "StaticQuantizedLinear")),
    *((r"dynamic: expected bits to be a whole number in \[2, 8\]", option("dynamic", bits=bits))
      for bits in (8.0, True, 2**70, 9, 1)),
    ("dynamic: expected weight_bits to be a whole", option("dynamic", weight_bits=9)),
    ("dynamic: expected symmetric to be true or", option("dynamic", symmetric=1)),
    ("dynamic: .*expected granularity to be", option("dynamic", granularity="x")),
    ("grouped: .*weight_scale to have the shape", option("grouped", group_size=3)),
    *(("grouped: expected group_size to be a whole number in", option("grouped", group_size=n))
      for n in (-1, 0, 2**31)),
    ("dynamic: expected transposed to be False for a Linear", option("dynamic", transposed=True)),
    ("embedding: expected dtype to be one", option("embedding", dtype="int8")),
    ("embedding: expected a model of torch.bfloat16", option("embedding", dtype="bfloat16")),
    ("embedding: expected weight_scale to be torch.float64", option("embedding", dtype="float64")),
    ("embedding: expected padding_idx to be 3, as in", option("embedding", padding_idx=3)),
    ("conv1: expected stride to be .*, as in", option("conv1", stride=[3])),
    ("conv2: .*[Ii]nvalid padding", option("conv2", padding="odd")),
    ("rounded: expected input_fake_quant to be how", option("rounded", input_fake_quant={})),
    ("rounded: expected the tensors", option("rounded", input_fake_quant=None)),
    *(("rounded: expected input_fake_quant to be how", rounder("rounded", **{key: value}))
      for key, value in [("axis", 1), ("quant_min", -(2**63)), ("quant_max", 2**63 - 1)]),
    ("rounded: expected input_fake_quant.scale to have 1 in its last dimension",
     rounder("rounded", granularity="per_token")),
    ("rounded: .*expected scale to have one dimension for per_channel",
     rounder("rounded", granularity="per_channel", axis=-1)),
    (r"dynamic: expected a module with \['x'\] beside the layer's own .* has \[\]",
     module("dynamic", "further", ["x"])),
    ("dynamic: expected a tensor qweight, but", module("dynamic", "further", ["qweight"])),
    # Integers of fewer bits.
    ("narrow: expected packed to hold shapes", module("narrow", "packed", {"x": [1]})),
    ("dynamic.qweight: expected a width of 2", module("dynamic", "packed", {"qweight": [8, 8]})),
    ("narrow.qweight: expected a width of 2 to 7 bits", option("narrow", weight_bits=8)),
    (r"narrow.qweight: expected 24 .*, but .* \[32\]", option("narrow", weight_bits=3)),
    ("narrow.qweight: expected 32 .*, but got torch.int8", entry("narrow.qweight", dtype="I8")),
    (r"qweight: expected 32 .*, but .* \[4, 8\]", entry("narrow.qweight", shape=[4, 8])),
    (f"narrow.qweight: expected {2**63} bytes for packed integers",
     module("narrow", "packed", {"qweight": [2**32, 2**32]})),
    ("narrow: .*weight_scale to have 4 el", module("narrow", "packed", {"qweight": [4, 16]})),
    ("narrow: .*expected qweight to be int8", module("narrow", "packed", {})),
    ("narrow: expected a tensor bias, but there is none",
     module("narrow", "packed", {"bias": [8], "qweight": [8, 8]})),
    # What is shared, what fits the model.
    ("a: expected to be the same tensor as b, .* none", member("shared_tensors", "a", "b")),
    ("norm.bias: expected to be the same tensor as norm.weight, but the file has both",
     member("shared_tensors", "norm.bias", "norm.weight")),
    ("dynamic: expected a module shared by", member("shared_modules", "narrow", "dynamic")),
    ("y: expected a module of the file", member("shared_modules", "x", "y")),
    ("dynamic: expected a module of GRU, .*, RNNCell, but the model has Linear",
     config(unpacked=["dynamic"])),
    ("nowhere: expected a module of GRU, .* has no such module", config(unpacked=["nowhere"])),
    ("other: expected a Linear for the QuantizedLinear of the file, but the model has no such",
     lambda c: c.config["modules"].update(other=c.config["modules"]["dynamic"])),
    ("norm.weight is missing in the file, and norm.other is unknown to the model",
     renamed("norm.weight", "norm.other")),
    ("dynamic: expected the tensors", renamed("dynamic.smooth", "dynamic.rough")),
    ("norm.weight: expected torch.float32", entry("norm.weight", shape=[2, 4])),
    ("norm.weight: expected torch.float32", entry("norm.weight", dtype="I32")),
    *((f"{name}: expected .* to be torch.float32, but got torch.float64",
       lambda c, own=f"{name}.{own}": c.tensors[own].store_as("F64"))
      for name, own in [
          ("dynamic", "weight_scale"), ("dynamic", "smooth"), ("dynamic", "bias"),
          ("static", "act_scale"), ("embedding", "weight_scale"), ("conv1", "bias"),
          ("rounded", "input_fake_quant.scale"),
      ]),
    *((f"{alias}: expected a tensor of its own, as in the model",
       lambda c, alias=alias, name=name: c.tie(alias, name))
      for alias, name in [
          ("norm.running_var", "norm.running_mean"), ("norm.weight", "norm.bias"),
          ("norm.bias", "dynamic.bias"), ("norm.running_mean", "norm.weight"),
      ]),
    ("dynamic: .*expected bias to have 4", entry("dynamic.qweight", shape=[4, 16])),
    ("more: expected a shape that a tensor can have",
     lambda c: c.tensors.update(more=Tensor("F32", [0, 2**62, 2**62], b""))),
    # Numbers.
    ("dynamic: weight_scale: exp.* finite", number("dynamic.weight_scale", 3, "<f", float("nan"))),
    ("embedding: weight_scale: expected fin", number("embedding.weight_scale", 0, "<f", 0.0)),
    ("dynamic: smooth: expected finite", number("dynamic.smooth", 0, "<f", float("inf"))),
    ("rounded: input_fake_quant.scale: expected finite",
     number("rounded.input_fake_quant.scale", 0, "<f", float("nan"))),
    (r"static: act_zero_point: expected integers in \[-128, 127\], but got 128 to 128",
     number("static.act_zero_point", 0, "<i", 128)),
    (r"table: weight_zero_point: expected integers in \[-4, 3\]",
     number("table.weight_zero_point", 2, "<i", -5)),
    (r"rounded: input_fake_quant.zero_point: expected integers in \[0, 15\]",
     number("rounded.input_fake_quant.zero_point", 0, "<i", 16)),
    (r"dynamic: qweight: expected integers in \[-8, 7\]", option("dynamic", weight_bits=4)),
]  # fmt: skip


@pytest.mark.parametrize(("message", "lie"), LIES)
def test_files_that_lie(message: str, lie: Lie, every: tuple[Path, Every]) -> None:
    path, model = every
    contents = Contents.read(path)
    path.write_bytes(contents.file())  # what makes the liars makes good files
    assert same(baraquant.load_(Every(), path).eval(), model)
    lie(contents)
    path.write_bytes(contents.file())
    fails(path, message)


def test_random_damage() -> None:
    """In a process of its own, whose death would be seen; with C++ in `tests/cpp_api`."""
    run_program("tests.serialization.fuzz", None, "--python", "--files", "300")


class Narrow(nn.Sequential):
    """Nine integers of three bits: five bits of the fourth byte are to spare."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 3))


@pytest.mark.parametrize("bit", range(8))
def test_bits_behind_the_last_packed_integer(bit: int, tmp_path: Path) -> None:
    path, model = tmp_path / "narrow.safetensors", seeded(Narrow)
    model[0] = QuantizedLinear(integers(3, 3, bits=3), scales(3), torch.zeros(3), weight_bits=3)
    baraquant.save(model, path)
    contents = Contents.read(path)
    weight = contents.tensors["0.qweight"]
    weight.data = weight.data[:-1] + bytes([weight.data[-1] ^ 1 << bit])
    path.write_bytes(contents.file())
    if bit >= 3:
        fails(path, "0.qweight: expected the 5 bits behind the last integer to be 0", Narrow)
    else:  # a bit of the last integer
        loaded = baraquant.load_(Narrow, path)[0].qweight
        differs = (loaded != model[0].qweight).flatten()
        assert int(differs.sum()) == 1 and bool(differs[-1])


# --- other models ---------------------------------------------------------------------------------

OTHERS = {  # tests/cpp_api gives them to C++ too
    TIED.replace("first.down:Linear,16,16", "first.down:Linear,16,17"):
        "first.down: expected out_features to be 16, as in the file, but the model has 17",
    TIED.replace("first.query:Linear,16,16,1", "first.query:Linear,16,16,0"):
        "first.query: expected a bias, as in the file, but the model has none",
    TIED.replace("head:tie,embedding", "head:Linear,16,20,1"):
        "head: expected no bias, as in the file, but the model has one",
    TIED + " more:LayerNorm,3":
        "more.bias, more.weight are missing in the file, and none are unknown to the model",
    TIED.replace("norm:LayerNorm,16 ", ""):
        "none are missing in the file, and norm.bias, norm.weight are unknown to the model",
    TIED.replace("first.query:Linear,16,16,1", "first.query:Conv2d,16,16,1,1,1,0,1,zeros"):
        "first.query: expected a Linear for the .* of the file, but the model has a Conv2d",
    TIED.replace("second:same,first", "second.query:Linear,16,16,1 second.down:Linear,16,16,1"):
        r"expected a module shared by .*second.\w+, but the model's is shared by",
    TIED.replace("norm:LayerNorm,16", "norm:LayerNorm,17"):
        r"norm.weight: expected torch.float32 \[17\] as in the model, but the file has",
    LINE: "embedding: expected a Embedding for the .* but the model has no such module",
    TIED.replace("Embedding,20,16,0", "Embedding,20,16,-1"):
        "embedding: expected padding_idx to be 0, as in the file, but the model has None",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), OTHERS.items())
def test_other_architectures(text: str, message: str, tmp_path: Path) -> None:
    model = Network(TIED)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    fails(tmp_path / "a", message, lambda: Network(text))


def test_ties_that_the_file_does_not_have(tmp_path: Path) -> None:
    model = Network(TIED.replace("head:tie,embedding", "head:Linear,16,20,0"))
    baraquant.quantize_(model, W8A8(), filter_fn=lambda m, name: "." in name)
    baraquant.save(model, tmp_path / "a")
    message = "embedding.weight: expected one tensor for embedding.weight, head.weight"
    fails(tmp_path / "a", message, lambda: Network(TIED))


def test_a_convolution_whose_input_has_several_scales(tmp_path: Path) -> None:
    """Its forward would fail."""
    model = nn.Sequential(nn.Conv1d(8, 8, 3))
    baraquant.quantize_(model, baraquant.W8A16())
    grouped = {"granularity": "per_group", "axis": -1, "group_size": 2}
    model[0].input_fake_quant = baraquant.nn.FakeQuantize(torch.ones(1, 4), None, **grouped)
    with pytest.raises(ValueError, match="0: expected input_fake_quant to have one scale in a"):
        baraquant.save(model, tmp_path / "model.safetensors")


def test_what_is_no_model_and_no_file(every: tuple[Path, Every]) -> None:
    path, _ = every
    for wrong in (3, "model", None):
        with pytest.raises(TypeError, match="expected model to be a Module or a function that"):
            baraquant.load_(wrong, path)
    with pytest.raises(TypeError, match="expected model to be a Module, but got int"):
        baraquant.load_(lambda: 3, path)
    with pytest.raises(ZeroDivisionError):
        baraquant.load_(lambda: 1 / 0, path)
    with pytest.raises(FileNotFoundError):
        baraquant.load_(Every, path.with_name("none"))
    with pytest.raises(IsADirectoryError):
        baraquant.load_(Every, path.parent)


def test_without_safetensors(every: tuple[Path, Every], monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = every
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="expected safetensors; pip install safetensors"):
        baraquant.save(model, path)
    assert same(baraquant.load_(Every, path), model)


@pytest.mark.parametrize("length", [0x10280, 0x480])
def test_a_header_whose_length_begins_as_a_pickle_does(length: int, tmp_path: Path) -> None:
    r"""A file begins with its header's length: 66176 is b"\x80\x02\x01", 1152 is b"\x80\x04"."""
    model, path = nn.Sequential(nn.Linear(3, 2, bias=False)), tmp_path / "a"
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, path)
    text, data = split(path.read_bytes())
    path.write_bytes(joined(text.ljust(length), data))
    assert same(baraquant.load_(nn.Sequential(nn.Linear(3, 2, bias=False)), path), model)
