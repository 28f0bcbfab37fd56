# SPDX-License-Identifier: BSD-3-Clause
"""The instruction sets of CPUs, and digests that processes under each of them print."""

import ctypes
import functools
import hashlib
import platform
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

import baraquant
from tests.support.bits import to_numpy

# What a program printed, for an instruction set and a number of threads.
Lines = Callable[..., list[str]]

# What Linux calls each that a machine must have.
FLAGS = {
    "default": (),
    "neon_dotprod": ("asimddp",),
    "avx2": ("avx2", "fma"),
    "avx_vnni": ("avx2", "fma", "avx_vnni"),
    "avx512": ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx512_vnni": ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
}
FLAGS["amx"] = (*FLAGS["avx512_vnni"], "amx_int8")
ISAS = tuple(FLAGS)  # from the slowest to the fastest
AT_HWCAP, HWCAP_ASIMDDP = 16, 1 << 20


@functools.cache
def flags_of_this_machine() -> frozenset[str]:
    """What its processor can do, as Linux names it, of what FLAGS names.

    On an ARM the auxiliary vector says so: an emulator leaves /proc/cpuinfo as its host has it.
    """
    if platform.machine() == "aarch64":
        getauxval = ctypes.CDLL(None).getauxval
        getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
        return frozenset({"asimddp"} if getauxval(AT_HWCAP) & HWCAP_ASIMDDP else ())
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = (line.split(":")[1].split() for line in lines if line.startswith("flags"))
    return frozenset(next(found, ()))


def missing(isa: str) -> str | None:
    """Why this machine cannot run an instruction set."""
    lacking = sorted({*FLAGS[isa]} - flags_of_this_machine())
    return f"this machine has no {', '.join(lacking)}" if lacking else None


def lowered(isa: str) -> str:
    """What BARAQUANT_CPU_ISA=isa chooses on this machine."""
    return [i for i in ISAS[: ISAS.index(isa) + 1] if missing(i) is None][-1]


def check_same_bits(isa: str, lines_of: Lines, more_than: int) -> None:
    """A program prints under an instruction set what it prints under the machine's own.

    `lines_of(isa)` are its lines, `lines_of(None)` without a choice: the instruction set in use,
    and one line for each of more results than `more_than`. The one that the machine chooses is not
    run twice: test_info.py asks each by its name.
    """
    reason = missing(isa)
    if reason is not None:
        pytest.skip(reason)
    plain = lines_of(None)
    chosen = plain if plain[0] == isa else lines_of(isa)
    assert chosen[0] == isa  # the variable was heard
    assert len(plain) > more_than
    assert chosen[1:] == plain[1:]


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
