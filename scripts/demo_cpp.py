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
    export = [sys.executable, EXAMPLES / "export_digits.py", args.out, "--device", args.device]
    on_cuda = ["--cuda"] if args.device == "cuda" else []
    steps: list[tuple[list[str | Path], bool]] = [
        (export, True),
        ([programs["ops"]], False),
        (
            [
                *(programs["qat_digits"], args.out / "digits.csv", args.out),
                *("--epochs", str(args.epochs), *on_cuda),
            ],
            False,
        ),
        ([programs["serve"], args.out, "--benchmark", *on_cuda], False),
    ]
    for command, is_python in steps:
        print(f"\n$ {' '.join(map(str, command[1 if is_python else 0 :]))}", flush=True)
        code = subprocess.run(
            command, check=False, env=None if is_python else environment()
        ).returncode
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
