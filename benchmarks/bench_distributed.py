# SPDX-License-Identifier: BSD-3-Clause
"""Models on several processes: time, traffic and bits, beside one process and beside bfloat16.

``fsdp`` is a training step of MLP blocks under ``fully_shard``, whose weights are gathered as
bfloat16 or, by ``quantize_all_gather``, as integers (int8, or int4 with factors), with gradients
from floating products (``backward=float``) and from products of integers (``int8``);
``fsdp_compiled`` is the same with each block compiled. ``serve`` and ``train`` are an MLP split by
``ColwiseParallel`` and ``RowwiseParallel``: integers are added exactly (int32) or as bfloat16;
``graph`` is ``serve`` captured in a CUDA graph. ``product`` is what one process computes of it. All
variants of a size are measured in turns, on all processes; the time is the slowest process's, the
median of the rounds. Bytes are those of the tensors that one process gathers, and of those that it
gives into sums, in one step.

    torchrun --nproc-per-node 2 -m benchmarks.bench_distributed     # on GPUs, else joined by gloo
    torchrun --nproc-per-node 2 -m benchmarks.bench_distributed --what fsdp fsdp_compiled
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bench import free_memory
from benchmarks.bench_report import environment
from benchmarks.distributed_models import (
    Sizes,
    Variant,
    fsdp_variants,
    product_variants,
    serving_variants,
    training_variants,
)

PARTS = ("product", "fsdp", "fsdp_compiled", "serve", "train", "graph")
GPU = Sizes(width=8192, hidden=28672, blocks=6, block_width=4096, block_hidden=14336)
CPU = Sizes(width=64, hidden=128, blocks=2, block_width=128, block_hidden=256)
TOKENS = {  # of one process for fsdp; of all of them together otherwise
    "cuda": {
        "product": (1, 16, 512, 8192), "fsdp": (1024, 4096), "fsdp_compiled": (1024, 4096),
        "serve": (16, 512, 8192), "train": (8192,), "graph": (1, 16, 512),
    },
    "cpu": {
        "product": (16,), "fsdp": (16,), "fsdp_compiled": (16,), "serve": (16,), "train": (16,),
        "graph": (),
    },
}  # fmt: skip
SHORT = ("product", "serve", "graph")  # a time is that of several calls
WARM_UPS = 3


class Traffic(TorchDispatchMode):
    """Counts the bytes of tensors that are gathered, and of those that are given into sums."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered = self.summed = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name()
        if name.startswith(("c10d::", "_c10d_functional::")):
            given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if is_plain(t)]
            if "gather" in name:
                made = [t for t in torch.utils._pytree.tree_leaves(result) if is_plain(t)]
                self.gathered += max((t.nbytes for t in (*given, *made)), default=0)
            elif "reduce" in name:
                self.summed += max((t.nbytes for t in given), default=0)
        return result


def is_plain(value: Any) -> bool:
    """Whether it is a tensor with numbers."""
    return isinstance(value, Tensor) and value.numel() > 0


def synchronize(device: torch.device) -> None:
    """Waits for the device and for all processes."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(step: Callable[[], Any], device: torch.device, calls: int) -> float:
    """The time of one of several calls, without waiting between them."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / calls


def of_all(value: float, device: torch.device, op: Any = dist.ReduceOp.MAX) -> float:
    """The largest of all processes' numbers, or what ``op`` makes of them."""
    number = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(number, op)
    return float(number)


def captured(step: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """The step as a CUDA graph."""
    synchronize(device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


def measured(part: str, tokens: int, variants: list[Variant], options: Any) -> Iterator[dict]:
    """A row for each variant; what they compute is compared before they are timed."""
    device = options.device
    rows: dict[str, dict[str, Any]] = {}
    wanted, results = {variant.twin for variant in variants}, {}
    for variant in variants:
        with Traffic() as traffic:
            variant.results()
        found = variant.results()  # without the mode, which compiled code does not run under
        if variant.name in wanted:
            results[variant.name] = found
        rows[variant.name] = {
            "part": part, "variant": variant.name, "tokens": tokens,
            "gathered": traffic.gathered, "summed": traffic.summed, "same_bits": None,
        }  # fmt: skip
        if variant.twin is not None:
            pairs = zip(found, results[variant.twin], strict=True)
            same = all(torch.equal(a, b) for a, b in pairs)
            rows[variant.name]["same_bits"] = bool(of_all(same, device, dist.ReduceOp.MIN))
            rows[variant.name]["twin"] = variant.twin
        del found
    results.clear()
    steps = {v.name: v.step for v in variants}
    if part == "graph":
        steps = {name: captured(step, device) for name, step in steps.items()}
    for step in steps.values():
        for _ in range(WARM_UPS):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            times[name].append(seconds_of(step, device, 10 if part in SHORT else 1))
    for name, row in rows.items():
        row["seconds"] = of_all(statistics.median(times[name]), device)
        yield row


MAKERS: dict[str, Callable[[Sizes, int, torch.device], list[Variant]]] = {
    "product": product_variants,
    "fsdp": fsdp_variants,
    "fsdp_compiled": partial(fsdp_variants, is_compiled=True),
    "serve": serving_variants,
    "train": training_variants,
    "graph": serving_variants,
}


def table_of(rows: list[dict[str, Any]]) -> Table:
    """The rows, for people; ratios are to the first variant of a size."""
    heads = ("part", "tokens", "variant", "time", "of the first", "gathered", "summed", "same bits")
    table = Table(*heads, box=box.SIMPLE)
    first: dict[tuple[str, int], float] = {}
    for row in rows:
        key = (row["part"], row["tokens"])
        is_first = key not in first
        base = first.setdefault(key, row["seconds"])
        if is_first and len(first) > 1:
            table.add_section()
        same = {None: "", True: "yes", False: "NO"}[row["same_bits"]]
        table.add_row(
            row["part"], str(row["tokens"]), row["variant"], f"{1e3 * row['seconds']:.3f} ms",
            f"{row['seconds'] / base:.2f}", f"{row['gathered'] / 1e6:.1f} MB",
            f"{row['summed'] / 1e6:.1f} MB", same,
        )  # fmt: skip
    return table


def written(path: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Writes the rows so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


def join() -> torch.device:
    """Joins the processes of torchrun; returns this one's device."""
    is_cuda = torch.cuda.is_available()
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise SystemExit(
                "bench_distributed: start it with torchrun --nproc-per-node 2 -m "
                "benchmarks.bench_distributed"
            )
        if is_cuda:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
    is_cuda = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu")


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Measures; the first process prints the table, and writes the JSON that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=0, help="times that each variant is timed")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    is_new = not dist.is_initialized()
    torch._dynamo.config.recompile_limit = 64  # the blocks of all variants are the same code
    device = options.device = join()
    is_cuda, is_first = device.type == "cuda", dist.get_rank() == 0
    options.rounds = options.rounds or (15 if is_cuda else 3)
    about = environment(device) | {"processes": dist.get_world_size()}
    console = Console(quiet=not is_first, width=None if sys.stdout.isatty() else 110)
    rows: list[dict[str, Any]] = []
    for part in (part for part in PARTS if part in options.what):
        found: list[dict[str, Any]] = []
        for tokens in TOKENS[device.type][part]:
            variants = MAKERS[part](GPU if is_cuda else CPU, tokens, device)
            found += measured(part, tokens, variants, options)
            del variants
            free_memory(device)
        rows += found
        if found:
            console.print(table_of(found))
        if is_first and options.json:
            written(options.json, about, rows)
    if is_new:
        dist.destroy_process_group()
    return rows


if __name__ == "__main__":
    main()
