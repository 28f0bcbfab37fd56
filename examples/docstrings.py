# SPDX-License-Identifier: BSD-3-Clause
"""Real English text that every machine has: the documentation in Python's standard library.

The sources are parsed, not imported. What has a docstring of several sentences gives a passage: its
first sentence, which is a question to a search engine, and the rest, which is the answer.
"""

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
_FIRST_SENTENCE = re.compile(r"(.+?[.!?])\s+(?=[A-Z`'\"(])(.+)")
_FEWEST_WORDS = 4, 10  # of a sentence, and of the rest


@dataclass(frozen=True)
class Passage:
    """What the documentation of one function, method or class says.

    Attributes:
        name: Such as ``textwrap.TextWrapper.fill``.
        sentence: The first sentence.
        rest: All others.
        module: The file, below the standard library.
    """

    name: str
    sentence: str
    rest: str
    module: str


def passages(library: Path | None = None) -> list[Passage]:
    """Return the passages of the standard library, each sentence and each rest once.

    Args:
        library: Its folder; None: that of the Python that runs this.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    found: list[Passage] = []
    sentences, rests = set(), set()
    for path in sorted(library.rglob("*.py")):
        if _SKIPPED & set(path.relative_to(library).parts):
            continue
        for passage in _of_file(path, path.relative_to(library)):
            if passage.sentence not in sentences and passage.rest not in rests:
                found.append(passage)
                sentences.add(passage.sentence)
                rests.add(passage.rest)
    return found


def split(found: list[Passage], share: float = 0.3) -> tuple[list[Passage], list[Passage]]:
    """Return passages to calibrate and train with, and others to measure with.

    A module is on one side as a whole, and on the same in every run.
    """
    limit = int(share * 2**32)
    first = [zlib.crc32(passage.module.encode()) < limit for passage in found]
    chosen = [passage for passage, is_first in zip(found, first, strict=True) if is_first]
    return chosen, [p for p, is_first in zip(found, first, strict=True) if not is_first]


def _of_file(path: Path, relative: Path) -> Iterator[Passage]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    parts = relative.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    for name, node in _documented(tree, module):
        text = " ".join((ast.get_docstring(node) or "").split())
        match = _FIRST_SENTENCE.fullmatch(text)
        if match is None:
            continue
        sentence, rest = match.groups()
        if all(len(t.split()) >= n for t, n in zip((sentence, rest), _FEWEST_WORDS, strict=True)):
            yield Passage(name, sentence, rest, relative.as_posix())


def _documented(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            path = f"{name}.{child.name}"
            yield path, child
            yield from _documented(child, path)
