# SPDX-License-Identifier: BSD-3-Clause
"""The measured figures on the pages are those of the committed results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import figure_language
import figures
import results
from tests.support.documents import FENCE


def test_pages_hold_the_figures_of_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    code = figures.main(["--check"])
    assert code == 0, capsys.readouterr().out


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One page with three figures, in the place of all pages."""
    path = tmp_path / "README.md"
    path.write_text("Takes <!--=a-->1<!--/--> s.\n\n<!--=b-->\n<!--/-->\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "FIGURES", {"a": lambda: "2", "b": lambda: "| x |\n| --- |"})
    return path


def test_a_figure_that_differs_fails_the_check_and_is_written(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = page.read_text()
    assert figures.main(["--check"]) == 1
    assert page.read_text() == before
    assert "-Takes <!--=a-->1<!--/--> s." in capsys.readouterr().out
    assert figures.main([]) == 0
    expected = "Takes <!--=a-->2<!--/--> s.\n\n<!--=b-->\n| x |\n| --- |\n\n<!--/-->\n"
    assert page.read_text() == expected
    assert figures.main(["--check"]) == 0


def test_what_was_not_measured_stays(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def figure() -> str:
        raise results.NotMeasuredError("there are no times")

    figures.FIGURES["a"] = figure
    assert figures.main([]) == 0
    assert page.read_text().startswith("Takes <!--=a-->1<!--/--> s.")
    assert "README.md keeps its a: there are no times" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Takes <!--=c-->1<!--/-->.", "names the figure c, which scripts/figures.py lacks"),
        ("<!--=a-->1<!--/--> s", "has the figure a at the start of a line"),
        ("Takes <!--=a-->1<!--/--> s", "no page shows b"),
    ],
)
def test_what_a_writer_gets_wrong_is_named(page: Path, text: str, message: str) -> None:
    page.write_text(text)
    with pytest.raises(SystemExit, match=message):
        figures.main([])


def test_every_mark_is_closed() -> None:
    for path in figures.pages():
        text = figures.MARK.sub("", FENCE.sub("", path.read_text()))
        assert not re.search(r"<!--[=/]", text), path.name


def write(folder: Path, name: str, rows: list[results.Row]) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"rows": rows}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The results, elsewhere."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.report.cache_clear()
    yield tmp_path
    results.report.cache_clear()


def test_the_newest_result_counts_and_one_as_by_default_first(folder: Path) -> None:
    write(folder, "cpu_xeon-2.50ghz_2026-01-02_memory_kept", [])
    assert results.is_kept("cpu")
    write(folder, "cpu_xeon-2.50ghz_2026-01-01", [])
    write(folder, "cpu_xeon-2.50ghz_2025-12-31", [])
    write(folder, "cpu_xeon-2.50ghz_2026-01-03_range", [])
    assert results.stem("cpu") == "cpu_xeon-2.50ghz_2026-01-01"
    assert not results.is_kept("cpu")
    assert results.stem("cpu", kept=True) == "cpu_xeon-2.50ghz_2026-01-02_memory_kept"
    with pytest.raises(LookupError, match="no result of training on cpu"):
        results.stem("cpu", "training")
    old = "benchmarks/results/cpu_xeon-2.50ghz_2025-12-31_range_memory_kept.md"
    new = "benchmarks/results/cpu_xeon-2.50ghz_2026-01-03_range.md"
    assert figures.written(f"[rows]({old})", "a page", set()) == f"[rows]({new})"


def test_rows_are_picked_by_field_and_shape(folder: Path) -> None:
    first: results.Row = {"op": "a", "shape": [1, 2], "speedups": {"b": 1.5}, "error": None}
    second = {**first, "shape": [4, 2], "speedups": {"b": 2.345}}
    failed = {**first, "shape": [8, 2], "error": "no memory"}
    write(folder, "h200_2026-01-01", [first, second, failed])
    assert results.rows("h200", op="a", m=results.at_least(2)) == [second]
    assert results.one("h200", m=1, n=2) == first
    assert results.span(results.peers(results.rows("h200"), "b")) == "1.50–2.35"
    assert results.span([1.501, 1.502]) == "1.50"
    assert results.percent([0.924, 0.996]) == "92–100"
    for wrong in ({"op": "b"}, {"m": 8}):
        with pytest.raises(LookupError, match="no row with"):
            results.rows("h200", **wrong)
    with pytest.raises(LookupError, match="2 rows of affine on h200"):
        results.one("h200", n=2)
    with pytest.raises(LookupError, match="no row was compared with c"):
        results.peers([first], "c")


def language(folder: Path, name: str, **given: object) -> None:
    """A result of the language model: one deployed scheme, trained on too, and what is given."""
    row = {"scheme": "W4A16", "tuned": False, "perplexity": [3.5, 0.1], "change": [0.01, 0.002]}
    row |= {"recovered": None, "verdict": "", "file_bytes": 2_500_000, "seconds": 1.0}
    row |= {"tokens_per_second": {"1": 1234.5}, "faster": {"1": 1.5}}
    tuned = row | {"tuned": True, "change": [0.002, 0.001], "recovered": 0.75, "verdict": "passed"}
    settings = {"mlp": "swiglu", "group": 32, "steps": 3, "tuning_steps": 2, "batch": 4}
    content = {
        "settings": settings | {"context": 16, "dtype": "bfloat16", "seeds": 2},
        "machine": {
            "device": "NVIDIA H100",
            "threads": 1,
            "cpu_isa": "avx2",
            "load": 1,
            "cores": 2,
        },
        "versions": {"torch": "2.11.0+cu130"},
        "parameters": 1000,
        "decoded": [{"how": "CUDA graph"}],
        "deployment_rows": [row, tuned],
        "rows": [],
        **given,
    }
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_the_language_model_shows_each_machine_that_deployed_it(folder: Path) -> None:
    for name in ("epyc_2026-01-02_language_model", "h200_2026-01-01_language_model"):
        language(folder, name, deployment_rows=[])
    language(folder, "cpu_old_2026-01-01_language_model", deployment_rows=["not the newest"])
    language(folder, "h200_2026-01-03_language_model_gelu", deployment_rows=[])
    with pytest.raises(results.NotMeasuredError, match=r"no result of .* has deployment"):
        figure_language.deployed()
    results.report.cache_clear()
    language(folder, "h100_2026-01-02_language_model")
    (folder / "h100_2026-01-02_language_model.deployed.png").touch()
    text = figure_language.deployed()
    assert text.startswith("H100, SwiGLU, 1,000 parameters, 3 steps of 4 × 16 bytes and 2 from ")
    place = "../benchmarks/results/h100_2026-01-02_language_model"
    assert f"bfloat16, 2 seeds, torch 2.11.0 ([all figures]({place}.json), [perp" in text
    assert f"({place}.deployed.png)); text is written by a CUDA graph of one step:" in text
    cells = ["`W4A16(32)`", "3.5000", "+1.00 ± 0.20 %", "3.5000, +0.20 ± 0.10 %", "75 %", "2.50"]
    assert f"| {' | '.join(cells)} | 1,234 (1.50 ×) | – |" in text
    assert figure_language.asked() == "* H100, SwiGLU: `W4A16(32)`: both.\n"
