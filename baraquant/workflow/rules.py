# SPDX-License-Identifier: BSD-3-Clause
"""Decides which configuration a layer gets: one for all, or by a dictionary.

The keys of the dictionary are path patterns of :mod:`fnmatch` (``"encoder.*"``) or types
(``nn.Embedding``). The first match counts. The value None leaves the layer floating, and so does a
layer without a match.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from .._table import some
from ..configs import Config, QuantConfig
from ..schemes import Algorithm, quant_config
from .passes import pass_of
from .report import FLOATING, UNMATCHED

Rule: TypeAlias = str | type[nn.Module]
Configs: TypeAlias = "Config | Mapping[Rule, Config | None]"


class Rules:
    """The configurations of a call.

    Args:
        config: A configuration, or a dictionary from patterns and types to configurations.
        caller: The public function, for the messages.
        trains: Whether training follows, which no :class:`baraquant.Algorithm` supports.

    Raises:
        TypeError: A value is not a configuration, or a key is neither a pattern nor a type.
        ValueError: There is no configuration, or one that cannot be trained.
    """

    def __init__(self, config: Any, caller: str, *, trains: bool) -> None:
        self._caller = caller
        self._is_one = not isinstance(config, Mapping)
        self._rules: list[tuple[Any, Config | None]] = (
            [("*", config)] if self._is_one else list(config.items())
        )
        self._used: set[int] = set()
        self._decided: dict[int, set[int]] = {}  # the ids of the layers that each decides
        self._chosen: dict[int, tuple[str, QuantConfig]] = {}  # by the id of a weight
        if not self._rules:
            raise ValueError(f"{caller}: expected configurations, but got an empty dictionary")
        for key, value in self._rules:
            where = "" if self._is_one else f"{key!r}: " if isinstance(key, str) else f"{key}: "
            if not isinstance(key, str) and not (
                isinstance(key, type) and issubclass(key, nn.Module)
            ):
                raise TypeError(
                    f"{caller}: expected a pattern of paths or a type of modules for a key, but "
                    f"got {key!r}"
                )
            if value is None and not self._is_one:
                continue
            try:
                if not trains and isinstance(value, Algorithm):
                    pass_of(value)
                else:
                    quant_config(value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{caller}: {where}{error}") from None

    def configs(self) -> list[Config]:
        """Return the configurations that a layer could get."""
        return [config for _, config in self._rules if config is not None]

    def config_of(self, module: nn.Module, names: list[str], whole: list[Any]) -> Config | str:
        """Return the configuration of a layer, or the reason why it has none.

        Args:
            module: The layer.
            names: Its paths.
            whole: For each path, the path and the module of the attention, LSTM or similar that
                contains the layer; None if there is none.

        Raises:
            ValueError: The layer's paths get different configurations.
        """
        found = [self._index(module, name, part) for name, part in zip(names, whole, strict=True)]
        configs = [None if index is None else self._rules[index][1] for index in found]
        for name, config in zip(names, configs, strict=True):
            if config != configs[0]:
                raise ValueError(
                    f"expected one configuration for a shared module, but {names[0]} gets "
                    f"{configs[0]} and {name} gets {config}"
                )
        if found[0] is None:
            return UNMATCHED
        return FLOATING if configs[0] is None else configs[0]

    def _index(self, module: nn.Module, name: str, whole: Any) -> int | None:
        places = [(name, module), *([whole] if whole is not None else [])]
        first = None
        for index, (key, _) in enumerate(self._rules):
            if any(_matches(key, path, each) for path, each in places):
                self._used.add(index)
                first = index if first is None else first
        if first is not None:
            self._decided.setdefault(first, set()).add(id(module))
        return first

    def is_named(self, names: Iterable[str]) -> bool:
        """Whether one of the paths is itself a key: then the layer must be quantized."""
        keys = {key for key, value in self._rules if isinstance(key, str) and value is not None}
        return not self._is_one and any(name in keys for name in names)

    def check_tie(self, weight: Tensor | None, name: str, config: QuantConfig) -> None:
        """Check that layers that share a weight quantize it in the same way."""
        if weight is None:
            return
        other, chosen = self._chosen.setdefault(id(weight), (name, config))
        if (chosen.weight, chosen.scale_rule, chosen.scale_dtype) != (
            config.weight,
            config.scale_rule,
            config.scale_dtype,
        ):
            raise ValueError(
                f"expected one configuration for a weight that {other} and {name} share, but "
                f"{other} gets {chosen.weight_str}, scale_rule {chosen.scale_rule}, and "
                f"{name} gets {config.weight_str}, scale_rule {config.scale_rule}"
            )

    def check_used(self, names: Iterable[str]) -> None:
        """Check that every pattern and type has matched a layer.

        Args:
            names: The paths of all layers, for the message.

        Raises:
            ValueError: One has not; the message names it.
        """
        for index, (key, _) in enumerate(self._rules):
            if index not in self._used and not self._is_one:
                what = f"the pattern {key!r}" if isinstance(key, str) else key.__name__
                raise ValueError(
                    f"{self._caller}: expected {what} to match a layer, but it matches none of "
                    f"{some(sorted(names), 5)}"
                )

    def warn_if_useless(self, changed: set[int], left_out: Mapping[int, tuple[str, str]]) -> None:
        """Warn of keys that decide nothing.

        These are keys all of whose layers others match before, and keys whose configuration no
        layer takes.

        Args:
            changed: The ids of the layers that get a configuration.
            left_out: The path of each other layer and why it stays floating, by its id.
        """
        for index, (key, value) in enumerate(self._rules):
            decided = self._decided.get(index, set())
            if self._is_one or (decided and (value is None or decided & changed)):
                continue
            what = f"the pattern {key!r}" if isinstance(key, str) else key.__name__
            if decided:
                found = [told for one, told in left_out.items() if one in decided]
                reasons = "; ".join(f"{path}: {reason}" for path, reason in found[:3])
                more = f" and {len(found) - 3} more" if len(found) > 3 else ""
                text = f"to quantize a layer, but all of its layers stay floating ({reasons}{more})"
            else:
                does = "leave out" if value is None else "decide on"
                text = (
                    f"to {does} a layer, but a key before it matches each of its layers; the first "
                    "match counts: move it to the front"
                )
            warnings.warn(f"{self._caller}: expected {what} {text}", stacklevel=5)


def _matches(key: Any, path: str, module: nn.Module) -> bool:
    if isinstance(key, str):
        return fnmatch.fnmatchcase(path, key)
    return isinstance(module, key)
