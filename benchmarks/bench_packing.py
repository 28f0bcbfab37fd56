# SPDX-License-Identifier: BSD-3-Clause
"""Time of quantizing a whole model: what ``quantize_`` takes without data, packing included.

The model is the linear layers of a decoder in bfloat16, of a billion parameters unless asked
otherwise. ``first`` is the time in a fresh process, ``again`` that of the same model with new
weights, as in reinforcement learning, which quantizes anew every few steps: the better of two.

    python -m benchmarks.bench_packing                   # on a GPU if there is one
    python -m benchmarks.bench_packing --device cpu --parameters 1e8
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import baraquant
from benchmarks.bench import free_memory
from benchmarks.bench_report import environment

WIDTH, HIDDEN = 2048, 8192
SCHEMES: dict[str, Callable[[], Any]] = {
    "W8A8()": baraquant.W8A8,
    "W4A8(128)": lambda: baraquant.W4A8(128),
    'W4A16(128, scale_rule="max")': lambda: baraquant.W4A16(128, scale_rule="max"),
    "W4A16(128)": lambda: baraquant.W4A16(128),  # searches for the scales
}
TARGETS = {"cuda": 60.0, "cpu": 120.0}  # seconds for a billion parameters; on 16 cores


class Layer(nn.Module):
    """The linear layers of a decoder's layer."""

    def __init__(self, width: int, hidden: int, device: torch.device) -> None:
        super().__init__()
        made = {"device": device, "dtype": torch.bfloat16, "bias": False}
        for name in ("query", "key", "value", "output"):
            self.add_module(name, nn.Linear(width, width, **made))
        self.gate, self.up = nn.Linear(width, hidden, **made), nn.Linear(width, hidden, **made)
        self.down = nn.Linear(hidden, width, **made)


def model_of(
    parameters: float, device: torch.device, width: int = WIDTH, hidden: int = HIDDEN
) -> nn.Module:
    """As many layers as have at least so many parameters."""
    layers: list[nn.Module] = []
    count = 0
    while count < parameters:
        layers.append(Layer(width, hidden, device))
        count += sum(p.numel() for p in layers[-1].parameters())
    return nn.Sequential(*layers).eval()


def seconds_of(model: nn.Module, config: Any) -> tuple[float, nn.Module]:
    """The time until all layers are converted, and the model."""
    is_cuda = next(model.parameters()).is_cuda
    if is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    baraquant.quantize_(model, config)
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin, model


def measure(name: str, parameters: float, device: torch.device) -> dict[str, Any]:
    """A row of the table."""
    times = []
    for _ in range(3):
        model = model_of(parameters, device)
        count = sum(p.numel() for p in model.parameters())
        took, model = seconds_of(model, SCHEMES[name]())
        stored = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        times.append(took)
        del model
        free_memory(device)
    return {
        "scheme": name,
        "parameters": count,
        "bytes": stored,
        "first_seconds": times[0],
        "again_seconds": min(times[1:]),
    }


def table_of(rows: list[dict[str, Any]], target: float) -> Table:
    """The rows, for people."""
    table = Table("scheme", "parameters", "bytes each", "first", "again", "target", box=box.SIMPLE)
    for row in rows:
        billions = row["parameters"] / 1e9
        is_met = row["first_seconds"] <= target * billions
        table.add_row(
            row["scheme"],
            f"{billions:.2f} · 10⁹",
            f"{row['bytes'] / row['parameters']:.3f}",
            f"{row['first_seconds']:.2f} s",
            f"{row['again_seconds']:.2f} s",
            f"≤ {target * billions:.0f} s: {'met' if is_met else 'missed'}",
        )
    return table


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Measures, prints the table, and writes the JSON that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(default))
    parser.add_argument("--parameters", type=float, default=1e9, metavar="N")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    console = Console()
    about = environment(options.device)
    rows = [
        measure(name, options.parameters, options.device)
        for name in track(options.schemes, "quantizing", console=console, transient=True)
    ]
    console.print(table_of(rows, TARGETS[options.device.type]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
