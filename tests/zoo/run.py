# SPDX-License-Identifier: BSD-3-Clause
"""Runs the zoo: every architecture under every scheme, each in one dtype or (`--full`) in both.

Each cell is quantized, trained, converted, saved, loaded in a new process, and asked for tokens
and gradients; checks.py says what has to hold. A run of everything writes docs/models.md. The exit
status is 1 where a cell failed.

Examples: --only llama, --only 'gpt*:w8a8:float32' --only t5, --full.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"


def main(arguments: list[str] | None = None) -> int:
    about, *_, examples = str(__doc__).splitlines()
    parser = argparse.ArgumentParser(description=about, epilog=examples)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ARCHITECTURE[:SCHEME[:DTYPE]]",
        help="these cells alone; each part may be a pattern; can be given several times",
    )
    parser.add_argument("--full", action="store_true", help="both dtypes of every cell")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--markdown", type=Path, help="write the page there, not to docs/models.md")
    parser.add_argument("--list", action="store_true", help="show the cells and run none")
    options = parser.parse_args(arguments)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tests.zoo import report, work
    from tests.zoo.cells import FAILED, Result, matching, planned

    console = Console(highlight=False)
    try:
        cells = matching(options.only) if options.only else planned(options.full)
    except ValueError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    if options.list:
        for cell in cells:
            print(cell)
        return 0
    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
    ):
        task = progress.add_task("zoo", total=len(cells))

        def told(result: Result) -> None:
            progress.update(task, advance=1, description=f"{result.cell:<45}")
            if not console.is_terminal:
                console.print(f"{result.status:<8} {result.cell}", markup=False, soft_wrap=True)
            if result.status == FAILED:
                report.show_failure(progress.console, result)

        results = work.run(cells, Path(folder), options.device, options.jobs, told)
    report.show_summary(console, results, time.monotonic() - started)
    if options.json is not None:
        options.json.write_text(json.dumps([vars(r) for r in results], indent=1) + "\n")
    page = options.markdown or (None if options.only else PAGE)
    if page is not None:
        page.write_text(report.page(results))
        console.print(f"wrote {page}", soft_wrap=True)
    return int(any(result.status == FAILED for result in results))


if __name__ == "__main__":
    sys.exit(main())
