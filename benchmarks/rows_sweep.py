# SPDX-License-Identifier: BSD-3-Clause
"""Products on a GPU by every kernel that could take them, and what the rule that chooses loses.

    python -m benchmarks.rows_sweep --json rows_sweep.json      # two minutes on an H100
    python -m benchmarks.rows_sweep --read rows_sweep.json      # the tables again, no GPU
    python -m benchmarks.rows_sweep --rows 64 512 --generic     # as a GPU that is not Hopper

For each product `[m, k] @ [n, k].T` of int8 to bfloat16 it times the vector kernel, the tiles of
Hopper's tensor cores and the generic ones, and PyTorch's bfloat16 product: medians of device events
inside CUDA graphs, with weights that are rotated so that none lies in the L2 cache. The rule is
``select`` in ``csrc/int8_mm/cuda/select.h``; its numbers stand in the files ``tiles.h`` there.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.bench import Timer, free_memory, rotation_for

# isort: split
import baraquant
from baraquant import ops

ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
WIDTHS = (1024, 2048, 4096, 8192, 14336, 28672)
# Pairs of which no layer of a model has the like: both sides long.
LARGEST = 28672 * 8192
BASELINE = "bfloat16"


@dataclass
class Measured:
    """One product: microseconds by kernel, and the name of the kernel that the rule takes."""

    m: int
    n: int
    k: int
    microseconds: dict[str, float]
    chosen: str

    @property
    def best(self) -> str:
        """The fastest of our kernels."""
        ours = {name: t for name, t in self.microseconds.items() if name != BASELINE}
        return min(ours, key=lambda name: ours[name])

    @property
    def loss(self) -> float:
        """By how much the rule's choice is slower than the best: 0.1 is ten percent."""
        return self.microseconds[self.chosen] / self.microseconds[self.best] - 1


# --- measuring -----------------------------------------------------------------------------------


def kernel_of_plan(*args: Tensor) -> str:
    """Return the name of the kernel that a product takes, as ``_force_int8_kernel`` knows it."""
    plan = baraquant.plan("int8_linear", *args, dtype=torch.bfloat16)[-1]
    family = plan.name.removeprefix("int8_product_")
    return family if family == "vector" else f"{family}_{plan.tile}"


def forced_call(kernel: str, x: Tensor, ws: list[Tensor], s: Tensor, sw: Tensor) -> Callable:
    """Return the call of a product that takes this kernel."""
    force = torch.ops.baraquant._force_int8_kernel

    def call(index: int) -> Tensor:
        force(kernel)
        return ops.int8_linear(x, ws[index % len(ws)], s, sw, dtype=torch.bfloat16)

    return call


def float_product(x: Tensor, ws: list[Tensor], index: int) -> Tensor:
    """The baseline."""
    return torch.nn.functional.linear(x, ws[index % len(ws)])


def is_worth_trying(kernel: str, m: int) -> bool:
    """Return whether so many rows neither leave most of a tile empty nor read the weight often."""
    if kernel == "vector":
        return m <= 4
    family, tile = kernel.split("_")[:2]
    rows, _, depth = map(int, tile.split("x"))
    if family == "generic":
        return rows <= max(2 * m, 64) and m <= 8 * rows
    return m <= 2 * rows if depth == 256 else m > 64 and 2 * m >= rows


def kernels_for(m: int, generic: bool) -> list[str]:
    """Return the kernels that are tried with so many rows."""
    is_hopper = torch.cuda.get_device_capability() == (9, 0) and not generic
    names = torch.ops.baraquant._int8_kernels()
    named = [name for name in names if is_hopper or not name.startswith("hopper")]
    return [name for name in named if not name.startswith("grouped") and is_worth_trying(name, m)]


def measure(timer: Timer, rows: list[int], widths: list[int], generic: bool) -> Iterator[Measured]:
    """Yield all products, m by m for each weight."""
    device = timer.device
    for n in widths:
        for k in widths:
            if n * k > LARGEST:
                continue
            free_memory(device)
            # Two at least, however large: the next call's weight is never the last one's.
            count = max(rotation_for(n * k), 2)
            ws = [
                torch.randint(-128, 128, (n, k), dtype=torch.int8, device=device)
                for _ in range(count)
            ]
            floats = [torch.randn(n, k, dtype=torch.bfloat16, device=device) for _ in range(count)]
            sw = torch.rand(n, device=device)
            for m in rows:
                x = torch.randint(-128, 128, (m, k), dtype=torch.int8, device=device)
                y = torch.randn(m, k, dtype=torch.bfloat16, device=device)
                s = torch.rand(m, 1, device=device)
                torch.ops.baraquant._force_int8_kernel("")
                named = kernels_for(m, generic)
                chosen = kernel_of_plan(x, ws[0], s, sw)
                if chosen not in named and not generic:
                    named.append(chosen)
                calls = {name: forced_call(name, x, ws, s, sw) for name in named}
                calls[BASELINE] = partial(float_product, y, floats)
                times = timer.compare(calls, 4)
                found = {name: t * 1e6 for name, t in times.items() if isinstance(t, float)}
                if len(found) != len(calls):
                    raise RuntimeError(f"{m} x {n} x {k}: {times}")
                row = Measured(m, n, k, found, chosen)
                yield row if chosen in found else Measured(m, n, k, found, row.best)


# --- what follows --------------------------------------------------------------------------------


def print_tables(rows: list[Measured]) -> None:
    """Print, for each number of rows, a line for each weight: the times of all kernels."""
    print("microseconds; *: what the rule takes; its loss, and the best's speed to bfloat16's")
    for m in sorted({row.m for row in rows}):
        of_m = [row for row in rows if row.m == m]
        names = list(of_m[0].microseconds)
        print(f"\nm = {m}: " + ", ".join(f"{i}: {name}" for i, name in enumerate(names)))
        for row in of_m:
            cells = "".join(
                f"{row.microseconds[name]:9.2f}{'*' if name == row.chosen else ' '}"
                for name in names
            )
            speed = row.microseconds[BASELINE] / row.microseconds[row.best]
            print(f"{row.n:>6} {row.k:>6}{cells} {100 * row.loss:+4.0f} % {speed:6.2f}")
        losses = [row.loss for row in of_m]
        mean, most = 100 * sum(losses) / len(losses), 100 * max(losses)
        print(f"the rule loses {mean:.2f} % on average, {most:.1f} % at most")


def main() -> None:
    """Measure or read, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    parser.add_argument("--read", type=Path, help="a file to print instead of measuring")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help=f"default: {ROWS}")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of n and k")
    parser.add_argument("--generic", action="store_true", help="leave out Hopper's kernels")
    options = parser.parse_args()
    if options.read:
        kept = json.loads(options.read.read_text())
        rows = [Measured(**row) for row in kept["rows"]]
    else:
        if not torch.cuda.is_available():
            parser.error("no CUDA device; --read prints what was measured on one")
        start = time.monotonic()
        device = torch.device("cuda")
        timer = Timer(device, rounds=5, batch_seconds=0.4e-3, budget=1.0)
        try:
            rows = list(measure(timer, options.rows, options.widths, options.generic))
        finally:
            torch.ops.baraquant._force_int8_kernel("")
        kept = {
            "device": torch.cuda.get_device_name(),
            "multiprocessors": torch.cuda.get_device_properties(device).multi_processor_count,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "seconds": round(time.monotonic() - start, 1),
            "rows": [asdict(row) for row in rows],
        }
        if options.json:
            options.json.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{kept['device']}, torch {kept['torch']}: {kept['seconds']} s")
    print_tables(rows)


if __name__ == "__main__":
    main()
