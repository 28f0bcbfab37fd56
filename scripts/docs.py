# SPDX-License-Identifier: BSD-3-Clause
"""Builds the pages and the reference of the API into build/docs, with Sphinx.

Usage: docs.py [--optional]. A warning is an error. --optional goes on without Sphinx where it is
not installed, unless CI=true. docs/conf.py holds the settings; it leaves out the page of a module
whose own package is not installed, which with CI=true is an error too.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "docs"
PACKAGES = ("sphinx", "myst_parser", "furo", "cxxheaderparser")
FOR_PAGES = ("transformers", "peft")  # each has a page of the reference


def missing_of(names: tuple[str, ...]) -> list[str]:
    """The modules that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def main(arguments: list[str]) -> int:
    """Runs sphinx-build; its exit code."""
    if arguments not in ([], ["--optional"]):
        sys.exit("usage: docs.py [--optional]")
    is_ci = os.environ.get("CI") == "true"
    missing = missing_of(PACKAGES)
    if missing:
        print(f"docs: not built, {', '.join(missing)} is not installed")
        return 0 if arguments and not is_ci else 1
    for name in missing_of(FOR_PAGES):
        print(f"docs: without the page of baraquant.{name}, {name} is not installed")
        if is_ci:
            return 1
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet"]
    command += ["--conf-dir", str(ROOT / "docs"), "--doctree-dir", str(ROOT / "build" / "doctrees")]
    run = subprocess.run([*command, str(ROOT), str(OUTPUT)], check=False, cwd=ROOT)
    if run.returncode == 0:
        print(f"docs: {(OUTPUT / 'index.html').relative_to(ROOT)}")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
