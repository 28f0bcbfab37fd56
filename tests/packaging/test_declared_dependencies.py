# SPDX-License-Identifier: BSD-3-Clause
"""An installation without extras has torch and safetensors, and no NumPy."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.declared_only import EXTRAS, closure, declared, normalized
from tests.support.documents import ROOT, blocks
from tests.support.processes import run

FIRST = "from tests.support.declared_only import hide; hide()\n"
# What a process hides, and whose code would say `Numpy is not available`.
EVERY_FILE = """
import torch
import baraquant
from torch import nn

def network():
    layers = nn.Conv1d(32, 32, 3), nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 8)
    model = nn.Sequential(*layers)
    model.register_buffer("constant", torch.arange(3), persistent=False)
    model.register_buffer("empty", torch.empty(0), persistent=False)
    return model

for scheme in (baraquant.W8A8(), baraquant.W8A8Static(), baraquant.W4A16(group_size=16),
               baraquant.W4A8(group_size=16), baraquant.SmoothQuant(0.5)):
    model, x = network(), torch.randn(2, 32, 4)
    baraquant.quantize_(model, {"3": scheme, "2": scheme}, calibration=[x], progress=False)
    baraquant.save(model, "model.safetensors")
    fresh = baraquant.load_(network(), "model.safetensors")
    assert torch.equal(fresh(x), model(x))
    again = baraquant.load_(network().to("meta"), "model.safetensors")
    assert torch.equal(again(x), model(x))

from baraquant.info import main
main([])
"""


def test_what_is_declared() -> None:
    names = {normalized(one) for one in declared()}
    assert names == {"torch", "safetensors"}
    assert names < closure(declared()) and "numpy" not in closure(declared())


@pytest.mark.process
@pytest.mark.smoke
def test_the_readme_runs(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.support.declared_only", ROOT / "README.md")
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    python = [text for language, text, _ in blocks(ROOT / "README.md") if language == "python"]
    wanted = sum(not EXTRAS.search(text) for text in python)
    assert 2 <= wanted < len(python) and done.stdout.strip().endswith(f"{wanted} blocks")


@pytest.mark.process
def test_every_kind_of_file_is_saved_and_loaded_and_info_runs(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", FIRST + EVERY_FILE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All is well." in done.stdout, done.stdout


def test_no_module_reads_tensors_through_numpy() -> None:
    """But those of an extra that brings NumPy."""
    extras = ("export/_onnx_passes.py", "export/gguf.py")
    found = [
        str(path.relative_to(ROOT / "baraquant"))
        for path in sorted((ROOT / "baraquant").rglob("*.py"))
        if re.search(r"\.numpy\(|\bfrom_numpy\b|^\s*(import|from) numpy\b", path.read_text(), re.M)
    ]
    assert found == sorted(extras)
