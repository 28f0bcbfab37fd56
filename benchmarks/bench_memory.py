# SPDX-License-Identifier: BSD-3-Clause
"""Memory of ``quantize_``: what a decoder of the shape of Llama-3-8B takes, before, after, at most.

The model is in bfloat16 with random weights; its embedding, head and norms stay floating. After
``quantize_`` only the quantized model should be left, and while it runs no more than the floating
model and 1 GiB. The peak is that of PyTorch's allocator, so a CPU has none.

    python -m benchmarks.bench_memory                    # on a GPU if there is one
    python -m benchmarks.bench_memory --device cpu --layers 2 --width 512
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn

import baraquant
from benchmarks.bench import free_memory
from benchmarks.bench_report import environment

GIB = 2**30
LAYERS, WIDTH, VOCABULARY = 32, 4096, 128_256
SCHEMES: dict[str, Callable[[], Any]] = {
    "W8A8()": baraquant.W8A8,
    "W8A16()": baraquant.W8A16,
    "W4A8(128)": lambda: baraquant.W4A8(128),
    "W4A16(128)": lambda: baraquant.W4A16(128),
}


class Layer(nn.Module):
    """The weights of a decoder's layer: a quarter of the keys' heads, a gated MLP of 3.5 widths."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = {
            "q_proj": (width, width),
            "k_proj": (width, width // 4),
            "v_proj": (width, width // 4),
            "o_proj": (width, width),
            "gate_proj": (width, width * 7 // 2),
            "up_proj": (width, width * 7 // 2),
            "down_proj": (width * 7 // 2, width),
        }
        for name, (inputs, outputs) in sizes.items():
            self.add_module(name, nn.Linear(inputs, outputs, bias=False))
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)


class Decoder(nn.Module):
    """The weights of the whole model."""

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)


def bytes_of(model: nn.Module) -> int:
    """The bytes of a model's tensors."""
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


def taken(
    run: Callable[[], object], device: torch.device, before: int
) -> tuple[float, int | None, int | None]:
    """What ``run`` takes, which quantizes a model; Python's collector is off.

    Returns:
        Seconds; the bytes that are in use afterwards, and at the most while it runs: more than the
        ``before`` that were in use without the model. None on the CPU.
    """
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    gc.disable()
    try:
        start = time.perf_counter()
        run()
        if is_cuda:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        if not is_cuda:
            return seconds, None, None
        after, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        return seconds, after - before, peak - before
    finally:
        gc.enable()


def measure(name: str, device: torch.device, layers: int, width: int) -> dict[str, Any]:
    """A row of the table: no memory may wait for Python's collector."""
    free_memory(device)
    is_cuda = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if is_cuda else 0
    with torch.device(device):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = Decoder(layers, width, VOCABULARY).eval()
        torch.set_default_dtype(default)
    floating = bytes_of(model)
    rules = {"lm_head": None, nn.Linear: SCHEMES[name](), nn.Embedding: None}
    _, after, peak = taken(
        lambda: baraquant.quantize_(model, rules, progress=False), device, before
    )
    row = {"scheme": name, "layers": layers, "width": width, "float_bytes": floating}
    return row | {"model_bytes": bytes_of(model), "bytes_after": after, "peak_bytes": peak}


def table_of(rows: list[dict[str, Any]]) -> Table:
    """The rows, for people."""

    def gib(value: int | None) -> str:
        return "–" if value is None else f"{value / GIB:.2f} GiB"

    table = Table("scheme", "float", "its tensors", "in use after", "peak", "goal", box=box.SIMPLE)
    for row in rows:
        is_met = row["peak_bytes"] is None or (
            row["peak_bytes"] <= row["float_bytes"] + GIB
            and row["bytes_after"] <= 1.01 * row["model_bytes"]
        )
        table.add_row(
            row["scheme"],
            *(gib(row[key]) for key in ("float_bytes", "model_bytes", "bytes_after", "peak_bytes")),
            "peak ≤ float + 1 GiB: " + ("met" if is_met else "missed"),
        )
    return table


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Measures, prints the table, and writes the JSON that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(default))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    console = Console()
    rows = []
    for name in options.schemes:
        with console.status(f"quantizing with {name}"):
            rows.append(measure(name, options.device, options.layers, options.width))
    console.print(table_of(rows))
    if options.json:
        about = environment(options.device)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
