# SPDX-License-Identifier: BSD-3-Clause
"""The names of the configurations that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...configs import QuantConfig
from ...schemes import Algorithm, what_it_is

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
