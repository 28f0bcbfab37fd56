# SPDX-License-Identifier: BSD-3-Clause
"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(caller: str, path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``, which is moved there if no error was raised.

    Args:
        caller: The public function, for messages.
        path: A folder that does not exist yet, or that is empty. Its parent must exist.

    Raises:
        FileExistsError: Something is there already.
        OSError: The parent does not exist, or cannot be written to.
    """
    target = Path(path).resolve()
    check_absent(caller, target)
    with _beside(caller, target) as folder:
        partial = folder / target.name
        partial.mkdir()
        yield partial
        check_absent(caller, target)
        partial.replace(target)


@contextmanager
def new_file(caller: str, path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file beside ``path``, which it replaces if all went well.

    The caller may write further files beside the temporary one, whose names begin with its name.
    They are moved too, before the main file, so that this never names a file that is not there.

    Raises:
        OSError: ``path`` is a folder, or its parent does not exist or cannot be written to.
    """
    target = Path(path).resolve()
    if target.is_dir():
        raise IsADirectoryError(f"{caller}: expected a file, but {target} is a folder")
    with _beside(caller, target) as folder:
        partial = folder / target.name
        yield partial
        for written in sorted(folder.iterdir(), reverse=True):  # the main file is the last
            written.chmod(0o666 & ~_umask())
            written.replace(target.parent / written.name)


def check_absent(caller: str, path: Path) -> None:
    """Check that a folder can be made at ``path``: nothing is there, or an empty folder.

    Raises:
        FileExistsError: Something is there already.
    """
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        what = "a folder that is not empty" if path.is_dir() else "a file"
        raise FileExistsError(
            f"{caller}: expected a folder that does not exist yet, but {path} is {what}; "
            "remove it or choose another name"
        )


@contextmanager
def _beside(caller: str, target: Path) -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _unwritable(caller, target.parent, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(caller: str, folder: Path, error: OSError) -> OSError:
    reason = f"{caller}: expected a folder that can be written to, but {folder}: {error.strerror}"
    return type(error)(error.errno, reason)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
