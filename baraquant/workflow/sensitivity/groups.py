# SPDX-License-Identifier: BSD-3-Clause
"""Which layers get one configuration: those that share a tensor, and those that belong together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from ..._table import some
from ..serialization.sizes import own_tensors, place_of


class Groups:
    """Sets of paths that are merged.

    Args:
        paths: All paths.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._parent = {path: path for path in paths}

    def _root(self, path: str) -> str:
        while self._parent[path] != path:
            path = self._parent[path]
        return path

    def join(self, one: str, other: str) -> None:
        """Merge the sets of two paths."""
        self._parent[self._root(other)] = self._root(one)

    def sets(self) -> list[list[str]]:
        """Return the sets; they and their paths are in the order of all paths."""
        found: dict[str, list[str]] = {}
        for path in self._parent:
            found.setdefault(self._root(path), []).append(path)
        return list(found.values())


def join_shared(groups: Groups, modules: Mapping[str, nn.Module]) -> None:
    """Merge float layers that share a tensor."""
    first: dict[tuple[object, ...], str] = {}
    for path, module in modules.items():
        for tensor in own_tensors(module).values():
            if tensor.numel() > 0:
                groups.join(first.setdefault(place_of(tensor, None), path), path)


def check_together(together: object, caller: str) -> list[list[str]]:
    """Return the lists of patterns.

    Raises:
        TypeError: It is no sequence of sequences of patterns.
        ValueError: A list is empty.
    """

    def is_list(value: object) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))

    expected = f"{caller}: expected together to be a list of lists of path patterns"
    if not isinstance(together, Sequence) or not is_list(together):
        raise TypeError(f"{expected}, but got {type(together).__name__}")
    for patterns in together:
        if not is_list(patterns):
            raise TypeError(f"{expected}, but an entry is a {type(patterns).__name__}")
        if len(patterns) == 0:
            raise ValueError(f"{expected}, but an entry is empty")
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"{expected}, but a pattern is a {type(pattern).__name__}")
    return [list(patterns) for patterns in together]


def join_together(
    groups: Groups,
    together: list[list[str]],
    paths: Mapping[str, Sequence[str]],
    caller: str,
) -> None:
    """Merge the layers that match one entry where the wildcards stand for the same.

    Args:
        groups: Changed in place.
        together: Lists of patterns.
        paths: All paths of each layer, by its first one.
        caller: The public function, for the messages.

    Raises:
        ValueError: A pattern matches no layer.
    """
    for patterns in together:
        first: dict[tuple[str, ...], str] = {}
        for pattern in patterns:
            expression = _with_groups(pattern)
            is_used = False
            for path, names in paths.items():
                for name in names:
                    match = expression.fullmatch(name)
                    if match is not None:
                        is_used = True
                        groups.join(first.setdefault(match.groups(), path), path)
            if not is_used:
                raise ValueError(
                    f"{caller}: expected the pattern {pattern!r} of together to match a layer, but "
                    f"it matches none of {some(list(paths), 5)}"
                )


def _with_groups(pattern: str) -> re.Pattern[str]:
    """Return the expression of a pattern of :mod:`fnmatch`, with a group for each wildcard."""
    parts = []
    for part in re.findall(r"\[!?\]?[^\]]*\]|.", pattern, re.DOTALL):
        if part in "*?":
            parts.append("(.*)" if part == "*" else "(.)")
        elif len(part) > 2:
            inside = part[1:-1].replace("\\", r"\\").replace("^", r"\^").replace("]", r"\]")
            inside = f"^{inside[1:]}" if inside.startswith("!") else inside
            parts.append(f"([{inside}])")
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts), re.DOTALL)


def as_pattern(path: str) -> str:
    """Return the pattern that matches a path alone."""
    return re.sub(r"([*?[])", r"[\1]", path)
