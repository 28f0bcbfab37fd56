# SPDX-License-Identifier: BSD-3-Clause
"""Writes the measured figures into README.md and docs/*.md, out of benchmarks/results/*.json.

Usage: figures.py [--check]. A page holds a block of figures between two lines,

    <!--=table.training-->
    <!--/-->

and what stands between them is replaced by the table that figures.ini declares under that name.
Links to results are turned to the newest ones. --check changes nothing, and fails where a page and
a result differ.
"""

from __future__ import annotations

import configparser
import difflib
import functools
import json
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NAME = re.compile(
    r"(?P<machine>[a-z]\w*?(?:-[\w.]+?)?)_(?P<date>\d{4}-\d\d-\d\d)"
    r"(?:_(?P<family>\w+?))?\.(?P<suffix>json|md|png)"
)
MARK = re.compile(r"^<!--=([\w.-]+)-->\n(.*?)^<!--/-->$", re.DOTALL | re.MULTILINE)
FIELD = re.compile(r"\{([^{}:]+?)(?: / ([^{}:]+?))?(?: in (\S+?))?(?::([^{}]*))?\}")
UNITS: dict[str | None, float] = {"µs": 1e6, "ms": 1e3, "%": 100, "MB": 1e-6, "GB": 1e-9}
UNITS |= {"MiB": 2**-20, "GiB": 2**-30, "all": 1, None: 1}
MACHINES = {"GPU": ("h100", "h200"), "CPU": ("cpu", "epyc")}
MISSING = "–"
Row = dict[str, Any]


def declarations(text: str) -> dict[str, Mapping[str, str]]:
    """The tables of figures.ini; a line that ends with a backslash goes on in the next."""
    parser = configparser.ConfigParser(interpolation=configparser.ExtendedInterpolation())
    parser.read_string(re.sub(r"\\\n *", "", text))
    return {name: parser[name] for name in parser.sections()}


TABLES = declarations(Path(__file__).with_suffix(".ini").read_text())


def stem(machine: str | tuple[str, ...], family: str | None) -> str:
    """The name, without suffix, of a family's newest result on a machine whose name begins so."""
    found = [
        (name["date"], path.stem)
        for path in RESULTS.glob("*.json")
        if (name := NAME.fullmatch(path.name)) and name["family"] == family
        if name["machine"].startswith(machine)
    ]
    if not found:
        raise LookupError(f"no result of {family or 'affine'} on {machine} in {RESULTS.name}/")
    return max(found)[1]


def flat(value: Any, path: str = "") -> Row:
    """The fields of a row by their paths, such as ``speedups.PyTorch`` and ``interval.0``."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: value}
    parts = (flat(part, f"{path}.{name}" if path else name) for name, part in value.items())
    return {name: leaf for part in parts for name, leaf in part.items()}


@functools.cache
def report(source: str) -> list[Row]:
    """The rows of ``MACHINE/FAMILY[/KEY]`` that did not fail; KEY says where the file has them.

    A row also has what its file says of all rows; ``base.seconds`` and so on, of the first row that
    measures the same; ``m``, ``n`` and ``k``, the parts of its ``shape``, such as ``4096x64``.
    """
    machine, family, key = (*source.split("/"), "rows")[:3]
    name = stem(MACHINES.get(machine, machine), None if family == "affine" else family)
    content = json.loads((RESULTS / f"{name}.json").read_text())
    shared = {field: value for field, value in content.items() if not isinstance(value, list)}
    shared |= {"file": name, "on": machine, "family": family}
    bases: dict[tuple[Any, ...], Row] = {}
    found = []
    for row in content[key]:
        shape, met = row.get("shape", ()), row.get("met", ())
        fields = flat(shared | row) | dict(zip("mnk", shape, strict=False))
        fields |= {"shape": "x".join(map(str, shape)), "met": met.count(True), "asked": len(met)}
        fields["peak"] = fields.get(f"peaks.{row.get('op')}")
        if gains := row.get("gains"):
            fields |= {"gain.0": statistics.mean(gains), "gain.1": statistics.stdev(gains)}
        base = bases.setdefault(tuple(map(row.get, ("what", "part", "tokens"))), fields)
        if row.get("error") is None:
            found.append(fields | {f"base.{field}": value for field, value in base.items()})
    return found


def pick(rows: list[Row], where: str) -> list[Row]:
    """The rows that meet all conditions, such as ``what=linear & n=64/128 & m>=16 & op!=copy``.

    Where one of several values has to be met, the rows come in the order of the values.
    """
    for condition in filter(None, where.split(" & ")):
        name, sign, wanted = re.split("(!=|>=|=)", condition, maxsplit=1)
        if sign == "=":
            rows = [row for one in wanted.split("/") for row in rows if str(row.get(name)) == one]
        elif sign == "!=":
            rows = [row for row in rows if str(row.get(name)) != wanted]
        else:
            rows = [row for row in rows if row.get(name, 0) >= float(wanted)]
    return rows


def fill(text: str, rows: list[Row]) -> str:
    """A text with fields of rows, ``{seconds in ms:.1f} ms`` or ``{seconds / base.seconds:.2f} ×``.

    A field reads as the least and the greatest of the rows, or as one number if these read the
    same, and ``{met in all}`` as the sum. There is no text if all rows lack a field.
    """

    def figure(field: re.Match[str]) -> str:
        name, divisor, unit, form = field.groups()
        known = [row for row in rows if None not in (row.get(name), row.get(divisor or name))]
        values = [row[name] / row[divisor] if divisor else row[name] for row in known]
        if not values:
            raise LookupError(name)
        ends = [sum(values)] if unit == "all" else [min(values), max(values)]
        return "–".join(dict.fromkeys(format(UNITS[unit] * end, form or "") for end in ends))

    try:
        return FIELD.sub(figure, text)
    except LookupError:
        return ""


def parts(text: str) -> list[list[str]]:
    """The parts of each line of a declaration."""
    return [[part.strip() for part in line.split("|")] for line in text.split("\n")]


def cell(texts: list[str], rows: list[Row], dtypes: list[str]) -> str:
    """What a column says of the rows of a line, of each dtype that was measured."""
    cells = []
    for some in [pick(rows, f"dtype={dtype}") for dtype in dtypes] or [rows]:
        conditional = [text.partition(" if ") for text in texts]
        filled = [fill(t, found) for t, _, where in conditional if (found := pick(some, where))]
        if filled:
            cells.append("".join(filled) or MISSING)
    return " / ".join(cells) or MISSING


def grouped(names: list[str], rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    """The rows for which some names, filled, read the same."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(fill(name, [row]) for name in names), []).append(row)
    return groups


def table(declared: Mapping[str, str], rows: list[Row]) -> str:
    """A table in Markdown; a line without rows or a column without figures is a LookupError."""
    titles, *named = parts(declared["lines"])
    lines: dict[tuple[str, ...], list[Row]] = {}
    for *names, where in named:
        if not (found := pick(rows, where)):
            raise LookupError(f"no row with {where}")
        lines |= grouped(names, found)
    columns, dtypes = [], declared.get("dtypes", "").split()
    for title, *texts in parts(declared["columns"].strip()):
        split = [grouped([title], line) for line in lines.values()]
        headings = dict.fromkeys(heading for line in split for heading in line)
        cells = {h: [cell(texts, line.get(h, []), dtypes) for line in split] for h in headings}
        shown = [[*h, *column] for h, column in cells.items() if set(column) != {MISSING}]
        if not shown:
            raise LookupError(f"no figure in the column {title}")
        columns += shown
    first, *others = ([*a, *b] for a, *b in zip([titles, *lines], *columns, strict=True))
    left = int(declared.get("left", "1"))
    rule = ["---"] * left + ["---:"] * (len(first) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in [first, rule, *others])


def block(name: str) -> str:
    """What stands under a name: a table, or one of each result, with a text above."""
    declared = TABLES[name]
    names, _, where = declared["results"].partition(" if ")
    results = [pick(report(source), where) for source in names.split()]
    if "above" not in declared:
        return table(declared, [row for rows in results for row in rows])
    return "\n\n".join(f"{fill(declared['above'], r)}\n\n{table(declared, r)}" for r in results)


def pages() -> list[Path]:
    """The pages that may hold figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def written(text: str) -> str:
    """A page with its blocks and links as the results have them."""

    def newest(link: re.Match[str]) -> str:
        return f"{stem(link['machine'], link['family'])}.{link['suffix']}"

    text = MARK.sub(lambda mark: f"<!--={mark[1]}-->\n{block(mark[1])}\n\n<!--/-->", text)
    return re.sub(rf"(?<=benchmarks/results/){NAME.pattern}", newest, text)


def main(arguments: list[str]) -> None:
    """Writes the pages, or says what differs."""
    if arguments not in ([], ["--check"]):
        sys.exit("usage: figures.py [--check]")
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in pages()}
    shown = {mark[1] for text in texts.values() for mark in MARK.finditer(text)}
    if unknown := sorted(shown - TABLES.keys()):
        sys.exit(f"figures: figures.ini does not declare {', '.join(unknown)}")
    if unused := sorted(TABLES.keys() - shown):
        sys.exit(f"figures: no page shows {', '.join(unused)}")
    differ = {name: new for name, text in texts.items() if (new := written(text)) != text}
    for name, new in differ.items():
        if arguments:
            old = texts[name].splitlines()
            print("\n".join(difflib.unified_diff(old, new.splitlines(), name, "results", n=0)))
        else:
            (ROOT / name).write_text(new)
            print(f"figures: {name} was brought up to date")
    if differ and arguments:
        sys.exit("figures: pages and results differ; make figures brings the pages up to date")


if __name__ == "__main__":
    main(sys.argv[1:])
