# SPDX-License-Identifier: BSD-3-Clause
"""The measured figures on the pages are those of the committed results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import figures
import results
from tests.support.documents import FENCE


def test_pages_hold_the_figures_of_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    code = figures.main(["--check"])
    assert code == 0, capsys.readouterr().out


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One page with two blocks, in the place of all pages."""
    path = tmp_path / "README.md"
    path.write_text("Text.\n\n<!--=a-->\nold\n<!--/-->\n\n<!--=b-->\n<!--/-->\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "BLOCKS", {"a": lambda: "new", "b": lambda: "| x |\n| --- |"})
    return path


def test_a_figure_that_differs_fails_the_check_and_is_written(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = page.read_text()
    assert figures.main(["--check"]) == 1
    assert page.read_text() == before
    assert "-old\n+new" in capsys.readouterr().out
    assert figures.main([]) == 0
    blocks = "<!--=a-->\nnew\n\n<!--/-->\n\n<!--=b-->\n| x |\n| --- |\n\n<!--/-->\n"
    assert page.read_text() == f"Text.\n\n{blocks}"
    assert figures.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!--=c-->\n<!--/-->", "names the block c, which no script has"),
        ("<!--=a-->\n<!--/-->", "no page shows b"),
    ],
)
def test_what_a_writer_gets_wrong_is_named(page: Path, text: str, message: str) -> None:
    page.write_text(text)
    with pytest.raises(SystemExit, match=message):
        figures.main([])


def test_every_mark_is_one_of_a_whole_block() -> None:
    for path in figures.pages():
        text = figures.MARK.sub("", FENCE.sub("", path.read_text()))
        assert not re.search(r"<!--[=/]", text), path.name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The results, elsewhere."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.report.cache_clear()
    yield tmp_path
    results.report.cache_clear()


def write(folder: Path, name: str, rows: list[results.Row]) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"rows": rows}))


def test_the_newest_result_counts(folder: Path) -> None:
    for name in ("2026-01-01", "2025-12-31", "2026-01-03_range", "2026-01-02_memory_kept"):
        write(folder, f"cpu_xeon-2.50ghz_{name}", [])
    assert results.stem("cpu") == "cpu_xeon-2.50ghz_2026-01-01"
    assert results.stem("cpu", "memory_kept") == "cpu_xeon-2.50ghz_2026-01-02_memory_kept"
    with pytest.raises(LookupError, match="no result of training on cpu"):
        results.stem("cpu", "training")
    old = "benchmarks/results/cpu_xeon-2.50ghz_2025-12-31_range.md"
    new = "benchmarks/results/cpu_xeon-2.50ghz_2026-01-03_range.md"
    assert figures.written(f"[rows]({old})", "a page", set()) == f"[rows]({new})"


def test_a_table_is_made_of_the_rows_that_its_lines_and_columns_want(folder: Path) -> None:
    first: results.Row = {"op": "a", "shape": [1, 2], "speedups": {"b": 1.5}, "error": None}
    second = {**first, "shape": [4, 2], "speedups": {"b": 2.345}}
    write(folder, "h200_2026-01-01", [first, second, {**first, "error": "no memory"}])
    write(folder, "h200_2026-01-01_other", [{**first, "speedups": {}}])
    source, peer = ("h200", ""), results.times("b")
    lines: dict[Any, Any] = {"any": {"op": "a"}, "few": {"op": "a", "m": 1}}
    columns: dict[str, Any] = {
        "× b": peer,
        "× b|n": (peer, {"n": 2}),
        "elsewhere": (peer, {"family": "other"}),
    }
    assert results.grid(source, ["name"], lines, columns).splitlines() == [
        "| name | × b | × b | elsewhere |",
        "| --- | ---: | ---: | ---: |",
        "| any | 1.50–2.35 × | 1.50–2.35 × | – |",
        "| few | 1.50 × | 1.50 × | – |",
    ]
    nothing: dict[Any, Any] = {"none": {"m": results.at_least(5)}}
    with pytest.raises(LookupError, match="no row with"):
        results.grid(source, ["name"], nothing, {"× b": peer})
    assert results.grid(source, ["name"], nothing, {"× b": peer}, sparse=True).endswith("| – |")
