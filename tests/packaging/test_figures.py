# SPDX-License-Identifier: BSD-3-Clause
"""The measured figures on the pages are those of the committed results."""

import json
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


def test_what_failed_is_left_out_and_what_is_missing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    rows = [{"shape": [4], "seconds": 5.0}, {"shape": [4], "seconds": 7.0, "error": "no memory"}]
    (tmp_path / "h200_2026-01-01.json").write_text(json.dumps({"rows": rows}))
    found = figures.report.__wrapped__("h200/affine")
    assert [row["seconds"] for row in found] == [5.0]
    with pytest.raises(LookupError, match="no row with m=5"):
        figures.table({"lines": "name |\nnever | m=5", "columns": "s | {seconds}"}, found)
    with pytest.raises(LookupError, match="no result of training on cpu"):
        figures.stem("cpu", "training")
