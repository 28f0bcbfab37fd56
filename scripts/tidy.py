# SPDX-License-Identifier: BSD-3-Clause
"""clang-tidy over the headers of csrc/api and the sources behind them; .clang-tidy has the checks.

Usage: tidy.py [--optional] [FILE...]. A warning is an error, clang's own warnings among them.
--optional goes on without clang-tidy where it is not installed, unless CI=true.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import toolchain

API = toolchain.CSRC / "api"
BEHIND_IT = ("files", "nn", "workflow")  # folders of csrc
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wno-unused-parameter")


def headers_source() -> Path:
    """A source that includes every header of csrc/api, each of which clang-tidy then checks."""
    source = toolchain.ROOT / "build" / "tidy" / "api.cpp"
    source.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(path.relative_to(API) for path in API.rglob("*.h"))
    source.write_text("".join(f'#include "{name}"\n' for name in names))
    return source


def check(program: Path, source: Path) -> str:
    """What clang-tidy says of a source; nothing where all is well."""
    system = [part for path in toolchain.torch_includes() for part in ("-isystem", str(path))]
    own = [f"-I{toolchain.CSRC}", f"-I{API}"]
    run = subprocess.run(
        [
            *(str(program), "--quiet", f"--config-file={toolchain.ROOT / '.clang-tidy'}"),
            *(str(source), "--", "-std=c++20", *WARNINGS, *system, *own),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    return "" if run.returncode == 0 else run.stdout or run.stderr


def main() -> int:
    """Checks the files, as many at a time as there are cores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--optional", action="store_true", help="go on without clang-tidy")
    parser.add_argument("files", nargs="*", type=Path, help="sources (default: all)")
    options = parser.parse_args()
    program = toolchain.packaged_program("clang-tidy")
    if program is None:
        print("tidy: nothing checked, clang-tidy is not installed")
        return 0 if options.optional and os.environ.get("CI") != "true" else 1
    files = [path.resolve() for path in options.files] or [
        headers_source(),
        *(unit for unit in toolchain.compiled_units() if unit.stem in BEHIND_IT),
    ]
    with ThreadPoolExecutor(toolchain.cores()) as pool:
        said = list(pool.map(lambda path: check(program, path), files))
    print("".join(text for text in said if text), end="")
    failed = sum(bool(text) for text in said)
    print(f"tidy: {f'FAILED for {failed} of' if failed else 'clean,'} {len(files)} files")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
