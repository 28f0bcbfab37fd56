# SPDX-License-Identifier: BSD-3-Clause
"""The documents at the top: their examples run, and what they name exists."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lint
from baraquant import ops

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDERS = ("csrc", "baraquant", "tests", "benchmarks", "examples", "scripts", "cmake", ".github")
by_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))


def blocks(path: Path) -> Iterator[tuple[str, str, int]]:
    """The fenced blocks: language, text, and the number of the line before the text."""
    text = path.read_text()
    for match in FENCE.finditer(text):
        yield match[1], match[2], text[: match.start(2)].count("\n")


def run_session(text: str, line: int, names: dict[str, Any]) -> None:
    """Runs a ``>>>`` session, and compares what it prints."""
    session = doctest.DocTestParser().get_doctest(text, names, README.name, str(README), line)
    session.globs = names  # a DocTest copies them: the next block needs what this one defines
    output: list[str] = []
    runner = doctest.DocTestRunner()
    runner.run(session, out=output.append, clear_globs=False)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(output)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_readme_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python block, as a reader would type them, one after the other."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "readme"}
    count = 0
    for language, text, line in blocks(README):
        if language == "python":
            exec(compile("\n" * line + text, str(README), "exec"), names)
        elif language == "pycon":
            run_session(text, line, names)
        count += language in ("python", "pycon")
        if count == 1 and language == "python":
            check_quick_start(names)
    assert count == 10


def check_quick_start(names: dict[str, Any]) -> None:
    """What the comments of the quick start say."""
    torch.manual_seed(0)
    weight = torch.nn.Linear(128, 64).weight.detach()  # as it was before training
    scale, q, near = names["scale"], names["q"], names["near"]
    assert q.dtype == torch.int8
    assert q.shape == (64, 128)
    assert ((near - weight).abs() <= scale[:, None] / 2 * (1 + 1e-6)).all()
    assert torch.equal(ops.fake_quantize_per_channel(weight, scale, None, 0, -8, 7), near)
    assert not torch.equal(names["layer"].weight, weight)


def test_quick_start_is_short() -> None:
    """Ten lines beside the imports."""
    quick_start = next(text for language, text, _ in blocks(README) if language == "python")
    lines = [line for line in quick_start.splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("import", "from"))]) <= 10


def test_table_of_ops_is_whole() -> None:
    _, *rests = README.read_text().split("| op | computes |")
    tables = [rest.partition("\n\n")[0] for rest in rests]
    families = re.findall(r"^\| `([\w{}]+)` \|", "\n".join(tables), re.MULTILINE)
    kinds = ("tensor", "channel", "token", "group")
    named = {family.replace("{G}", kind) for family in families for kind in kinds}
    assert sorted(named) == sorted(ops.__all__)


@by_document
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif "://" not in target:
            assert (ROOT / target).exists(), target


@by_document
def test_named_files_exist(path: Path) -> None:
    words = re.findall(r"`([\w./-]+)`", path.read_text())
    for word in words:
        if word.split("/")[0] in FOLDERS and "/" in word:
            assert (ROOT / word).exists(), word


@by_document
def test_named_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(text for language, text, _ in blocks(path) if language == "bash")
    named = re.findall(r"^make (\w+)", commands, re.MULTILINE)
    named += re.findall(r"`make (\w+)", path.read_text())
    assert set(named) <= targets


def test_variables_are_those_of_the_code() -> None:
    """CONTRIBUTING.md names every variable that the code reads; no document names another."""
    sources = [ROOT / "setup.py", *(ROOT / "csrc").rglob("*.cpp")]
    read = set()
    for source in sources:
        read |= set(re.findall(r'(?:get|getenv)\("(BARAQUANT_\w+)"', source.read_text()))
    assert read
    variable = re.compile(r"\bBARAQUANT_[A-Z_]+")
    assert set(variable.findall((ROOT / "CONTRIBUTING.md").read_text())) == read
    for path in DOCUMENTS:
        assert set(variable.findall(path.read_text())) <= read


@by_document
def test_no_path_of_one_machine(path: Path) -> None:
    assert not lint.FORBIDDEN.search(path.read_text())
