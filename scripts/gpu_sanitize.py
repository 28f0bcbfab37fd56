# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA's compute-sanitizer over small calls of every kernel (tests/ops/gpu_calls.py).

    memcheck    reads and writes beyond an allocation; misaligned ones
    racecheck   two threads of a block at the same shared memory, without an order
    synccheck   barriers that not all threads reach

    python scripts/gpu_sanitize.py --tools synccheck

Each tool's verdict is printed when it ends. Only kernels whose name has `baraquant` in it are
looked at: racecheck has two reports of cuBLAS's own. initcheck is not run: it does not see what TMA
writes, and takes Hopper's kernels for readers of memory that nobody wrote. Without a GPU or the
tool this says so, and is no failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import toolchain

CALLS = ("-m", "tests.ops.gpu_calls")
TOOLS = ("memcheck", "racecheck", "synccheck")
LIMIT = 900  # seconds for one tool
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")


class Outcome(NamedTuple):
    """What a tool found. errors: None where it did not come to an end."""

    tool: str
    calls: str
    errors: int | None
    seconds: float
    output: str


def find_tool() -> Path | None:
    """compute-sanitizer of the PATH, of the CUDA toolkit, or of NVIDIA's Python packages."""
    found = shutil.which("compute-sanitizer")
    if found:
        return Path(found)
    nvcc = toolchain.find_nvcc()
    homes = [toolchain.cuda_home(nvcc)] if nvcc is not None else []
    homes += [Path("/usr/local/cuda")]
    candidates = [home / folder for home in homes for folder in ("bin", "compute-sanitizer")]
    packages = [Path(p) / "nvidia" for p in sys.path if (Path(p) / "nvidia").is_dir()]
    candidates += [folder / "bin" for p in packages for folder in p.iterdir() if folder.is_dir()]
    programs = (folder / "compute-sanitizer" for folder in candidates)
    return next((p for p in programs if p.is_file() and os.access(p, os.X_OK)), None)


def name_filter(tool: Path) -> str:
    """The option that chooses kernels by name, which newer versions call otherwise."""
    shown = subprocess.run([str(tool), "--help"], check=False, capture_output=True, text=True)
    text = shown.stdout + shown.stderr
    return next((o for o in ("--kernel-name", "--kernel-regex") if o in text), "--filter")


def command(tool: Path, name: str, log: Path) -> list[str]:
    """Run the calls under one of the tools."""
    return [
        *(str(tool), "--tool", name, name_filter(tool), "kns=baraquant"),
        *("--report-api-errors", "no", "--error-exitcode", "99", "--print-limit", "20"),
        *("--target-processes", "application-only", "--log-file", str(log)),
        *(sys.executable, *CALLS),
    ]


def environment(name: str) -> dict[str, str]:
    path = os.pathsep.join((str(toolchain.ROOT), os.environ.get("PYTHONPATH", "")))
    # One allocation for each tensor: memcheck then sees the end of each.
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if name == "memcheck" else {}
    return os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)} | alone


def ended(command: list[str], name: str) -> tuple[int, str, float]:
    """Exit code, output and seconds of a process, which is ended where it takes too long."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment(name),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        code, output = 124, error.stdout or b""
    return code, output.decode(errors="replace"), time.monotonic() - began


def outcome(tool: Path, name: str, folder: Path) -> Outcome:
    """Of a tool: no summary, or another exit code than its own, is a failure."""
    path = folder / name
    code, output, seconds = ended(command(tool, name, path), name)
    log = path.read_text(errors="replace") if path.exists() else ""
    summary, calls = SUMMARY.findall(log), re.search(r"(\d+) calls", output)
    errors = sum(map(int, summary)) if summary and calls and code in (0, 99) else None
    if code == 99 and not errors:
        errors = None
    return Outcome(name, calls[1] if calls else "-", errors, seconds, f"{output}\n{log}")


def run(tool: Path, names: list[str]) -> int:
    """The tools side by side, and the calls alone, which say which kernels were launched."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(names) + 1) as pool:
        listing = pool.submit(ended, [sys.executable, *CALLS, "--kernels"], "")
        running = [pool.submit(outcome, tool, name, Path(folder)) for name in names]
        code, listed, _ = listing.result()
        kernels = re.search(r"(\d+) kernels", listed)
        print(listed.strip()[-2000:])
        print(f"{'tool':<12}{'calls':>8}{'kernels':>10}{'errors':>16}{'seconds':>10}", flush=True)
        failed = code != 0
        for future in as_completed(running):
            found = future.result()
            errors = "did not finish" if found.errors is None else str(found.errors)
            row = f"{found.tool:<12}{found.calls:>8}{kernels[1] if kernels else '-':>10}"
            print(f"{row}{errors:>16}{found.seconds:>10.0f}", flush=True)
            if found.errors != 0:
                print(f"--- {found.tool}\n{found.output.strip()[-6000:]}", flush=True)
            failed = failed or found.errors != 0
    print(f"gpu-sanitize: {'FAILED' if failed else 'passed'}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    names = parser.parse_args().tools

    import torch

    tool = find_tool()
    if not torch.cuda.is_available():
        print("gpu-sanitize: skipped, there is no GPU here")
        return 0
    if tool is None:
        print(
            "gpu-sanitize: skipped, there is no compute-sanitizer here (it comes with the CUDA "
            "toolkit)"
        )
        return 0
    print(f"gpu-sanitize: {tool} on {torch.cuda.get_device_name()}", flush=True)
    return run(tool, names)


if __name__ == "__main__":
    sys.exit(main())
