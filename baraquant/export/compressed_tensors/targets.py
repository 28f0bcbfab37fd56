# SPDX-License-Identifier: BSD-3-Clause
"""Which modules a configuration means: paths, classes, and expressions, which come from a file.

An expression may be anything, and ``re`` needs exponential time for some, such as ``(.*)*!``. So
only Python's parser reads it. A part of it leads from a set of places in a path to another set, so
no place is visited twice for one part, however many ways lead there.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from torch import nn

from ..._table import shown

_PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_LONGEST = 1 << 16  # characters of all expressions of a folder
_DEEPEST = 3  # repetitions and conditions within each other
_IS: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda char: char.isalnum() or char == "_",
}
_LAST = ("SUBPATTERN", "ASSERT", "ASSERT_NOT", "MAX_REPEAT", "MIN_REPEAT")
# Where the parts stand within a part of an expression that has some.
_HOLDERS: dict[str, Callable[[Any], list[Any]]] = {
    "BRANCH": lambda value: list(value[1]),
    **dict.fromkeys(_LAST, lambda value: [value[-1]]),
}


class Expression:
    """An expression that matches the start of a path, as ``re.match`` does.

    Not read are flags, references to groups, conditions on what stands before, and more than three
    repetitions in each other.
    """

    def __init__(self, text: str) -> None:
        try:
            self._parts = _PARSER.parse(text)
            known = not self._parts.state.flags & ~re.UNICODE and _is_known(self._parts)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not an expression: {error}") from None
        if not known:
            raise ValueError("not an expression that baraquant reads")

    def matches(self, path: str) -> bool:
        """Whether it matches."""
        return bool(_ends(self._parts, path, {0}))


T = TypeVar("T")


class Targets(Generic[T]):
    """What targets stand for.

    A target is the path of a module, an expression after ``re:`` that matches the start of its
    path, or the name of its class; the first kind that matches decides, and of one kind the first.
    """

    def __init__(self, pairs: Iterable[tuple[str, T]]) -> None:
        self._named: dict[str, tuple[int, T]] = {}
        self._expressions: list[tuple[Expression, T]] = []
        left = _LONGEST
        for number, (target, value) in enumerate(pairs):
            self._named.setdefault(target, (number, value))
            if not target.startswith("re:"):
                continue
            left -= len(target)
            if left < 0:
                raise ValueError(f"expected expressions of at most {_LONGEST} characters in all")
            try:
                self._expressions.append((Expression(target.removeprefix("re:")), value))
            except ValueError as error:
                raise ValueError(f"{shown(target)}: {error}") from None

    def find(self, path: str, module: nn.Module) -> list[T]:
        """Return what the target of a module stands for; an empty list: there is none."""
        if path in self._named:
            return [self._named[path][1]]
        for expression, value in self._expressions:
            if expression.matches(path):
                return [value]
        names = {kind.__name__ for kind in type(module).__mro__} & self._named.keys()
        found = sorted((self._named[name] for name in names), key=lambda one: one[0])
        return [value for _, value in found[:1]]


def _is_known(parts: Any, depth: int = 0) -> bool:
    for op, value in parts:
        name = str(op)
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):
            continue
        has_flags = name == "SUBPATTERN" and any(value[1:3])
        looks_back = name.startswith("ASSERT") and value[0] < 0
        inner = depth + (name not in ("BRANCH", "SUBPATTERN"))
        if name not in _HOLDERS or has_flags or looks_back or inner > _DEEPEST:
            return False
        if not all(_is_known(part, inner) for part in _HOLDERS[name](value)):
            return False
    return True


def _ends(parts: Any, text: str, places: set[int]) -> set[int]:
    """Return the places that some parts lead to from others."""
    for op, value in parts:
        if not places:
            break
        places = _after(str(op), value, text, places)
    return places


def _after(op: str, value: Any, text: str, places: set[int]) -> set[int]:
    """Return the places that one part leads to."""
    if op == "AT":
        return {place for place in places if _is_at(str(value), text, place)}
    if op not in _HOLDERS:
        return {p + 1 for p in places if p < len(text) and _takes(op, value, text[p])}
    inner = _HOLDERS[op](value)
    if op.startswith("ASSERT"):
        wanted = op == "ASSERT"
        return {p for p in places if bool(_ends(inner[0], text, {p})) == wanted}
    if not op.endswith("REPEAT"):
        return {end for part in inner for end in _ends(part, text, places)}
    for _ in range(min(value[0], len(text) + 1)):  # more leave the places as they are
        places = _ends(inner[0], text, places)
    new = places
    for _ in range(min(value[1] - value[0], len(text))):
        new = _ends(inner[0], text, new) - places
        places = places | new
    return places


def _is_at(where: str, text: str, place: int) -> bool:
    if "BOUNDARY" in where:
        before, behind = (_IS["WORD"](text[max(p, 0) : p + 1]) for p in (place - 1, place))
        return (before != behind) != ("NON" in where)
    return place == (0 if "BEGINNING" in where else len(text))


def _takes(op: str, value: Any, char: str) -> bool:
    """Whether a part takes a character."""
    if op == "ANY":
        return char != "\n"
    if op in ("LITERAL", "NOT_LITERAL"):
        return (ord(char) == int(value)) == (op == "LITERAL")
    if op == "RANGE":
        return ord(char) in range(value[0], value[1] + 1)
    if op == "CATEGORY":
        kind = str(value).removeprefix("CATEGORY_")
        return _IS[kind.removeprefix("NOT_")](char) != kind.startswith("NOT_")
    is_negated = str(value[0][0]) == "NEGATE"
    return any(_takes(str(o), v, char) for o, v in value[is_negated:]) != is_negated
