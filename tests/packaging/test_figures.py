# SPDX-License-Identifier: BSD-3-Clause
"""The measured figures on the pages are those of the committed results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import figures


def test_pages_hold_the_figures_of_the_results() -> None:
    figures.main(["--check"])


def test_a_figure_that_differs_fails_the_check_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text("Text.\n\n<!--=a-->\nold\n<!--/-->\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "TABLES", {"a": {}})
    monkeypatch.setattr(figures, "block", {"a": "| x |\n| --- |"}.__getitem__)
    before = page.read_text()
    with pytest.raises(SystemExit, match="pages and results differ"):
        figures.main(["--check"])
    assert page.read_text() == before
    assert "-old\n+| x |" in capsys.readouterr().out
    figures.main([])
    assert page.read_text() == "Text.\n\n<!--=a-->\n| x |\n| --- |\n\n<!--/-->\n"
    figures.main(["--check"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The results, elsewhere."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    figures.report.cache_clear()
    yield tmp_path
    figures.report.cache_clear()


def write(folder: Path, name: str, rows: list[figures.Row], **common: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"rows": rows, **common}))


def test_the_newest_result_counts(folder: Path) -> None:
    for name in ("2026-01-01", "2025-12-31", "2026-01-03_range", "2026-01-02_memory_kept"):
        write(folder, f"cpu_xeon-2.50ghz_{name}", [])
    assert figures.stem("cpu", None) == "cpu_xeon-2.50ghz_2026-01-01"
    assert figures.stem("cpu", "memory_kept") == "cpu_xeon-2.50ghz_2026-01-02_memory_kept"
    with pytest.raises(LookupError, match="no result of training on cpu"):
        figures.stem("cpu", "training")
    old = "benchmarks/results/cpu_xeon-2.50ghz_2025-12-31_range.md"
    new = "benchmarks/results/cpu_xeon-2.50ghz_2026-01-03_range.md"
    assert figures.written(f"[rows]({old})") == f"[rows]({new})"


DECLARED = r"""
[DEFAULT]
peer = {speedups.b:.2f} ×

[whole]
results = GPU/affine h200/other if seconds!=9
left = 2
lines = name |
    {op} | {m} | family=affine & m=4/1
    both | of {n} | \
    family=affine
    the other | | family=other
columns =
    on {on} | ${peer}
    steps | {seconds / base.seconds:.1f} if m!=1 | , {seconds} s if m=4 | first if m=1
    targets, {device.name} | {met in all} of {asked in all}

[dtypes]
results = GPU/affine
dtypes = float32 int8 float16
lines =
    {m} |
columns = × | ${peer}

[no_line]
results = h200/affine
lines =
    never | m=5
columns = × | ${peer}
"""


@pytest.fixture
def declared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results, and tables of them."""
    common = {"op": "a", "speedups": {"b": 1.5}, "dtype": "float32", "error": None}
    rows: list[figures.Row] = [
        {**common, "shape": [1, 2], "seconds": 2.0, "met": [True, False]},
        {**common, "shape": [4, 2], "seconds": 5.0, "speedups": {"b": 2.345}, "met": [True]},
        {**common, "shape": [4, 2], "seconds": 7.0, "error": "no memory"},
        {**common, "shape": [1, 2], "seconds": 9, "speedups": {}, "dtype": "float16"},
    ]
    write(folder, "h200_2026-01-01", rows, device={"name": "H"})
    write(folder, "h200_2026-01-02_other", [{"seconds": 1}], device={"name": "H"})
    monkeypatch.setattr(figures, "TABLES", figures.declarations(DECLARED))


@pytest.mark.usefixtures("declared")
def test_a_table_is_made_as_it_is_declared() -> None:
    assert figures.block("whole").splitlines() == [
        "| name |  | on GPU | steps | targets, H |",
        "| --- | --- | ---: | ---: | ---: |",
        "| a | 4 | 2.35 × | 2.5, 5.0 s | 1 of 1 |",
        "| a | 1 | 1.50 × | first | 1 of 2 |",
        "| both | of 2 | 1.50–2.35 × | 2.5, 5.0 sfirst | 2 of 3 |",
        "| the other |  | – | 1.0 | 0 of 0 |",
    ]
    assert figures.block("dtypes").splitlines() == [
        "|  | × |",
        "| --- | ---: |",
        "| 1 | 1.50 × / – |",
        "| 4 | 2.35 × |",
    ]


@pytest.mark.usefixtures("declared")
def test_a_line_without_rows_is_an_error() -> None:
    with pytest.raises(LookupError, match="no row with m=5"):
        figures.block("no_line")
