# SPDX-License-Identifier: BSD-3-Clause
"""The Markdown documents of the repository: their fenced blocks, and running those of Python."""

import doctest
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    """The path below the root, to name a test."""
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> Iterator[tuple[str, str, int]]:
    """The fenced blocks: language, text, and the number of the line before the text."""
    text = path.read_text()
    for match in FENCE.finditer(text):
        yield match[1], match[2], text[: match.start(2)].count("\n")


def module_for(path: Path) -> dict[str, Any]:
    """The names of an empty module for the document's code.

    It can be imported under its ``__name__``, as TorchDynamo does with the functions it meets.
    """
    module = ModuleType(f"document_{path.stem}")
    sys.modules[module.__name__] = module
    return vars(module)


def run(
    path: Path, names: dict[str, Any], wanted: Callable[[str], bool] = lambda text: True
) -> Iterator[str]:
    """Run the Python blocks in order, as a reader would type them; yield the text of each.

    Args:
        path: The document.
        names: What the blocks define; each sees what those before it have left here.
        wanted: Whether to run a block with this text.
    """
    for language, text, line in blocks(path):
        if language not in ("python", "pycon") or not wanted(text):
            continue
        if language == "python":
            exec(compile("\n" * line + text, str(path), "exec"), names)
        else:  # a ``>>>`` session, of which what it prints is compared
            session = doctest.DocTestParser().get_doctest(text, names, path.name, str(path), line)
            session.globs = names  # a DocTest copies them, and the next block needs them
            output: list[str] = []
            runner = doctest.DocTestRunner()
            runner.run(session, out=output.append, clear_globs=False)
            assert runner.tries > 0
            assert runner.failures == 0, "".join(output)
        yield text


def anchors(path: Path) -> set[str]:
    """What a link can name behind ``#``: the headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> list[str]:
    """What the document links to, outside of its code."""
    return re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text()))
