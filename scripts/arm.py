# SPDX-License-Identifier: BSD-3-Clause
"""Builds for an ARM of 64 bits with a cross compiler, and runs programs and tests under qemu.

    arm.py [--torch VERSION] [ARGUMENT ...]    the arguments are those of ARM's Python
    arm.py -m tests.golden --check             the same bits as on an x86
    QEMU_CPU=cortex-a53 arm.py ...             a machine without SDOT

Without arguments it runs TESTS. It needs a Debian or Ubuntu with g++-aarch64-linux-gnu and
qemu-user-static, but no root: ARM's Python and its libraries are unpacked below build/arm, beside
torch from PyPI. Python runs under qemu, and starts the cross compiler as it would start its own, so
the build is the one of an ARM. An emulator says nothing of speed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import build as builder
import toolchain

ROOT = toolchain.ROOT
FOLDER = ROOT / "build" / "arm"
SYSTEM, SITE, LIB, PYTHON = (FOLDER / name for name in ("system", "site", "lib", "python"))
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
# The newest whose wheel for ARM on PyPI is small: from 2.11 on they hold CUDA. With PIP_INDEX_URL
# set to PyTorch's own index, --torch takes the CPU builds of later ones.
TORCH = "2.10.0"
PACKAGES = (
    *("numpy", "safetensors", "setuptools>=77", "pytest", "pytest-xdist", "hypothesis"),
    *("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec"),
)
PLATFORMS = [f"manylinux{name}_aarch64" for name in ("_2_28", "_2_27", "_2_26", "_2_17", "2014")]
# Each family of ops but for the convolutions; what starts processes or compiles is not short.
FAMILIES = [f"tests/{name}" for name in toolchain.families() if name != "int8_conv"]
TESTS = ["-m", "pytest", "-q", "-m", "not exhaustive", *FAMILIES]


def pytest_load_initial_conftests() -> None:
    """Of the plugin that the interpreter names: ARM's library is the one that is tested."""
    sys.path.insert(0, str(LIB))  # before the root, which pyproject.toml puts first
    import baraquant

    assert LIB in Path(baraquant.__file__).parents, f"{baraquant.__file__} is not in {LIB}"


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Runs a command from the root of the repository; ends the program where it fails."""
    print("arm:", shlex.join(command), flush=True)
    code = subprocess.run(
        command, check=False, cwd=ROOT, env=os.environ | (environment or {})
    ).returncode
    if code != 0:
        sys.exit(code)


def check_tools() -> None:
    """Ends the program with a line that says what to install."""
    missing = [
        name for name in (COMPILER, EMULATOR, "apt-get", "dpkg-deb") if not shutil.which(name)
    ]
    if missing:
        sys.exit(
            f"arm.py: {', '.join(missing)} not found. On Debian or Ubuntu: "
            "apt-get install g++-aarch64-linux-gnu qemu-user-static"
        )


def unpack_system() -> None:
    """ARM's Python with all that it needs, by an apt that leaves the machine's own alone."""
    state = FOLDER / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()  # nothing is installed
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "1",
        "Dir::State::lists": str(state / "lists"),
        "Dir::State::status": str(state / "status"),
        "Dir::Cache": str(state / "cache"),
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run([*apt, "update"])
    download = ["install", "--yes", "--download-only", "--no-install-recommends"]
    run([*apt, *download, "python3-dev", "libstdc++6"])
    unpacked = FOLDER / "system.part"
    shutil.rmtree(unpacked, ignore_errors=True)
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
    unpacked.rename(SYSTEM)


def python_version() -> str:
    """Of ARM's Python, as in ``3.11``."""
    (program,) = (SYSTEM / "usr" / "bin").glob("python3.[0-9]*[0-9]")
    return program.name.removeprefix("python")


def install_packages(torch: str) -> None:
    """Torch by itself: what its wheel asks for depends on the machine that pip runs on."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    pip += ["--implementation=cp", f"--python-version={python_version()}", f"--target={SITE}"]
    pip += [f"--platform={name}" for name in PLATFORMS]
    run([*pip, *PACKAGES])
    run([*pip, "--no-deps", f"torch=={torch}"])


def write_interpreter() -> None:
    """A script that is Python's executable, so that processes which it starts are emulated too."""
    path = os.pathsep.join(map(str, (LIB, SITE, ROOT / "scripts", ROOT)))
    program = SYSTEM / "usr" / "bin" / f"python{python_version()}"
    # PYTHONSAFEPATH: the package in the root of the repository is the machine's own.
    PYTHON.write_text(
        "#!/bin/sh\n"
        f"export PYTHONHOME={shlex.quote(str(SYSTEM / 'usr'))} PYTHONSAFEPATH=1\n"
        f"export PYTHONPATH={shlex.quote(path)} PYTEST_PLUGINS=arm\n"
        f'exec {EMULATOR} -0 "$0" -cpu "${{QEMU_CPU:-max}}" -L {shlex.quote(str(SYSTEM))} '
        f'{shlex.quote(str(program))} "$@"\n'
    )
    PYTHON.chmod(0o755)


def build() -> None:
    """As `make build` does on an ARM; only what has changed."""
    include = FOLDER / "include"  # Python's headers alone: the compiler has its own of the system
    include.mkdir(exist_ok=True)
    link = include / "aarch64-linux-gnu"
    if not link.is_symlink():
        link.symlink_to(SYSTEM / "usr" / "include" / "aarch64-linux-gnu")
    headers = SYSTEM / "usr" / "include" / f"python{python_version()}"
    places = ["--build-lib", str(LIB), "--build-temp", str(FOLDER / "temp")]
    environment = {
        "CC": "aarch64-linux-gnu-gcc",
        "CXX": COMPILER,
        "CPATH": os.pathsep.join(map(str, (headers, include))),
        "BARAQUANT_CUDA": "0",
    }
    log, python = FOLDER / "build.log", str(PYTHON)
    if builder.setup("arm", log, "build", *places, python=python, **environment) != 0:
        sys.exit(1)


def run_programs() -> None:
    """Those without torch, tests/cpp."""
    for source in sorted((ROOT / "tests" / "cpp").glob("*.cpp")):
        program = FOLDER / source.stem
        flags = [*toolchain.CXX_FLAGS, *toolchain.CXX_WERROR, f"-I{toolchain.CSRC}"]
        run([COMPILER, *flags, str(source), "-o", str(program)])
        cpu = os.environ.get("QEMU_CPU", "max")
        run([EMULATOR, "-cpu", cpu, "-L", str(SYSTEM), str(program)])


def main() -> None:
    """Prepares what is missing, builds, and runs."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--torch", default=TORCH, help=f"the version of torch, {TORCH} by default")
    options, arguments = parser.parse_known_args()
    check_tools()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not SYSTEM.exists():
        unpack_system()
    if not (SITE / f"torch-{options.torch}.dist-info").exists():
        shutil.rmtree(SITE, ignore_errors=True)
        install_packages(options.torch)
    write_interpreter()
    build()
    if not arguments:
        run_programs()
    run([str(PYTHON), *(arguments or TESTS)])


if __name__ == "__main__":
    main()
