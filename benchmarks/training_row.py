# SPDX-License-Identifier: BSD-3-Clause
"""A row of the training benchmark: its figures, targets and columns."""

from dataclasses import dataclass, field

from benchmarks.bench_report import Layout, threads_text, verdicts
from benchmarks.bench_row import Row, TakesAtMost
from benchmarks.training_step import PHASES

MIB = 1 << 20


@dataclass(frozen=True)
class PeaksAtMost:
    """Take no more memory, at the peak, than ``against``, a step in the same mode."""

    against: str

    def __str__(self) -> str:
        return f"peak ≤ {self.against}"

    def reached(self, row: "TrainingRow") -> float | None:
        """The share of the memory; None where one of the two was not measured."""
        peer = row.peaks.get(self.against)
        own = row.peaks.get(row.op)
        return own / peer if own is not None and peer else None

    def is_met(self, reached: float) -> bool:
        """Whether it is no more than the whole."""
        return reached <= 1


@dataclass
class TrainingRow(Row):
    """A step of a variant, ``op``, in a mode, ``what``.

    ``phases`` are seconds; ``peaks`` are bytes, of this variant and of those it is compared with;
    ``baseline`` is the block that is not quantized.
    """

    baseline: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    @property
    def of_baseline(self) -> float | None:
        """The share of the baseline's time."""
        return TakesAtMost(self.baseline, 1).reached(self)

    @property
    def peak_of_baseline(self) -> float | None:
        """The share of the baseline's peak."""
        return PeaksAtMost(self.baseline).reached(self)


def columns(rows: list[Row]) -> tuple[str, ...]:
    """The titles; ratios are to the block that is not quantized, in the same mode."""
    return ("training", "mode", "batch x tokens x width", *NUMBERS, "note", "target", "")


NUMBERS = (
    *(f"{phase} ms" for phase in PHASES),
    *("step ms", "of float", "kept MiB", "peak MiB", "peak of float"),
)


def cells(row: TrainingRow) -> tuple[str, ...]:
    """The texts of a row."""
    mode = row.what if row.threads is None else f"{row.what}, {threads_text(row.threads)}"
    note = row.error or row.note or ("" if row.seconds is not None else "not measured")
    return (
        *(row.op, mode, f"{'x'.join(map(str, row.shape))} {row.dtype}"),
        *(_scaled(row.phases.get(phase), 1e3) for phase in PHASES),
        _scaled(row.seconds, 1e3),
        _share(row.of_baseline),
        _scaled(row.held.get(row.op), 1 / MIB, 1),
        _scaled(row.peaks.get(row.op), 1 / MIB, 1),
        _share(row.peak_of_baseline),
        note,
        ", ".join(map(str, row.targets)),
        verdicts(row),
    )


TRAINING = Layout(columns, cells, frozenset(NUMBERS))


def _scaled(value: float | None, factor: float, digits: int = 2) -> str:
    return "" if value is None else f"{value * factor:,.{digits}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
