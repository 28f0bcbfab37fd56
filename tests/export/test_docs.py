# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of the exports: their examples run."""

from pathlib import Path

import pytest

from baraquant import export
from tests.support.docstrings import run_examples
from tests.support.optional_packages import package

package("huggingface_hub")
# An example of another function shows it, or docs/serving.md.
WITHOUT = {"from_compressed_tensors", "to_gguf", "to_onnx"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(set(export.__all__) - WITHOUT))
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(getattr(export, name), name)
