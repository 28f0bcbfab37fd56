# SPDX-License-Identifier: BSD-3-Clause
"""Configurations whose weight scales are learned, and the scales that the learning starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...configs import Config, QuantConfig
from ...nn import (
    FakeQuantize,
    FakeQuantizedExperts,
    LearnedFakeQuantize,
    LearnedFakeQuantizeInt4,
    QuantizesWeight,
)
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
    weight = replace(config.weight, dynamic=False, learned=True)
    return replace(config.with_float_backward(), weight=weight)


def has_algorithm(config: _Configs) -> bool:
    """Whether preparation finds more than scales, and so changes the weights."""
    configs = config.values() if isinstance(config, Mapping) else [config]
    return any(isinstance(one, Algorithm) for one in configs)


@torch.no_grad()  # type: ignore[untyped-decorator]
def start_scales(model: nn.Module) -> None:
    """Start the learned scales of weights from those that :func:`baraquant.quantize_` finds."""
    for layer in model.modules():
        if isinstance(layer, QuantizesWeight):
            _start(layer.weight_fake_quant, layer.rows_of_weight(), layer.config)
        elif isinstance(layer, FakeQuantizedExperts):
            for name, rows in layer.weight_rows().items():
                _start(getattr(layer, name), rows, layer.config)


def _start(quantizer: nn.Module, rows: Tensor, config: QuantConfig) -> None:
    is_started = isinstance(quantizer, LearnedFakeQuantizeInt4)  # by the same rule
    if not isinstance(quantizer, LearnedFakeQuantize) or is_started:
        return
    plain = FakeQuantize(
        granularity=quantizer.granularity,
        axis=0 if quantizer.granularity == "per_channel" else None,
        group_size=quantizer.group_size or None,
        quant_min=quantizer.quant_min,
        quant_max=quantizer.quant_max,
        symmetric=quantizer.symmetric,
        mode="dynamic",
        scale_dtype=quantizer.scale_dtype,
    ).to(rows.device)
    if config.fits_scales:
        plain = plain.fitted(rows, None, config.scale_rule)[0]
    _, scale, zero_point = plain.quantize(rows)
    quantizer.scale.copy_(scale.reshape(quantizer.scale.shape))
    if quantizer.zero_point is not None:
        quantizer.zero_point.copy_(zero_point.reshape(quantizer.scale.shape))
