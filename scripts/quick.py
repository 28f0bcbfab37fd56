# SPDX-License-Identifier: BSD-3-Clause
"""The short tests of some folders, without building and linting: the loop of editing.

    quick.py tests/nn             of a folder, or of a file
    quick.py                      of what differs from the last commit

It needs the library to be built already: `make build`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
# The tests of a folder that has none of its own name; the longest beginning counts.
TESTS_OF = {
    "baraquant/ops": ["tests/ops"],
    "baraquant/reference": ["tests/ops"],
    "baraquant/transformers": ["tests/hf"],
    "baraquant/workflow/serialization": ["tests/serialization"],
    "baraquant": ["tests/workflow"],
    "csrc/api": ["tests/cpp_api"],
    "csrc/elementwise": ["tests/affine"],
    "csrc/few_rows": ["tests/weight_only", "tests/int8_mm"],
    "csrc/files": ["tests/cpp_api"],
    "csrc/nn": ["tests/cpp_api"],
    "csrc/search": ["tests/workflow", "tests/cpp_api"],
    "csrc/workflow": ["tests/cpp_api"],
    "csrc": ["tests/ops"],
    "benchmarks": ["benchmarks/tests"],
    "docs": ["tests/packaging"],
    "examples": ["tests/packaging"],
    "scripts": ["tests/packaging"],
}


def tests_of(name: str) -> list[str]:
    """The tests of a changed file."""
    parts = PurePosixPath(name).parts
    if parts[0] == "tests":
        return [name if parts[-1].startswith("test_") else "/".join(parts[:2])]
    parents = [str(parent) for parent in PurePosixPath(name).parents]
    for parent in parents:
        same = f"tests/{PurePosixPath(parent).name}"
        if parent in TESTS_OF:
            return TESTS_OF[parent]
        if parent.count("/") == 1 and (ROOT / same).is_dir():
            return [same]
    return []


def changed() -> list[str]:
    """What differs from the last commit, new files too."""
    run = ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames"]
    done = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True)
    return [line[3:].strip('"') for line in done.stdout.splitlines() if "D" not in line[:2]]


def main() -> int:
    chosen = sys.argv[1:] or sorted({test for name in changed() for test in tests_of(name)})
    if not chosen:
        print("quick: nothing has changed that has tests; name a folder: make quick DIR=tests/nn")
        return 0
    print(f"quick: {' '.join(chosen)}", flush=True)
    run = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
    return subprocess.run([*run, "-m", "not exhaustive", *chosen], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
