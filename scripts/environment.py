# SPDX-License-Identifier: BSD-3-Clause
"""Finds or makes the Python environment that `make` works in, and prints its interpreter.

1. The Python that runs this, where it can import torch: that environment is used, and its torch is
   never replaced. If the system manages its packages (PEP 668) and some are missing, `.venv` is
   laid over it: a virtual environment that sees the system's packages.
2. Else `.venv`, with its own torch.

Missing packages (what baraquant depends on, and optional groups of pyproject.toml) are installed
with pip, torch held by a constraint. Nothing is asked of the network when nothing is missing.
Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import toolchain

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = ROOT / "build" / "environment.json"
TORCH = "torch==2.13.0"
SUPPORTED = ("2.11.", "2.12.", "2.13.", "2.14.", "2.15.")
RETRY_OPTIONAL_AFTER = 24 * 3600  # seconds
# Packages that no other code of the environment should find. tests/zoo/torchvision_support.py
ASIDE = ROOT / "build" / "aside"

# Run by the interpreter in question; argv[1] is a list of requirements. Importing torch takes
# seconds: `version_file` is the proof that an earlier import was of this very torch.
PROBE = r"""
import importlib.metadata, importlib.util, json, os, sys, sysconfig
try:
    from packaging.requirements import Requirement
except ImportError:
    try:
        from pip._vendor.packaging.requirements import Requirement
    except ImportError:
        Requirement = None

def present(text):
    name = text.split(">")[0].split("=")[0].split("<")[0].strip()
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return Requirement is None or Requirement(text).specifier.contains(version, prereleases=True)

spec = importlib.util.find_spec("torch")
origin = spec.origin if spec else None
version_file = os.path.join(os.path.dirname(origin), "version.py") if origin else None
print(json.dumps({
    "torch": [version_file, os.path.getmtime(version_file)] if version_file else None,
    "missing": [text for text in json.loads(sys.argv[1]) if not present(text)],
    "pip": importlib.util.find_spec("pip") is not None,
    "managed": sys.prefix == sys.base_prefix
        and os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
}))
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> None:
    say(f"error: {text}")
    raise SystemExit(1)


def requirements(groups: list[str]) -> list[str]:
    """The packages of these optional groups of pyproject.toml, each once."""
    found: dict[str, None] = {}
    for group in groups:
        found.update(dict.fromkeys(_listed("project.optional-dependencies", group)))
    return list(found)


def dependencies() -> list[str]:
    """The packages that baraquant itself needs, but for torch."""
    return [text for text in _listed("project", "dependencies") if not text.startswith("torch>")]


def _listed(table: str, key: str) -> list[str]:
    # tomllib is younger than the oldest Python that is supported; these tables are simple.
    text = (ROOT / "pyproject.toml").read_text().split(f"[{table}]\n")[1].split("\n[")[0]
    line = re.search(rf"^{key} = \[(.*?)\]( *#.*)?$", text, re.MULTILINE)
    if line is None:
        fail(f"pyproject.toml has no {key!r} on one line of {table}")
    assert line is not None
    return re.findall(r'"([^"]+)"', line[1])


def probe(python: Path, wanted: list[str]) -> dict[str, Any] | None:
    """What an interpreter has; None where it does not run."""
    try:
        output = subprocess.run(
            [str(python), "-c", PROBE, json.dumps(wanted)],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT / "scripts",  # away from what could be taken for a package
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def read_state() -> dict[str, Any]:
    """What earlier runs found out; empty where there is nothing (readable)."""
    try:
        state: dict[str, Any] = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return state


def write_state(key: str, value: Any) -> None:
    STATE.parent.mkdir(exist_ok=True)
    STATE.write_text(json.dumps({**read_state(), key: value}))


def torch_version(python: Path, found: dict[str, Any] | None) -> str | None:
    """The version of torch where it can be imported (remembered), else None."""
    if found is None or found["torch"] is None:
        return None
    key = f"torch of {python}"
    proof, version = read_state().get(key, (None, None))
    if proof == found["torch"]:
        return str(version)
    # The last line: a torch without NumPy warns, also on stdout.
    code = "import torch; print(); print(torch.__version__)"
    run = subprocess.run([str(python), "-c", code], check=False, capture_output=True, text=True)
    if run.returncode != 0:
        say(f"note: {python} has a torch that cannot be imported: {run.stderr.strip()[-300:]}")
        return None
    version = run.stdout.split()[-1]
    write_state(key, (found["torch"], version))
    return version


def make_venv(*options: str) -> Path:
    """Makes `.venv` (again, where it is broken) and returns its interpreter."""
    python = VENV / "bin" / "python"
    say(f"making {VENV.name} ({' '.join([sys.executable, '-m venv', *options])})")
    command = [sys.executable, "-m", "venv", *options, str(VENV)]
    run = subprocess.run(command, check=False, stdout=sys.stderr)
    if run.returncode != 0 or probe(python, []) is None:
        fail(
            "python3 -m venv failed. Debian and Ubuntu keep it in a package of its own: "
            "apt install python3-venv"
        )
    return python


def install(
    python: Path, packages: list[str], torch: str | None, optional: bool = False, *options: str
) -> bool:
    """Installs packages with pip (or uv), holding torch; whether that worked."""
    constraint = ROOT / "build" / "constraints.txt"
    constraint.parent.mkdir(exist_ok=True)
    # Without what follows "+": pip knows PyPI's 2.15.0 by that name, torch calls it 2.15.0+cu132.
    constraint.write_text(f"torch=={torch.partition('+')[0]}\n" if torch else f"{TORCH}\n")
    found = probe(python, [])
    if found is not None and found["pip"]:
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
        command += ["--no-compile"]  # of thousands of files, most are never imported
        command += ["--retries", "1"] if optional else []  # without network: do not wait long
    else:
        command = ["uv", "pip", "install", "--python", str(python)]
    say(f"installing {', '.join(packages)}")
    try:
        run = subprocess.run(
            [*command, *options, "-c", str(constraint), *packages], check=False, stdout=sys.stderr
        )
    except FileNotFoundError:
        say(f"note: {python} has no pip, and there is no uv")
        return False
    return run.returncode == 0


def choose(needed: list[str]) -> tuple[Path, str]:
    """The interpreter to work with, and its torch; makes `.venv` and installs torch if needed."""
    here = Path(sys.executable)
    version = torch_version(here, probe(here, []))
    if version:
        if not version.startswith(SUPPORTED):
            say(f"note: baraquant is tested with torch 2.11 to 2.15, but {here} has {version}")
        return here, version
    python = VENV / "bin" / "python"
    found = probe(python, [])
    if found is None:
        python = make_venv("--clear")
        found = probe(python, [])
    version = torch_version(python, found)
    if version is None:
        # With all else in one go: each call of pip costs seconds.
        if not install(python, [TORCH, *needed], None):
            fail(f"pip could not install {TORCH} into {VENV.name}")
        version = torch_version(python, probe(python, []))
    if version is None:
        fail(f"torch was installed into {VENV.name}, but cannot be imported")
    assert version is not None
    return python, version


def overlay(torch: str) -> Path:
    """`.venv` over a Python whose packages the system manages."""
    python = VENV / "bin" / "python"
    found = probe(python, [])
    if found is None or torch_version(python, found) is None:
        python = make_venv("--system-site-packages")
    if torch_version(python, probe(python, [])) is None:
        fail(f"{VENV.name} does not see torch {torch} of {sys.executable}; delete it, try again")
    return python


def install_optional(python: Path, packages: list[str], torch: str, *options: str) -> None:
    """Installs packages that can be done without. What failed is not tried again for a day."""
    key = f"cannot have {' '.join(packages)} in {python}"
    recently = time.time() - read_state().get(key, 0) < RETRY_OPTIONAL_AFTER
    try_again = not recently or os.environ.get("CI") == "true"
    if packages and try_again and not install(python, packages, torch, True, *options):
        say(f"note: {', '.join(packages)} could not be installed; going on without")
        write_state(key, time.time())


def paired(text: str, torch: str) -> str:
    """The requirement of torchvision that a torch has: 0.26 belongs to torch 2.11, and so on.

    From 0.29.1 on, one wheel of torchvision serves torch 2.14 and those after it.
    """
    minor = min(int(torch.split(".")[1]), 14)
    return f"torchvision==0.{minor + 15}.*" if text.startswith("torchvision") else text


def install_aside(python: Path, texts: list[str], torch: str) -> None:
    """Installs packages alone into a folder that only those who know of it look into."""
    found = probe(python, texts)
    for text in texts if found is None else found["missing"]:
        name, _, version = text.partition("==")
        if not any(ASIDE.glob(f"{name}-{version}.dist-info")):
            options = ("--no-deps", "--upgrade", "--target", str(ASIDE))
            install_optional(python, [text], torch, *options)


def prepare(
    need: list[str],
    want: list[str],
    bare: list[str] | None = None,
    aside: list[str] | None = None,
) -> Path:
    """The interpreter, with every package of `need` and, where they can be had, of the others.

    Those of `bare` are installed without the packages that they name, and those of `aside` into a
    folder of their own.
    """
    needed, wanted = [*dependencies(), *requirements(need)], requirements(want)
    python, torch = choose(needed)
    needs_cutlass = toolchain.find_nvcc() is not None and toolchain.wants_cutlass()
    needs_cutlass &= "CUTLASS_PATH" not in os.environ
    alone = requirements((["cuda"] if needs_cutlass else []) + (bare or []))
    found = probe(python, needed + wanted + alone)
    assert found is not None
    if found["managed"] and found["missing"]:
        python = overlay(torch)
        found = probe(python, needed + wanted + alone)
        assert found is not None
    missing = [text for text in needed if text in found["missing"]]
    if missing and not install(python, missing, torch):
        fail(
            f"these packages are missing and could not be installed: {', '.join(missing)}. "
            f"Install them into the environment of {python}"
        )
    install_optional(python, [text for text in wanted if text in found["missing"]], torch)
    for text in alone:
        if text in found["missing"]:
            install_optional(python, [text], torch, "--no-deps")
    if aside:
        install_aside(python, [paired(text, torch) for text in requirements(aside)], torch)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--need", default="", help="groups that must be there, with commas")
    parser.add_argument("--want", default="", help="groups to go on without, if need be")
    parser.add_argument("--bare", default="", help="as --want, without what they depend on")
    parser.add_argument("--aside", default="", help="as --bare, into a folder of their own")
    options = parser.parse_args()
    need, want, bare, aside = (
        list(filter(None, names.split(",")))
        for names in (options.need, options.want, options.bare, options.aside)
    )
    print(prepare(["build", *need], want, bare, aside))


if __name__ == "__main__":
    main()
