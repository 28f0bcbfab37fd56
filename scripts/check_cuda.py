# SPDX-License-Identifier: BSD-3-Clause
"""Compiles every .cu file as a check, where nvcc is there but torch is a CPU build.

Both sides are compiled, the device's to PTX, and nothing is optimized or assembled: that takes most
of the time of a build, and would find no more than a wrong instruction in an `asm`. With a CUDA
build of torch the real build does it. A file is skipped when neither it, nor a header that it
includes, nor a flag has changed since it last passed (build/check_cuda/).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import toolchain

STAMPS = toolchain.ROOT / "build" / "check_cuda"
# A kernel of CUTLASS takes a core a minute, half of it CUTLASS's headers. The others differ from
# these in numbers alone: one of each schedule, for one type of the output, in one file.
CUTLASS_CHECKED = (
    "hopper_pingpong128x128",
    "hopper_cooperative192x128",
    "hopper_twowarps64x64",
    "grouped_128x128",
)
CUTLASS_FLAGS = ["-DBARAQUANT_WITH_CUTLASS", "-DBARAQUANT_ONE_OUTPUT_TYPE"]
# torch's CPU build lacks c10/cuda/impl/cuda_cmake_macros.h; this macro does without.
FLAGS = [
    *(flag for flag in toolchain.NVCC_FLAGS if flag != "-O3"),
    *("-O0", "-Xcicc=-O0", "-gencode", "arch=compute_90a,code=compute_90a"),
    *toolchain.NVCC_WERROR,
    *("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", "-DBARAQUANT_WITH_CUDA", "-Xcompiler=-fPIC"),
]


def flags() -> list[str]:
    cutlass = toolchain.find_cutlass()
    return [*FLAGS, *([*CUTLASS_FLAGS, "-isystem", str(cutlass)] if cutlass else [])]


def sources() -> list[Path]:
    """What is compiled; the slowest first."""
    units = {path.stem: path for path in toolchain.cuda_units()}
    others = [path for stem, path in units.items() if stem.startswith("to_")]
    slowest = toolchain.unit("hopper.cu", *(units[name].read_text() for name in CUTLASS_CHECKED))
    return [slowest, *others, *toolchain.library_sources(".cu")]


def command(nvcc: Path, source: Path, target: Path) -> list[str]:
    return [
        *(str(nvcc), *flags(), f"-I{toolchain.CSRC}"),
        *(part for path in toolchain.torch_includes() for part in ("-isystem", str(path))),
        *("-c", str(source), "-o", str(target)),
    ]


def included(source: Path) -> list[Path]:
    """Returns the headers of csrc that a file includes, directly or not, sorted."""
    found: set[Path] = set()
    unread = [source]
    while unread:
        path = unread.pop()
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            for folder in (path.parent, toolchain.CSRC):
                header = (folder / name).resolve()
                if header.is_file() and header not in found:
                    found.add(header)
                    unread.append(header)
    return sorted(found)


def fingerprint(source: Path, nvcc_version: str) -> str:
    digest = hashlib.sha256()
    digest.update(f"{nvcc_version} {importlib.metadata.version('torch')} {flags()}".encode())
    digest.update(toolchain.cutlass_identity().encode())
    for path in [source, *included(source)]:
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def check(nvcc: Path, source: Path, version: str) -> tuple[Path, str, float]:
    """Compiles one file; returns it, what the compiler had to say, and the seconds."""
    start = time.monotonic()
    stamp = STAMPS / f"{source.relative_to(toolchain.ROOT)}.sha256".replace("/", "-")
    current = fingerprint(source, version)
    if stamp.exists() and stamp.read_text() == current:
        return source, "", 0.0
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            command(nvcc, source, Path(folder) / "object.o"),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if run.returncode == 0:
        stamp.write_text(current)
        return source, "", time.monotonic() - start
    return source, run.stdout or f"exit code {run.returncode}", time.monotonic() - start


def main() -> int:
    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        print("check of CUDA: skipped, there is no nvcc here")
        return 0
    if (toolchain.torch_folder() / "lib" / "libtorch_cuda.so").exists():
        print("check of CUDA: not needed, the build for this torch compiles the .cu files")
        return 0
    STAMPS.mkdir(parents=True, exist_ok=True)
    if toolchain.find_cutlass() is None:
        print("check of CUDA: without the kernels for Hopper, there are no CUTLASS headers here")
    paths = sources()
    version = toolchain.nvcc_version(nvcc)
    print(f"check of CUDA: {len(paths)} files with nvcc {version}", flush=True)
    failed = False
    with ThreadPoolExecutor(toolchain.cores()) as pool:
        for source, complaint, seconds in pool.map(lambda path: check(nvcc, path, version), paths):
            name = source.relative_to(toolchain.ROOT)
            state = "FAILED" if complaint else f"{seconds:.0f} s" if seconds else "unchanged"
            print(f"  {name}: {state}", flush=True)
            print(complaint, end="")
            failed = failed or bool(complaint)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
