# SPDX-License-Identifier: BSD-3-Clause
"""Files of C++ and of Python: the same bytes, the same bits of the models, the same errors."""

from __future__ import annotations

import copy
import json
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import baraquant
from baraquant import W4A8, W4A16, W8A8, W8A16
from baraquant.nn import (
    FakeQuantize,
    FakeQuantizedLinear,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    StaticQuantizedLinear,
    WeightOnlyLinear,
)
from tests.serialization.contradictory_files import LIES
from tests.serialization.damaged_bytes import (
    CORRUPTIONS,
    DTYPES,
    header_length,
    parts,
    signed,
    write,
)
from tests.support.libtorch import TORCH, build_program, run_program
from tests.support.models.every_layer import Every, integers, same, scales

STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
FRONTEND = ("-isystem", TORCH / "include" / "torch" / "csrc" / "api" / "include")
DATA = Path(__file__).resolve().parents[1] / "data"
LINE = "fc:Linear,8,8,1"

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def program(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    def build(folder: Path) -> None:
        source = Path(__file__).with_name("files.cpp")
        build_program(source, folder / "files", *STRICT, *FRONTEND)

    return made_once("cpp_files", build) / "files"


Job = tuple[str, str, str, Any, Any, str]  # kind, dtype, model, input, output, configuration


@pytest.fixture
def run_jobs(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[list[str]]]:
    """Runs jobs in one program; returns the fields of the line that it prints for each."""

    def run(*jobs: Job) -> list[list[str]]:
        lines = ["\t".join(map(str, (*job[:5], job[5] or "-"))) for job in jobs]
        (tmp_path / "jobs").write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("BARAQUANT_TEST_JOBS", str(tmp_path / "jobs"))
        printed = [line.split("\t") for line in run_program(program).splitlines()]
        (tmp_path / "jobs").unlink()
        assert len(printed) == len(jobs)
        return printed

    return run


class Network(nn.Module):
    """A model by its description, as files.cpp builds it."""

    def __init__(self, description: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for entry in description.split():
            path, arguments = entry.split(":")
            parent: nn.Module = self
            *parents, name = path.split(".")
            for part in parents:
                if not hasattr(parent, part):
                    parent.add_module(part, nn.Module())
                parent = getattr(parent, part)
            kind, *rest = arguments.split(",")
            if kind == "Buffer":
                number = torch.complex64 if rest[0] == "complex" else torch.int64
                parent.register_buffer(name, torch.full((int(rest[1]),), 7, dtype=number))
            else:
                parent.add_module(name, self._module(kind, rest, dtype))
        self.eval()

    def _module(self, kind: str, rest: list[str], dtype: torch.dtype) -> nn.Module:
        if kind == "same":
            return self.get_submodule(rest[0])
        if kind == "tie":
            weight = self.get_submodule(rest[0]).weight
            linear = nn.Linear(*reversed(weight.shape), bias=False)
            linear.weight = weight
            return linear
        if kind == "Conv2d":
            sizes = [int(number) for number in rest[:5]]
            return nn.Conv2d(
                *sizes[:2], sizes[2:4], sizes[4],
                rest[5] if rest[5] == "same" else int(rest[5]),
                groups=int(rest[6]), padding_mode=rest[7], dtype=dtype,
            )  # fmt: skip
        numbers = [int(number) for number in rest]
        if kind == "Linear":
            return nn.Linear(*numbers[:2], bias=numbers[2] == 1, dtype=dtype)
        if kind == "Embedding":
            padding = None if numbers[2] < 0 else numbers[2]
            return nn.Embedding(*numbers[:2], padding_idx=padding, dtype=dtype)
        if kind == "Prepared":
            return FakeQuantizedLinear(*numbers)
        return getattr(nn, kind)(*numbers, dtype=dtype)


EVERY = (
    "embedding:Embedding,7,8,1 table:Embedding,5,8,-1 dynamic:Linear,8,8,1 narrow:Linear,8,8,0 "
    "static:Linear,8,8,1 grouped:Linear,8,8,1 rounded:Linear,8,8,1 "
    "conv1:Conv2d,3,4,3,3,2,1,1,zeros conv2:Conv2d,4,4,1,3,1,same,2,circular norm:BatchNorm1d,8"
)


def every() -> Network:
    """A quantized module of every class that C++ has; Python's tests have one more."""
    model = Network(EVERY)
    for name, module in Every().quantize().named_children():
        model.add_module(name, module)
    model.conv1 = QuantizedConv2d(
        integers(4, 3, 3, 3), scales(4), torch.rand(4), stride=2, padding=1
    )
    return model.eval()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    baraquant.save(every(), tmp_path / "every.safetensors")
    return tmp_path / "every.safetensors"


def floats(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(shape) + 0.5).to(torch.promote_types(dtype, torch.float32))


def all_widths(dtype: torch.dtype) -> tuple[str, Network]:
    """Every class with every width; the description of the float model, and the quantized one."""
    made: dict[str, tuple[str, nn.Module]] = {}
    for bits in range(2, 9):
        high = 1 << (bits - 1)
        how: dict[str, Any] = {"weight_bits": bits, "dtype": dtype}
        weight, scale, bias = (
            integers(8, 8, bits=bits),
            floats(8, dtype=dtype),
            torch.rand(8).to(dtype),
        )
        zeros = torch.randint(-high, high, (8, 2), dtype=torch.int32)
        fixed = FakeQuantize(floats(dtype=dtype) * 0.1, 1, quant_min=-high, quant_max=high - 1)
        tokens = FakeQuantize(mode="dynamic", granularity="per_token", symmetric=False)
        groups = FakeQuantize(
            floats(3, 2, dtype=dtype),
            0,
            "per_group",
            group_size=4,
            quant_min=-high,
            quant_max=high - 1,
        )
        line, table = "Linear,8,8,1", "Embedding,9,8,-1"
        linear = QuantizedLinear(
            weight, scale, bias, symmetric=False, bits=bits, smooth=floats(8, dtype=dtype), **how
        )
        static = StaticQuantizedLinear(
            weight, scale, floats(1, dtype=dtype), bias,
            act_zero_point=torch.tensor(-1), bits=bits, **how,
        )  # fmt: skip
        grouped = WeightOnlyLinear(
            weight, floats(8, 2, dtype=dtype), bias, weight_zero_point=zeros, group_size=4,
            input_fake_quant=tokens, **how,
        )  # fmt: skip
        conv = QuantizedConv2d(
            integers(6, 2, 3, 1, bits=bits), floats(6, 2, dtype=dtype), torch.rand(6).to(dtype),
            group_size=1, groups=3, padding=2, input_fake_quant=copy.deepcopy(fixed), **how,
        )  # fmt: skip
        made |= {
            f"linear{bits}": (line, linear),
            f"static{bits}": (line, static),
            f"grouped{bits}": (line, grouped),
            f"fixed{bits}": (
                line,
                WeightOnlyLinear(weight, scale, bias, input_fake_quant=fixed, **how),
            ),
            f"rows{bits}": (
                line,
                WeightOnlyLinear(weight, scale, bias, input_fake_quant=groups, **how),
            ),
            f"plain{bits}": (
                "Linear,8,8,0",
                WeightOnlyLinear(integers(8, 8, bits=bits), scale, **how),
            ),
            f"conv{bits}": ("Conv2d,6,6,3,1,1,2,3,zeros", conv),
            f"table{bits}": (
                table,
                QuantizedEmbedding(integers(9, 8, bits=bits), floats(9, dtype=dtype), **how),
            ),
        }
    description = " ".join(f"{name}:{text}" for name, (text, _) in made.items())
    model = Network(description, dtype)
    for name, (_, module) in made.items():
        model.add_module(name, module)
    return description, model.eval()


X = (torch.arange(24, dtype=torch.float64) * 0.37 - 4).view(3, 8)


def outputs(model: Network, dtype: torch.dtype) -> dict[str, Tensor]:
    """What show_outputs of files.cpp prints."""
    found = {}
    for name, module in model.named_children():
        if isinstance(module, QuantizedEmbedding):
            found[name] = module(torch.arange(4))
        elif getattr(getattr(module, "qweight", None), "shape", None) == (8, 8):
            found[name] = module(X.to(dtype))
    return found


def assert_outputs(printed: list[str], wanted: dict[str, Tensor]) -> None:
    assert printed[0] == "ok", printed
    got: dict[str, list[float]] = {}
    for field in printed[1:]:
        if field in wanted:
            values = got[field] = []
        else:
            values.append(float.fromhex(field))
    assert list(got) == list(wanted) != []
    for name, found in got.items():
        expected = wanted[name].detach().double().flatten()
        assert torch.equal(torch.tensor(found, dtype=torch.float64), expected), name


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_file_of_python_becomes_the_same_file_of_cpp(
    dtype: str, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    """Every class and width, loaded into a float model, and into a quantized one."""
    torch.manual_seed(2)
    a, b, c = (tmp_path / name for name in "abc")
    description, model = all_widths(getattr(torch, dtype))
    baraquant.save(model, a)
    once, twice = run_jobs(
        ("outputs", dtype, description, a, b, ""), ("twice", dtype, description, a, c, "")
    )
    assert_outputs(once, outputs(model, getattr(torch, dtype)))
    assert twice == ["ok"]
    assert b.read_bytes() == a.read_bytes() == c.read_bytes()
    assert same(baraquant.load_(Network(description, getattr(torch, dtype)), b), model)


@pytest.mark.smoke
def test_modules_of_every_class(run_jobs: Callable[..., list[list[str]]], stored: Path) -> None:
    again = stored.with_name("again")
    assert run_jobs(("copy", "float32", EVERY, stored, again, "")) == [["ok"]]
    assert again.read_bytes() == stored.read_bytes()


CONFIGS = {
    "W8A8": W8A8(False),
    "W4A16": W4A16(4, False),
    "W4A8": W4A8(8),
    "W8A16": W8A16(),
}
MIXED = f"{LINE} part.head:Linear,8,6,0 table:Embedding,9,8,-1 norm:LayerNorm,8"


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_cpp_quantized_is_loaded_by_python(
    config: str, dtype: str, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    (printed,) = run_jobs(("quantize", dtype, MIXED, "", a, config))
    loaded = baraquant.load_(Network(MIXED, getattr(torch, dtype)), a)
    assert_outputs(printed, outputs(loaded, getattr(torch, dtype)))
    baraquant.save(loaded, b)
    assert b.read_bytes() == a.read_bytes()
    fresh = Network(MIXED, getattr(torch, dtype))
    fresh.load_state_dict(Network(MIXED, getattr(torch, dtype)).state_dict())
    baraquant.quantize_(fresh, CONFIGS[config])
    assert [type(m) for m in fresh.modules()] == [type(m) for m in loaded.modules()]


def test_a_model_with_calibrated_inputs(
    run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert run_jobs(("static", "float32", LINE, "", a, "W8A8Static")) == [["ok"]]
    loaded = baraquant.load_(Network(LINE), a)
    assert type(loaded.fc) is StaticQuantizedLinear and loaded.fc.act_zero_point is not None
    baraquant.save(loaded, b)
    assert b.read_bytes() == a.read_bytes()


TIED = (
    "embedding:Embedding,20,16,0 first.query:Linear,16,16,1 first.down:Linear,16,16,1 second:same,first "
    "norm:LayerNorm,16 head:tie,embedding"
)


@pytest.mark.parametrize("some", [False, True])
def test_shared_modules_and_tied_tensors(
    some: bool, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    model = Network(TIED)
    keep = (lambda module, name: "." in name) if some else None
    baraquant.quantize_(model, W4A16(4), filter_fn=keep)
    a, b = tmp_path / "a", tmp_path / "b"
    baraquant.save(model, a)
    assert run_jobs(("copy", "float32", TIED, a, b, "")) == [["ok"]]
    assert b.read_bytes() == a.read_bytes()
    header, config, _ = parts(b)
    assert not any(name.startswith(("second.", "head.")) for name in header)
    assert len(config["shared_tensors"]) >= 5
    loaded = baraquant.load_(Network(TIED), b)
    assert same(loaded, model) and loaded.first is loaded.second


@pytest.mark.parametrize("bits", range(2, 8))
def test_a_weight_that_is_shared_by_two_widths(
    bits: int, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    layer = QuantizedLinear(integers(3, 3, bits=bits), scales(3), weight_bits=bits)
    model = Network("first:Linear,3,3,0 again:same,first other:Linear,3,3,0 wider:Linear,3,3,0")
    model.first = model.again = layer
    model.other = QuantizedLinear(layer.qweight, scales(3), weight_bits=bits)
    model.wider = QuantizedLinear(layer.qweight, scales(3), weight_bits=bits + 1)
    a, b = tmp_path / "a", tmp_path / "b"
    baraquant.save(model, a)
    floats = "first:Linear,3,3,0 again:same,first other:Linear,3,3,0 wider:Linear,3,3,0"
    assert run_jobs(("copy", "float32", floats, a, b, "")) == [["ok"]]
    assert b.read_bytes() == a.read_bytes()


# Files of older formats.


def without(path: Path, module: str) -> None:
    """Take a module out of a file."""
    header, config, data = parts(path)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and not name.startswith(f"{module}."):
            begin, end = entry["data_offsets"]
            raw = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]])
            tensors[name] = raw.reshape(entry["shape"])
    del config["modules"][module]
    save_file(tensors, path, {"baraquant": json.dumps(config)})
    header, _, data = parts(path)
    write(path, signed(header, config, data), data)


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_older_formats(
    version: int, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    """Files of those times; C++ has no Conv1d."""
    a, b, c = (tmp_path / name for name in "abc")
    a.write_bytes((DATA / f"format_{version}_every.safetensors").read_bytes())
    (refused,) = run_jobs(("copy", "float32", EVERY, a, b, ""))
    assert refused[1:] == [
        f"baraquant.load_: {a.name}: conv1: expected a class that C++ has (QuantizedConv2d, "
        "QuantizedEmbedding, QuantizedLinear, StaticQuantizedLinear, WeightOnlyLinear), but got "
        "QuantizedConv1d; baraquant.load_ of Python loads it",
        "unchanged",
    ]
    without(a, "conv1")
    rest = " ".join(entry for entry in EVERY.split() if not entry.startswith("conv1"))
    assert run_jobs(("copy", "float32", rest, a, b, "")) == [["ok"]]
    baraquant.save(baraquant.load_(Network(rest), a), c)
    assert b.read_bytes() == c.read_bytes()
    assert parts(a)[1]["format"] == version and parts(b)[1]["format"] == 3


def test_a_tied_file_of_format_1(run_jobs: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    """The one of those times has an attention; without that, the renamed tensors stay tied."""
    a, b, c = (tmp_path / name for name in "abc")
    a.write_bytes((DATA / "format_1_tied.safetensors").read_bytes())
    model = (
        "embedding:Embedding,11,16,-1 block.self_attn.out_proj:Linear,16,16,1 "
        "block.linear1:Linear,16,32,1 block.linear2:Linear,32,16,1 block.norm1:LayerNorm,16 "
        "block.norm2:LayerNorm,16 again:same,block.linear1 head:tie,embedding"
    )
    (refused,) = run_jobs(("copy", "float32", model, a, b, ""))
    assert refused[1].startswith(f"baraquant.load_: {a.name}: block.self_attn: expected a model wi")
    header, config, data = parts(a)
    config["attentions"] = []
    names = [name.removesuffix(".out_proj") for name in config["modules"]]
    model = " ".join(
        f"{path}:Linear,{16 if path != 'block.linear2' else 32},"
        f"{32 if path == 'block.linear1' else 16},1"
        if path.startswith("block")
        else f"{path}:Embedding,11,16,-1"
        for path in config["modules"]
        if path != "head"
    )
    model += " block.norm1:LayerNorm,16 block.norm2:LayerNorm,16 again:same,block.linear1"
    model += " head:tie,embedding"
    write(a, signed(header, config, data), data)
    assert names and run_jobs(("copy", "float32", model, a, b, "")) == [["ok"]]
    baraquant.save(baraquant.load_(Network(model), a), c)
    assert b.read_bytes() == c.read_bytes()
    assert parts(b)[1]["shared_tensors"]["head.qweight"] == "embedding.qweight"


# Errors.


def python_error(path: Path, model: str) -> list[str]:
    """What Python says, as the program prints it."""
    try:
        baraquant.load_(Network(model), path)
    except (ValueError, OSError) as error:
        kind = "ValueError" if isinstance(error, ValueError) else "Error"
        return [kind, str(error).replace("\n", "\\n"), "unchanged"]
    return ["ok"]


# Where the text differs: Python shows a set in any order, and only C++ lacks what these have.
OTHER_TEXT = {
    "padding of text": "conv2: Invalid padding string 'odd', should be one of {'same', 'valid'}",
    "further modules": "dynamic: expected nothing beside the layer's own tensors, but got "
    "['adapter']; baraquant.load_ of Python loads it",
    "further of its own": "dynamic: expected nothing beside the layer's own tensors, but got "
    "['qweight']; baraquant.load_ of Python loads it",
    "unpacked a layer": "dynamic: expected a model without attentions and recurrent modules of "
    "PyTorch that are quantized, but it is one; baraquant.load_ of Python loads it",
    "unpacked nothing": "nowhere: expected a model without attentions and recurrent modules of "
    "PyTorch that are quantized, but it is one; baraquant.load_ of Python loads it",
}


@pytest.mark.smoke
def test_damaged_files_have_pythons_errors(
    run_jobs: Callable[..., list[list[str]]], stored: Path, tmp_path: Path
) -> None:
    raw, original = stored.read_bytes(), parts(stored)
    names = [*CORRUPTIONS, *LIES]
    for number, name in enumerate(names):
        path = tmp_path / f"{number}.safetensors"
        if name in CORRUPTIONS:
            path.write_bytes(CORRUPTIONS[name][0](raw))
        else:
            header, data = LIES[name][0](*copy.deepcopy(original))
            write(path, header, data)
    files = [tmp_path / f"{number}.safetensors" for number in range(len(names))]
    printed = run_jobs(*(("copy", "float32", EVERY, path, "", "") for path in files))
    assert len(names) > 100
    for name, path, got in zip(names, files, printed, strict=True):
        wanted = python_error(path, EVERY)
        assert wanted[0] == "ValueError", name
        if name in OTHER_TEXT:
            wanted[1] = f"baraquant.load_: {path.name}: {OTHER_TEXT[name]}"
        assert got == wanted, name


def test_cuts_and_flipped_bits_have_pythons_errors(
    run_jobs: Callable[..., list[list[str]]], stored: Path, tmp_path: Path
) -> None:
    raw = stored.read_bytes()
    whole = 8 + header_length(stored)
    files = []
    for place in [*range(8), *range(8, whole, 61), *range(whole, len(raw), 61)]:
        for flipped in (False, True):
            path = tmp_path / f"{place}{'f' if flipped else 'c'}.safetensors"
            bit = bytes([raw[place] ^ 4]) + raw[place + 1 :] if flipped else b""
            path.write_bytes(raw[:place] + bit)
            files.append(path)
    printed = run_jobs(*(("copy", "float32", EVERY, path, "", "") for path in files))
    for path, got in zip(files, printed, strict=True):
        wanted = python_error(path, EVERY)
        if wanted[0] == "ok" or "SafetensorError" in wanted[1] or "whole file, but" in wanted[1]:
            assert got[0] in ("ok", "ValueError")
        else:
            assert got == wanted, path.name


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
def test_other_architectures_have_pythons_errors(
    bits: int, run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    model = Network(TIED)
    baraquant.quantize_(model, W8A8() if bits == 8 else W4A8(4))
    path = tmp_path / "model.safetensors"
    baraquant.save(model, path)
    printed = run_jobs(*(("copy", "float32", text, path, "", "") for text in OTHERS.values()))
    printed += run_jobs(("copy", "float64", TIED, path, "", ""))
    for (name, text), got in zip(OTHERS.items(), printed, strict=False):
        assert got == python_error(path, text), name
    with pytest.raises(ValueError) as caught:
        baraquant.load_(Network(TIED, torch.float64), path)
    assert printed[-1] == ["ValueError", str(caught.value), "unchanged"]


def test_ties_that_the_file_does_not_have(
    run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    untied = TIED.replace("head:tie,embedding", "head:Linear,16,20,0")
    model = Network(untied)
    baraquant.quantize_(model, W8A8(), filter_fn=lambda module, name: "." in name)
    baraquant.save(model, tmp_path / "a")
    (got,) = run_jobs(("copy", "float32", TIED, tmp_path / "a", "", ""))
    assert got == python_error(tmp_path / "a", TIED)
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
    assert got == python_error(path, "fc:Linear,3,3,1")
    assert "the 5 bits behind the last integer" in got[1]


def test_what_the_system_refuses(
    run_jobs: Callable[..., list[list[str]]], stored: Path, tmp_path: Path
) -> None:
    none, folder = tmp_path / "none", tmp_path / "it's a folder"
    folder.mkdir()
    printed = run_jobs(
        ("copy", "float32", EVERY, none, "", ""),
        ("copy", "float32", EVERY, f"{tmp_path}/./{folder.name}//", "", ""),
        ("copy", "float32", EVERY, stored, tmp_path / "no" / "x", ""),
    )
    assert printed[0] == python_error(none, EVERY)
    assert printed[1] == python_error(folder, EVERY)
    kind, text, _ = printed[2]
    assert kind == "Error" and text.startswith("[Errno 2] No such file or directory: ")
    assert text.endswith(".partial'") and str(tmp_path / "no" / "x") in text


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
    assert got[:2] == ["ValueError", str(caught.value)]
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


# How a file is written.


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_permissions_are_those_of_open(
    umask: int, run_jobs: Callable[..., list[list[str]]], stored: Path
) -> None:
    fresh, link, dangling = (stored.with_name(name) for name in ("fresh", "link", "dangling"))
    link.symlink_to(stored.name)
    dangling.symlink_to(stored.with_name("target"))
    stored.chmod(0o640)
    raw = stored.read_bytes()
    before = os.umask(umask)
    try:
        printed = run_jobs(
            *(("copy", "float32", EVERY, stored, f, "") for f in (fresh, link, dangling))
        )
    finally:
        os.umask(before)
    assert printed == [["ok"]] * 3
    assert link.is_symlink() and dangling.is_symlink()
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in stored.parent.iterdir()}
    new = 0o666 & ~umask
    assert modes == {
        "fresh": new,
        "link": 0o640,
        stored.name: 0o640,
        "target": new,
        "dangling": new,
    }
    assert all(file.read_bytes() == raw for file in stored.parent.iterdir())


def test_the_checksum_does_not_depend_on_the_instructions(
    run_jobs: Callable[..., list[list[str]]], stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARAQUANT_CPU_ISA", "default")
    again = stored.with_name("again")
    assert run_jobs(("copy", "float32", EVERY, stored, again, "")) == [["ok"]]
    assert again.read_bytes() == stored.read_bytes()


def test_names_and_texts_beyond_ascii(
    run_jobs: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    """Names with characters that JSON escapes, and a configuration whose JSON is laid out anew."""
    text = "größe😀\"\\'\x7f:Linear,8,8,1"
    model = Network(text)
    baraquant.quantize_(model, W4A16(4))
    a, b, c = (tmp_path / name for name in "abc")
    baraquant.save(model, a)
    assert run_jobs(("copy", "float32", text, a, b, "")) == [["ok"]]
    assert b.read_bytes() == a.read_bytes()
    header, config, data = parts(a)
    config["writer"] = ["a 😀", 1.5, -0.0, 1e16, 1e-5, 2**70, None, True, {"b": 1, "a": [0.1]}]
    header = signed(header, config, data)
    header["__metadata__"]["baraquant"] = json.dumps(
        json.loads(header["__metadata__"]["baraquant"]), indent=3, ensure_ascii=False
    )
    write(c, header, data)
    assert run_jobs(("copy", "float32", text, c, b, "")) == [["ok"]]
    assert b.read_bytes() == a.read_bytes()
    assert struct.unpack("<Q", a.read_bytes()[:8])[0] % 8 == 0
