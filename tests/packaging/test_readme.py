# SPDX-License-Identifier: BSD-3-Clause
"""The documents at the top: their examples run, and what they name exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lint
from tests.support import documents
from tests.support.cases import OP_NAMES
from tests.support.documents import DOCUMENTS, ROOT, anchors, blocks, links, name_of

README = ROOT / "README.md"
OPS = ROOT / "docs" / "ops.md"
FOLDERS = ("csrc", "baraquant", "tests", "benchmarks", "examples", "scripts", "cmake", ".github")
by_document = pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)


@pytest.mark.packaging
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_readme_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python block, as a reader would type them, one after the other."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "readme"}
    pytest.importorskip("huggingface_hub")
    assert len(list(documents.run(README, names))) == 3


def test_readme_is_short() -> None:
    """What is reference is on pages of its own."""
    assert len(README.read_text().splitlines()) <= 150


def test_table_of_ops_is_whole() -> None:
    _, *rests = OPS.read_text().split("| op | computes |")
    tables = [rest.partition("\n\n")[0] for rest in rests]
    cells = re.findall(r"^\| (`[^|]+`) \|", "\n".join(tables), re.MULTILINE)
    families = re.findall(r"`([\w{}]+)`", "\n".join(cells))
    kinds = ("tensor", "channel", "token", "group")
    named = {family.replace("{G}", kind) for family in families for kind in kinds}
    assert sorted(named) == OP_NAMES


@by_document
def test_links_lead_somewhere(path: Path) -> None:
    for target in links(path):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@by_document
def test_named_files_exist(path: Path) -> None:
    words = re.findall(r"`([\w./-]+)`", path.read_text())
    for word in words:
        if word.split("/")[0] in FOLDERS and "/" in word:
            assert (ROOT / word).exists(), word


@by_document
def test_named_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(text for language, text, _ in blocks(path) if language == "bash")
    named = re.findall(r"^make ([\w-]+)", commands, re.MULTILINE)
    named += re.findall(r"`make ([\w-]+)", path.read_text())
    assert set(named) <= targets


def test_variables_are_those_of_the_code() -> None:
    """CONTRIBUTING.md names every variable that the code reads; no document names another."""
    sources = [ROOT / "setup.py", ROOT / "scripts/toolchain.py", *(ROOT / "csrc").rglob("*.cpp")]
    read = set()
    for source in sources:
        read |= set(re.findall(r'(?:get|getenv)\("(BARAQUANT_\w+)"', source.read_text()))
    assert read
    variable = re.compile(r"\bBARAQUANT_[A-Z_]+")
    macros = set(re.findall(r"#define (\w+)", (ROOT / "csrc/api/export.h").read_text()))
    assert set(variable.findall((ROOT / "CONTRIBUTING.md").read_text())) - macros == read
    for path in DOCUMENTS:
        assert set(variable.findall(path.read_text())) - macros <= read


@by_document
def test_no_path_of_one_machine(path: Path) -> None:
    assert not lint.FORBIDDEN.search(path.read_text())
