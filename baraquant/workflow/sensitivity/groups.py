# SPDX-License-Identifier: BSD-3-Clause
"""What is compared: configurations by name, and layers in groups that get the same one.

A group are layers that share a tensor, and those that belong together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..._table import some
from ...configs import QuantConfig
from ...schemes import Algorithm, what_it_is
from ..serialization.packing import own_tensors, place_of


class Groups:
    """Sets of layers that are merged; ``names`` has all paths of each, by its first one."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names, self._parent = names, {path: path for path in names}

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

    def join_shared(self, modules: Mapping[str, nn.Module]) -> None:
        """Merge float layers that share a tensor."""
        first: dict[tuple[object, ...], str] = {}
        for path, module in modules.items():
            for tensor in own_tensors(module).values():
                if tensor.numel() > 0:
                    self.join(first.setdefault(place_of(tensor, None), path), path)

    def join_together(self, together: list[list[str]], caller: str) -> None:
        """Merge the layers that match one list of patterns where the wildcards stand for the same.

        A pattern that matches no layer is an error.
        """
        for patterns in together:
            first: dict[tuple[str, ...], str] = {}
            for pattern in patterns:
                expression = _with_groups(pattern)
                found = [
                    (match.groups(), path)
                    for path, names in self._names.items()
                    for name in names
                    if (match := expression.fullmatch(name)) is not None
                ]
                if not found:
                    raise ValueError(
                        f"{caller}: expected the pattern {pattern!r} of together to match a layer, "
                        f"but it matches none of {some(list(self._names), 5)}"
                    )
                for wildcards, path in found:
                    self.join(first.setdefault(wildcards, path), path)


def check_together(together: object, caller: str) -> list[list[str]]:
    """Return the lists of patterns; an empty one, or anything else, is an error."""

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


FLOAT = "float"  # the name of the column of layers as they are


def named_configs(configs: Any, caller: str) -> dict[str, QuantConfig]:
    """Return the configurations by their names."""
    if isinstance(configs, (str, bytes)) or not isinstance(configs, (Sequence, Mapping)):
        raise TypeError(
            f"{caller}: expected configs to be a list of configurations, or a dictionary from "
            f"names to them, but got {what_it_is(configs)}"
        )
    if not configs:
        raise ValueError(f"{caller}: expected configs to have a configuration, but it is empty")
    values = list(configs.values() if isinstance(configs, Mapping) else configs)
    for value in values:
        if isinstance(value, Algorithm):
            raise ValueError(
                f"{caller}: expected schemes that quantize each layer by itself, but got {value}; "
                f"{value.why_not_alone()}"
            )
        if not isinstance(value, QuantConfig):
            raise TypeError(
                f"{caller}: expected configs to hold QuantConfig, but got {what_it_is(value)}"
            )
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{caller}: expected different configurations, but got twice {value}")
    if not isinstance(configs, Mapping):
        named: dict[str, QuantConfig] = {}
        for value in values:
            short = _short(value)
            number = 1 + sum(name.partition(" #")[0] == short for name in named)
            named[short if number == 1 else f"{short} #{number}"] = value
        return named
    for name in configs:
        if not isinstance(name, str):
            raise TypeError(f"{caller}: expected the keys of configs to be names, but got {name!r}")
        if name in ("", FLOAT):
            raise ValueError(
                f"{caller}: expected the name of a configuration, but got {name!r}"
                + (", which stands for a layer as it is" if name else "")
            )
    return dict(configs)


def _short(config: QuantConfig) -> str:
    """Return a short name of a configuration, such as ``W4A16 g128``."""
    weight, activation = config.weight, config.activation
    parts = [
        f"W{weight.bits}A{16 if activation is None else activation.bits}",
        "" if weight.group_size is None else f"g{weight.group_size}",
        "" if weight.symmetric else "asymmetric",
        "factors" if weight.group_factors else "",
        "static" if config.is_static else "",
        "" if config.rotate is None else f"rotate {config.rotate}",
    ]
    return " ".join(filter(None, parts))
