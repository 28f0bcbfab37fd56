# SPDX-License-Identifier: BSD-3-Clause
"""Files and folders that appear whole or not at all; files that are opened once.

A writer works in a folder ``.NAME.TOKEN.partial`` beside its target ``NAME``, with a token of 64
random bits. What it wrote is moved when all of it is on the disk, and the main file last, because
that names the others. A writer that is killed leaves its folder; the next one of the same path
removes it if it is a day old. ``csrc/files/disk.cpp`` does the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

_STALE = 24 * 3600.0  # seconds
_TOKEN = "[0-9a-f]{16}"


def open_file(path: str | os.PathLike[str], folder: int | None = None) -> BinaryIO:
    """Open a file to read it. It stays the same file if another one takes its path.

    It is sought in the ``folder`` of a descriptor, which may have another path by now.

    Raises:
        OSError: It does not exist, or is a folder, a pipe, a socket or a device.
    """

    def opener(name: str, flags: int) -> int:  # without O_NONBLOCK a pipe waits for its writer
        at = name if folder is None else Path(name).name
        try:
            return os.open(at, flags | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            error.filename = os.fspath(path)
            raise

    with ExitStack() as stack:
        file = stack.enter_context(open(path, "rb", opener=opener))
        _check_file("", path, os.fstat(file.fileno()).st_mode)
        stack.pop_all()  # it stays open
    return file


@contextmanager
def opened_folder(caller: str, path: Path) -> Iterator[Callable[[str], BinaryIO]]:
    """Yield a function that opens files of a folder, also when another has taken its path."""
    if not path.is_dir():
        raise NotADirectoryError(f"{caller}: expected a folder, but {path} is none")
    with ExitStack() as stack:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        yield lambda name: stack.enter_context(open_file(path / name, folder))


@contextmanager
def new_file(caller: str, path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces ``path`` if no error was raised.

    It gets the permissions of the file that it replaces, or those that ``open`` would give it. The
    caller may write further files beside it, whose names begin with its name, which no other file
    has. They keep their names. Those that the replaced file named are removed at last.

    Raises:
        OSError: ``path`` is a folder, a pipe, a socket or a device, or its parent does not exist or
            cannot be written to.
    """
    target = Path(path).resolve()  # behind a link, as open() does
    with contextlib.suppress(FileNotFoundError):
        _check_file(f"{caller}: ", target, target.stat().st_mode)
    with _beside(caller, target) as folder:
        main = folder / _main_name(target, folder)
        main.touch()  # what writes it may let nobody else read it: ask what the umask says
        mode = (target if target.exists() else main).stat().st_mode
        yield main
        written = sorted(folder.iterdir(), reverse=True)  # the main file is the last
        for file in written:
            file.chmod(stat.S_IMODE(mode))
            _flush(file)
        for file in written[:-1]:
            file.replace(target.parent / file.name)
        with _turn(target):
            moved = _moved(target)
            text = target.read_bytes() if moved and target.is_file() else b""
            for file in moved:
                if file.name.encode() in text:
                    (folder / file.name).touch()  # to be removed with this folder
            main.replace(target)


@contextmanager
def new_folder(caller: str, path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``, which is moved there if no error was raised.

    Raises:
        FileExistsError: Something is there already, but for an empty folder.
        OSError: The parent does not exist, or cannot be written to.
    """
    target = Path(path).resolve()
    check_absent(caller, target)
    with _beside(caller, target) as folder:
        partial = folder / target.name
        partial.mkdir()
        yield partial
        for file in filter(Path.is_file, partial.rglob("*")):
            _flush(file)
        try:
            partial.replace(target)
        except OSError:
            check_absent(caller, target)  # another writer may have been faster
            raise


def check_absent(caller: str, path: Path) -> None:
    """Check that a folder can be made at ``path``: nothing is there, or an empty folder."""
    with contextlib.suppress(FileNotFoundError):  # somebody may take it away
        if path.is_dir() and not any(path.iterdir()):
            return
    if path.exists() or path.is_symlink():
        what = "a folder that is not empty" if path.is_dir() else "a file"
        raise FileExistsError(
            f"{caller}: expected a folder that does not exist yet, but {path} is {what}; "
            "remove it or choose another name"
        )


def _check_file(where: str, path: str | os.PathLike[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        error = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        raise error(f"{where}expected a file, but {os.fspath(path)} is {kind}")


@contextmanager
def _beside(caller: str, target: Path) -> Iterator[Path]:
    """Yield a writer's folder, and remove it at the end; remove those of killed writers."""
    folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    try:
        folder.mkdir(0o700)
    except OSError as error:
        text = f"{caller}: expected a folder that can be written to, but {target.parent}"
        raise type(error)(error.errno, f"{text}: {error.strerror}") from error
    try:
        now = folder.stat().st_mtime  # by the clock of the disk
        for other in _matching(target, rf"\.{re.escape(target.name)}\.{_TOKEN}\.partial"):
            with contextlib.suppress(OSError):
                if now - other.lstat().st_mtime > _STALE:
                    _discard(other, target)
        yield folder
    finally:
        _discard(folder, target)


def _discard(folder: Path, target: Path) -> None:
    """Remove a writer's folder, and the moved files that nothing names.

    These are its own while its main file is still there, else those of the file that it replaced.
    """
    main = folder / _main_name(target, folder)
    is_whole = not main.exists()
    for file in _moved(target):
        if (folder / file.name).exists() if is_whole else file.name.startswith(f"{main.name}."):
            _remove(file)
    shutil.rmtree(folder, ignore_errors=True)
    _remove(folder)  # C++ writes a file without a folder


def _main_name(target: Path, folder: Path) -> str:
    """Return the name that the main file of a writer has in its folder."""
    return f"{target.stem}.{folder.name.split('.')[-2]}{target.suffix}"


@contextmanager
def _turn(target: Path) -> Iterator[None]:
    """Keep other writers from replacing what names other files, where the disk can lock."""
    with ExitStack() as stack:
        if _moved(target):
            lock = os.open(target.parent, os.O_RDONLY)
            stack.callback(os.close, lock)
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _moved(target: Path) -> list[Path]:
    """Return the files that were moved with the main files of a path."""
    start, end = re.escape(target.stem), re.escape(target.suffix)
    return _matching(target, rf"{start}\.{_TOKEN}{end}\..+")


def _matching(target: Path, pattern: str) -> list[Path]:
    return [file for file in target.parent.iterdir() if re.fullmatch(pattern, file.name)]


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):  # what is left over harms nobody
        file.unlink()


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
