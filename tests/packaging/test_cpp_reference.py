# SPDX-License-Identifier: BSD-3-Clause
"""docs/cpp_comments.py and docs/cpp_reference.py: C++ headers as pages."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import ROOT

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


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])


@pytest.mark.usefixtures("docs")
def test_a_header_becomes_directives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("cxxheaderparser")
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
