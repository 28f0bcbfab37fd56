# SPDX-License-Identifier: BSD-3-Clause
"""Writes the measured figures into README.md and docs/*.md, out of benchmarks/results/*.json.

Usage: figures.py [--check]. A page holds a block of figures between two lines,

    <!--=table.training-->
    <!--/-->

and what stands between them is replaced by the block of that name (scripts/figure_tables.py and
scripts/figure_models.py). Links to results are turned to the newest ones. --check changes nothing,
and fails where a page and a result differ.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import figure_models
import figure_tables
import results

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"^<!--=([\w.-]+)-->\n(.*?)^<!--/-->$", re.DOTALL | re.MULTILINE)
BLOCKS: dict[str, Callable[[], str]] = {**figure_tables.BLOCKS, **figure_models.BLOCKS}


def refreshed_link(match: re.Match[str]) -> str:
    """The name of the result that counts, in the place of an older one."""
    return f"{results.stem(match['machine'], match['family'] or '')}.{match['suffix']}"


def written(text: str, name: str, used: set[str]) -> str:
    """A page with its blocks and links as the results have them."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in BLOCKS:
            sys.exit(f"figures: {name} names the block {match[1]}, which no script has")
        used.add(match[1])
        return f"<!--={match[1]}-->\n{BLOCKS[match[1]]()}\n\n<!--/-->"

    link = re.compile(rf"(?<=benchmarks/results/){results.NAME.pattern}")
    return link.sub(refreshed_link, MARK.sub(replace, text))


def pages() -> list[Path]:
    """The pages that may hold figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(arguments: list[str]) -> int:
    """Writes the pages, or says what differs."""
    if arguments not in ([], ["--check"]):
        sys.exit("usage: figures.py [--check]")
    differs, used = False, set[str]()
    for path in pages():
        name, old = str(path.relative_to(ROOT)), path.read_text()
        new = written(old, name, used)
        if new == old:
            continue
        differs = True
        if arguments:
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "results", n=0)
            print("\n".join(lines))
        else:
            path.write_text(new)
            print(f"figures: {name} was brought up to date")
    if unused := sorted(BLOCKS.keys() - used):
        sys.exit(f"figures: no page shows {', '.join(unused)}")
    if differs and arguments:
        print("figures: pages and results differ; make figures brings the pages up to date")
    return int(differs and bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
