# SPDX-License-Identifier: BSD-3-Clause
"""The helper scripts behind the Makefile and lint: what they notice."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest import MonkeyPatch

import build
import check_cuda
import figures
import house
import lint
import quick
import toolchain
from tests.support.libtorch import run


def test_build_fingerprint_follows_contents(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for folder in ("csrc", "cmake", "build"):
        (tmp_path / folder).mkdir()
    for name in ("setup.py", "pyproject.toml", "toolchain.py", "csrc/a.cpp", "product"):
        (tmp_path / name).touch()
    monkeypatch.setattr(toolchain, "ROOT", tmp_path)
    monkeypatch.setattr(toolchain, "__file__", str(tmp_path / "toolchain.py"))
    monkeypatch.setattr(build, "products", lambda: [tmp_path / "product"])
    monkeypatch.delenv("BARAQUANT_WERROR", raising=False)

    def fingerprint() -> str:
        return build.fingerprint(build.fingerprint_of_inputs())

    first = fingerprint()
    assert fingerprint() == first
    (tmp_path / "csrc/a.cpp").write_text("changed")
    second = fingerprint()
    monkeypatch.setenv("BARAQUANT_WERROR", "1")
    third = fingerprint()
    assert len({first, second, third}) == 3
    (tmp_path / "product").unlink()
    assert fingerprint() == "incomplete"


def test_cuda_check_knows_what_a_file_includes(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A header that a header includes too, beside it or below csrc; each changes the stamp."""
    monkeypatch.setattr(toolchain, "CSRC", tmp_path)
    source, beside = tmp_path / "family" / "a.cu", tmp_path / "family" / "b.h"
    source.parent.mkdir()
    source.write_text('#include <cmath>\n#include "b.h"\n#include "missing.h"\n')
    beside.write_text('#pragma once\n  #  include "c.cuh"\n')
    (tmp_path / "c.cuh").write_text('#include "family/b.h"\n')
    assert check_cuda.included(source) == sorted([beside, tmp_path / "c.cuh"])
    before = check_cuda.fingerprint(source, "13.0")
    (tmp_path / "c.cuh").write_text("// changed\n")
    assert check_cuda.fingerprint(source, "13.0") != before


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("assert seconds < 5", "how busy the machine is"),
        ("assert time.perf_counter() - start <= limit", "how busy the machine is"),
        ("subprocess.run(command, timeout=600)", "how busy the machine is"),
        ("notes = '/" + "home/me/notes'", "a path of one machine"),
        ("\n" * lint.MAX_LINES, "lines, at most"),
        ("assert 0 < row.seconds == {'a': 0.25}", None),
        ("thread.join(timeout=None)", None),
    ],
)
def test_own_rules_of_lint(
    line: str, problem: str | None, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text(f"# {lint.LICENCE}\n{line}\n")
    found = lint.own_rules()
    assert len(found) == (problem is not None)
    assert all("tests/a.py" in one and str(problem) in one for one in found)


@pytest.mark.process
@pytest.mark.smoke
@pytest.mark.skipif(toolchain.packaged_program("clang-tidy") is None, reason="no clang-tidy here")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("std::string f(std::string a) { std::string b = std::move(a); return a + b; }", "moved"),
        ("std::size_t f(std::string a) { return a.size(); }", "unnecessary-value-param"),
        ("std::string::size_type size(const std::string& a);", None),
    ],
)
def test_clang_tidy_finds_a_mistake(text: str, found: str | None, tmp_path: Path) -> None:
    source = tmp_path / "source.cpp"
    source.write_text(f"#include <string>\n#include <utility>\n{text}\n")
    checked = run(sys.executable, toolchain.ROOT / "scripts" / "tidy.py", source)
    assert checked.returncode == (found is not None), checked.stdout
    assert (found or "tidy: clean, 1 files") in checked.stdout


# --- the measured figures on the pages, which are those of the committed results


def test_pages_hold_the_figures_of_the_results() -> None:
    figures.main(["--check"])


def test_a_figure_that_differs_fails_the_check_and_is_written(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: pytest.CaptureFixture[str]
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


def test_rows_that_failed_or_are_missing(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    rows = [{"shape": [4], "seconds": 5.0}, {"shape": [4], "seconds": 7.0, "error": "no memory"}]
    (tmp_path / "h200_2026-01-01.json").write_text(json.dumps({"rows": rows}))
    found = figures.report.__wrapped__("h200/affine")
    assert [row["seconds"] for row in found] == [5.0]
    with pytest.raises(LookupError, match="no row with m=5"):
        figures.table({"lines": "name |\nnever | m=5", "columns": "s | {seconds}"}, found)
    with pytest.raises(LookupError, match="no result of training on cpu"):
        figures.stem("cpu", "training")


# --- the house

FILES = {
    "csrc/low/types.h": '#include "high/ops.h"\n',
    "csrc/high/ops.h": '#include "low/types.h"\n',
    "csrc/high/schema.cpp": 'm.def("double_it(Tensor input) -> Tensor");\n'
    "BARAQUANT_REGISTER_DEVICES(all)\n",
    "csrc/high/dispatch.cpp": "TORCH_LIBRARY_IMPL(baraquant, CPU, m) {}\n"
    "TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {}\nTORCH_LIBRARY_FRAGMENT(baraquant, m) {}\n",
    "csrc/top/api.h": '#include "high/ops.h"\n#include "nested/part.h"\n',
    "csrc/top/nested/part.h": "// double_it\n",
    "baraquant/__init__.py": "from . import one\n",
    "baraquant/one/__init__.py": "def late():\n    from ..two import _own\n",
    "baraquant/one/_part.py": "if TYPE_CHECKING:\n    from . import x\n",
    "baraquant/one/x.py": "from ._part import double_it\n",
    "baraquant/two/__init__.py": "from ..one import _part as part\n",
    "baraquant/two/_own.py": "# Written by scripts/x.py\nfrom .. import _C, one\n",
    "scripts/a.py": "",
}


@pytest.fixture
def now(tmp_path: Path, monkeypatch: MonkeyPatch) -> dict[str, Any]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    return house.numbers()


def test_the_numbers_of_a_small_house(now: dict[str, Any]) -> None:
    assert now["lines"]["csrc"] == 10 and now["lines"]["product"] == 17
    assert now["lines"]["baraquant"] == 7  # without the file that a program wrote
    assert now["op"] == ["double_it", 3]
    assert now["pairs"] == [["high", "low"]]
    assert now["circles"] == [["high", "low"], ["baraquant.one", "baraquant.two._own"]]
    first, second = "one -> baraquant.two._own", "two -> baraquant.one._part"
    assert now["crossings"] == [f"baraquant.{first}", f"baraquant.{second}"]
    assert now["includes"] == {"high": ["low"], "low": ["high"], "top": ["high"]}
    rooms = "dispatch.cpp: Autograd", "dispatch.cpp: schemas", "schema.cpp: DEVICES"
    assert now["rooms"] == [f"csrc/high/{room}" for room in rooms]


def test_each_number_has_its_limit(now: dict[str, Any]) -> None:
    assert house.above(now, now) == []
    less = copy.deepcopy(now)
    less["lines"]["csrc"] -= 1
    less["op"][1] -= 1
    less["includes"]["top"] = []
    for name in ("pairs", "circles", "crossings", "rooms"):
        del less[name][0]
    above = " ".join(problem.split(":")[0] for problem in house.above(now, less))
    assert above == "csrc pairs circles crossings rooms op includes"


def test_every_folder_has_tests_that_make_quick_finds() -> None:
    folders = {path.parent for top in ("baraquant", "csrc") for path in house.sources(top)}
    for folder in folders:
        name = str(folder.relative_to(toolchain.ROOT))
        found = quick.tests_of(f"{name}/some_file")
        assert found and all((toolchain.ROOT / test).is_dir() for test in found), name
    assert quick.tests_of("csrc/int8_mm/cpu/tile.h") == ["tests/int8_mm"]
    assert quick.tests_of("baraquant/workflow/serialization/save.py") == ["tests/serialization"]
    assert quick.tests_of("tests/nn/test_int4.py") == ["tests/nn/test_int4.py"]
    assert quick.tests_of("README.md") == []
