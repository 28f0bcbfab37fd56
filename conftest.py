# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of all tests, those of the benchmarks too: the devices, and folders made once.

Which tests are run, and how long they may take: tests/support/short_run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

# Read once, when torch loads OpenMP: else the threads of several pytest processes wait for work by
# spinning, on the cores that the other processes need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import setuptools  # noqa: F401 - before distutils, which it replaces and torch.compile imports
import torch
from filelock import FileLock

from tests.support.short_run import options

# The files of CONTRIBUTING's recipe for an op, which test_recipe.py tests in a copy of the tree.
collect_ignore = ["tests/packaging/recipe"]


def missing_cuda() -> str | None:
    """Why CUDA cannot be tested here; None where it can."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    import baraquant  # noqa: F401  (registers the kernels that are asked for below)

    if not torch._C._dispatch_has_kernel_for_dispatch_key("baraquant::_fake_quantize", "CUDA"):
        return "baraquant built without CUDA"
    return None


# In each of several processes: else each would start as many threads as there are cores. Two are
# enough to split work, and the CPU time of a run means the same on every machine.
THREADS = 2
NO_CUDA = missing_cuda()
CUDA_IF_PRESENT = [] if NO_CUDA else ["cuda"]


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    options.register(config, NO_CUDA)
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all of pytest's processes (xdist gives each a folder below this one)."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if own.name.startswith("popen-gw") else own


@pytest.fixture(scope="session")
def made_once(shared_folder: Path) -> Callable[[str, Callable[[Path], None]], Path]:
    """`made_once(name, make)`: the folder that make(folder) filled, in whichever process is first.

    A lock, since xdist's own way, the mark xdist_group, does nothing under pytest 9.2.
    """

    def get(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = shared_folder / name, shared_folder / f"{name}.done"
        with FileLock(shared_folder / f"{name}.lock"):
            if not done.exists():
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return get


@pytest.fixture(scope="module")
def lines_of(
    request: pytest.FixtureRequest, made_once: Callable[[str, Callable[[Path], None]], Path]
) -> Callable[..., list[str]]:
    """What the test's module prints as a program, for an instruction set and some threads."""
    from tests.support.processes import printed_by

    return partial(printed_by, request.module.__name__, made_once)


@pytest.fixture(scope="session")
def one_at_a_time(shared_folder: Path) -> Callable[[str], AbstractContextManager[None]]:
    """`with one_at_a_time(name):` holds what only one of pytest's processes may do at a time."""

    @contextmanager
    def hold(name: str) -> Iterator[None]:
        with FileLock(shared_folder / f"{name}.lock"):
            yield

    return hold


@pytest.fixture
def cuda() -> str:
    """The CUDA device; where there is none, tests that take it are not collected."""
    return "cuda"


@pytest.fixture(params=["cpu", *CUDA_IF_PRESENT])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that computes and is there."""
    return request.param


@pytest.fixture(params=["cpu", "meta", *CUDA_IF_PRESENT])
def any_device(request: pytest.FixtureRequest) -> str:
    """Each device that checks arguments and is there."""
    return request.param


@pytest.fixture
def no_synchronisation(cuda: str) -> Iterator[None]:
    """Any call that makes the host wait for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def room(cuda: str, one_at_a_time: Callable[[str], AbstractContextManager[None]]) -> Iterator[None]:
    """24 GiB of the device, for one test at a time."""
    needed = 24 * 2**30
    with one_at_a_time("large"):
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if free < needed:
            pytest.skip(f"needs 24 GiB of free device memory, has {free / 2**30:.1f}")
        yield
        torch.cuda.empty_cache()
