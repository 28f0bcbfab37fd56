# SPDX-License-Identifier: BSD-3-Clause
"""Wrong files and wrong models: C++ refuses what Python refuses, at the same place."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W4A8, W8A8, W8A16
from baraquant.nn import QuantizedConv1d, QuantizedLinear
from tests.cpp_api.file_models import EVERY, FUSED, LINE, TIED, Network, RunJobs, saved
from tests.serialization.fuzz import place_of
from tests.serialization.test_errors import OTHERS
from tests.support.models.every_layer import integers, scales
from tests.support.processes import run_program as run_module

pytestmark = pytest.mark.process


def test_damaged_files(program: Path) -> None:
    """In processes of their own, whose death would be seen; see `tests/serialization/fuzz.py`."""
    run_module("tests.serialization.fuzz", None, "--program", program, "--files", "700")


@pytest.mark.parametrize("bits", [8, 4])
def test_other_models(bits: int, run_jobs: RunJobs, tmp_path: Path) -> None:
    untied = TIED.replace("head:tie,embedding", "head:Linear,16,20,0")
    saved(tmp_path / "untied", untied, filter_fn=lambda module, name: "." in name)
    saved(tmp_path / "tied", TIED, W8A8() if bits == 8 else W4A8(4, group_factors=False))
    cases = [("tied", "float32", text) for text in OTHERS]
    cases += [("tied", "float64", TIED), ("untied", "float32", TIED)]
    printed = run_jobs(*(("copy", dtype, text, tmp_path / f) for f, dtype, text in cases))
    for (name, dtype, text), (kind, message, state) in zip(cases, printed, strict=True):
        with pytest.raises(ValueError) as caught:
            baraquant.load_(Network(text, getattr(torch, dtype)), tmp_path / name)
        assert (kind, state) == ("ValueError", "unchanged"), message
        assert place_of(message) == place_of(str(caught.value)) and "expected " in message


def test_what_the_system_refuses(run_jobs: RunJobs, stored: Path, tmp_path: Path) -> None:
    none, folder = tmp_path / "none", tmp_path / "it's a folder"
    folder.mkdir()
    printed = run_jobs(
        ("copy", "float32", EVERY, none),
        ("copy", "float32", EVERY, f"{folder}/"),
        ("copy", "float32", EVERY, stored, tmp_path / "no" / "x"),
    )
    texts = f"{none}: No such file or directory", f"{folder}/: Is a directory"
    assert printed[:2] == [["RuntimeError", text, "unchanged"] for text in texts]
    kind, text, _ = printed[2]
    assert kind == "RuntimeError" and text.startswith(str(tmp_path / "no" / ".x."))
    assert text.endswith(".partial: No such file or directory")


COMPLEX = f"{LINE} odd:Buffer,complex,2", f"{LINE} part.odd:Buffer,complex,2"
REFUSED = {"fc:Prepared,4,4": "save", f"{LINE} norm:LayerNorm,8": "save", LINE: "wrong"}
REFUSED |= dict.fromkeys(COMPLEX, "quantize")


@pytest.mark.parametrize("text", REFUSED)
def test_models_that_are_not_saved(text: str, run_jobs: RunJobs, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a"
    path.parent.mkdir()
    model, kind = Network(text), REFUSED[text]
    if kind != "save":
        baraquant.quantize_(model, W8A16())
    if kind == "wrong":
        model.fc.weight_scale[1] = float("nan")
    with pytest.raises(ValueError) as caught:
        baraquant.save(model, path)
    (got,) = run_jobs((kind, "float32", text, "fc.weight_scale", path, "W8A16"))
    assert [got[0], place_of(got[1])] == ["ValueError", place_of(str(caught.value))]
    assert not list(path.parent.iterdir())


def test_a_typed_member_that_would_keep_the_old_layer(run_jobs: RunJobs, tmp_path: Path) -> None:
    saved(tmp_path / "a")
    (got,) = run_jobs(("typed", "float32", LINE, tmp_path / "a"))
    assert got[0] == "ValueError" and got[1].startswith("baraquant.load_: fc: expected the model ")
    text = "baraquant.save: expected a quantized model, but got a Typed without a quantized module"
    assert got[2:] == ["ValueError", text]


def test_buffers_of_no_state_dict(run_jobs: RunJobs, tmp_path: Path) -> None:
    """C++ has none: they are left out, or are ordinary buffers, which get the values."""
    model = Network(LINE)
    model.register_buffer("positions", torch.arange(3), persistent=False)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    left_out, filled, longer = run_jobs(
        ("copy", "float32", LINE, tmp_path / "a"),
        ("state", "float32", f"{LINE} positions:Buffer,long,3", tmp_path / "a"),
        ("state", "float32", f"{LINE} positions:Buffer,long,2", tmp_path / "a"),
    )
    assert left_out == ["ok"]
    for state, wanted in ((filled, [0, 1, 2]), (longer, [7, 7])):
        values = state[state.index("positions") + 1 :]
        assert [float.fromhex(value) for value in values] == wanted


CONV = f"{LINE} conv:Conv2d,3,4,3,3,2,1,1,zeros"
TRANSPOSED = QuantizedLinear(integers(8, 8), scales(8), torch.zeros(8), transposed=True)
MISSING = (
    "last: expected an RMSNorm, LayerNorm, GELU or GatedMLP of baraquant::nn, as in the file, but "
    "the model has "
)
# What Python saves: a model, a layer in place of one of its own; the model of C++, its message.
OF_PYTHON_ALONE: list[tuple[str, dict[str, nn.Module], str, str]] = [
    (FUSED, {}, FUSED.replace("FusedLayerNorm,8", "LayerNorm,8"), f"{MISSING}a LayerNorm"),
    (FUSED, {}, FUSED.replace("FusedLayerNorm,8", "Buffer,long,3"), f"{MISSING}no such module"),
    (LINE, {"fc": TRANSPOSED}, LINE,
     "fc: expected a layer in place of a Linear, but got one of a Conv1D of transformers; "
     "baraquant.load_ of Python loads it"),
    (CONV, {"conv": QuantizedConv1d(integers(4, 3, 3), scales(4))}, CONV,
     "conv: expected a class that C++ has (QuantizedConv2d, QuantizedEmbedding, "
     "QuantizedInt4Linear, QuantizedLinear, StaticQuantizedInt4Linear, StaticQuantizedLinear, "
     'WeightOnlyInt4Linear, WeightOnlyLinear), but got "QuantizedConv1d"; '
     "baraquant.load_ of Python may have it"),
]  # fmt: skip


@pytest.mark.parametrize("case", OF_PYTHON_ALONE, ids=lambda case: case[3].split(":")[0])
def test_what_python_alone_loads(case: Any, run_jobs: RunJobs, tmp_path: Path) -> None:
    text, layers, given, message = case
    model = Network(text)
    baraquant.quantize_(model, W8A8())
    for name, layer in layers.items():
        model.add_module(name, layer)
    baraquant.save(model, tmp_path / "a")
    (got,) = run_jobs(("copy", "float32", given, tmp_path / "a"))
    assert got == ["ValueError", f"baraquant.load_: a: {message}", "unchanged"]
