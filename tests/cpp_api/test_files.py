# SPDX-License-Identifier: BSD-3-Clause
"""Files of C++ and of Python: the same bytes, the same bits of the models."""

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import W4A8, W4A16, W8A8, W8A16
from baraquant.nn import GELU, GatedMLP, LayerNorm, QuantizedEmbedding, RMSNorm
from baraquant.nn.inference.weights import Int4Factors
from tests.cpp_api import file_models
from tests.cpp_api.file_models import EVERY, FUSED, LINE, TIED, Network, RunJobs, saved
from tests.serialization.damages import Contents
from tests.support.models.every_layer import same

pytestmark = pytest.mark.process
Copy = Callable[[str, Path], Path]  # the fixture of conftest.py
X = (torch.arange(24, dtype=torch.float64) * 0.37 - 4).view(3, 8)


def outputs(model: Network, dtype: torch.dtype) -> dict[str, Tensor]:
    """What show_outputs of files.cpp prints."""
    found = {}
    for name, module in model.named_children():
        if isinstance(module, QuantizedEmbedding):
            found[name] = module(torch.arange(4))
        elif (
            isinstance(module, (GatedMLP, GELU, LayerNorm, RMSNorm))
            or getattr(getattr(module, "qweight", None), "shape", None) == (8, 8)
            or (isinstance(module, Int4Factors) and module.in_features == 8)
        ):
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
def test_a_file_of_python_is_the_same_in_cpp(dtype: str, run_jobs: RunJobs, tmp_path: Path) -> None:
    """Every class and width, loaded into a float model, and into a quantized one."""
    torch.manual_seed(2)
    a, b, c = (tmp_path / name for name in "abc")
    text, model = file_models.all_widths(getattr(torch, dtype))
    baraquant.save(model, a)
    once, twice = run_jobs(("outputs", dtype, text, a, b), ("twice", dtype, text, a, c))
    assert_outputs(once, outputs(model, getattr(torch, dtype)))
    assert twice == ["ok"]
    assert b.read_bytes() == a.read_bytes() == c.read_bytes()
    assert same(baraquant.load_(Network(text, getattr(torch, dtype)), b), model)


CONFIGS = {"W8A8": W8A8(False), "W4A16": W4A16(4, False), "W4A8": W4A8(8, group_factors=False)}
CONFIGS |= {"factors": W4A8(4, False, group_factors=True), "W8A16": W8A16()}
CONFIGS["rotated"] = W8A8(rotate=64)
MIXED = f"{LINE} part.head:Linear,8,6,0 table:Embedding,9,8,-1 norm:LayerNorm,8"


@pytest.mark.parametrize(
    ("text", "config", "dtype"),
    [
        *((MIXED, config, dtype) for config in CONFIGS for dtype in ("float32", "bfloat16")),
        *((FUSED, config, dtype) for config in ("W8A8", "W4A8", "rotated")
          for dtype in ("float32", "float64", "bfloat16")),
    ],
)  # fmt: skip
def test_a_model_that_cpp_quantized(
    text: str, config: str, dtype: str, run_jobs: RunJobs, tmp_path: Path
) -> None:
    """From C++ to Python and back: the same bytes, and the same bits of the outputs."""
    a, b, c = (tmp_path / name for name in "abc")
    (printed,) = run_jobs(("quantize", dtype, text, "", a, config))
    loaded, fresh = (Network(text, getattr(torch, dtype)) for _ in range(2))
    baraquant.load_(loaded, a)
    assert_outputs(printed, outputs(loaded, getattr(torch, dtype)))
    baraquant.save(loaded, b)
    assert b.read_bytes() == a.read_bytes()
    baraquant.quantize_(fresh, CONFIGS[config])
    assert [type(m) for m in fresh.modules()] == [type(m) for m in loaded.modules()]
    (again,) = run_jobs(("outputs", dtype, text, b, c))
    assert again == printed and c.read_bytes() == a.read_bytes()


def test_a_model_with_calibrated_inputs(run_jobs: RunJobs, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert run_jobs(("static", "float32", LINE, "", a, "W8A8Static")) == [["ok"]]
    loaded = baraquant.load_(Network(LINE), a)
    assert type(loaded.fc) is baraquant.nn.StaticQuantizedLinear
    assert loaded.fc.act_zero_point is not None
    baraquant.save(loaded, b)
    assert b.read_bytes() == a.read_bytes()


@pytest.mark.parametrize("some", [False, True])
def test_shared_modules_and_tied_tensors(some: bool, copy: Copy, tmp_path: Path) -> None:
    keep = (lambda module, name: "." in name) if some else None
    model = saved(tmp_path / "a", TIED, W4A16(4), filter_fn=keep)
    again = copy(TIED, tmp_path / "a")
    contents = Contents.read(again)
    assert not any(name.startswith(("second.", "head.")) for name in contents.tensors)
    assert len(contents.config["shared_tensors"]) >= 5
    loaded = baraquant.load_(Network(TIED), again)
    assert same(loaded, model) and loaded.first is loaded.second


@pytest.mark.parametrize("bits", range(2, 8))
def test_a_weight_that_is_shared_by_two_widths(bits: int, copy: Copy, tmp_path: Path) -> None:
    text, model = file_models.shared_widths(bits)
    baraquant.save(model, tmp_path / "a")
    copy(text, tmp_path / "a")


def test_the_memory_format_of_convolutions(run_jobs: RunJobs, copy: Copy, tmp_path: Path) -> None:
    """It is that of the floating weight, by which PyTorch chooses its algorithm."""
    a, b = tmp_path / "a", tmp_path / "b"
    line = "conv:Conv2d,3,4,3,3,2,1,1,zeros"
    model = Network(line)
    baraquant.quantize_(model, W8A16())
    model.conv.channels_last = True
    baraquant.save(model, a)
    assert Contents.read(a).config["channels_last"] == ["conv"]
    loaded = baraquant.load_(Network(line), copy(line, a))
    assert torch.equal(loaded.conv.qweight, model.conv.qweight) and loaded.conv.channels_last
    for groups, expected in (("W8A16", ["conv"]), ("W4A16", [])):  # groups are a copy
        job = ("quantize", "float32", "conv:Conv2d,4,4,3,3,2,1,1,last", "", b, groups)
        assert run_jobs(job)[0][0] == "ok"
        assert Contents.read(b).config["channels_last"] == expected


# How a file is written.


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_permissions_are_those_of_open(umask: int, run_jobs: RunJobs, stored: Path) -> None:
    fresh, link, dangling = (stored.with_name(name) for name in ("fresh", "link", "dangling"))
    link.symlink_to(stored.name)
    dangling.symlink_to(stored.with_name("target"))
    stored.chmod(0o640)
    raw = stored.read_bytes()
    before = os.umask(umask)
    try:
        jobs = [("copy", "float32", EVERY, stored, file) for file in (fresh, link, dangling)]
        printed = run_jobs(*jobs)
    finally:
        os.umask(before)
    assert printed == [["ok"]] * 3
    assert link.is_symlink() and dangling.is_symlink()
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in stored.parent.iterdir()}
    new = 0o666 & ~umask
    kept = dict.fromkeys(("link", stored.name), 0o640)
    assert modes == kept | dict.fromkeys(("fresh", "target", "dangling"), new)
    assert all(file.read_bytes() == raw for file in stored.parent.iterdir())


def test_the_checksum_does_not_depend_on_the_instructions(
    copy: Copy, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARAQUANT_CPU_ISA", "default")
    copy(EVERY, stored)


def test_names_and_texts_beyond_ascii(run_jobs: RunJobs, copy: Copy, tmp_path: Path) -> None:
    """Names with characters that JSON escapes, and a header that escapes more than is needed."""
    text = "größe😀\"\\'\x7f:Linear,8,8,1"
    a, b, c = (tmp_path / name for name in "abc")
    saved(a, text, W4A16(4))
    copy(text, a)
    c.write_bytes(Contents.read(a).file())  # with each such character as an escape
    assert c.read_bytes() != a.read_bytes() and b"\\ud83d\\ude00" in c.read_bytes()
    assert run_jobs(("copy", "float32", text, c, b)) == [["ok"]]
    assert b.read_bytes() == a.read_bytes()
    assert struct.unpack("<Q", a.read_bytes()[:8])[0] % 8 == 0
