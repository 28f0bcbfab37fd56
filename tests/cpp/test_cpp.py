# SPDX-License-Identifier: BSD-3-Clause
"""The C++ tests: programs without torch and without Python, compiled as the library is."""

import os
import shutil
from pathlib import Path

import pytest

import toolchain
from tests.support.libtorch import run

PROGRAMS = sorted((toolchain.ROOT / "tests" / "cpp").glob("*.cpp"))
assert PROGRAMS


@pytest.mark.parametrize("machine", ["baseline", "native"])
@pytest.mark.parametrize("source", PROGRAMS, ids=lambda path: path.stem)
def test_program(source: Path, machine: str, tmp_path: Path) -> None:
    """`native` may use every instruction of this machine, fused multiply-adds too: same bits."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = [*toolchain.CXX_FLAGS, *toolchain.CXX_WERROR, f"-I{toolchain.CSRC}"]
    if machine == "native":
        flags.append("-march=native")
    program = tmp_path / source.stem
    built = run(*compiler.split(), *flags, source, "-o", program)
    assert built.returncode == 0, built.stdout
    ran = run(program)
    assert ran.returncode == 0, ran.stdout
    done, failed = (int(text.split()[0]) for text in ran.stdout.splitlines()[-1].split(", "))
    assert done > 0
    assert failed == 0
