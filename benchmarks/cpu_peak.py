# SPDX-License-Identifier: BSD-3-Clause
"""The peak of a CPU's byte products, by vpdpbusd_peak.cpp, which is compiled at the first call."""

import ctypes
import functools
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.bench import Call

# isort: split
from baraquant import _C

SOURCE = Path(__file__).with_name("vpdpbusd_peak.cpp")
ROOT = SOURCE.parent.parent
sys.path.append(str(ROOT / "scripts"))
import toolchain  # noqa: E402

LIBRARY = ROOT / "build" / "benchmarks" / "vpdpbusd_peak.so"
PEAK = "vpdpbusd peak"


def has_peak() -> bool:
    """Whether the instruction set in use multiplies by vpdpbusd."""
    return "vnni" in _C.cpu_isa()


@functools.cache
def library() -> ctypes.CDLL:
    """The program, compiled anew in each process."""
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    options = ("-std=c++20", "-O2", "-shared", "-fPIC", "-fopenmp")
    command = [*toolchain.program_compiler().split(), *options, str(SOURCE), "-o", str(LIBRARY)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(LIBRARY))
    loaded.multiply.restype = ctypes.c_int64
    return loaded


def peak_call(operations: float) -> Call:
    """Return a call of as many operations as a product has, by all threads; it returns them."""
    multiply, wide = library().multiply, _C.cpu_isa() == "avx512_vnni"
    arguments = (
        ctypes.c_int64(int(operations)),
        ctypes.c_int(torch.get_num_threads()),
        ctypes.c_bool(wide),
    )
    return lambda _: multiply(*arguments)
