# SPDX-License-Identifier: BSD-3-Clause
"""The committed results of the benchmarks: finding a file, picking rows, writing their numbers.

A file's name is ``{machine}_{date}[_{family}].json``. Of one machine and family the newest counts.
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
    r"(?:_(?P<family>\w+?))?\.(?P<suffix>json|md|png)"
)
Row = dict[str, Any]
Cell = Callable[[list[Row]], str]  # what a table says of the rows of a line and a column
Column = tuple[Cell, dict[str, Any]]
Machine = str | tuple[str, ...]  # the beginning of a machine's name, or of any of several
GPUS, CPU, AVX2 = ("h100", "h200"), ("cpu", "epyc"), "avx2"  # the newest of each counts
MISSING = "–"


def stem(machine: Machine, family: str = "") -> str:
    """The name, without suffix, of the result that counts."""
    names = [(NAME.fullmatch(path.name), path.stem) for path in FOLDER.glob("*.json")]
    found = [
        (name["date"], text)
        for name, text in names
        if name and name["machine"].startswith(machine) and (name["family"] or "") == family
    ]
    if not found:
        where = machine if isinstance(machine, str) else " or ".join(machine)
        raise LookupError(f"no result of {family or 'affine'} on {where} in {FOLDER.name}/")
    return max(found)[1]


@functools.cache
def report(machine: Machine, family: str = "") -> dict[str, Any]:
    """A whole file."""
    content: dict[str, Any] = json.loads((FOLDER / f"{stem(machine, family)}.json").read_text())
    return content


def pick(candidates: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows without an error whose fields are as wanted: a value, or a test of it.

    ``m``, ``n`` and ``k`` are the parts of a shape.
    """
    found = []
    for row in candidates:
        fields = {**row, **dict(zip("mnk", row.get("shape", ()), strict=False))}
        if row.get("error") is None and all(
            test(fields.get(name)) if callable(test) else fields.get(name) == test
            for name, test in wanted.items()
        ):
            found.append(row)
    return found


def at_least(number: int) -> Callable[[Any], bool]:
    """A test: the field is this number or more."""
    return lambda value: bool(value is not None and value >= number)


def among(*values: object) -> Callable[[Any], bool]:
    """A test: the field is one of these."""
    return lambda value: value in values


def span(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the greatest, such as ``1.65–2.12``; one number where they read the same."""
    known = list(values)
    return "–".join(dict.fromkeys(format(end, form) for end in (min(known), max(known))))


def plus_minus(pair: Iterable[float], form: str = ".4f") -> str:
    """A mean and its deviation."""
    mean, deviation = pair
    return f"{mean:{form}} ± {deviation:{form.lstrip('+')}}"


def number(name: str, scale: float = 1, form: str = ".1f", unit: str = "") -> Cell:
    """A field of the rows, in another unit."""
    return lambda rows: span((scale * row[name] for row in rows), form) + unit


def times(*peers: str, form: str = ".2f", unit: str = " ×") -> Cell:
    """How many times as long one of the peers takes, or a dash where none was measured."""

    def text(rows: list[Row]) -> str:
        known = [row["speedups"][p] for row in rows for p in peers if p in row["speedups"]]
        return span(known, form) + unit if known else MISSING

    return text


milliseconds, microseconds = number("seconds", 1e3), number("seconds", 1e6)
of_copy = number("of_copy", 100, ".0f", " %")


def table(titles: list[str], lines: Iterable[Iterable[str]], left: int = 1) -> str:
    """A table in Markdown, whose first ``left`` columns are text and all others numbers."""
    rule = ["---"] * left + ["---:"] * (len(titles) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in [titles, rule, *lines])


def grid(
    source: tuple[Machine, str] | list[Row],
    first: list[str],
    lines: dict[tuple[str, ...] | str, dict[str, Any]],
    columns: dict[str, Column | Cell],
    *,
    dtypes: tuple[str, ...] = (),
    left: int = 1,
    sparse: bool = False,
    **common: Any,
) -> str:
    """A table of some rows: those that a line and a column both want are what a cell is made of.

    ``first`` names the columns of the lines' own names. With ``dtypes`` a cell has a part for each
    that was measured. A filter may name another ``family`` of results of the same machine. A cell
    without rows is an error, or a dash if the table is ``sparse``.
    """

    def cell(line: dict[str, Any], column: Column | Cell) -> str:
        form, also = column if isinstance(column, tuple) else (column, {})
        wanted, also = {**common, **line}, dict(also)
        family = also.pop("family", wanted.pop("family", None))
        rows = (
            source if isinstance(source, list) else report(source[0], family or source[1])["rows"]
        )
        found = pick(pick(rows, **wanted), **also)
        if not found and not sparse:
            raise LookupError(f"no row with {wanted} and {also}")
        parts = [pick(found, dtype=dtype) for dtype in dtypes] if dtypes else [found]
        return " / ".join(form(part) for part in parts if part) or MISSING

    written = (
        [*((name,) if isinstance(name, str) else name), *(cell(line, c) for c in columns.values())]
        for name, line in lines.items()
    )
    return table([*first, *(title.split("|")[0] for title in columns)], written, left)
