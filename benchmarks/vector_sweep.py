# SPDX-License-Identifier: BSD-3-Clause
"""One to four rows on a GPU: the vector kernel against the tiles that could take its place.

    python -m benchmarks.vector_sweep --json vector_sweep.json      # about a minute on an H200
    python -m benchmarks.vector_sweep --read vector_sweep.json      # the tables again, no GPU

For each product `[m, k] @ [n, k].T` of int8 to bfloat16 it times the vector kernel, the tiles for
few rows of Hopper's tensor cores, and the generic kernel: medians of device events inside CUDA
graphs, with weights that are rotated so that none lies in the L2 cache. Then it says what the rule
(``prefers_vector_kernel`` in ``csrc/int8_mm/cuda/tiles.h``) chose and what that loses against the
best,
and, for each m, how well a rule of one threshold could do: what to write into that function.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.bench import Timer, free_memory, rotation_for

# isort: split
import baraquant
from baraquant import ops

ROWS = (1, 2, 3, 4)  # as many as the vector kernel takes
WIDTHS = (1024, 2048, 4096, 8192, 11008, 14336, 16384, 28672)
# Pairs of which no layer of a model has the like: both sides long.
LARGEST = 28672 * 8192
KERNELS = (
    "vector",
    "hopper_16x64x256_swapped",
    "hopper_16x128x256_swapped_stream_k",
    "generic_16x32x256",
)


@dataclass
class Measured:
    """One product: microseconds by kernel, and the name of the kernel that the rule takes."""

    m: int
    n: int
    k: int
    microseconds: dict[str, float]
    chosen: str

    @property
    def vector(self) -> float:
        """The vector kernel's time."""
        return self.microseconds["vector"]

    @property
    def other(self) -> float:
        """The time of the best tile."""
        return min(t for name, t in self.microseconds.items() if name != "vector")

    @property
    def best(self) -> float:
        """The time of the best kernel."""
        return min(self.vector, self.other)

    @property
    def loss(self) -> float:
        """By how much the rule's choice is slower than the best: 0.1 is ten percent."""
        return self.microseconds[self.chosen] / self.best - 1


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


def measure(kernels: list[str], timer: Timer) -> Iterator[Measured]:
    """Yield all products, m by m for each weight."""
    device = timer.device
    for n in WIDTHS:
        for k in WIDTHS:
            if n * k > LARGEST:
                continue
            free_memory(device)
            # Two at least, however large: the next call's weight is never the last one's.
            count = max(rotation_for(n * k), 2)
            ws = [
                torch.randint(-128, 128, (n, k), dtype=torch.int8, device=device)
                for _ in range(count)
            ]
            sw = torch.rand(n, device=device)
            for m in ROWS:
                x = torch.randint(-128, 128, (m, k), dtype=torch.int8, device=device)
                s = torch.rand(m, 1, device=device)
                torch.ops.baraquant._force_int8_kernel("")
                chosen = kernel_of_plan(x, ws[0], s, sw)
                named = list(dict.fromkeys([*kernels, chosen]))
                times = timer.compare({name: forced_call(name, x, ws, s, sw) for name in named}, 4)
                found = {name: t * 1e6 for name, t in times.items() if isinstance(t, float)}
                if len(found) != len(named):
                    raise RuntimeError(f"{m} x {n} x {k}: {times}")
                yield Measured(m, n, k, found, chosen)


# --- what follows --------------------------------------------------------------------------------


def print_table(rows: list[Measured]) -> None:
    """Print a line for each weight, with the times of the vector kernel and of the best tile."""
    print("microseconds: vector / best tile, v or t: what the rule takes, and its loss from 2 % on")
    print(f"{'n':>6} {'k':>6}" + "".join(f" {f'm = {m}':>24}" for m in ROWS))
    by_weight: dict[tuple[int, int], dict[int, Measured]] = {}
    for row in rows:
        by_weight.setdefault((row.n, row.k), {})[row.m] = row
    for (n, k), of_rows in by_weight.items():
        cells = []
        for m in ROWS:
            row = of_rows[m]
            loss = f"{100 * row.loss:+.0f}%" if row.loss >= 0.02 else ""
            taken = "v" if row.chosen == "vector" else "t"
            cells.append(f"{row.vector:9.2f} /{row.other:7.2f} {taken}{loss:>5}")
        print(f"{n:>6} {k:>6} " + " ".join(cells))


# What a threshold can be of.
QUANTITIES: dict[str, Callable[[Measured], float]] = {
    "k": lambda row: row.k,
    "n": lambda row: row.n,
    "n * k": lambda row: row.n * row.k,
    "k / n": lambda row: row.k / row.n,
}


@dataclass(frozen=True)
class Rule:
    """The vector kernel where a quantity is at most a threshold (or at least)."""

    quantity: str
    at_most: bool
    threshold: float

    def __str__(self) -> str:
        return f"vector where {self.quantity} {'<=' if self.at_most else '>='} {self.threshold:g}"

    def losses(self, rows: list[Measured]) -> list[float]:
        """By how much each choice is slower than the best."""
        value = QUANTITIES[self.quantity]
        found = []
        for row in rows:
            v = value(row)
            takes = v <= self.threshold if self.at_most else v >= self.threshold
            found.append((row.vector if takes else row.other) / row.best - 1)
        return found


def rules(rows: list[Measured]) -> list[tuple[float, float, Rule]]:
    """Return (mean loss, greatest loss, rule) of all rules of one threshold, the best first."""
    found = []
    for name, value in QUANTITIES.items():
        values = sorted({value(row) for row in rows})
        # 0 at most: never the vector kernel; 0 at least: always.
        for at_most in (True, False):
            for threshold in (0.0, *values):
                rule = Rule(name, at_most, threshold)
                losses = rule.losses(rows)
                found.append((sum(losses) / len(losses), max(losses), rule))
    return sorted(found, key=lambda entry: entry[:2])


def print_rules(rows: list[Measured]) -> None:
    """Print what the rule loses for each m, and the best rules of one threshold."""
    for m in ROWS:
        of_m = [row for row in rows if row.m == m]
        losses = [row.loss for row in of_m]
        mean, most = 100 * sum(losses) / len(losses), 100 * max(losses)
        print(f"\nm = {m}: the rule loses {mean:.2f} % on average, {most:.1f} % at most")
        seen: set[str] = set()
        for mean, most, rule in rules(of_m):
            if rule.quantity not in seen:
                seen.add(rule.quantity)
                print(f"  {rule}: {100 * mean:.2f} % on average, {100 * most:.1f} % at most")


def main() -> None:
    """Measure or read, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    parser.add_argument("--read", type=Path, help="a file to print instead of measuring")
    options = parser.parse_args()
    if options.read:
        kept = json.loads(options.read.read_text())
        rows = [Measured(**row) for row in kept["rows"]]
    else:
        if not torch.cuda.is_available():
            parser.error("no CUDA device; --read prints what was measured on one")
        start = time.monotonic()
        device = torch.device("cuda")
        there = torch.ops.baraquant._int8_kernels()
        is_hopper = torch.cuda.get_device_capability() == (9, 0)
        kernels = [k for k in KERNELS if k in there and (is_hopper or "hopper" not in k)]
        timer = Timer(device, rounds=5, batch_seconds=0.4e-3, budget=1.0)
        try:
            rows = list(measure(kernels, timer))
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
    print_table(rows)
    print_rules(rows)


if __name__ == "__main__":
    main()
