# SPDX-License-Identifier: BSD-3-Clause
"""clang-format, ruff and mypy over the repository, and a few rules of its own.

Usage: lint.py [--fix | --optional]. --optional goes on without tools that are not installed,
unless CI=true.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import house
import layer_table
import toolchain

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ["baraquant", "tests", "benchmarks", "docs", "examples", "scripts"]
PYTHON += ["conftest.py", "setup.py"]
CPP, CPP_SUFFIXES = ["csrc", "tests", "examples", "benchmarks"], (".h", ".cuh", ".cpp", ".cu")
MAX_LINES = 600  # of what is written by hand; a file is not split for the count
LICENCE = "SPDX-License-Identifier: BSD-3-Clause"
# A path of one machine, or the host of a package index, does not belong into a repository.
FORBIDDEN = re.compile(
    r"(?<![\w.$}])/(?:home|root|Users|work)/\w|\b(?:download\.)?pytorch\.org/whl"
)
# A test asserts no time and has no time limit, but for PATIENCE: a machine may be busy.
CLOCK = {"perf_counter", "monotonic", "process_time", "thread_time", "time_ns", "timeit", "repeat"}
TIMED = re.compile(r"(^|_)(seconds|elapsed|duration|latency|took|microseconds)$")
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def timed_rules(tree: ast.Module) -> list[tuple[int, str]]:
    """Where a test asserts a time or gives a program a time limit, and what is wrong there.

    A time may be compared with 0: it was measured. Timers are tested on clocks of their own, by
    equality.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            limits = [k for k in node.keywords if k.arg == "timeout"]
            limits = [k for k in limits if ast.unparse(k.value) not in ("None", "PATIENCE")]
            found += [(limit.value.lineno, "a time limit") for limit in limits]
        if isinstance(node, ast.Assert):
            compared = [one for one in ast.walk(node.test) if isinstance(one, ast.Compare)]
            found += [(node.lineno, "an assertion of a time") for one in compared if _of_time(one)]
    return found


def _of_time(compare: ast.Compare) -> bool:
    sides = [compare.left, *compare.comparators]
    for op, left, right in zip(compare.ops, sides, compare.comparators, strict=False):
        is_zero = any(isinstance(s, ast.Constant) and s.value == 0 for s in (left, right))
        if isinstance(op, ORDER) and not is_zero and (_tells_time(left) or _tells_time(right)):
            return True
    return False


def _tells_time(side: ast.expr) -> bool:
    names = [getattr(n, "id", getattr(n, "attr", getattr(n, "value", ""))) for n in ast.walk(side)]
    return any(isinstance(n, str) and (n in CLOCK or TIMED.search(n)) for n in names)


def files(folders: list[str], suffixes: tuple[str, ...]) -> list[Path]:
    """The files with these suffixes, without the copies that a build puts into the package."""
    found = []
    for folder in folders:
        path = ROOT / folder
        found += [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in suffixes]
    return sorted(p for p in found if "__pycache__" not in p.parts and "build" not in p.parts)


def own_rules() -> list[str]:
    """The licence in the first line, short files, no path of one machine, no test of a time."""
    problems = []
    for path in files([*PYTHON, "csrc"], (".py", ".pyi", *CPP_SUFFIXES)):
        if "include" in path.parts:
            continue
        name, lines = path.relative_to(ROOT), path.read_text().splitlines()
        if not lines or LICENCE not in lines[0]:
            problems.append(f"{name}:1: the first line should hold {LICENCE}")
        if len(lines) > MAX_LINES and house.by_hand(path.read_text()):
            problems.append(f"{name}: {len(lines)} lines, at most {MAX_LINES} are allowed")
        problems += [
            f"{name}:{number}: a path of one machine or the host of a package index"
            for number, line in enumerate(lines, 1)
            if FORBIDDEN.search(line) and path != Path(__file__).resolve()
        ]
        if path.suffix == ".py" and "tests" in path.parts:
            problems += [
                f"{name}:{number}: {what}; no test depends on how busy the machine is"
                for number, what in timed_rules(ast.parse(path.read_text()))
            ]
    return problems


def commands(fix: bool) -> tuple[dict[str, list[list[str]]], list[str]]:
    """The commands of each tool, and the tools that are not installed."""
    todo: dict[str, list[list[str]]] = {}
    missing = []
    python = [folder for folder in PYTHON if (ROOT / folder).exists()]
    formatter = toolchain.packaged_program("clang-format")  # another version formats otherwise
    if formatter is None:
        missing.append("clang-format")
    else:
        how, sources = ["-i"] if fix else ["--dry-run", "-Werror"], files(CPP, CPP_SUFFIXES)
        todo["clang-format"] = [[str(formatter), *how, *map(str, sources)]]
    ruff, mypy = [sys.executable, "-m", "ruff"], [sys.executable, "-m", "mypy"]
    check = [*ruff, "check", "--quiet", *(["--fix"] if fix else []), *python]
    form = [*ruff, "format", "--quiet", *([] if fix else ["--check"]), *python]
    # A line that is too long is an error only if it still is after formatting.
    todo["ruff"] = [form, check, form] if fix else [check, form]
    # Without a cache: from one, mypy leaves out errors of files that it thinks unchanged.
    options = ["--no-error-summary", f"--cache-dir={os.devnull}"]
    todo["mypy"] = [] if fix else [[*mypy, *options]]
    missing += [tool for tool in ("ruff", "mypy") if importlib.util.find_spec(tool) is None]
    return {tool: runs for tool, runs in todo.items() if tool not in missing}, missing


def main() -> int:
    fix, optional = "--fix" in sys.argv, "--optional" in sys.argv
    todo, missing = commands(fix)
    failed = []
    for tool, runs in todo.items():
        codes = [subprocess.run(command, check=False, cwd=ROOT).returncode for command in runs]
        if any(codes):
            failed.append(tool)
    problems = own_rules() + house.problems() + layer_table.problems()
    print("".join(f"{problem}\n" for problem in problems), end="")
    if problems:
        failed.append("the repository's own rules")
    if missing and optional and os.environ.get("CI") != "true":
        print(f"lint skipped: {', '.join(missing)} (not installed)")
    elif missing:
        failed.append(f"{', '.join(missing)} (not installed)")
    if failed:
        print(f"lint: FAILED: {'; '.join(failed)}. `make format` mends what can be mended.")
        return 1
    print(f"lint: clean ({', '.join([*todo, 'own rules'])})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
