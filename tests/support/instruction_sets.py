# SPDX-License-Identifier: BSD-3-Clause
"""The instruction sets of CPUs, and digests that processes under each of them print."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

import baraquant
from tests.support.bits import to_numpy

# What a program printed, for an instruction set and a number of threads.
Lines = Callable[..., list[str]]

ISAS = ("default", "avx2", "avx512", "avx512_vnni")


def missing(isa: str) -> str | None:
    """Why this machine cannot run an instruction set."""
    capability = torch.backends.cpu.get_cpu_capability()
    avx512 = ISAS if torch.cpu._is_vnni_supported() else ISAS[:3]
    has = {"AVX512": avx512, "AVX2": ISAS[:2]}.get(capability, ISAS[:1])
    return None if isa in has else f"this machine has no {isa} (torch: {capability})"


def check_same_bits(isa: str, lines_of: Lines, more_than: int) -> None:
    """A program prints under an instruction set what it prints under the machine's own.

    `lines_of(isa)` are its lines, `lines_of(None)` without a choice: the instruction set in use,
    and one line for each of more results than `more_than`.
    """
    reason = missing(isa)
    if reason is not None:
        pytest.skip(reason)
    plain, lowered = lines_of(None), lines_of(isa)
    assert lowered[0] == isa  # the variable was heard
    assert len(plain) > more_than
    assert lowered[1:] == plain[1:]


def digest(tensor: Tensor) -> str:
    """Of the values in index order; every NaN counts alike."""
    values = np.ascontiguousarray(to_numpy(tensor)).copy()
    if np.issubdtype(values.dtype, np.floating):
        values[np.isnan(values)] = np.nan
    return hashlib.sha256(values.tobytes()).hexdigest()


def print_digests(results: Iterable[tuple[str, Tensor]]) -> None:
    """Print the instruction set in use and one line per result."""
    print(baraquant._C.cpu_isa())
    for name, tensor in results:
        print(name, digest(tensor))
