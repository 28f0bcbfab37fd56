# SPDX-License-Identifier: BSD-3-Clause
"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def imported(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return a name of a package, for its ``__getattr__``; ``homes`` has the module of each."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
