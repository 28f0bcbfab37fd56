# SPDX-License-Identifier: BSD-3-Clause
"""The schemes of the zoo: one table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from baraquant import (
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    PerTensor,
    PerToken,
    QuantConfig,
    SmoothQuant,
    TensorConfig,
    W8A8Static,
)

GROUP = 8  # tiny layers have 32 inputs, or 16
Make = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Scheme:
    """One scheme.

    Attributes:
        config: Makes the configuration for a float model.
        is_trained: Whether `prepare_` takes it.
        least_cosine: How near the outputs of a model have to be to the float model's. -1: a model
            that was not trained for it says nothing.
    """

    config: Make
    is_trained: bool = True
    least_cosine: float = 0.97


_TERNARY = QuantConfig(TensorConfig(2, ternary=True), TensorConfig(8, PerToken()))


def _learned(bits: int, symmetric: bool) -> QuantConfig:
    return QuantConfig(
        TensorConfig(bits, symmetric=symmetric, learned=True),
        TensorConfig(8, PerTensor(), symmetric=symmetric, learned=True),
    )


def _mixed(model: nn.Module) -> dict[Any, Any]:
    """Three schemes, by type and by path.

    A key that matches nothing is an error, and so are two schemes for one weight: such keys are
    left out.
    """
    layers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Embedding))
    }
    tables = {path for path, module in layers.items() if type(module) is nn.Embedding}
    numbered = {path for path in layers if "0" in path} - tables
    keys: dict[Any, Any] = {}
    if _is_whole(tables, layers):
        keys[nn.Embedding] = W4A16(group_size=GROUP)
    if _is_whole(numbered, layers) and _is_whole(numbered | tables, layers):
        keys["*0*"] = W4A8(group_size=GROUP, group_factors=False)
    return {**keys, "*": W8A8()}


def _is_whole(paths: set[str], layers: dict[str, nn.Module]) -> bool:
    """Whether there are some, and no other layer has the weight of one of them."""
    inside = {id(layers[path].weight) for path in paths}
    outside = {id(module.weight) for path, module in layers.items() if path not in paths}
    return bool(inside) and not inside & outside


SCHEMES: dict[str, Scheme] = {
    "w8a8": Scheme(lambda _: W8A8()),
    "w8a8_asymmetric": Scheme(lambda _: W8A8(symmetric=False)),
    "static": Scheme(lambda _: W8A8Static(), least_cosine=0.95),
    "smoothquant": Scheme(lambda _: SmoothQuant(alpha="search"), is_trained=False),
    "w8a16": Scheme(lambda _: W8A16()),
    "w4a16": Scheme(lambda _: W4A16(group_size=GROUP), least_cosine=0.8),
    "w4a8": Scheme(lambda _: W4A8(group_size=GROUP), least_cosine=0.8),
    "learned": Scheme(lambda _: _learned(4, True), least_cosine=0.7),
    "learned_asymmetric": Scheme(lambda _: _learned(6, False), least_cosine=0.8),
    "ternary": Scheme(lambda _: _TERNARY, least_cosine=-1.0),
    "mixed": Scheme(_mixed, least_cosine=0.8),
}
