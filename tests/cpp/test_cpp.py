# SPDX-License-Identifier: BSD-3-Clause
"""The C++ tests: programs without torch and without Python, compiled as the library is."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import toolchain

PROGRAMS = sorted((toolchain.ROOT / "tests" / "cpp").glob("*.cpp"))


@pytest.mark.parametrize("machine", ["baseline", "native"])
@pytest.mark.parametrize("source", PROGRAMS, ids=lambda path: path.stem)
def test_program(source: Path, machine: str, tmp_path: Path) -> None:
    """`native` may use every instruction of this machine, fused multiply-adds too: same bits."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = [*toolchain.CXX_FLAGS, *toolchain.CXX_WERROR, f"-I{toolchain.CSRC}"]
    if machine == "native":
        flags.append("-march=native")
    program = tmp_path / source.stem
    subprocess.run([*compiler.split(), *flags, str(source), "-o", str(program)], check=True)
    run = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    done, failed = (int(text.split()[0]) for text in run.stdout.splitlines()[-1].split(", "))
    assert done > 0
    assert failed == 0


def test_there_is_a_program() -> None:
    assert PROGRAMS
