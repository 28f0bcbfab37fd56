# SPDX-License-Identifier: BSD-3-Clause
"""The reference of the API, docs/api/*.rst: it has every public name, and no other.

``make docs`` builds it; ``make test-all`` does so too, and there a warning of Sphinx is an error.
"""

import importlib
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import baraquant
from baraquant import calibration, export, graph, nn, ops, qat, reference
from tests.support.documents import ROOT
from tests.support.optional_packages import package

PAGES = sorted((ROOT / "docs" / "api").glob("*.rst"))
PUBLIC = (baraquant, calibration, export, graph, nn, ops, ops.backward, qat, reference)
# Public modules that import another package.
OPTIONAL = {"baraquant.transformers": "transformers", "baraquant.peft": "peft"}
DIRECTIVE = re.compile(r"\.\. ((?:auto)?(?:class|function|data|module)|currentmodule):: ([\w.]+)")


def documented() -> list[str]:
    """The full names of what the pages document; a directive may have several lines of names."""
    found = []
    for page in PAGES:
        module, continued = "", False
        for line in page.read_text().splitlines():
            match = DIRECTIVE.match(line)
            if match and match[1] == "currentmodule":
                module = match[2]
            elif match and match[1] != "automodule":
                found.append(f"{module}.{match[2]}")
            elif continued and re.fullmatch(r" {4,}\w+", line):
                found.append(f"{module}.{line.strip()}")
            continued = match is not None or (continued and bool(line))
    return found


def test_every_public_name_is_documented() -> None:
    public = {
        f"{module.__name__}.{name}"
        for module in PUBLIC
        for name in module.__all__
        if not isinstance(getattr(module, name), ModuleType)
    }
    assert public - set(documented()) == set()


def test_every_documented_name_exists_and_has_one_place() -> None:
    names = Counter(documented())
    assert {name for name, count in names.items() if count > 1} == set()
    for name in names:
        module, _, attribute = name.rpartition(".")
        if module not in OPTIONAL:
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OPTIONAL)
def test_the_page_of_a_module_that_needs_a_package(name: str) -> None:
    package(OPTIONAL[name])
    module = importlib.import_module(name)
    listed = {one for one in documented() if one.rpartition(".")[0] == name}
    assert listed == {f"{name}.{public}" for public in module.__all__}
    text = (ROOT / "docs" / "api" / f"{OPTIONAL[name]}.rst").read_text()
    assert f".. automodule:: {name}\n" in text


def test_every_module_has_its_docstring_on_a_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for module in PUBLIC:
        assert f".. automodule:: {module.__name__}\n" in text


def test_every_cpp_header_is_on_the_page_once() -> None:
    """But for those that declare nothing to call."""
    text = (ROOT / "docs" / "api" / "cpp.rst").read_text()
    names = re.findall(r"^\.\. cpp-header:: (\S+)$", text, re.MULTILINE)
    api = ROOT / "csrc" / "api"
    headers = {str(path.relative_to(api)) for path in api.rglob("*.h")}
    assert sorted(names) == sorted(headers - {"export.h", "ops/call.h"})


HEADER = """/// @file
/// A header.
namespace baraquant::nn {
/// Options.
struct BARAQUANT_API TensOptions {
  /// The width.
  TORCH_ARG(int64_t, bits) = 8;
};
/// Ten.
class BARAQUANT_API TenImpl : public Module {
 public:
  torch::Tensor forward(const torch::Tensor& x) override;
  /// Ten of it.
  /// @param z Unknown.
  int ten(int x = 10) const;
 private:
  int hidden_;
};
TORCH_MODULE(Ten);
int bare();
}
"""


def test_a_header_becomes_directives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By docs/cpp_comments.py and docs/cpp_reference.py."""
    pytest.importorskip("sphinx")
    pytest.importorskip("cxxheaderparser")
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    import cpp_reference  # type: ignore[import-not-found]

    (tmp_path / "ten.h").write_text(HEADER)
    monkeypatch.setattr(cpp_reference, "API", tmp_path)
    warnings: list[Any] = []
    monkeypatch.setattr(cpp_reference.Header, "warn", lambda self, text: warnings.append(text))
    lines = [line.strip() for line in cpp_reference.Header("ten.h").lines() if line]
    assert lines[0] == "A header."
    assert ".. cpp:function:: TensOptions &bits(int64_t value)" in lines
    assert "The default is ``8``." in lines
    assert ".. cpp:class:: baraquant::nn::TenImpl : public Module" in lines
    assert ".. cpp:function:: int ten(int x = 10) const" in lines
    assert "``Ten`` is the holder of it, a ``torch::nn::ModuleHolder``." in lines
    assert not any("forward" in line or "hidden_" in line for line in lines)
    assert warnings == ["ten has no parameter z", "baraquant::nn::bare has no comment"]
