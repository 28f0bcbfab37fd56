# SPDX-License-Identifier: BSD-3-Clause
"""Builds the programs of examples/cpp and runs them on real data: ``make demo-cpp``.

Usage: demo_cpp.py [--out FOLDER] [--device cuda] [--epochs N]. The programs are built by the bare
compiler, so that no CMake is needed; examples/cpp/README.md has the lines for CMake.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import toolchain

sys.path.append(str(toolchain.ROOT))  # finds a build in place as well

from cpp_programs import PACKAGE, build_program, environment

EXAMPLES = toolchain.ROOT / "examples" / "cpp"
PROGRAMS = ("ops", "qat_digits", "serve")


def built(folder: Path) -> dict[str, Path]:
    """The programs; compiled anew where a source or the library is newer."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = {name: folder / name for name in PROGRAMS}
    for name, program in programs.items():
        sources = (EXAMPLES / f"{name}.cpp", PACKAGE / "libbaraquant.so")
        newest = max(source.stat().st_mtime for source in sources)
        if not program.exists() or program.stat().st_mtime < newest:
            print(f"demo-cpp: compiling {name}.cpp", flush=True)
            build_program(EXAMPLES / f"{name}.cpp", program, "-O2")
    return programs


def main(argv: list[str] | None = None) -> int:
    """Exports, builds and runs; 1 if a program found a wrong number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("results/cpp"), help="folder of the files")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each scheme")
    args = parser.parse_args(argv)
    programs = built(toolchain.ROOT / "build" / "demo_cpp")
    on_cuda = ["--cuda"] if args.device == "cuda" else []
    out, epochs = args.out, str(args.epochs)
    steps: list[list[str | Path]] = [
        [sys.executable, EXAMPLES / "export_digits.py", out, "--device", args.device],
        [programs["ops"]],
        [programs["qat_digits"], out / "digits.csv", out, "--epochs", epochs, *on_cuda],
        [programs["serve"], out, "--benchmark", *on_cuda],
    ]
    for command in steps:
        is_python = command[0] == sys.executable
        print(f"\n$ {' '.join(map(str, command[1 if is_python else 0 :]))}", flush=True)
        own = None if is_python else environment()
        code = subprocess.run(command, check=False, env=own).returncode
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
