# SPDX-License-Identifier: BSD-3-Clause
"""A compiler for a copy of the checkout, which takes the objects that the checkout has already.

`reused_objects.py CHECKOUT COPY COMPILER [arguments]`: where a source and all headers that it
includes are those of the checkout, and its object there is not older, the object is copied. What
else there is, is compiled.
"""

import itertools
import os
import shutil
import sys
from pathlib import Path

import check_cuda
import toolchain


def is_reused(arguments: list[str], checkout: Path, copy: Path) -> bool:
    """Whether the call compiles what the checkout has compiled; then its object is copied."""
    if "-c" not in arguments or "-o" not in arguments:
        return False
    after = dict(itertools.pairwise(arguments))  # ninja says -c twice: the last one counts
    source, target = Path(after["-c"]), Path(after["-o"])
    if not (source.is_relative_to(copy) and target.is_relative_to(copy)):
        return False
    kept = checkout / target.relative_to(copy)
    read = [source, *check_cuda.included(source)]
    originals = [checkout / path.relative_to(copy) for path in read]
    if not all(path.is_file() for path in (kept, *originals)):
        return False
    if any(kept.stat().st_mtime_ns < path.stat().st_mtime_ns for path in originals):
        return False
    if any(a.read_bytes() != b.read_bytes() for a, b in zip(read, originals, strict=True)):
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
