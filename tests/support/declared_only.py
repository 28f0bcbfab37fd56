# SPDX-License-Identifier: BSD-3-Clause
"""Python as after `pip install baraquant`: what none of its declared dependencies names is hidden.

`hide()` does that for imports from then on. As a program, this runs the Python blocks of documents
that way, but for those that name an extra: `python -m tests.support.declared_only README.md`.
"""

import importlib.metadata
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Modules whose use needs an extra of pyproject.toml, as they stand in documents.
EXTRAS = re.compile(r"baraquant\.(export|transformers|peft)\b|^import (transformers|peft)\b", re.M)


def declared() -> list[str]:
    """The requirements that pyproject.toml declares for every installation."""
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    found = re.search(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.findall(r'"([^"]+)"', found[1])


def normalized(requirement: str) -> str:
    """The name of a requirement's distribution, as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


def closure(requirements: Sequence[str]) -> set[str]:
    """The distributions that pip installs for these requirements."""
    names: set[str] = set()
    todo = [normalized(one) for one in requirements]
    while todo:
        name = todo.pop()
        if name in names:
            continue
        names.add(name)
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        todo += [normalized(one) for one in needed if not re.search(r";.*\bextra\b", one)]
    return names


class _Hiding:
    """A finder of modules that does not find some of those that another one finds."""

    def __init__(self, finder: Any, modules: set[str]) -> None:
        self.finder, self.modules = finder, modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        is_hidden = name.partition(".")[0] in self.modules
        return None if is_hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def hide() -> None:
    """Hide what is not declared from the imports to come."""
    there = closure(declared()) | {"baraquant"}
    found = importlib.metadata.packages_distributions()
    modules = {name for name, of in found.items() if not {normalized(one) for one in of} & there}
    assert "numpy" in modules and "numpy" not in sys.modules
    sys.meta_path[:] = [_Hiding(finder, modules) for finder in sys.meta_path]


def main(paths: Sequence[str]) -> None:
    hide()
    import torch

    from tests.support import documents

    torch.manual_seed(0)
    for path in paths:
        names = {"__name__": "document"}
        ran = documents.run(Path(path), names, lambda text: not EXTRAS.search(text))
        print(f"{path}: {len(list(ran))} blocks")


if __name__ == "__main__":
    main(sys.argv[1:])
