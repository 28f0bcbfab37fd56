# SPDX-License-Identifier: BSD-3-Clause
"""The committed results of the benchmarks: finding a file, picking rows, writing their numbers.

A file's name is ``{machine}_{date}[_{family}][_memory_kept].json``. Of one machine and family the
newest counts. ``memory_kept`` was measured with freed memory kept (``--keep-memory``); where a
result as every process has it is there as well, that one counts.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
NAME = re.compile(
    r"(?P<machine>[a-z]\w*?(?:-[\w.]+?)?)_(?P<date>\d{4}-\d\d-\d\d)"
    r"(?:_(?P<family>(?!memory_kept)\w+?))?(?P<kept>_memory_kept)?\.(?P<suffix>json|md|png)"
)
Row = dict[str, Any]
GPUS = ("h100", "h200")  # the newest result of either counts


class NotMeasuredError(LookupError):
    """A result leaves out what the figure is made of: the page keeps what it has."""


Machine = str | tuple[str, ...]  # the beginning of a machine's name, or of any of several


def stem(machine: Machine, family: str = "", kept: bool = False) -> str:
    """The name, without suffix, of the result that counts.

    ``kept``: of those that were measured with freed memory kept.
    """
    found = []
    for path in FOLDER.glob("*.json"):
        name = NAME.fullmatch(path.name)
        if name and name["machine"].startswith(machine) and (name["family"] or "") == family:
            by_default = name["kept"] is None
            if not (kept and by_default):
                found.append((by_default, name["date"], path.stem))
    if not found:
        where = machine if isinstance(machine, str) else " or ".join(machine)
        raise LookupError(f"no result of {family or 'affine'} on {where} in {FOLDER.name}/")
    return max(found)[2]


@functools.cache
def report(machine: Machine, family: str = "", kept: bool = False) -> dict[str, Any]:
    """A whole file. ``kept``: the one with freed memory kept, whatever else is there."""
    text = (FOLDER / f"{stem(machine, family, kept)}.json").read_text()
    content: dict[str, Any] = json.loads(text)
    return content


def is_kept(machine: Machine, family: str = "") -> bool:
    """Whether the result that counts was measured with freed memory kept."""
    return stem(machine, family).endswith("_memory_kept")


def rows(machine: Machine, family: str = "", **wanted: Any) -> list[Row]:
    """The rows without an error whose fields are as wanted: a value, or a test of it.

    ``m``, ``n`` and ``k`` are the parts of a shape.
    """
    return pick(report(machine, family)["rows"], **wanted)


def pick(candidates: Iterable[Row], **wanted: Any) -> list[Row]:
    """Those of the rows that are as wanted."""
    found = []
    for row in candidates:
        fields = {**row, **dict(zip("mnk", row.get("shape", ()), strict=False))}
        if row.get("error") is None and all(
            test(fields.get(name)) if callable(test) else fields.get(name) == test
            for name, test in wanted.items()
        ):
            found.append(row)
    if not found:
        raise LookupError(f"no row with {wanted}")
    return found


def one(machine: Machine, family: str = "", **wanted: Any) -> Row:
    """The only row that is as wanted."""
    found = rows(machine, family, **wanted)
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {family or 'affine'} on {machine} with {wanted}")
    return found[0]


def at_least(number: int) -> Callable[[Any], bool]:
    """A test: the field is this number or more."""
    return lambda value: bool(value is not None and value >= number)


def among(*values: object) -> Callable[[Any], bool]:
    """A test: the field is one of these."""
    return lambda value: value in values


def peers(found: list[Row], name: str) -> list[float]:
    """How many times as long a peer takes, of each row that was compared with it."""
    ratios = [row["speedups"][name] for row in found if name in row["speedups"]]
    if not ratios:
        raise LookupError(f"no row was compared with {name}")
    return ratios


def fields(found: list[Row], name: str, scale: float = 1) -> list[float]:
    """A field of each row, in another unit."""
    return [scale * row[name] for row in found]


def span(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the greatest, such as ``1.65–2.12``; one number where they read the same."""
    known = list(values)
    ends = list(dict.fromkeys(format(end, form) for end in (min(known), max(known))))
    return "–".join(ends)


def percent(values: Iterable[float]) -> str:
    """The same in percent, without the sign."""
    return span((100 * value for value in values), ".0f")


def table(titles: list[str], lines: Iterable[list[str]], left: int = 1) -> str:
    """A table in Markdown, whose first ``left`` columns are text and all others numbers."""
    rule = ["---"] * left + ["---:"] * (len(titles) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in [titles, rule, *lines])
