# SPDX-License-Identifier: BSD-3-Clause
"""The measured figures on the pages are those of the committed results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import figures
from tests.support.documents import FENCE


def test_pages_hold_the_figures_of_the_results() -> None:
    figures.main(["--check"])


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One page with two blocks, in the place of all pages."""
    path = tmp_path / "README.md"
    path.write_text("Text.\n\n<!--=a-->\nold\n<!--/-->\n\n<!--=b-->\n<!--/-->\n")
    blocks = {"a": "new", "b": "| x |\n| --- |"}
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "TABLES", {name: {} for name in blocks})
    monkeypatch.setattr(figures, "block", blocks.__getitem__)
    return path


def test_a_figure_that_differs_fails_the_check_and_is_written(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = page.read_text()
    with pytest.raises(SystemExit, match="pages and results differ"):
        figures.main(["--check"])
    assert page.read_text() == before
    assert "-old\n+new" in capsys.readouterr().out
    figures.main([])
    blocks = "<!--=a-->\nnew\n\n<!--/-->\n\n<!--=b-->\n| x |\n| --- |\n\n<!--/-->\n"
    assert page.read_text() == f"Text.\n\n{blocks}"
    figures.main(["--check"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!--=c-->\n<!--/-->", "figures.ini does not declare c"),
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


@pytest.mark.parametrize(
    ("where", "picked"),
    [
        ("", [0, 1, 2, 3]),
        ("op=a", [0, 1]),
        ("op!=a", [2, 3]),
        ("op=a & m>=4", [1]),
        ("m=4/1 & op=b/a", [3, 2, 1, 0]),
        ("speedups.torch._int_mm=None", [0, 1, 3]),
        ("op=c", []),
    ],
)
def test_conditions_pick_rows(where: str, picked: list[int]) -> None:
    rows = [{"op": op, "m": m, "speedups.torch._int_mm": None} for op in "ab" for m in (1, 4)]
    rows[2]["speedups.torch._int_mm"] = 2.0
    assert figures.pick(rows, where) == [rows[number] for number in picked]


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("no field", "no field"),
        ("{seconds in ms:.1f} ms", "1.5–3.0 ms"),
        ("{seconds in ms:.0f}", "2–3"),
        ("{bytes in MiB:,.0f} of {name}", "2,048 of x"),
        ("{seconds / base:.2f} ×", "0.50–1.00 ×"),
        ("{met in all} of {asked in all}", "3 of 5"),
        ("{only:+.1f}", "+7.0"),
        ("{only} {none}", ""),
        ("{nothing}", ""),
    ],
)
def test_fields_are_filled_in(text: str, filled: str) -> None:
    both = {"name": "x", "bytes": 2**31, "base": 0.003, "none": None}
    rows = [
        {**both, "seconds": 0.0015, "met": 1, "asked": 2, "only": None},
        {**both, "seconds": 0.003, "met": 2, "asked": 3, "only": 7.0},
    ]
    assert figures.fill(text, rows) == filled


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

[each]
results = h200/affine h200/other/more
above = {file}:
lines =
    {op} |
columns = seconds | {seconds}

[no_line]
results = h200/affine
lines =
    never | m=5
columns = × | ${peer}

[no_column]
results = h200/affine
lines =
    {op} |
columns = × | {speedups.unknown}
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
    content = {
        "rows": [{"seconds": 1}],
        "more": [{"op": "c", "seconds": 3}],
        "device": {"name": "H"},
    }
    (folder / "h200_2026-01-02_other.json").write_text(json.dumps(content))
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
    assert figures.block("each").split("\n\n") == [
        "h200_2026-01-01:",
        "|  | seconds |\n| --- | ---: |\n| a | 2.0–9 |",
        "h200_2026-01-02_other:",
        "|  | seconds |\n| --- | ---: |\n| c | 3 |",
    ]


@pytest.mark.usefixtures("declared")
def test_a_line_without_rows_and_a_column_without_figures_are_errors() -> None:
    with pytest.raises(LookupError, match="no row with m=5"):
        figures.block("no_line")
    with pytest.raises(LookupError, match="no figure in the column ×"):
        figures.block("no_column")
