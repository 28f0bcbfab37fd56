# SPDX-License-Identifier: BSD-3-Clause
"""examples/libtorch, built by CMake and by the bare compiler, and run without Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import baraquant
import baraquant.info
import toolchain
from tests.support.libtorch import build_program, run, run_program

EXAMPLE = toolchain.ROOT / "examples" / "libtorch"

# As the example's README says it.
FIND_TORCH = """
cmake_minimum_required(VERSION 3.18)
project(only_torch LANGUAGES CXX)
find_package(Torch REQUIRED)
"""


def check_program(program: Path) -> None:
    """Runs it, and looks at what it prints and what it needs."""
    printed = run_program(program)
    assert "forward: as expected" in printed
    assert "backward: as expected" in printed
    assert "int8_linear: as expected" in printed
    assert f"baraquant {baraquant.__version__}, built for torch {torch.__version__}" in printed
    needed = [Path(line.split()[0]).name for line in run("ldd", program).stdout.splitlines()]
    assert "libbaraquant.so" in needed
    assert [name for name in needed if "python" in name] == []


def why_not_cmake(tmp_path: Path) -> str | None:
    """Why torch's own CMake package cannot be used here; None where it can."""
    if shutil.which("cmake") is None:
        return "there is no cmake here"
    if torch.version.cuda is None:
        return None  # then it must work
    source = tmp_path / "only_torch"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(FIND_TORCH)
    found = run(
        *("cmake", "-S", source, "-B", tmp_path / "only_torch_build"),
        f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
    )
    if found.returncode == 0:
        return None
    errors = [line for line in found.stdout.splitlines() if line.strip()]
    at = next((i for i, line in enumerate(errors) if "CMake Error" in line), len(errors) - 1)
    return "find_package(Torch) alone fails with this CUDA torch: " + " ".join(errors[at : at + 3])


@pytest.mark.packaging
def test_cmake(tmp_path: Path) -> None:
    reason = why_not_cmake(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    build = tmp_path / "build"
    configured = run(
        *("cmake", "-S", EXAMPLE, "-B", build, "-DCMAKE_BUILD_TYPE=Release"),
        f"-DCMAKE_CXX_COMPILER={toolchain.program_compiler()}",
        f"-DCMAKE_PREFIX_PATH={baraquant.info.cmake_prefix()}",
    )
    assert configured.returncode == 0, configured.stdout
    built = run("cmake", "--build", build)
    assert built.returncode == 0, built.stdout
    check_program(build / "fake_quantize")


@pytest.mark.packaging
@pytest.mark.smoke
def test_compiler(tmp_path: Path) -> None:
    program = tmp_path / "fake_quantize"
    build_program(EXAMPLE / "main.cpp", program, "-O2")
    check_program(program)
