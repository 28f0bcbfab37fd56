# SPDX-License-Identifier: BSD-3-Clause
"""The schemes that ``language_model.py`` compares, in training and without it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import baraquant
from baraquant import QuantConfig
from baraquant.configs import Config

BASELINE = "W8A8"  # what other backward passes are compared with
FLOAT = "float"


@dataclass(frozen=True)
class Scheme:
    """A preset of baraquant and its arguments.

    Attributes:
        preset: Such as ``baraquant.W8A8``; None leaves the model floating.
        arguments: Its arguments, by name.
        is_grouped: Whether it also takes the size's ``group_size``.
    """

    preset: Callable[..., QuantConfig] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    is_grouped: bool = False

    @property
    def lacks(self) -> list[str]:
        """The arguments that the preset of the installed baraquant does not take."""
        if self.preset is None:
            return []
        known = inspect.signature(self.preset).parameters
        return [name for name in self.arguments if name not in known]

    @property
    def is_asked(self) -> bool:
        """Whether it has to reach the loss of the baseline: its forward pass is the same."""
        return "backward" in self.arguments

    def config(self, group_size: int = 32) -> QuantConfig | None:
        """Return the configuration for ``prepare_``; None for the float model."""
        if self.preset is None:
            return None
        groups = {"group_size": group_size} if self.is_grouped else {}
        return self.preset(**self.arguments, **groups)


def _int8_backward(backward: str, rounding: str) -> Scheme:
    return Scheme(baraquant.W8A8, {"backward": backward, "rounding": rounding})


# W8A8 rounds the forward pass alone. int8_input computes the gradient of a layer's input with
# integers too, and int8 that of its weight as well.
SCHEMES = {
    FLOAT: Scheme(),
    BASELINE: Scheme(baraquant.W8A8),
    **{
        f"{BASELINE}-{backward}-{rounding}": _int8_backward(backward, rounding)
        for backward in ("int8_input", "int8")
        for rounding in ("nearest", "stochastic")
    },
    "W4A8": Scheme(baraquant.W4A8, {"group_size": None}),  # a scale per channel: integer products
    # Trains and serves in floating point.
    "W4A8-groups": Scheme(baraquant.W4A8, {"group_factors": False}, is_grouped=True),
    # Whole factors for the groups: integer products again.
    "W4A8-factors": Scheme(baraquant.W4A8, is_grouped=True),
    # The inputs stay floating.
    "W4A16": Scheme(baraquant.W4A16, is_grouped=True),
    "W8A16": Scheme(baraquant.W8A16),
}
DEFAULT = [FLOAT, *(name for name in SCHEMES if name.startswith(BASELINE)), "W4A8"]
EXACT_ENOUGH = "int8_input"  # the backward whose gradients have to point where the exact ones do


def missing(names: list[str]) -> dict[str, str]:
    """Return which of these schemes the installed baraquant lacks, and why."""
    return {
        name: f"this baraquant's {scheme.preset.__name__} takes no {' and no '.join(scheme.lacks)}"
        for name, scheme in SCHEMES.items()
        if name in names and scheme.preset is not None and scheme.lacks
    }


# --- the trained model, deployed

WAYS: dict[str, Callable[[QuantConfig], Config]] = {
    "": lambda config: config,
    "max": lambda config: replace(config, scale_rule="max"),
    "AWQ": baraquant.AWQ,
    "GPTQ": baraquant.GPTQ,
}


@dataclass(frozen=True)
class Deployment:
    """How a trained float model becomes integers without training.

    Attributes:
        base: The scheme, whose layers it has, as fast and as large.
        way: How its integers are found: by rounding to nearest (empty), or a key of ``WAYS``.
    """

    base: str
    way: str = ""

    def config(self, group_size: int) -> Config | None:
        """Return the configuration for ``quantize_``; None for the float model."""
        config = SCHEMES[self.base].config(group_size)
        return None if config is None else WAYS[self.way](config)


_WAYS_OF = {
    FLOAT: [""],
    BASELINE: [""],
    "W8A16": [""],
    "W4A16": ["max", "", "AWQ", "GPTQ"],  # the scale rules "max" and "search"
    "W4A8": ["", "GPTQ"],
    "W4A8-groups": ["", "GPTQ"],
    "W4A8-factors": ["", "GPTQ"],
}
DEPLOYMENTS = {
    "-".join(filter(None, (base, way))): Deployment(base, way)
    for base, ways in _WAYS_OF.items()
    for way in ways
}
MIXED = "mixed"  # what sensitivity chooses, layer by layer
FOUR_BITS = ("W4A16", "W4A8", "W4A8-groups", "W4A8-factors")
TUNED = (FLOAT, BASELINE, *FOUR_BITS)  # trained on from the checkpoint, then deployed
COMPARED = {  # what sensitivity chooses from
    "W3A16": lambda group: replace(
        baraquant.W4A16(group), weight=baraquant.TensorConfig(3, baraquant.PerGroup(group))
    ),
    "W4A16": SCHEMES["W4A16"].config,
    "W8A16": SCHEMES["W8A16"].config,
}
