# SPDX-License-Identifier: BSD-3-Clause
"""What a pass over a graph fused, and what it did not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .._table import Table


@dataclass(frozen=True)
class Fusion:
    """One quantization that stands where several stood, or that is done by the op before it.

    Attributes:
        source: The path of the module, or the name of the node, whose output is quantized.
        op: The op that quantizes now, such as ``rms_norm_quantize_per_token``.
        users: The paths or names of those that quantized it before.
    """

    source: str
    op: str
    users: tuple[str, ...]

    def __str__(self) -> str:
        """Return the users and the op as the second column of the report shows them."""
        return f"{', '.join(self.users)} ({self.op})"


@dataclass(frozen=True)
class Report(Table):
    """What became of the quantizations in a graph; ``print`` shows a table.

    Attributes:
        fusions: The quantizations that were fused or are shared.
        left_out: Why a float op with a quantized output was not fused, or why quantizations of the
            same input were not merged, by the path of the module or the name of the node.
        before: The number of quantizations before, those in products too.
        after: Their number now.
    """

    titles = "output of", "is quantized for"

    fusions: tuple[Fusion, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    before: int = 0
    after: int = 0

    def rows(self) -> list[tuple[str, ...]]:
        """Return sources and what reads them now; rows that only differ in numbers are one."""
        fused = [(fusion.source, f"-> {fusion}") for fusion in self.fusions]
        left = [(name, f"left out: {reason}") for name, reason in self.left_out.items()]
        grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for row in (*fused, *left):
            grouped.setdefault((_pattern(row[0]), _pattern(row[1])), []).append(row)
        return [
            rows[0] if len(rows) == 1 else (f"{title} ({len(rows)})", text)
            for (title, text), rows in grouped.items()
        ]

    def summary(self) -> str:
        """Return counts in one line."""
        return (
            f"{len(self.fusions)} fused, {len(self.left_out)} left out; "
            f"{self.before} quantizations before, {self.after} now"
        )


def merged(reports: list[Report]) -> Report:
    """Return the report of several graphs."""
    return Report(
        tuple(fusion for report in reports for fusion in report.fusions),
        {name: reason for report in reports for name, reason in report.left_out.items()},
        sum(report.before for report in reports),
        sum(report.after for report in reports),
    )


def _pattern(text: str) -> str:
    return re.sub(r"(?<![\w-])\d+(?![\w-])", "*", text)
