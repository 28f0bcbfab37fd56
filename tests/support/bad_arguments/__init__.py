# SPDX-License-Identifier: BSD-3-Clause
"""Right and wrong calls of the ops, family by family.

A module has `OPS`, calls that are right, and `PAIRS` of such a call and a way to get it wrong. It
stands in this folder; a small family may have them in its `test_values.py`.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def modules() -> list[ModuleType]:
    """All of them."""
    import toolchain  # which pytest finds, but not a program of random calls

    names = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    tests = toolchain.ROOT / "tests"
    for family in toolchain.families():
        path = tests / family / "test_values.py"
        if path.exists() and "\nOPS = " in path.read_text():
            names.append(f"tests.{family}.test_values")
    return [importlib.import_module(name) for name in names]


def every_op() -> list[Any]:
    """The right calls of all families."""
    return [op for module in modules() for op in module.OPS]
