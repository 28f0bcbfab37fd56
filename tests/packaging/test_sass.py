# SPDX-License-Identifier: BSD-3-Clause
"""The machine code of the hot CUDA kernels: wide stores, and no registers spilled to memory.

A compiler that splits a store of 16 bytes into elements halves the speed of a kernel, and no test
of values shows it. So this reads the built library with ``cuobjdump``.
"""

import functools
import importlib.util
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

import baraquant
from baraquant import _C
from tests.support.processes import run

LIBRARY = Path(baraquant.__file__).resolve().parent / "libbaraquant.so"
BFLOAT16, FLOAT16 = "NS_8BFloat16E", "NS_7Float16E"


def name_of(kernel: str, arguments: str, parameters: str) -> str:
    """The mangled name of a kernel of ``baraquant::affine`` with these template arguments."""
    start = f"_ZN9baraquant6affine{len(kernel)}{kernel}I{arguments}EEv"
    return f"{start}NS0_{len(parameters)}{parameters}IT_EE"


def dequantize(kernel: str, integer: str, result: str) -> str:
    return name_of(kernel, f"NS0_10DequantizeI{integer}{result}fEE", "PackedArgs")


def quantize(kernel: str, number: str) -> str:
    return name_of(kernel, f"NS0_8QuantizeI{number}hLNS0_4MaskE0EEE", "PackedArgs")


# A kernel, the instruction of its stores, and how many of them there must be at least.
HOT_KERNELS = {
    **{
        name_of(kernel, f"{dtype}Lb{flag}E", "GradientParams"): ("STG.E.128", stores)
        for kernel in ("sum_packs_kernel", "sum_short_kernel")
        for dtype, stores in ((BFLOAT16, 1), (FLOAT16, 1), ("f", 2))
        for flag in (0, 1)
    },
    **{
        name_of("sum_columns_kernel", f"{dtype}Lb{flag}ELb1E", "GradientParams"): (store, 2)
        for dtype, store in ((BFLOAT16, "STG.E.64"), (FLOAT16, "STG.E.64"), ("f", "STG.E.128"))
        for flag in (0, 1)
    },
    **{
        dequantize(kernel, integer, result): ("STG.E.128", stores)
        for kernel, of_float in (("packed_kernel", 8), ("packed_columns_kernel", 4))
        for integer in "ah"
        for result, stores in ((BFLOAT16, 4), (FLOAT16, 4), ("f", of_float))
    },
    **{quantize("packed_kernel", n): ("STG.E.128", 2) for n in (BFLOAT16, FLOAT16)},
    **{quantize("packed_columns_kernel", n): ("STG.E.64", 4) for n in (BFLOAT16, FLOAT16)},
}


def cuobjdump() -> str | None:
    """The tool: on the PATH, in CUDA's folder, or the one that comes with triton."""
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        folders.append(str(Path(triton.origin).parent / "backends" / "nvidia" / "bin"))
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(folders))


def counts_of(listing: str) -> dict[str, list[Counter[str]]]:
    """How often a kernel has an instruction, in each architecture that the listing holds."""
    counts: dict[str, list[Counter[str]]] = {}
    for part in re.split(r"\n\s*Function : ", listing)[1:]:
        name, code = part.split("\n", 1)
        found = re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", code)
        counts.setdefault(name.strip(), []).append(Counter(found))
    return counts


@functools.cache
def counts_in_library() -> dict[str, list[Counter[str]]]:
    if not _C.build_info()["with_cuda"]:
        pytest.skip("the library was built without CUDA")
    tool = cuobjdump()
    if tool is None:
        pytest.skip("there is no cuobjdump: it comes with CUDA and with triton")
    names = ",".join(HOT_KERNELS)
    done = run(tool, "-sass", "-fun", names, LIBRARY)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return counts_of(done.stdout)


def faults(counts: Counter[str], store: str, at_least: int) -> list[str]:
    """What is wrong with the instructions of a hot kernel."""
    found = []
    spills = {name: n for name, n in counts.items() if name.startswith(("STL", "LDL"))}
    narrow = {name: n for name, n in counts.items() if re.match(r"STG\.E\.[US](8|16)", name)}
    if spills:
        found.append(f"registers are spilled: {spills}")
    if narrow:
        found.append(f"elements are stored one by one: {narrow}")
    if counts[store] < at_least:
        found.append(f"expected {at_least} {store}, but got {counts[store]}")
    return found


@pytest.mark.parametrize("kernel", HOT_KERNELS)
def test_stores_are_wide_and_nothing_spills(kernel: str) -> None:
    architectures = counts_in_library().get(kernel, [])
    assert architectures, f"the library has no kernel {kernel}"
    for counts in architectures:
        assert sum(counts.values()) > 100
        assert faults(counts, *HOT_KERNELS[kernel]) == []


def test_faults_are_found() -> None:
    """On a listing as cuobjdump writes it, of a kernel with each fault."""
    listing = """
\t\tFunction : slow
        /*0000*/                   STL.64 [R1], R2 ;      /* 0x0 */
        /*0010*/              @!P0 STG.E.U16 desc[UR4][R2.64], R4 ;      /* 0x0 */
        /*0020*/               @P0 STG.E.128 desc[UR4][R2.64], R4 ;      /* 0x0 */
"""
    (counts,) = counts_of(listing)["slow"]
    assert counts == {"STL.64": 1, "STG.E.U16": 1, "STG.E.128": 1}
    assert len(faults(counts, "STG.E.128", 2)) == 3
    assert faults(Counter({"STG.E.128": 2}), "STG.E.128", 2) == []
