# SPDX-License-Identifier: BSD-3-Clause
"""A compiler for a copy of the checkout, which takes the objects that the checkout has already.

`reused_objects.py CHECKOUT COPY COMPILER [arguments]`: where a source and all headers that it
includes are those of the checkout, and its object there is not older, the object is copied. What
else there is, is compiled. A header may name one more that the checkout lacks: a source that was
there before uses nothing of it.
"""

import itertools
import os
import shutil
import sys
from pathlib import Path

import check_cuda
import toolchain


def without(headers: set[str], path: Path) -> list[str]:
    """The lines of a file, but those that include one of the headers."""
    names = tuple(f'/{name}"' for name in headers)
    lines = path.read_text().splitlines()
    return [line for line in lines if not (line.startswith("#include") and line.endswith(names))]


def is_reused(arguments: list[str], checkout: Path, copy: Path) -> bool:
    """Whether the call compiles what the checkout has compiled; then its object is copied."""
    if "-c" not in arguments or "-o" not in arguments:
        return False
    after = dict(itertools.pairwise(arguments))  # ninja says -c twice: the last one counts
    source, target = Path(after["-c"]), Path(after["-o"])
    if not (source.is_relative_to(copy) and target.is_relative_to(copy)):
        return False
    kept = checkout / target.relative_to(copy)
    read = {path.relative_to(copy) for path in (source, *check_cuda.included(source))}
    added = {path.name for path in read if not (checkout / path).is_file()}
    read = {path for path in read if (checkout / path).is_file()}
    if not kept.is_file() or source.relative_to(copy) not in read:
        return False
    if any(kept.stat().st_mtime_ns < (checkout / path).stat().st_mtime_ns for path in read):
        return False
    if any(without(added, copy / path) != without(set(), checkout / path) for path in read):
        return False
    shutil.copyfile(kept, target)
    return True


def main() -> None:
    checkout, copy = map(Path, sys.argv[1:3])
    toolchain.CSRC = copy / "csrc"  # where `included` looks
    if not is_reused(sys.argv[4:], checkout, copy):
        os.execvp(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
