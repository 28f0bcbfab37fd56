# SPDX-License-Identifier: BSD-3-Clause
"""What a whole run of a benchmark is told to write, and that it has written it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def files_in(folder: Path) -> list[str]:
    return [f"--{name}={folder / '{family}'}.{name}" for name in ("json", "markdown", "plot")]


def written(folder: Path, family: str, rows: Sequence[Any]) -> tuple[dict[str, Any], str]:
    """What the file of JSON holds, and the head of the table; the table has a line for each row."""
    found = json.loads((folder / f"{family}.json").read_text())
    assert len(found["rows"]) == len(rows) > 0
    assert {"device", "torch", "baraquant", "threads"} <= found["environment"].keys()
    table = (folder / f"{family}.markdown").read_text().splitlines()
    lines = [line for line in table if line.startswith("| ")]
    assert len(lines) == len(rows) + 1
    assert {line.count("|") for line in lines} == {table[3].count("|")}
    assert (folder / f"{family}.plot").read_bytes().startswith(b"\x89PNG")
    return found, table[2]
