# SPDX-License-Identifier: BSD-3-Clause
"""Programs of the tests in a process of their own, whose death is a failure like any other."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import baraquant
from cpp_programs import ended

ROOT = Path(__file__).resolve().parents[2]
# `python -m` looks there first, so that the package is the one that this process tests.
PACKAGE_FOLDER = Path(baraquant.__file__).resolve().parents[1]
Environment = Mapping[str, str | None]
MadeOnce = Callable[[str, Callable[[Path], None]], Path]  # the fixture of conftest.py


def run(
    *command: str | Path, cwd: Path = PACKAGE_FOLDER, env: Environment | None = None
) -> subprocess.CompletedProcess[str]:
    """What a program prints. `env` is added to this environment, with None it takes away."""
    path = os.pathsep.join(filter(None, sys.path))  # Python finds there what it finds here
    environment = {**os.environ, "PYTHONPATH": path, **(env or {})}
    known = {name: value for name, value in environment.items() if value is not None}
    return ended(command, known, cwd=cwd)


def run_program(
    module: str, environment: Environment | None = None, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """`python -m module` with this process's path; fail with what it printed."""
    done = run(sys.executable, "-X", "faulthandler", "-m", module, *arguments, env=environment)
    message = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"[-6000:]
    assert done.returncode == 0, message
    return done


def printed_by(
    module: str, made_once: MadeOnce, isa: str | None, threads: int | None = None
) -> list[str]:
    """The lines of a program under an instruction set (None: the best one), run once for all."""
    environment: Environment = {"BARAQUANT_CPU_ISA": isa}
    if threads is not None:
        environment = {**environment, "OMP_NUM_THREADS": str(threads)}

    def make(folder: Path) -> None:
        (folder / "stdout").write_text(run_program(module, environment).stdout)

    folder = made_once(f"{module}-{isa}-{threads}", make)
    return (folder / "stdout").read_text().splitlines()
