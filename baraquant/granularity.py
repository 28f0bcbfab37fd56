# SPDX-License-Identifier: BSD-3-Clause
"""Granularities: which values of a tensor share a scale.

The name of each (``per_tensor``, ...) is accepted in its place. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Granularity:
    """The base of all granularities: a name."""

    name: ClassVar[str] = ""

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True)
class PerTensor(Granularity):
    """One scale for the whole tensor."""

    name: ClassVar[str] = "per_tensor"


@dataclass(frozen=True)
class PerChannel(Granularity):
    """A scale for each output channel of a weight, or for each row of an embedding."""

    name: ClassVar[str] = "per_channel"


@dataclass(frozen=True)
class PerToken(Granularity):
    """A scale for each token of an activation: for each vector along the last dimension."""

    name: ClassVar[str] = "per_token"


@dataclass(frozen=True)
class PerGroup(Granularity):
    """A scale for each group of adjacent inputs of a layer.

    Attributes:
        group_size: The number of adjacent values that share a scale; it must divide the size of
            their dimension.
    """

    name: ClassVar[str] = "per_group"

    group_size: int


GRANULARITIES = tuple(kind.name for kind in (PerTensor, PerChannel, PerToken, PerGroup))
