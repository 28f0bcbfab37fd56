# SPDX-License-Identifier: BSD-3-Clause
"""Processes that work together: each brings its results home in a file."""

import faulthandler
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cpp_programs import PATIENCE
from tests.support.processes import MadeOnce

RANKS = 2
Compute = Callable[[int], dict[str, Any]]


def spawn(folder: Path, compute: Compute, ranks: int = RANKS, device: str = "cpu") -> None:
    """Let each rank compute, within one process group, and store what it returns."""
    torch.multiprocessing.spawn(_work, (folder, compute, ranks, device), nprocs=ranks)


def results_of(folder: Path, ranks: int = RANKS) -> list[dict[str, Any]]:
    """Return what each rank has stored."""
    files = [folder / f"{rank}.pt" for rank in range(ranks)]
    return [torch.load(file, weights_only=True, map_location="cpu") for file in files]


def results_fixture(name: str, compute: Compute, *counts: int) -> Any:
    """A fixture of the session: what each of so many ranks brought home, on each device.

    They are one process group: joined by gloo, and by NCCL with a GPU for each.
    """
    places = [
        pytest.param((device, count), marks=marks, id=f"{device}-{count}")
        for device, marks in (("cpu", ()), ("cuda", pytest.mark.cuda))
        for count in counts or (RANKS,)
    ]

    @pytest.fixture(scope="session", params=places)
    def results(request: pytest.FixtureRequest, made_once: MadeOnce) -> list[dict[str, Any]]:
        device, ranks = request.param
        if device == "cuda" and torch.cuda.device_count() < ranks:
            pytest.skip(f"needs {ranks} GPUs, and there are {torch.cuda.device_count()}")
        key = f"{name}_{device}_{ranks}"
        folder = made_once(key, lambda folder: spawn(folder, compute, ranks, device))
        return results_of(folder, ranks)

    return results


def _work(rank: int, folder: Path, compute: Compute, ranks: int, device: str) -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)  # it waits; it says where
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # needs neither a network nor a name for this host
    backend, place = "nccl" if device == "cuda" else "gloo", (folder / "rendezvous").as_uri()
    dist.init_process_group(backend, place, rank=rank, world_size=ranks)
    torch.save(compute(rank), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
