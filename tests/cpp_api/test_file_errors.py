# SPDX-License-Identifier: BSD-3-Clause
"""Wrong files and wrong models: C++ refuses what Python refuses, at the same place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import baraquant
from baraquant import W4A8, W8A8, W8A16, ops
from baraquant.nn import QuantizedLinear, WeightOnlyInt4Linear
from tests.cpp_api.file_models import EVERY, LINE, TIED, Network, four_bits
from tests.serialization.damaged_bytes import parts, signed, write
from tests.serialization.fuzz import place_of
from tests.support.models.every_layer import integers, scales
from tests.support.processes import run_program as run_module

pytestmark = pytest.mark.process


def python_error(path: Path, model: str) -> list[str]:
    """The kind and the place of Python's error, and that the model is unchanged."""
    try:
        baraquant.load_(Network(model), path)
    except ValueError as error:
        return ["ValueError", place_of(str(error)), "unchanged"]
    return ["ok"]


def cpp_error(printed: list[str]) -> list[str]:
    """The same of what the program printed."""
    if printed == ["ok"]:
        return printed
    kind, text, state = printed
    assert "expected " in text and len(text) < 1000, text
    return [kind, place_of(text), state]


def test_damaged_files(program: Path) -> None:
    """In processes of their own, whose death would be seen; see `tests/serialization/fuzz.py`."""
    run_module("tests.serialization.fuzz", None, "--program", program, "--files", "2000")


OTHERS = {
    "wider": TIED.replace("first.down:Linear,16,16", "first.down:Linear,32,17"),
    "no bias": TIED.replace("first.query:Linear,16,16,1", "first.query:Linear,16,16,0"),
    "a bias": TIED.replace("head:tie,embedding", "head:Linear,16,20,1"),
    "longer": TIED + " more:LayerNorm,3",
    "shorter": TIED.replace("norm:LayerNorm,16 ", ""),
    "a convolution": TIED.replace(
        "first.query:Linear,16,16,1", "first.query:Conv2d,16,16,1,1,1,0,1,zeros"
    ),
    "unshared": TIED.replace(
        "second:same,first", "second.query:Linear,16,16,1 second.down:Linear,16,16,1"
    ),
    "resized": TIED.replace("norm:LayerNorm,16", "norm:LayerNorm,17"),
    "others": LINE,
    "a padding": TIED.replace("Embedding,20,16,0", "Embedding,20,16,-1"),
}


@pytest.mark.parametrize("bits", [8, 4])
def test_other_architectures(
    bits: int, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    model = Network(TIED)
    baraquant.quantize_(model, W8A8() if bits == 8 else W4A8(4, group_factors=False))
    path = tmp_path / "model.safetensors"
    baraquant.save(model, path)
    printed = run_jobs(*(("copy", "float32", text, path, "", "") for text in OTHERS.values()))
    printed += run_jobs(("copy", "float64", TIED, path, "", ""))
    for (name, text), got in zip(OTHERS.items(), printed, strict=False):
        assert cpp_error(got) == python_error(path, text), name
    with pytest.raises(ValueError) as caught:
        baraquant.load_(Network(TIED, torch.float64), path)
    assert cpp_error(printed[-1]) == ["ValueError", place_of(str(caught.value)), "unchanged"]


def test_ties_that_the_file_does_not_have(
    run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    untied = TIED.replace("head:tie,embedding", "head:Linear,16,20,0")
    model = Network(untied)
    baraquant.quantize_(model, W8A8(), filter_fn=lambda module, name: "." in name)
    baraquant.save(model, tmp_path / "a")
    (got,) = run_jobs(("copy", "float32", TIED, tmp_path / "a", "", ""))
    assert cpp_error(got) == python_error(tmp_path / "a", TIED)
    assert "embedding.weight: expected one tensor for embedding.weight, head.weight" in got[1]


def test_bits_behind_the_last_packed_integer(
    run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    model = Network("fc:Linear,3,3,1")
    model.fc = QuantizedLinear(integers(3, 3, bits=3), scales(3), torch.zeros(3), weight_bits=3)
    path = tmp_path / "narrow.safetensors"
    baraquant.save(model, path)
    header, config, data = parts(path)
    last = header["fc.qweight"]["data_offsets"][1] - 1
    data = data[:last] + bytes([data[last] ^ 1 << 5]) + data[last + 1 :]
    write(path, signed(header, config, data), data)
    (got,) = run_jobs(("copy", "float32", "fc:Linear,3,3,1", path, "", ""))
    assert cpp_error(got) == python_error(path, "fc:Linear,3,3,1")
    assert "the 5 bits behind the last integer" in got[1]


LIES_OF_FACTORS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an odd group": lambda module: module["options"].update(group_size=3),
    "no group": lambda module: module["options"].update(group_size=0),
    "a huge group": lambda module: module["options"].update(group_size=2**62),
    "fewer inputs": lambda module: module["options"].update(in_features=6),
    "one input less": lambda module: module["options"].update(in_features=7),
    "negative inputs": lambda module: module["options"].update(in_features=-2),
    "huge inputs": lambda module: module["options"].update(in_features=2**63 - 1),
    "wide inputs": lambda module: module["options"].update(bits=9),
    "another block": lambda module: module["options"].update(rotate=3),
    "a granularity": lambda module: module["options"].update(granularity="per_channel"),
    "a width": lambda module: module["options"].update(weight_bits=4),
    "packed again": lambda module: module.update(packed={"packed": [8, 4]}),
    "another class": lambda module: module.update({"class": "StaticQuantizedInt4Linear"}),
}
BYTES_OF_FACTORS = {"group_factor": 17, "group_zero_point": 16, "packed": 0xFF}


def test_wrong_factors(run_jobs: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, line = Network("fc:Linear,8,8,1"), "fc:Linear,8,8,1"
    model.fc = four_bits(torch.float32)["int4"]
    for name, value in {"packed": 0x88, "group_zero_point": 0, "group_factor": 15}.items():
        getattr(model.fc, name).fill_(value)  # 15 * 15 is no int8
    baraquant.save(model, tmp_path / "right")
    header, config, data = parts(tmp_path / "right")
    paths = []
    for name, lie in LIES_OF_FACTORS.items():
        changed = copy.deepcopy(config)
        lie(changed["modules"]["fc"])
        paths.append(tmp_path / name)
        write(paths[-1], signed(header, changed, data), data)
    for name, value in BYTES_OF_FACTORS.items():
        begin, end = header[f"fc.{name}"]["data_offsets"]
        bad = data[:begin] + bytes([value]) * (end - begin) + data[end:]
        paths.append(tmp_path / f"byte of {name}")
        write(paths[-1], signed(header, config, bad), bad)
    printed = run_jobs(*(("copy", "float32", line, path, "", "") for path in paths))
    for path, got in zip(paths, printed, strict=True):
        assert cpp_error(got) == python_error(path, line), path.name
        assert got[0] == "ValueError", path.name


LIES_OF_PACKED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "of another shape": lambda module: module.update(packed={"packed": [4, 16]}),
    "of one dimension": lambda module: module.update(packed={"packed": [64]}),
    "of three dimensions": lambda module: module.update(packed={"packed": [8, 8, 1]}),
    "of more": lambda module: module.update(packed={"packed": [9, 9]}),
    "of too many": lambda module: module.update(packed={"packed": [2**32, 2**32]}),
    "of nothing": lambda module: module.update(packed={"packed": [0, 2**62]}),
    "of another name": lambda module: module.update(packed={"qweight": [8, 8]}),
    "without a shape": lambda module: module.update(packed={}),
    "with more bits": lambda module: module["options"].update(weight_bits=4),
    "with fewer bits": lambda module: module["options"].update(weight_bits=2),
    "with 5 bits": lambda module: module["options"].update(weight_bits=5),
    "with 0 bits": lambda module: module["options"].update(weight_bits=0),
    "of fewer inputs": lambda module: module["options"].update(in_features=6),
    "of one input less": lambda module: module["options"].update(in_features=7),
    "of negative inputs": lambda module: module["options"].update(in_features=-2),
    "of huge inputs": lambda module: module["options"].update(in_features=2**63 - 1),
    "in groups of 0": lambda module: module["options"].update(group_size=0),
    "in groups of 3": lambda module: module["options"].update(group_size=3),
    "of another class": lambda module: module.update({"class": "WeightOnlyLinear"}),
}


@pytest.mark.parametrize("bits", (3, 4))
def test_wrong_packed_weights(
    bits: int, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    """Three bits are a string of bits in the file, four are stored as they are."""
    model, line = Network("fc:Linear,8,8,0"), "fc:Linear,8,8,0"
    packed = ops.pack_int4(integers(8, 8, bits=bits))
    model.fc = WeightOnlyInt4Linear(
        packed, torch.rand(8, 2) + 0.1, in_features=8, group_size=4, weight_bits=bits
    )
    baraquant.save(model, tmp_path / "right")
    header, config, data = parts(tmp_path / "right")
    paths = []
    for name, lie in LIES_OF_PACKED.items():
        changed = copy.deepcopy(config)
        lie(changed["modules"]["fc"])
        if changed == config or (bits == 4 and name == "with more bits"):
            continue  # which is no lie
        paths.append(tmp_path / name)
        write(paths[-1], signed(header, changed, data), data)
    printed = run_jobs(*(("copy", "float32", line, path, "", "") for path in paths))
    for path, got in zip(paths, printed, strict=True):
        assert cpp_error(got) == python_error(path, line), path.name
        assert got[0] == "ValueError", path.name


def test_what_the_system_refuses(
    run_jobs: Callable[..., list[list[str]]], stored: Path, tmp_path: Path
) -> None:
    none, folder = tmp_path / "none", tmp_path / "it's a folder"
    folder.mkdir()
    printed = run_jobs(
        ("copy", "float32", EVERY, none, "", ""),
        ("copy", "float32", EVERY, f"{folder}/", "", ""),
        ("copy", "float32", EVERY, stored, tmp_path / "no" / "x", ""),
    )
    texts = f"{none}: No such file or directory", f"{folder}/: Is a directory"
    assert printed[:2] == [["Error", text, "unchanged"] for text in texts]
    kind, text, _ = printed[2]
    assert kind == "Error" and text.startswith(str(tmp_path / "no" / "x"))
    assert text.endswith(".partial: No such file or directory")


REFUSED = {
    "fc:Prepared,4,4": "",
    f"{LINE} norm:LayerNorm,8": "save",
    f"{LINE} odd:Buffer,complex,2": "quantized",
    f"{LINE} part.odd:Buffer,complex,2": "quantized",
}


@pytest.mark.parametrize("text", REFUSED)
def test_models_that_are_not_saved(
    text: str, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "a"
    path.parent.mkdir()
    model = Network(text)
    is_quantized = REFUSED[text] == "quantized"
    if is_quantized:
        baraquant.quantize_(model, W8A16())
    with pytest.raises(ValueError) as caught:
        baraquant.save(model, path)
    kind = "quantize" if is_quantized else "save"
    (got,) = run_jobs((kind, "float32", text, "", path, "W8A16"))
    assert [got[0], place_of(got[1])] == ["ValueError", place_of(str(caught.value))]
    assert not list(path.parent.iterdir())


def test_a_model_with_a_wrong_scale_is_not_saved(
    run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "a"
    path.parent.mkdir()
    (got,) = run_jobs(("wrong", "float32", LINE, "fc.weight_scale", path, "W8A8"))
    wanted = "baraquant.save: fc: weight_scale: expected finite numbers > 0, but it holds others"
    assert got[:2] == ["ValueError", wanted]
    assert not list(path.parent.iterdir())


def test_a_typed_member_that_would_keep_the_old_layer(
    run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    model = Network(LINE)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    (got,) = run_jobs(("typed", "float32", LINE, tmp_path / "a", "", ""))
    assert got[0] == "ValueError" and got[1].startswith("baraquant.load_: fc: expected the model ")
    text = "baraquant.save: expected a quantized model, but got a Typed without a quantized module"
    assert got[2:] == ["ValueError", text]


def test_buffers_of_no_state_dict(run_jobs: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    """C++ has none: they are left out, or are ordinary buffers, which get the values."""
    model = Network(LINE)
    model.register_buffer("positions", torch.arange(3), persistent=False)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    left_out, filled, longer = run_jobs(
        ("copy", "float32", LINE, tmp_path / "a", "", ""),
        ("state", "float32", f"{LINE} positions:Buffer,long,3", tmp_path / "a", "", ""),
        ("state", "float32", f"{LINE} positions:Buffer,long,2", tmp_path / "a", "", ""),
    )
    assert left_out == ["ok"]
    assert [float.fromhex(value) for value in filled[filled.index("positions") + 1 :]] == [0, 1, 2]
    assert [float.fromhex(value) for value in longer[longer.index("positions") + 1 :]] == [7, 7]


def test_a_transposed_layer(run_jobs: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    model = Network(LINE)
    model.fc = QuantizedLinear(integers(8, 8), scales(8), torch.zeros(8), transposed=True)
    baraquant.save(model, tmp_path / "a")
    (got,) = run_jobs(("copy", "float32", LINE, tmp_path / "a", "", ""))
    assert got == [
        "ValueError",
        "baraquant.load_: a: fc: expected a layer in place of a Linear, but got one of a Conv1D of "
        "transformers; baraquant.load_ of Python loads it",
        "unchanged",
    ]
