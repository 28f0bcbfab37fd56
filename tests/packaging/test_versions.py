# SPDX-License-Identifier: BSD-3-Clause
"""Which torch and which Python are supported: one range, wherever it is written."""

from __future__ import annotations

import re

import pytest

import environment
import toolchain

ROOT = toolchain.ROOT
PROJECT = (ROOT / "pyproject.toml").read_text()
# Files that tell users which torch they need.
TOLD = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/install.md",
    "docs/limits.md",
    "setup.py",
    "baraquant/_library.py",
)


def torch_minors() -> list[int]:
    """The minor versions of torch 2 that pyproject.toml asks for."""
    found = re.search(r'"torch>=2\.(\d+),<2\.(\d+)"', PROJECT)
    assert found is not None
    return list(range(int(found[1]), int(found[2])))


def pythons() -> list[str]:
    """The versions of Python that pyproject.toml names, oldest first."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)


@pytest.mark.parametrize("name", TOLD)
def test_every_file_tells_the_same_range_of_torch(name: str) -> None:
    first, *_, last = torch_minors()
    told = re.findall(r"[Tt]orch \(?2\.(\d+)\s+to\s+2\.(\d+)", (ROOT / name).read_text())
    assert set(told) == {(str(first), str(last))}


def test_make_installs_a_torch_that_is_supported() -> None:
    assert int(environment.TORCH.split(".")[1]) in torch_minors()


def test_the_oldest_python_is_the_one_that_the_tools_check_for() -> None:
    oldest = pythons()[0]
    assert f'requires-python = ">={oldest}"' in PROJECT
    assert f'python_version = "{oldest}"' in PROJECT  # mypy
    assert f'target-version = "py{oldest.replace(".", "")}"' in PROJECT  # ruff
    for name in ("README.md", "CONTRIBUTING.md", "docs/install.md"):
        assert f"Python {oldest} or newer" in (ROOT / name).read_text()
