# SPDX-License-Identifier: BSD-3-Clause
"""Finds or makes the Python environment that `make` works in, and prints its interpreter.

1. The Python that runs this, where torch is installed: that environment is used, and its torch is
   never replaced. If the system manages its packages (PEP 668) and some are missing, `.venv` is
   laid over it: a virtual environment that sees the system's packages.
2. Else `.venv`, with its own torch.

pip (uv, where there is no pip) finds out what is missing of baraquant's dependencies and of some
optional groups of pyproject.toml, and installs it beside the torch that is there. It asks nothing
of the network when nothing is missing. Standard library only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import toolchain

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TORCH = "2.13.0"  # where none is there
PROJECT = (ROOT / "pyproject.toml").read_text()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def requirements(*lists: str) -> list[str]:
    """The packages of these lists of pyproject.toml but for torch; each list is on one line."""
    # tomllib is younger than the oldest Python that is supported.
    found: dict[str, None] = {}
    for name in filter(None, lists):
        (line,) = re.findall(rf"^{name} = \[(.*)\]", PROJECT, re.M)
        found |= dict.fromkeys(re.findall(r'"([^"]+)"', line))
    return [text for text in found if not text.startswith("torch>")]


def torch_here() -> str | None:
    """The version of the torch of this interpreter; importing it would take seconds."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    low, high = (int(minor) for minor in re.findall(r"torch>=2\.(\d+),<2\.(\d+)", PROJECT)[0])
    if not version.startswith(tuple(f"2.{minor}." for minor in range(low, high))):
        tested = f"torch 2.{low} to 2.{high - 1}"
        say(f"note: baraquant is tested with {tested}, but {sys.executable} has {version}")
    return version


def pip_install(arguments: list[str], environment: dict[str, str], *, silent: bool = False) -> bool:
    """Whether `pip install` succeeds in the environment of this interpreter."""
    command = [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        command = ["uv", "pip", "install", "--python", sys.executable]
    output = subprocess.DEVNULL if silent else sys.stderr
    try:
        return not subprocess.run(
            [*command, *arguments], check=False, stdout=output, stderr=output, env=environment
        ).returncode
    except FileNotFoundError:
        say(f"note: {sys.executable} has no pip, and there is no uv")
        return False


def are_there(packages: list[str]) -> bool:
    """Whether nothing is missing: then pip succeeds without any source to install from."""
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    settings |= {"UV_NO_CONFIG": "1", "UV_BREAK_SYSTEM_PACKAGES": "1"}
    others = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    return pip_install(["--no-index", "--no-deps", *packages], others | settings, silent=True)


def install(packages: list[str], *options: str) -> bool:
    """Installs what is missing of these packages; whether they are there now."""
    if are_there(packages):
        return True
    say(f"installing what is missing of {', '.join(packages)}")
    # No bytecode: of thousands of files, most are never imported. Without network: no long wait.
    settings = {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1"}
    return pip_install([*options, *packages], settings | os.environ)


def continue_in_venv(*, over_this: bool) -> None:
    """Runs this program in `.venv`, which is made where it is missing or broken."""
    python = VENV / "bin" / "python"
    works = "import importlib.metadata as m; m.version('torch')" if over_this else ""
    if not python.exists() or subprocess.run([python, "-c", works], check=False).returncode:
        option = "--system-site-packages" if over_this else "--clear"
        command = [sys.executable, "-m", "venv", option, str(VENV)]
        say(f"making {VENV.name} ({' '.join(command)})")
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
            sys.exit(
                "error: python3 -m venv failed. Debian and Ubuntu keep it in a package of its own: "
                "apt install python3-venv"
            )
    os.execv(python, [str(python), __file__, *sys.argv[1:], "--in-venv"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--need", default="", help="groups that must be there, with commas")
    parser.add_argument("--want", default="", help="groups to go on without, if need be")
    parser.add_argument("--bare", default="", help="as --want, without what they depend on")
    parser.add_argument("--in-venv", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    version = torch_here()
    if version is None and not options.in_venv:
        continue_in_venv(over_this=False)
    # Without what follows "+": PyPI's 2.15.0 may call itself 2.15.0+cu132.
    torch = f"torch=={(version or TORCH).partition('+')[0]}"
    needed = [torch, *requirements("dependencies", "build", *options.need.split(","))]
    wanted = requirements(*options.want.split(","))
    needs_cutlass = toolchain.find_nvcc() is not None and toolchain.wants_cutlass()
    needs_cutlass &= "CUTLASS_PATH" not in os.environ
    alone = requirements(*options.bare.split(","), *(["cuda"] if needs_cutlass else []))
    if not are_there([*needed, *wanted, *alone]):
        marker = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
        if sys.prefix == sys.base_prefix and marker.exists():
            continue_in_venv(over_this=True)
        if not install(needed):
            sys.exit(
                f"error: packages are missing and could not be installed: see above. "
                f"Install them into the environment of {sys.executable}"
            )
        optional = [([torch, *wanted], ["--quiet"])]
        optional += [([torch, text], ["--quiet", "--no-deps"]) for text in alone]
        for packages, how in optional:
            if not install(packages, *how):
                say(f"note: {', '.join(packages[1:])} could not be installed; going on without")
    print(sys.executable)


if __name__ == "__main__":
    main()
