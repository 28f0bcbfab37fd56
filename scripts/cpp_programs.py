# SPDX-License-Identifier: BSD-3-Clause
"""Builds C++ programs against LibTorch and libbaraquant.so by the bare compiler, and runs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import baraquant
import toolchain

PACKAGE = Path(baraquant.__file__).resolve().parent
TORCH = Path(torch.__file__).resolve().parent
SYSTEM = [option for folder in toolchain.torch_includes() for option in ("-isystem", folder)]
# Seconds after which a process or a thread hangs, however busy the machine is: what waits for it
# fails, where it would never end.
PATIENCE = 1800


def ended(
    command: Iterable[str | Path], env: Mapping[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """What a process prints that reads nothing; one that does not end is killed, and a failure."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    words = [str(part) for part in command]
    options |= {"stdin": subprocess.DEVNULL, "text": True, "env": env}
    try:
        return subprocess.run(words, check=False, timeout=PATIENCE, **options)
    except subprocess.TimeoutExpired as error:
        printed = [str(part)[-3000:] for part in (error.stdout, error.stderr)]
        raise AssertionError("\n".join([f"does not end: {words}", *printed])) from None


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a tool; what it prints is in `stdout`, errors too."""
    # A sanitizer's runtime is not for compilers.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return ended(command, env, stderr=subprocess.STDOUT)


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
        *toolchain.sanitizer_flags(),
    )
    assert built.returncode == 0, built.stdout


def environment() -> dict[str, str]:
    """One in which neither PYTHONPATH nor LD_LIBRARY_PATH helps to find a library."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "PYTHON"))}
    # As in this process: the gradient of a convolution depends on how many threads split its sum.
    variables["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    if torch.version.cuda:  # the CUDA libraries that torch depends on come as packages of their own
        packages = TORCH.parent / "nvidia"
        folders = [str(TORCH / "lib")]
        folders += sorted({str(p.parent) for p in packages.glob("**/lib/lib*.so*")})
        variables["LD_LIBRARY_PATH"] = ":".join(folders)
    return variables


def run_program(program: Path, *arguments: str | Path) -> str:
    """Runs a program alone; returns what it prints."""
    result = ended((program, *arguments), environment())
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
