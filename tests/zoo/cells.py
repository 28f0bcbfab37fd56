# SPDX-License-Identifier: BSD-3-Clause
"""A cell is one architecture under one scheme in one dtype; which cells a run has."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch

import torch

from tests.support.tiny_transformers.build import TINY
from tests.zoo.architecture import Architecture, known
from tests.zoo.architectures_images import IMAGES
from tests.zoo.architectures_text import TEXT
from tests.zoo.architectures_torch import TORCH
from tests.zoo.architectures_torchvision import TORCHVISION
from tests.zoo.schemes import SCHEMES, Scheme

ARCHITECTURES: dict[str, Architecture] = {**TEXT, **IMAGES, **TORCHVISION, **TORCH}
# What the tests take besides. Discrete choices turn small errors into large ones.
DISCRETE = ("qwen2_moe", "qwen3_next", "reformer", "vits")
OTHERS: dict[str, Architecture] = {
    name: known(name, "of the tests", is_discrete=name in DISCRETE)
    for name in TINY
    if name not in ARCHITECTURES
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

PASSED, FAILED, NOT_RUN, NOTHING = "passed", "failed", "not run", "nothing to quantize"


@dataclass(frozen=True)
class Cell:
    """One architecture under one scheme in one dtype, by their names."""

    architecture: str
    scheme: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.architecture}:{self.scheme}:{self.dtype}"

    @property
    def row(self) -> Architecture:
        return (ARCHITECTURES | OTHERS)[self.architecture]

    @property
    def column(self) -> Scheme:
        return SCHEMES[self.scheme]

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


@dataclass
class Result:
    """What came of a cell.

    Attributes:
        cell: Its name.
        status: One of the four above.
        reason: Why it was not run, or what there is nothing of.
        passed: The checks that passed.
        failed: The message of each check that failed.
        notes: What is worth knowing: what could not be checked, and why.
        figures: Measured numbers: `cosine`, `share`, `seconds`.
        floating: What stays floating: numbers of parameters by kind and reason.
    """

    cell: str
    status: str = PASSED
    reason: str = ""
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    floating: dict[str, int] = field(default_factory=dict)

    def fail(self, check: str, message: str) -> "Result":
        """Notes that a check failed, which no longer counts as passed; returns itself."""
        self.status = FAILED
        self.failed[check] = message
        if check in self.passed:
            self.passed.remove(check)
        return self


def planned(full: bool) -> list[Cell]:
    """The cells of a run.

    All of them, or each architecture under each scheme once, every third time in bfloat16. Then
    each scheme and each architecture comes in both dtypes.
    """
    cells = []
    for i, architecture in enumerate(ARCHITECTURES):
        for j, scheme in enumerate(SCHEMES):
            chosen = list(DTYPES) if full else ["bfloat16" if (i + j) % 3 == 2 else "float32"]
            cells += [Cell(architecture, scheme, dtype) for dtype in chosen]
    return cells


def matching(patterns: Iterable[str]) -> list[Cell]:
    """The cells of `architecture[:scheme[:dtype]]`, each part a pattern such as `gpt*`.

    Raises:
        ValueError: A pattern that fits no cell.
    """
    found: dict[Cell, None] = {}
    for pattern in patterns:
        parts = [*pattern.split(":"), "*", "*"][:3]
        cells = [
            cell
            for cell in planned(full=True)
            if all(map(fnmatch, (cell.architecture, cell.scheme, cell.dtype), parts))
        ]
        if not cells:
            raise ValueError(f"--only: expected architecture:scheme:dtype, but got {pattern!r}")
        found.update(dict.fromkeys(cells))
    return list(found)
