# SPDX-License-Identifier: BSD-3-Clause
"""Packages that only some tests need. `make test` installs them where it can."""

import os
from typing import Any

import pytest


def package(name: str) -> Any:
    """The module of this name. Where it is missing the test is skipped; in CI it fails."""
    if os.environ.get("CI") == "true":
        return __import__(name, fromlist=["_"])
    return pytest.importorskip(name)
