# SPDX-License-Identifier: BSD-3-Clause
"""Processes that work together: each brings its results home in a file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

RANKS = 2
# Where processes work together: joined by gloo, and by NCCL with a GPU for each.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def spawn(
    folder: Path, compute: Callable[[int], dict[str, Any]], ranks: int = RANKS, device: str = "cpu"
) -> None:
    """Let each rank compute, within one process group, and store what it returns."""
    torch.multiprocessing.spawn(_work, (folder, compute, ranks, device), nprocs=ranks)


def results_of(folder: Path, ranks: int = RANKS) -> list[dict[str, Any]]:
    """Return what each rank has stored."""
    return [
        torch.load(folder / f"{rank}.pt", weights_only=True, map_location="cpu")
        for rank in range(ranks)
    ]


def skip_without_devices(device: str, ranks: int = RANKS) -> None:
    """Skip a test that needs a GPU for each process where there are fewer."""
    if device == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs, and there are {torch.cuda.device_count()}")


def results_fixture(name: str, compute: Callable[[int], dict[str, Any]], ranks: int = RANKS) -> Any:
    """A fixture of the session: what each rank brought home, on each device."""

    @pytest.fixture(scope="session", params=DEVICES)
    def results(
        request: pytest.FixtureRequest, made_once: Callable[[str, Callable[[Path], None]], Path]
    ) -> list[dict[str, Any]]:
        device = request.param
        skip_without_devices(device, ranks)
        folder = made_once(f"{name}_{device}", lambda f: spawn(f, compute, ranks, device))
        return results_of(folder, ranks)

    return results


def _work(
    rank: int, folder: Path, compute: Callable[[int], dict[str, Any]], ranks: int, device: str
) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # needs neither a network nor a name for this host
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=(folder / "rendezvous").as_uri(),
        rank=rank,
        world_size=ranks,
    )
    torch.save(compute(rank), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
