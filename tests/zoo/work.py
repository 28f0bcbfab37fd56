# SPDX-License-Identifier: BSD-3-Clause
"""The processes of the zoo: for each architecture one that makes, and one that loads.

They are forked from a server that has imported the packages and nothing more, so the process that
loads has never seen the model. A crash or a hang is the failure of one cell.
"""

import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.zoo.cells import NOT_RUN, NOTHING, Cell, Result
from tests.zoo.checks import examine
from tests.zoo.loading import load_back

CONTEXT = multiprocessing.get_context("forkserver")
PATIENCE = 300.0  # seconds for one cell
Told = Callable[[Result], None]


def run(cells: list[Cell], folder: Path, device: str, jobs: int, told: Told) -> list[Result]:
    """The results of all cells; `told` is called with each when it is complete."""
    # The server looks for what it imports with the path of a new interpreter.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    CONTEXT.set_forkserver_preload(["tests.zoo.preload"])
    groups = [list(g) for _, g in itertools.groupby(cells, lambda cell: cell.architecture)]
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(lambda group: run_architecture(group, folder, device, told), groups)
        return [result for group in done for result in group]


def run_architecture(cells: list[Cell], folder: Path, device: str, told: Told) -> list[Result]:
    """The results of one architecture's cells."""
    made = zip(cells, _answers(examine, cells, folder, device), strict=True)
    results = [
        Result(str(cell)).fail("made", answer) if isinstance(answer, str) else answer
        for cell, answer in made
    ]
    for result, answer in zip(results, _answers(load_back, cells, folder, device), strict=True):
        if result.status not in (NOT_RUN, NOTHING) and "saved" in result.passed:
            failed = {"loaded": answer} if isinstance(answer, str) else answer
            for check, message in failed.items():
                result.fail(check, message)
            if not failed:
                result.passed.append("loaded")
        told(result)
    return results


def _answers(work: Any, cells: list[Cell], folder: Path, device: str) -> Iterator[Any]:
    """What a process of its own says of each cell; a string where it died or hung.

    Another process goes on with the cells after that one.
    """
    if not cells:
        return
    receiver, sender = CONTEXT.Pipe(duplex=False)
    arguments = (work, cells, folder, device, sender)
    process = CONTEXT.Process(target=_send_each, args=arguments, daemon=True)
    process.start()
    sender.close()
    for position in range(len(cells)):
        try:
            if not receiver.poll(PATIENCE):
                raise TimeoutError(f"no result within {PATIENCE:.0f} seconds")
            yield receiver.recv()
        except (EOFError, TimeoutError) as error:
            process.kill()
            process.join()
            yield str(error) or f"the process died with exit code {process.exitcode}"
            yield from _answers(work, cells[position + 1 :], folder, device)
            return
    process.join()


def _send_each(work: Any, cells: list[Cell], folder: Path, device: str, sender: Connection) -> None:
    torch.set_num_threads(1)  # tiny tensors: a second thread only waits
    for cell in cells:
        sender.send(work(cell, folder, device))
