# SPDX-License-Identifier: BSD-3-Clause
"""``Reconstruction``: a report that has the error of each block too."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..report import Report


@dataclass(frozen=True)
class Reconstruction(Report):
    """What :func:`baraquant.reconstruct_` made of a model; ``print`` shows a table.

    Attributes:
        errors: The error of each reconstructed block, by its path: before it was learned, and
            after. It is the squared error of its outputs on the calibration data, divided by the
            square of what the float block gives in the float model. Both are measured with the
            inputs that the quantized blocks before it give. The two are equal where learning found
            nothing better than the start.
    """

    errors: dict[str, tuple[float, float]] = field(default_factory=dict)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a :class:`baraquant.qat.Report`, and those of the blocks' errors."""
        blocks = [
            (f"block {path}", f"relative error {before:.3g} before, {after:.3g} now", "")
            for path, (before, after) in self.errors.items()
        ]
        return [*super().rows(), *blocks]
