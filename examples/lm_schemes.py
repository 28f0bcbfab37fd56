# SPDX-License-Identifier: BSD-3-Clause
"""The schemes that ``language_model.py`` compares."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import baraquant
from baraquant import QuantConfig

BASELINE = "W8A8"  # what other backward passes are compared with
FLOAT = "float"


@dataclass(frozen=True)
class Scheme:
    """A preset of baraquant and its arguments.

    Attributes:
        preset: Such as ``baraquant.W8A8``; None leaves the model floating.
        arguments: Its arguments, by name.
    """

    preset: Callable[..., QuantConfig] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

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

    def config(self) -> QuantConfig | None:
        """Return the configuration for ``prepare_``; None for the float model."""
        return None if self.preset is None else self.preset(**self.arguments)


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
    "W4A8-g32": Scheme(baraquant.W4A8, {"group_size": 32, "group_factors": False}),
    # Whole factors for the groups: integer products again.
    "W4A8-factors": Scheme(baraquant.W4A8, {"group_size": 32}),
}
DEFAULT = [name for name in SCHEMES if not name.startswith("W4A8-")]
EXACT_ENOUGH = "int8_input"  # the backward whose gradients have to point where the exact ones do


def missing(names: list[str]) -> dict[str, str]:
    """Return which of these schemes the installed baraquant lacks, and why."""
    return {
        name: f"this baraquant's {scheme.preset.__name__} takes no {' and no '.join(scheme.lacks)}"
        for name, scheme in SCHEMES.items()
        if name in names and scheme.preset is not None and scheme.lacks
    }
