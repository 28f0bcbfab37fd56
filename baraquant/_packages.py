# SPDX-License-Identifier: BSD-3-Clause
"""Packages that only some parts need: found when they are used, with an error that helps."""

from __future__ import annotations

import importlib
from types import ModuleType


def need(caller: str, name: str, extra: str) -> ModuleType:
    """Import a module of a package that the group ``extra`` of pyproject.toml installs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            reason = f"the package {package} is not installed"
        else:
            reason = f"{name} cannot be imported ({error})"
        raise ImportError(
            f'{caller}: {reason}; install it with: pip install "baraquant[{extra}]"'
        ) from error
