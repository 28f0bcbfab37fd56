# SPDX-License-Identifier: BSD-3-Clause
"""The tables of models on several processes that figures.py writes into the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import results
from results import Row, table

GPUS = "h"  # an H100 or an H200, whichever was measured last
TITLES = {"serve": "serving", "graph": "serving, CUDA graph", "train": "training"}


def report() -> dict[str, Any]:
    """The result that counts."""
    try:
        return results.report(GPUS, "distributed")
    except LookupError as error:
        raise results.NotMeasuredError(str(error)) from error


def device() -> str:
    """Such as ``2 NVIDIA H200 with torch 2.13.0``."""
    about = report()["environment"]
    return f"{about['processes']} {about['device']} with torch {about['torch'].partition('+')[0]}"


def by_tokens(rows: list[Row], part: str) -> dict[int, list[Row]]:
    """The rows of a part for each number of tokens."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row["part"] == part:
            found.setdefault(row["tokens"], []).append(row)
    return found


def fsdp() -> str:
    """A step's time as a multiple of bfloat16's, and what is gathered."""
    lines = []
    for tokens, rows in by_tokens(report()["rows"], "fsdp").items():
        base = rows[0]
        for row in rows:
            lines.append([
                str(tokens), row["variant"], f"{1e3 * row['seconds']:.1f}",
                f"{row['seconds'] / base['seconds']:.2f} ×", f"{row['gathered'] / 1e9:.2f}",
            ])  # fmt: skip
    return table(["tokens of a GPU", "", "ms", "of bfloat16", "gathered, GB"], lines, 2)


def mlp() -> str:
    """The time of each variant as a multiple of bfloat16's on one GPU."""
    lines = []
    names: list[str] = []
    for part, title in TITLES.items():
        for tokens, rows in by_tokens(report()["rows"], part).items():
            names = [
                row["variant"].replace("processes", "GPUs").replace("process", "GPU")
                for row in rows
            ]
            cells = [f"{row['seconds'] / rows[0]['seconds']:.2f} ×" for row in rows[1:]]
            lines.append([title, str(tokens), f"{1e3 * rows[0]['seconds']:.3f} ms", *cells])
    return table(["", "tokens", *names], lines)


TABLES: dict[str, Callable[[], str]] = {
    "distributed.device": device,
    "distributed.fsdp": fsdp,
    "distributed.mlp": mlp,
}
