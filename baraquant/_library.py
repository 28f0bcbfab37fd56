# SPDX-License-Identifier: BSD-3-Clause
"""Loads libbaraquant.so, and explains how to fix it if that fails; an import is done once."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).with_name("libbaraquant.so")

# csrc/build_info.cpp writes it into the library.
_RECORD = re.compile(rb"baraquant-build-record:version=([^;\0]*);torch=([^;\0]*);")


def checkout() -> Path | None:
    """The checkout that contains this package; None if the package is installed."""
    folder = LIBRARY.parent.parent
    return folder if (folder / "setup.py").exists() and (folder / "csrc").exists() else None


def mend() -> str:
    """The command that rebuilds the library, for a checkout or for an installed package."""
    folder = checkout()
    if folder is not None:
        return f"make -C {folder} build"
    return (
        "pip install --no-build-isolation --no-deps --force-reinstall PATH, "
        "where PATH is a checkout of baraquant"
    )


def build_torch_version(library: Path) -> str | None:
    """The torch that a library was built for, read from its bytes, without loading it."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        record = _RECORD.search(data)
        return record[2].decode() if record else None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def load() -> None:
    """Loads the library, which registers the ops. A second call changes nothing.

    The message of an error names the command that fixes it.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"baraquant needs PyTorch 2.11 to 2.15, but torch cannot be imported ({error}). "
            f"Install torch, then run: {mend()}"
        ) from error
    if not LIBRARY.exists() or LIBRARY.stat().st_size == 0:
        raise ImportError(
            f"baraquant's compiled library is missing ({LIBRARY}). To build it, run: {mend()}"
        )
    built = build_torch_version(LIBRARY)
    # Another minor version has another C++ interface, so loading could crash instead of raising an
    # error.
    if built is None or _minor(built) != _minor(torch.__version__):
        raise ImportError(
            f"baraquant was built for torch {built or '(unknown)'}, but torch {torch.__version__} "
            f"is in use. To build it for this torch, run: {mend()}"
        )
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        raise ImportError(
            f"baraquant's library, built for torch {built}, cannot be loaded into torch "
            f"{torch.__version__}: {error.__cause__ or error}. To build it for this torch, run: "
            f"{mend()}"
        ) from error
    try:
        from baraquant import _C  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"baraquant._C cannot be imported into this Python ({error}). To build it, run: "
            f"{mend()}"
        ) from error


def forget_interrupted() -> None:
    """Forget what an interrupted import has left, so that each module is run again."""
    for name in [name for name in sys.modules if name.startswith(f"{__package__}.")]:
        if name != __name__:
            del sys.modules[name]


def of_python_ops(owner: str, namespace: str) -> Any:
    """Return a ``torch.library.Library`` for a module, without what an interrupted import left."""
    import torch

    known = vars(torch.ops).setdefault("_of_baraquant", {})
    if owner in known:
        known.pop(owner)._destroy()  # the traceback of the interrupt may keep it alive
    known[owner] = torch.library.Library(namespace, "FRAGMENT")
    return known[owner]


class Imported:
    """Finds no module, but refuses to import the package again, and to reload a part of it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == __package__ or (target is not None and name.startswith(f"{__package__}.")):
            raise ImportError(
                f"{name} was imported in this process already, and a second copy of its classes "
                "and ops would not fit the first: start a new process (in a notebook, restart the "
                "kernel) to import it again."
            )
