# SPDX-License-Identifier: BSD-3-Clause
"""Real text that every machine has: the sources of Python's standard library, as bytes.

Code, comments and documentation; one byte is one token. A file is either trained on or validated
with, as a whole and in every run, so that no validation text was seen in training.
"""

import hashlib
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

TOKENS = 256  # the values of a byte
END = b"\0"  # stands after each file
VALIDATION_SHARE = 0.1
# Installed packages and tests differ from machine to machine; encodings are tables of numbers.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
SKIPPED |= {"encodings"}
OF_THE_MACHINE = ("_sysconfigdata", "_sysconfig_vars")  # files that name its folders and compiler
LEAST_BYTES = 1_000_000


@dataclass(frozen=True)
class Text:
    """The tokens of both halves.

    Attributes:
        training: uint8 ``[bytes]``.
        validation: uint8 ``[bytes]``, of other files.
        files: How many files each half has.
        sha256: Of the training text followed by the validation text.
    """

    training: Tensor
    validation: Tensor
    files: tuple[int, int]
    sha256: str


def load_text(device: torch.device, library: Path | None = None) -> Text:
    """Read the standard library.

    Args:
        device: Where the tokens are kept.
        library: Its folder; None: that of the Python that runs this.

    Raises:
        SystemExit: The folder has too few sources, for example because Python came without them.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    halves: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).parts):
        relative = path.relative_to(library)
        if SKIPPED & set(relative.parts) or path.name.startswith(OF_THE_MACHINE):
            continue
        share = zlib.crc32(relative.as_posix().encode()) / 2**32
        halves[share < VALIDATION_SHARE].append(path.read_bytes() + END)
    joined = [b"".join(half) for half in halves]
    found = sum(map(len, joined))
    if found < LEAST_BYTES:
        raise SystemExit(
            f"error: expected at least {LEAST_BYTES:,} bytes of Python sources in {library}, but "
            f"found {found:,}; use a Python with the sources of its standard library"
        )
    return Text(
        *(torch.frombuffer(bytearray(half), dtype=torch.uint8).to(device) for half in joined),
        files=(len(halves[0]), len(halves[1])),
        sha256=hashlib.sha256(b"".join(joined)).hexdigest(),
    )


def batches(text: Text, seed: int, batch: int, context: int) -> Iterator[Tensor]:
    """Yield batches of the training text without end, int64 ``[batch, context + 1]``.

    Each row is a window that starts anywhere. A seed gives the same batches on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(context + 1, device=text.training.device)
    while True:
        starts = torch.randint(len(text.training) - context, (batch, 1), generator=generator)
        yield text.training[starts.to(offsets.device) + offsets].long()


def validation_batches(text: Text, windows: int, batch: int, context: int) -> list[Tensor]:
    """Return windows that are spread over the whole validation text, in batches as above."""
    offsets = torch.arange(context + 1, device=text.validation.device)
    last = len(text.validation) - context - 1
    starts = torch.linspace(0, last, windows, dtype=torch.float64).long()
    return list(text.validation[starts.to(offsets.device)[:, None] + offsets].long().split(batch))
