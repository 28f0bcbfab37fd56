# SPDX-License-Identifier: BSD-3-Clause
"""The helper scripts behind the Makefile: what they notice."""

from __future__ import annotations

from pathlib import Path

import pytest

import build
import check_cuda
import lint
import toolchain


def test_build_fingerprint_follows_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("code", [0, 3])
def test_a_build_keeps_its_log_and_shows_its_errors(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain, "ROOT", tmp_path)
    program = "import os, sys\nprint('error:', *sys.argv[1:], os.environ['A'])\n"
    (tmp_path / "setup.py").write_text(f"{program}sys.exit({code})\n")
    log = tmp_path / "build.log"
    assert build.setup("asan", log, "build", "--fast", A="b") == code
    assert log.read_text() == "error: build --fast b\n"
    said = capsys.readouterr().out
    assert said.startswith("asan: compiling (minutes, the first time); the log is in build.log\n")
    assert ("FAILED. The errors:\nerror: build --fast b" in said) == (code != 0)


@pytest.mark.skipif(toolchain.find_nvcc() is None, reason="there is no nvcc here")
@pytest.mark.parametrize(("body", "complaint"), [("return 1;", ""), ("int unused;", "unused")])
def test_cuda_check(
    body: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_cuda, "STAMPS", tmp_path)
    monkeypatch.setattr(toolchain, "ROOT", tmp_path)
    source = tmp_path / "a.cu"
    source.write_text(f"__device__ int f() {{ {body} }}\n__global__ void k() {{ f(); }}\n")
    nvcc = toolchain.find_nvcc()
    assert nvcc is not None
    arguments = (nvcc, source, "13.0")
    _, said, seconds = check_cuda.check(*arguments)
    assert complaint in said
    assert bool(said) == bool(complaint)
    assert seconds > 0
    again = check_cuda.check(*arguments)
    assert (again[2] == 0) == (not complaint), "only what passed is skipped the next time"


def test_cuda_check_knows_what_a_file_includes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that a header includes too, beside it or below csrc; each changes the stamp."""
    monkeypatch.setattr(toolchain, "CSRC", tmp_path)
    folder = tmp_path / "family"
    folder.mkdir()
    texts = {
        folder / "a.cu": '#include <cmath>\n#include "b.h"\n#include "missing.h"\n',
        folder / "b.h": '#pragma once\n  #  include "c.cuh"\n',
        tmp_path / "c.cuh": '#include "family/b.h"\n',
        tmp_path / "other.h": "",
    }
    for path, text in texts.items():
        path.write_text(text)
    source = folder / "a.cu"
    assert check_cuda.included(source) == sorted([folder / "b.h", tmp_path / "c.cuh"])
    before = check_cuda.fingerprint(source, "13.0")
    changed = []
    for path in texts:
        path.write_text(texts[path] + "// changed\n")
        changed.append(check_cuda.fingerprint(source, "13.0") != before)
        path.write_text(texts[path])
    assert changed == [True, True, True, False]
    assert check_cuda.fingerprint(source, "13.0") == before


def test_own_rules_of_lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "good.h").write_text(f"// {lint.LICENCE}\n")
    assert lint.own_rules() == []
    (tmp_path / "csrc" / "bad.h").write_text(
        "\n" * (lint.MAX_LINES + 1) + "// see /" + "home/me/notes\n"
    )
    problems = lint.own_rules()
    assert len(problems) == 3
    assert all(str(Path("csrc") / "bad.h") in problem for problem in problems)


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("assert seconds < 5", True),
        ("assert 16e9 < 3e8 / elapsed < 1e13", True),
        ("assert row.seconds and 1e-8 < row.seconds < 1e-2", True),
        ('assert again["seconds"] > report["seconds"]', True),
        ("assert time.perf_counter() - start <= limit", True),
        ("subprocess.run(command, timeout=600)", True),
        ("assert 0 < row.seconds", False),
        ("assert seconds == {'a': 0.25}", False),
        ("assert calls < 5", False),
        ("thread.join(timeout=None)", False),
    ],
)
def test_lint_finds_tests_of_times(
    line: str, is_wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    for folder in ("tests", "scripts"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(f"# {lint.LICENCE}\n{line}\n")
    problems = [one for one in lint.own_rules() if "how busy the machine is" in one]
    assert len(problems) == is_wrong and all("tests" in one for one in problems)
