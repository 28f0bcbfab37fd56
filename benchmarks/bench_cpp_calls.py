# SPDX-License-Identifier: BSD-3-Clause
"""What a call of an op from C++ costs the host, through <baraquant/ops.h>, on 64 values.

Beside it stand PyTorch's op for the same work and at::clamp, called through namespace at in the
same program, benchmarks/cpp_calls.cpp, in turns. It is built first, with the compiler alone. The
target: a call costs no more than PyTorch's own.

    python -m benchmarks.bench_cpp_calls --json results/cpp_calls.json
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_cli import parse, parser_of, run
from benchmarks.bench_plot import plot_bars
from benchmarks.bench_report import Part
from benchmarks.bench_row import OWN, Row, Target

# isort: split
SOURCE = Path(__file__).with_name("cpp_calls.cpp")
ROOT = SOURCE.parent.parent
sys.path.append(str(ROOT / "scripts"))
from cpp_programs import build_program, run_program  # noqa: E402

PROGRAM = ROOT / "build" / "benchmarks" / SOURCE.stem
WHAT = ("cpp-calls",)


def build() -> Path:
    """The program, compiled anew: the library or torch may be others than last time."""
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    build_program(SOURCE, PROGRAM, "-O2")
    return PROGRAM


def measured(printed: str) -> dict[tuple[str, str], dict[str, float | str]]:
    """Seconds by name, for each case and mode that the program printed."""
    found: dict[tuple[str, str], dict[str, float | str]] = {}
    for line in printed.splitlines():
        case, mode, name, seconds = line.split("\t")
        found.setdefault((case, mode), {})[name] = float(seconds)
    return found


def bench_calls(options: argparse.Namespace) -> Iterator[Row]:
    """A row for each case and mode."""
    repeats, rounds = (20, 25) if options.quick else (40, 1001)  # short: between time slices
    printed = run_program(build(), str(options.device), str(repeats), str(rounds))
    for (case, mode), results in measured(printed).items():
        row = Row("C++ calls", "baraquant::fake_quantize", f"{case}, {mode}", "float32", [64])
        row.targets = [Target("PyTorch", 1.0)]
        yield row.fill(results, OWN)


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """One title, one part."""
    yield WHAT[0], [lambda: bench_calls(options)]


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    options = parse(parser_of("cpp_calls", __doc__, WHAT), argv)
    return run(sections(options), options, plot_bars)


if __name__ == "__main__":
    main()
