# SPDX-License-Identifier: BSD-3-Clause
"""The schemes of the zoo: one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

import baraquant
from baraquant import W8A8, QuantConfig, SmoothQuant, TensorConfig, W8A8Static

# Tiny layers have 32 inputs, or 16.
GROUP = 8
_W4 = TensorConfig(4, "per_group", group_size=GROUP)
_A8 = TensorConfig(8, "per_token")


@dataclass(frozen=True)
class Scheme:
    """One scheme.

    Attributes:
        config: Makes the configuration.
        is_trained: Whether `prepare_` takes it.
        least_cosine: How near the outputs of a model have to be to the float model's.
        needs: A name of baraquant without which the scheme does not exist; None: none.
    """

    config: Callable[[], Any]
    is_trained: bool = True
    least_cosine: float = 0.97
    needs: str | None = None

    def missing(self) -> str | None:
        """Why it cannot be run with this baraquant; None where it can."""
        if self.needs is None or hasattr(baraquant, self.needs):
            return None
        return f"this baraquant has no {self.needs}"


def _mixed() -> dict[Any, Any]:
    four, both = baraquant.W4A16(group_size=GROUP), baraquant.W4A8(group_size=GROUP)
    return {"*0*": both, nn.Embedding: four, "*": W8A8()}


SCHEMES: dict[str, Scheme] = {
    "w8a8": Scheme(W8A8),
    "w8a8_asymmetric": Scheme(lambda: W8A8(symmetric=False)),
    "static": Scheme(W8A8Static, least_cosine=0.95),
    "smoothquant": Scheme(lambda: SmoothQuant(alpha="search"), is_trained=False),
    "w8a16": Scheme(lambda: baraquant.W8A16(), needs="W8A16"),
    "w4a16": Scheme(lambda: QuantConfig(_W4), least_cosine=0.8),
    "w4a8": Scheme(lambda: QuantConfig(_W4, _A8), least_cosine=0.8),
    "learned": Scheme(
        lambda: QuantConfig(
            TensorConfig(4, learned=True), TensorConfig(8, "per_tensor", learned=True)
        ),
        least_cosine=0.7,
    ),
    "learned_asymmetric": Scheme(
        lambda: QuantConfig(
            TensorConfig(6, symmetric=False, learned=True),
            TensorConfig(8, "per_tensor", symmetric=False, learned=True),
        ),
        least_cosine=0.8,
    ),
    "mixed": Scheme(_mixed, least_cosine=0.8, needs="W4A8"),
}
