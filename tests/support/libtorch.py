# SPDX-License-Identifier: BSD-3-Clause
"""C++ programs against LibTorch and libbaraquant.so, and whether compilers take a source."""

import functools
import os
import shutil
from pathlib import Path

import pytest

import toolchain
from cpp_programs import PACKAGE, SYSTEM, TORCH, build_program, run, run_program
from tests.support.processes import MadeOnce

__all__ = [
    "PACKAGE",
    "PRECOMPILED",
    "STRICT",
    "SYSTEM",
    "TORCH",
    "build_program",
    "clang_only",
    "compile_only",
    "precompiled",
    "run",
    "run_program",
]

STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
compiler = functools.cache(toolchain.program_compiler)  # it tries them
PRECOMPILED = ("torch/nn/module.h", "torch/nn/pimpl.h")  # most of the time of a compiler


def precompiled(made_once: MadeOnce) -> tuple[str | Path, ...]:
    """The option to begin with `PRECOMPILED`, which are compiled once.

    A compiler that cannot use that, for other options, reads the headers themselves.
    """

    def build(folder: Path) -> None:
        header = folder / "torch.h"
        header.write_text("".join(f"#include <{name}>\n" for name in PRECOMPILED))
        options = ("-std=c++20", "-x", "c++-header", *SYSTEM, header, "-o", f"{header}.gch")
        built = run(*compiler().split(), *STRICT, *toolchain.sanitizer_flags(), *options)
        assert built.returncode == 0, built.stdout

    return ("-include", made_once("torch_headers", build) / "torch.h")


def compile_only(source: Path, *options: str | Path) -> None:
    """Whether the compiler takes a source with LibTorch's headers."""
    checked = run(*compiler().split(), "-std=c++20", "-fsyntax-only", source, *SYSTEM, *options)
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
