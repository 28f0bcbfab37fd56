# SPDX-License-Identifier: BSD-3-Clause
"""Writers that are killed, and many that write to one path, while a reader looks again and again.

`python -m tests.serialization.interrupted FOLDER save` writes into a file for each of two cases
what went wrong, or nothing: `killed` ends each step of a writer by `kill -9`, `crowded` lets four
processes of eight threads write. The reader is a process of its own: it must find one model or the
other, or nothing where a folder is made. It begins again where data was removed between the two
files that it opens. A process that takes too long ends, and prints where it waits.
"""

import errno
import faulthandler
import itertools
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from cpp_programs import PATIENCE
from tests.serialization.writers import (
    WRITERS,
    Writer,
    at_each_step,
    cached_exporter,
    grow_old,
    names,
    prepared,
    reading,
)
from tests.support.threads import side_by_side

PROCESSES, THREADS, TIMES = 4, 8, 3


def forked(work: Callable[[], object]) -> int:
    """A process that does some work, and then exits with 0.

    PyTorch makes its pool of threads anew after a fork; where several threads want that at once,
    some get "Invalid thread pool!".
    """
    process = os.fork()
    if process == 0:
        signal.alarm(PATIENCE // 3)  # before those who wait for it
        try:
            torch.set_num_threads(1)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return process


def status_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def has_lost_its_data(error: Exception) -> bool:
    """Whether something was put away before it was opened, also in the words of onnx."""
    gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return gone or any(part in str(error) for part in (".onnx.data", "external data"))


def look(writer: Writer, path: Path, found: list[str], stop: Path) -> None:
    seen: dict[str | None, int] = {}
    while not stop.exists():
        try:
            one = reading(writer, path)
        except Exception as error:
            if not has_lost_its_data(error):
                raise
            continue
        assert one in found or (one is None and not writer.replaces), one
        seen[one] = seen.get(one, 0) + 1
    print("seen:", sorted(seen.values()), flush=True)
    assert seen


@contextmanager
def reader(writer: Writer, path: Path, found: list[str]) -> Iterator[None]:
    """A process that reads until the end of the block."""
    stop = path.parent.with_name("stop")
    process = forked(lambda: look(writer, path, found, stop))
    try:
        yield
    finally:
        stop.touch()
        assert status_of(process) == 0, "the reader failed"


def put_aside(path: Path) -> None:
    """Make room for another folder, under whatever name."""
    path.rename(path.parent.with_name("apart") / secrets.token_hex(8))


def write_and_die(writer: Writer, model: nn.Module, path: Path, step: int) -> None:
    steps = itertools.count()

    def act(event: str) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with at_each_step(path.parent, act):
        writer.write(model, path)


def killed(writer: Writer, folder: Path) -> None:
    path, models, found = prepared(writer, folder)
    if writer.replaces:
        writer.write(models[0], path)
    clean = names(path.parent)
    with reader(writer, path, found):
        for step in itertools.count():
            model = models[1 - step % 2]
            status = status_of(forked(lambda m=model, s=step: write_and_die(writer, m, path, s)))
            one = reading(writer, path)
            assert one in found or (one is None and not writer.replaces), one
            if status == 0:
                break  # it has no further step
            assert status == -signal.SIGKILL
            if not writer.replaces and one is not None:
                put_aside(path)
    print("steps:", step)
    assert step > 5
    grow_old(path.parent)
    if not writer.replaces:
        put_aside(path)
    writer.write(models[1], path)
    assert reading(writer, path) == found[1]
    left = names(path.parent)
    assert left == (clean or [writer.target]), left


def write_often(writer: Writer, models: list[nn.Module], path: Path) -> None:
    def write(thread: int) -> None:
        for time in range(TIMES):
            try:
                writer.write(models[(thread + time) % 2], path)
            except OSError as error:
                # Another one was faster, and may have put its folder aside by now.
                assert not writer.replaces
                assert error.errno in (None, errno.ENOTEMPTY), error
            else:
                if not writer.replaces:
                    put_aside(path)

    side_by_side(THREADS, write)


def crowded(writer: Writer, folder: Path) -> None:
    path, models, found = prepared(writer, folder)
    if writer.replaces:
        writer.write(models[0], path)
    with reader(writer, path, found):
        crowd = [forked(lambda: write_often(writer, models, path)) for _ in range(PROCESSES)]
        statuses = [status_of(process) for process in crowd]
        assert statuses == [0] * PROCESSES, statuses
    assert reading(writer, path) in found or not writer.replaces
    assert not any(name.endswith(".partial") for name in names(path.parent)), names(path.parent)


CASES = {"killed": killed, "crowded": crowded}

if __name__ == "__main__":
    faulthandler.register(signal.SIGALRM, chain=True)  # says where it is, and ends
    torch.set_num_threads(1)  # what was started before a fork is not there after it
    folder, *chosen = sys.argv[1:]
    with cached_exporter():
        for what, name in itertools.product(CASES, chosen):
            place = Path(folder) / f"{what} {name}"
            place.mkdir()
            said = place.with_suffix(".err")  # by all processes of the case
            with said.open("w") as file:
                os.dup2(file.fileno(), 2)
            signal.alarm(2 * PATIENCE // 3)
            try:
                CASES[what](WRITERS[name], place)
                wrong = ""
            except Exception:
                wrong = traceback.format_exc() + said.read_text()[-6000:]
            place.with_suffix(".txt").write_text(wrong)
