# SPDX-License-Identifier: BSD-3-Clause
"""Configurations whose weight scales are learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...configs import Config, QuantConfig
from ...schemes import Algorithm
from ..select import Rule

_Configs = Config | Mapping[Rule, Config | None]


def with_learned_scales(config: _Configs) -> _Configs:
    """Return configurations with learned scales of weights; ternary ones have none.

    An :class:`baraquant.Algorithm`, and what is no configuration, stays as it is: preparation
    decides.
    """
    if isinstance(config, Mapping):
        return {key: _learned(value) for key, value in config.items()}
    learned: Config = _learned(config)
    return learned


def _learned(config: Any) -> Any:
    if not isinstance(config, QuantConfig) or config.weight.ternary:
        return config
    return config.with_float_backward().with_learned_scales()


def has_algorithm(config: _Configs) -> bool:
    """Whether preparation finds more than scales, and so changes the weights."""
    configs = config.values() if isinstance(config, Mapping) else [config]
    return any(isinstance(one, Algorithm) for one in configs)
