# SPDX-License-Identifier: BSD-3-Clause
"""Builds the library in place, unless nothing that it is built from has changed.

setup.py finds that out too, but only after importing torch. This looks at the files' contents and
the environment alone, in well under a second.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import toolchain

STAMP = toolchain.ROOT / "build" / "inplace.sha256"
VARIABLES = (
    *("BARAQUANT_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"),
    *("BARAQUANT_CUTLASS", "CUTLASS_PATH", "BARAQUANT_SANITIZE"),
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"),
)


def products() -> list[Path]:
    package = toolchain.ROOT / "baraquant"
    return [
        package / "libbaraquant.so",
        package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}",
        package / "include" / "baraquant" / "build_info.h",
        package / "share" / "cmake" / "baraquant" / "baraquantConfig.cmake",
    ]


def fingerprint_of_inputs() -> str:
    """Everything that setup.py's result depends on."""
    root = toolchain.ROOT
    digest = hashlib.sha256()
    inputs = [root / "setup.py", root / "pyproject.toml", Path(toolchain.__file__)]
    inputs += [p for folder in ("csrc", "cmake") for p in (root / folder).rglob("*") if p.is_file()]
    for path in sorted(inputs):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    # Not BARAQUANT_WERROR=0: what passed as strict passes without. See setup.py.
    strict = os.environ.get("BARAQUANT_WERROR") == "1" or (root / "build" / "werror").exists()
    torch = toolchain.torch_folder() / "version.py"  # its folder and age, without importing it
    age = torch.stat().st_mtime_ns
    digest.update(f"{sys.executable}\0{torch} {age}\0{toolchain.find_nvcc()}\0".encode())
    digest.update(f"{toolchain.cutlass_identity()}\0".encode())
    digest.update(f"{strict}\0{[os.environ.get(v) for v in VARIABLES]}\0".encode())
    return digest.hexdigest()


def fingerprint(inputs: str) -> str:
    """The inputs of a build and the age of what it made."""
    if not all(product.exists() for product in products()):
        return "incomplete"
    ages = [str(product.stat().st_mtime_ns) for product in products()]
    return " ".join([inputs, *ages])


def setup(name: str, log: Path, *arguments: str, python: str = sys.executable, **env: str) -> int:
    """Runs setup.py with its output in a file; says how long it took, or what went wrong."""
    place = log.relative_to(toolchain.ROOT)
    print(f"{name}: compiling (minutes, the first time); the log is in {place}", flush=True)
    start = time.monotonic()
    with log.open("w") as file:
        code = subprocess.run(
            [python, "setup.py", *arguments],
            check=False,
            cwd=toolchain.ROOT,
            env=os.environ | env,
            stdout=file,
            stderr=subprocess.STDOUT,
        ).returncode
    if code != 0:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line and "-o /" not in line]
        print("\n".join([*lines[-30:], "", f"{name}: FAILED. The errors:", *errors[:40]]))
    else:
        print(f"{name}: done in {time.monotonic() - start:.0f} s", flush=True)
    return code


def main() -> int:
    inputs = fingerprint_of_inputs()  # before the build: a file that changes meanwhile counts later
    if STAMP.exists() and STAMP.read_text() == fingerprint(inputs):
        print("build: nothing has changed")
        return 0
    STAMP.parent.mkdir(exist_ok=True)
    STAMP.unlink(missing_ok=True)
    code = setup("build", STAMP.with_name("build.log"), "build_ext", "--inplace")
    if code == 0:
        STAMP.write_text(fingerprint(inputs))
    return code


if __name__ == "__main__":
    sys.exit(main())
