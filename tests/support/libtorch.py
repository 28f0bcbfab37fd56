# SPDX-License-Identifier: BSD-3-Clause
"""C++ programs against LibTorch and libbaraquant.so, and whether compilers take a source."""

import os
import shutil
from pathlib import Path

import pytest

import toolchain
from cpp_programs import PACKAGE, SYSTEM, TORCH, build_program, run, run_program

__all__ = [
    "PACKAGE",
    "STRICT",
    "SYSTEM",
    "TORCH",
    "build_program",
    "clang_only",
    "compile_only",
    "run",
    "run_program",
]

STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Werror")


def compile_only(source: Path, *options: str | Path) -> None:
    """Whether the compiler takes a source with LibTorch's headers."""
    compiler = toolchain.program_compiler().split()
    checked = run(*compiler, "-std=c++20", "-fsyntax-only", source, *SYSTEM, *options)
    assert checked.returncode == 0, checked.stdout


def clang_only(source: Path, *options: str | Path) -> None:
    """Whether clang takes it: the front end in the package clang-tidy, else clang++."""
    arguments = ("-std=c++20", *SYSTEM, *options)
    tidy, clang = toolchain.packaged_program("clang-tidy"), shutil.which("clang++")
    if tidy is not None:
        checks = ("--config={}", "--checks=-*,clang-diagnostic-*,misc-unused-alias-decls")
        checked = run(tidy, "--quiet", *checks, source, "--", *arguments)
    elif clang is not None:
        checked = run(clang, "-fsyntax-only", source, *arguments)
    else:
        missing = "neither the package clang-tidy nor clang++ is installed"
        assert os.environ.get("CI") != "true", missing
        pytest.skip(missing)
    assert checked.returncode == 0, checked.stdout
