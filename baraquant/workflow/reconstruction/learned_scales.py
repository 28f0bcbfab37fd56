# SPDX-License-Identifier: BSD-3-Clause
"""Configurations whose weight scales are learned, and the scales that the learning starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...configs import Config, QuantConfig
from ...nn import FakeQuantize, LearnedFakeQuantize, LearnedFakeQuantizeInt4, QuantizesWeight
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
    return _learned(config)


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
        quantizer = layer.weight_fake_quant if isinstance(layer, QuantizesWeight) else None
        is_learned = isinstance(quantizer, LearnedFakeQuantize)
        if not is_learned or isinstance(quantizer, LearnedFakeQuantizeInt4):
            continue
        rows = layer.rows_of_weight()
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
        if layer.config.fits_scales:
            plain = plain.fitted(rows, None, layer.config.scale_rule)[0]
        _, scale, zero_point = plain.quantize(rows)
        quantizer.scale.copy_(scale.reshape(quantizer.scale.shape))
        if quantizer.zero_point is not None:
            quantizer.zero_point.copy_(zero_point.reshape(quantizer.scale.shape))
