# SPDX-License-Identifier: BSD-3-Clause
"""Jobs for files.cpp, and a file for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import baraquant
from tests.cpp_api.file_models import RunJobs, every
from tests.support.libtorch import STRICT, build_program, precompiled, run_program
from tests.support.processes import MadeOnce


@pytest.fixture(scope="module")
def program(made_once: MadeOnce) -> Path:
    def build(folder: Path) -> None:
        source = Path(__file__).with_name("files.cpp")
        build_program(source, folder / "files", *STRICT, *precompiled(made_once))

    return made_once("cpp_files", build) / "files"


@pytest.fixture
def run_jobs(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunJobs:
    """Runs jobs in one program; returns the fields of the line that it prints for each.

    A job is its kind, dtype, model, input, output and configuration; the last ones may be left out.
    """

    def run(*jobs: tuple[Any, ...]) -> list[list[str]]:
        lines = ["\t".join(map(str, (*job, "", "", "-")[:6])) for job in jobs]
        (tmp_path / "jobs").write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("BARAQUANT_TEST_JOBS", str(tmp_path / "jobs"))
        printed = [line.split("\t") for line in run_program(program).splitlines()]
        (tmp_path / "jobs").unlink()
        assert len(printed) == len(jobs)
        return printed

    return run


@pytest.fixture
def copy(run_jobs: RunJobs, tmp_path: Path) -> Callable[[str, Path], Path]:
    """Loads a file into a float model and saves that: C++ writes the same bytes."""

    def loaded_and_saved(text: str, path: Path) -> Path:
        again = tmp_path / "again"
        assert run_jobs(("copy", "float32", text, path, again)) == [["ok"]]
        assert again.read_bytes() == path.read_bytes()
        return again

    return loaded_and_saved


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    baraquant.save(every(), tmp_path / "every.safetensors")
    return tmp_path / "every.safetensors"
