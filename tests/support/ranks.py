# SPDX-License-Identifier: BSD-3-Clause
"""Processes that work together: each brings its results home in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANKS = 2


def spawn(folder: Path, compute: Callable[[int], dict[str, Any]]) -> None:
    """Let each rank compute, within one process group, and store what it returns."""
    torch.multiprocessing.spawn(_work, (folder, compute), nprocs=RANKS)


def results_of(folder: Path) -> list[dict[str, Any]]:
    """Return what each rank has stored."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def _work(rank: int, folder: Path, compute: Callable[[int], dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # needs neither a network nor a name for this host
    dist.init_process_group(
        "gloo",
        init_method=(folder / "rendezvous").as_uri(),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=120),
    )
    torch.save(compute(rank), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
