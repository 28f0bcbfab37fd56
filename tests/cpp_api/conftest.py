# SPDX-License-Identifier: BSD-3-Clause
"""Jobs for files.cpp, and a file for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import baraquant
from tests.cpp_api.file_models import every
from tests.support.libtorch import STRICT, build_program, run_program


@pytest.fixture(scope="module")
def program(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    def build(folder: Path) -> None:
        source = Path(__file__).with_name("files.cpp")
        build_program(source, folder / "files", *STRICT)

    return made_once("cpp_files", build) / "files"


Job = tuple[str, str, str, Any, Any, str]  # kind, dtype, model, input, output, configuration


@pytest.fixture
def run_jobs(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[list[str]]]:
    """Runs jobs in one program; returns the fields of the line that it prints for each."""

    def run(*jobs: Job) -> list[list[str]]:
        lines = ["\t".join(map(str, (*job[:5], job[5] or "-"))) for job in jobs]
        (tmp_path / "jobs").write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("BARAQUANT_TEST_JOBS", str(tmp_path / "jobs"))
        printed = [line.split("\t") for line in run_program(program).splitlines()]
        (tmp_path / "jobs").unlink()
        assert len(printed) == len(jobs)
        return printed

    return run


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    baraquant.save(every(), tmp_path / "every.safetensors")
    return tmp_path / "every.safetensors"
