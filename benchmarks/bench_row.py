# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: the tensors of a case, and a row of the table with its bound and targets."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import copy_call, rotation_for

# isort: split
from tests.support.cases import name_of

OWN = "baraquant"
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Target:
    """Reach ``at_least`` times the speed of ``against``: ``"copy"``, or one of the peers."""

    against: str
    at_least: float

    def __str__(self) -> str:
        if self.against == "copy":
            return f"≥ {self.at_least:.0%} of copy"
        return f"≥ {self.at_least:g}x {self.against}"

    def reached(self, row: "Row") -> float | None:
        """The ratio; None where it was not measured."""
        return row.of_copy if self.against == "copy" else row.speedups.get(self.against)

    def is_met(self, reached: float) -> bool:
        """Whether that ratio is enough."""
        return reached >= self.at_least


@dataclass(frozen=True)
class Within:
    """Take at most ``seconds`` longer than the bound."""

    seconds: float

    def __str__(self) -> str:
        return f"≤ bound + {self.seconds * 1e6:g} µs"

    def reached(self, row: "Row") -> float | None:
        """Seconds above the bound; None where that was not measured."""
        return None if row.seconds is None or row.bound is None else row.seconds - row.bound

    def is_met(self, reached: float) -> bool:
        """Whether that is near enough."""
        return reached <= self.seconds


@dataclass(frozen=True)
class AtMost:
    """Take at most so many seconds."""

    seconds: float

    def __str__(self) -> str:
        return f"≤ {self.seconds * 1e6:g} µs"

    def reached(self, row: "Row") -> float | None:
        """The seconds; None where they were not measured."""
        return row.seconds

    def is_met(self, reached: float) -> bool:
        """Whether they are few enough."""
        return reached <= self.seconds


@dataclass(frozen=True)
class ShareAtMost:
    """At most ``share`` of what ``against`` has."""

    against: str
    share: float

    def is_met(self, reached: float) -> bool:
        """Whether it is little enough."""
        return reached <= self.share


class TakesAtMost(ShareAtMost):
    """Take at most ``share`` of the time of ``against``, another in the same mode."""

    def __str__(self) -> str:
        return f"time ≤ {self.share:g}x {self.against}"

    def reached(self, row: "Row") -> float | None:
        """The share of the time; None where one of the two was not measured."""
        peer = row.seconds if self.against == row.op else row.peers.get(self.against)
        return row.seconds / peer if row.seconds is not None and peer else None


@dataclass(frozen=True)
class HoldsLess:
    """Hold fewer bytes between forward and backward than ``against``, one of the peers."""

    against: str

    def __str__(self) -> str:
        return f"holds less than {self.against}"

    def reached(self, row: "Row") -> float | None:
        """The share of the peer's bytes; None where one of the two is unknown."""
        own, peer = row.held.get(OWN), row.held.get(self.against)
        return own / peer if own is not None and peer else None

    def is_met(self, reached: float) -> bool:
        """Whether it is less than the whole."""
        return reached < 1


@dataclass(frozen=True)
class AnyOf:
    """Reach one of several ratios; unknown while none is met and one could not be measured."""

    targets: tuple[Target, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.targets))

    def reached(self, row: "Row") -> float | None:
        """The best ratio, each as a share of what it should be."""
        ratios = [(target.reached(row), target.at_least) for target in self.targets]
        best = max((ratio / at_least for ratio, at_least in ratios if ratio), default=0.0)
        return None if best < 1 and None in (ratio for ratio, _ in ratios) else best

    def is_met(self, reached: float) -> bool:
        """Whether one of them is reached."""
        return reached >= 1


AnyTarget = Target | Within | AtMost | TakesAtMost | HoldsLess | AnyOf


@dataclass
class Row:
    """One line of the table; times in seconds, ``error`` where there are none.

    ``bound`` is the time of an empty launch, where that was measured, and of the bytes at the
    copy's rate, or of the arithmetic at the device's peak, if that takes longer. ``reached`` and
    ``met`` say so for each of ``targets``, in their order. ``held`` are bytes that are kept
    between forward and backward, ``note`` says what else has to be known about the row.
    """

    what: str
    op: str
    case: str
    dtype: str
    shape: list[int]
    threads: int | None = None
    targets: list[AnyTarget] = field(default_factory=list)
    seconds: float | None = None
    gbps: float | None = None
    tops: float | None = None
    copy_gbps: float | None = None
    of_copy: float | None = None
    launch: float | None = None
    bound: float | None = None
    of_bound: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    speedups: dict[str, float] = field(default_factory=dict)
    peer_errors: dict[str, str] = field(default_factory=dict)
    reached: list[float | None] = field(default_factory=list)
    met: list[bool | None] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    note: str = ""
    error: str | None = None

    def fill(
        self,
        results: dict[str, float | str],
        own: str,
        moved: float = 0,
        copied: float = 0,
        operations: float = 0,
        peak: float = 0,
    ) -> "Row":
        """Computes rates, ratios and the verdicts.

        Args:
            results: Seconds, or the text of an error, of each call; ``"copy"`` and ``"launch"``
                make the bound.
            own: Which of them the row is about.
            moved: Bytes that the call has to read and write.
            copied: Bytes that the copy reads and writes.
            operations: Additions and multiplications, of a product.
            peak: How many of them the device does in a second at the most; 0 where not known.
        """
        seconds = results[own]
        if isinstance(seconds, str):
            return self.fail(seconds)
        self.seconds = seconds
        self.gbps = moved / seconds / 1e9 if moved else None
        self.tops = operations / seconds / 1e12 if operations else None
        for name, result in results.items():
            if isinstance(result, str):
                self.peer_errors[name] = result
            elif name == "launch":
                self.launch = result
            elif name == "copy" and self.gbps:
                self.copy_gbps = copied / result / 1e9
                self.of_copy = self.gbps / self.copy_gbps
            elif name not in (own, "copy"):
                self.peers[name] = result
                self.speedups[name] = result / seconds
        if self.copy_gbps:
            self.bound = (self.launch or 0) + moved / self.copy_gbps / 1e9
            if peak:
                self.bound = max(self.bound, operations / peak)
            self.of_bound = self.bound / seconds
        self.reached = [target.reached(self) for target in self.targets]
        self.met = [
            None if reached is None else target.is_met(reached)
            for target, reached in zip(self.targets, self.reached, strict=True)
        ]
        return self

    def fail(self, error: str) -> "Row":
        """Records why there is no time: no target is met."""
        self.error = error
        self.reached, self.met = [None for _ in self.targets], [False for _ in self.targets]
        return self

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def empty_row(
    device: torch.device,
    dtype: torch.dtype,
    shape: list[int],
    what: str,
    op: str,
    case: str,
    *targets: AnyTarget | None,
) -> Row:
    """A row that says what is measured, and with how many threads; targets may be None."""
    threads = torch.get_num_threads() if device.type == "cpu" else None
    asked = [target for target in targets if target is not None]
    return Row(what, op, case, name_of(dtype), list(shape), threads, asked)


@dataclass
class Case:
    """Tensors of one shape and dtype, rotated, on the benchmark's device."""

    device: torch.device
    dtype: torch.dtype
    shape: list[int]  # [rows, columns]

    def __post_init__(self) -> None:
        self.numel = self.shape[0] * self.shape[1]
        self.itemsize = self.dtype.itemsize
        self.nbytes = self.numel * self.itemsize
        self.rotation = rotation_for(self.nbytes)
        self.inputs = self.random()
        self.copy = copy_call(self.inputs)
        self.copied = 2 * self.nbytes

    def random(self) -> list[Tensor]:
        """Normal values, one tensor for each turn of the rotation."""
        first = torch.randn(self.shape, device=self.device, dtype=self.dtype)
        return [first] + [first.clone() for _ in range(self.rotation - 1)]

    @property
    def exceeds_caches(self) -> bool:
        """Whether the GPU's bandwidth can be asked for: the input is larger than its L2."""
        return self.device.type == "cuda" and self.nbytes >= 64 << 20

    def row(self, what: str, op: str, case: object, *targets: AnyTarget | None) -> Row:
        """An empty row that names this case; targets that are None are left out."""
        return empty_row(self.device, self.dtype, self.shape, what, op, str(case), *targets)
