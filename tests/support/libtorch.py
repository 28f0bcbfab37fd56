# SPDX-License-Identifier: BSD-3-Clause
"""C++ programs against LibTorch and libbaraquant.so, built by the bare compiler, without Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import baraquant
import toolchain

PACKAGE = Path(baraquant.__file__).resolve().parent
TORCH = Path(torch.__file__).resolve().parent
SYSTEM = [option for folder in toolchain.torch_includes() for option in ("-isystem", folder)]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a tool; what it prints is in `stdout`, errors too."""
    return subprocess.run(
        [str(part) for part in command],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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


def build_program(source: Path, program: Path, *options: str | Path) -> None:
    """Compiles a program against the installed headers and links it."""
    folders = (PACKAGE, TORCH / "lib")
    built = run(
        *toolchain.program_compiler().split(),
        *("-std=c++20", source, "-o", program, *options),
        *(*SYSTEM, "-I", PACKAGE / "include"),
        *(f"-L{folder}" for folder in folders),
        *("-Wl,--no-as-needed", "-lbaraquant", "-ltorch", "-ltorch_cpu", "-lc10"),
        *(f"-Wl,-rpath,{folder}" for folder in folders),
        *(f"-Wl,-rpath-link,{folder}" for folder in folders),
        "-Wl,--allow-shlib-undefined",  # libbaraquant.so's CUDA libraries are torch's affair
    )
    assert built.returncode == 0, built.stdout


def run_program(program: Path, *arguments: str | Path) -> str:
    """Runs it where neither PYTHONPATH nor LD_LIBRARY_PATH helps it to find a library."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "PYTHON"))}
    if torch.version.cuda:  # the CUDA libraries that torch depends on come as packages of their own
        packages = TORCH.parent / "nvidia"
        folders = [str(TORCH / "lib")]
        folders += sorted({str(p.parent) for p in packages.glob("**/lib/lib*.so*")})
        environment["LD_LIBRARY_PATH"] = ":".join(folders)
    result = subprocess.run(
        [str(part) for part in (program, *arguments)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
