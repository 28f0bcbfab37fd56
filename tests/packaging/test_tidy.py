# SPDX-License-Identifier: BSD-3-Clause
"""clang-tidy over the C++ interface: what it is asked to look at, and that it finds a mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tidy
import toolchain
from tests.support.libtorch import run

SCRIPT = toolchain.ROOT / "scripts" / "tidy.py"


def test_every_header_and_source_is_checked() -> None:
    source, *units = tidy.sources()
    included = source.read_text()
    headers = [path.relative_to(tidy.API) for path in tidy.API.rglob("*.h")]
    assert len(headers) > 10
    assert all(f'#include "{header}"' in included for header in headers)
    for folder, unit in zip(toolchain.TOGETHER, units, strict=True):
        sources = [
            path.relative_to(toolchain.CSRC) for path in (toolchain.CSRC / folder).rglob("*.cpp")
        ]
        assert len(sources) > 5
        assert sorted(unit.read_text().splitlines()) == sorted(f'#include "{s}"' for s in sources)


def test_a_missing_tool_fails_unless_it_is_optional(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain, "packaged_program", lambda name: None)
    for arguments, ci, code in ([], "", 1), (["--optional"], "", 0), (["--optional"], "true", 1):
        monkeypatch.setenv("CI", ci)
        monkeypatch.setattr(sys, "argv", ["tidy.py", *arguments])
        assert tidy.main() == code
        assert "clang-tidy is not installed" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.smoke
@pytest.mark.skipif(
    toolchain.packaged_program("clang-tidy") is None, reason="clang-tidy is not installed"
)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("std::string f(std::string a) { std::string b = std::move(a); return a + b; }", "moved"),
        ("std::size_t f(std::string a) { return a.size(); }", "unnecessary-value-param"),
        ("int f(std::size_t a) { return a; }", "shorten-64-to-32"),
        ("std::string::size_type size(const std::string& a);", None),
    ],
)
def test_a_mistake_is_found(text: str, found: str | None, tmp_path: Path) -> None:
    source = tmp_path / "source.cpp"
    source.write_text(f"#include <string>\n#include <utility>\n{text}\n")
    checked = run(sys.executable, SCRIPT, source)
    assert checked.returncode == (found is not None), checked.stdout
    assert (found or "tidy: clean, 1 files") in checked.stdout
