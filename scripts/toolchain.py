# SPDX-License-Identifier: BSD-3-Clause
"""Compilers and flags, stated once for setup.py, the compile check of CUDA and the C++ tests."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
SYMBOLS = CSRC / "libbaraquant.map.in"  # those that libbaraquant.so exports

# The numerics: every step rounds by itself (no contraction to fma, no -ffast-math). errno and
# floating-point traps are given up, since without that rint and division do not vectorise.
CXX_NUMERICS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
CXX_FLAGS = [
    *("-std=c++20", "-O3", "-g0"),
    "-fopenmp",  # at::parallel_for; libgomp.so.1 is the one that torch has loaded
    *CXX_NUMERICS,
    "-fvisibility=hidden",
    *("-Wall", "-Wextra", "-Wno-unused-parameter"),
    # False alarms of GCC 13 about std::vector<bool> in torch's headers.
    *("-Wno-array-bounds", "-Wno-stringop-overflow", "-Wno-stringop-overread"),
]
NVCC_FLAGS = [
    # NDEBUG: an assertion of CUTLASS's is a function call, which would serialise wgmma.
    *("-std=c++20", "-O3", "-DNDEBUG", "--fmad=false", "--expt-relaxed-constexpr"),
    *(f"-Xcompiler={flag}" for flag in (*CXX_NUMERICS, "-fvisibility=hidden", "-Wall")),
]
# What BARAQUANT_SANITIZE adds, by its value; scripts/sanitize.py sets it and preloads the runtimes.
# A cast of a float that the integer cannot hold is undefined too, though `undefined` leaves it out.
_SANITIZED = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
SANITIZERS = {
    "address": [
        *("-fsanitize=address,undefined", "-fsanitize=float-cast-overflow", *_SANITIZED),
        "-D_GLIBCXX_ASSERTIONS",  # the standard library's containers check their indices
    ],
    "thread": ["-fsanitize=thread", *_SANITIZED],
}
CXX_WERROR = ["-Werror"]
NVCC_WERROR = ["-Werror", "all-warnings"]

# One image of machine code for each major generation (it runs on every later minor one), two for
# Ampere, whose second one Ada runs, and PTX for what comes after. 9.0a: the instructions of Hopper
# that "9.0" leaves out.
DEFAULT_ARCHITECTURES = "8.0;8.6;9.0a;10.0+PTX;12.0+PTX"


def library_sources(suffix: str) -> list[Path]:
    """The sources of libbaraquant.so with this suffix (``.cpp`` or ``.cu``), sorted."""
    return sorted(p for p in CSRC.rglob(f"*{suffix}") if p.relative_to(CSRC).parts[0] != "python")


def compiled_units() -> list[Path]:
    """A source for each family and each other folder of csrc, which includes its sources.

    PyTorch's headers take most of a compiler's time: one unit takes half the time of its files, or
    a sixth with the headers of torch::nn. The names in their anonymous namespaces differ.
    """
    folders: dict[str, str] = {}
    for folder, name in (p.relative_to(CSRC).parts for p in library_sources(".cpp") if _joins(p)):
        folders[folder] = folders.get(folder, "") + f'#include "{folder}/{name}"\n'
    return [unit(f"{folder}.cpp", text) for folder, text in folders.items()]


def _joins(source: Path) -> bool:
    """Whether a source is a part of a unit: not the kernels, in a folder below their family's."""
    return source.parent.parent == CSRC


def unit(name: str, *texts: str) -> Path:
    """A source with these texts in build/; one that is there need not be compiled anew."""
    path, text = ROOT / "build" / "units" / name, "".join(texts)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def cuda_units() -> list[Path]:
    """A source for each tile on Hopper and each type of the other kernels' output, written anew.

    A kernel of CUTLASS's takes a core a minute: so they compile in parallel.
    """
    cuda = CSRC / "int8_mm" / "cuda"
    units = []
    for family, tile in re.findall(
        r"\.tile = (\w+)Tile::k(\w+)", (cuda / "hopper" / "tiles.h").read_text()
    ):
        header = "gemm" if family == "Hopper" else "grouped_gemm"
        text = f'#include "int8_mm/cuda/hopper/{header}.cuh"\n'
        text += f"BARAQUANT_INSTANCE({family.lower()}_kernels, {family}Tile::k{tile});\n"
        units.append(unit(f"{family}_{tile}.cu".lower(), text))
    for output in ("BFloat16", "Float16", "float", "double"):
        text = f'#include "int8_mm/cuda/instance.cuh"\nBARAQUANT_OUTPUT_TYPE({output})\n'
        units.append(unit(f"to_{output}.cu".lower(), text))
    return units


def compiled_sources() -> list[Path]:
    """What is compiled for libbaraquant.so: the units, and the kernels by themselves."""
    return [path for path in library_sources(".cpp") if not _joins(path)] + compiled_units()


def cuda_sources() -> list[Path]:
    """What nvcc compiles for libbaraquant.so."""
    return library_sources(".cu") + cuda_units()


def families() -> list[str]:
    """The folders of csrc that have public ops, sorted."""
    folders = (path.parent for path in CSRC.glob("*/schema.cpp"))
    return sorted(folder.name for folder in folders if (folder / "ops.txt").exists())


def headers() -> list[Path]:
    """Every header below csrc, sorted."""
    return sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cuh"))


def torch_folder() -> Path:
    """Where torch lies, without importing it (which takes seconds)."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("baraquant: there is no torch in this environment")
    return Path(spec.origin).resolve().parent


def torch_includes() -> list[Path]:
    """The folders of torch's headers."""
    include = torch_folder() / "include"
    return [include, include / "torch" / "csrc" / "api" / "include"]


def packaged_program(name: str) -> Path | None:
    """The program of the PyPI package of the same name, whose version pyproject.toml chooses."""
    try:
        listed = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    programs = [Path(str(p.locate())) for p in listed if p.parts[-2:] == ("bin", name)]
    return next((p for p in programs if p.exists()), None)


def installed_as(header: Path) -> Path:
    """The place of a header below include/baraquant: at its root for those of csrc/api."""
    place = header.relative_to(CSRC)
    return place.relative_to("api") if place.parts[0] == "api" else place


def version_script(version: str, folder: Path) -> Path:
    """Writes SYMBOLS for the linker, with the version of the interface: that of the package.

    Before 1.0 its first two numbers, as in cmake/baraquantConfigVersion.cmake.in; then the first.
    """
    major, minor, *_ = version.split(".")
    interface = f"0.{minor}" if major == "0" else major
    script = folder / SYMBOLS.stem
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(SYMBOLS.read_text().replace("@BARAQUANT_INTERFACE@", interface))
    return script


def sanitizer_flags() -> list[str]:
    """The flags that BARAQUANT_SANITIZE asks for; none where it is unset."""
    chosen = os.environ.get("BARAQUANT_SANITIZE", "")
    if chosen and chosen not in SANITIZERS:
        raise SystemExit(
            f"baraquant: expected BARAQUANT_SANITIZE to be {' or '.join(SANITIZERS)}, "
            f"but got {chosen!r}"
        )
    return SANITIZERS.get(chosen, [])


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def program_compiler() -> str:
    """The C++ compiler for programs that load torch: CXX, g++ or c++, the first that does.

    A compiler that links libstdc++ statically does not: with a second copy of it in the process,
    the first message that torch writes into a stream crashes.
    """
    usual = [shutil.which(name, path="/usr/bin:/usr/local/bin") for name in ("g++", "c++")]
    candidates = [os.environ.get("CXX"), shutil.which("g++"), *usual, shutil.which("c++")]
    for compiler in filter(None, candidates):
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder) / "empty.cpp", Path(folder) / "empty"
            source.write_text("#include <iostream>\nint main() { std::cout << 1; }\n")
            command = [*compiler.split(), str(source), "-o", str(program)]
            if subprocess.run(command, check=False, capture_output=True).returncode == 0 and (
                b"libstdc++.so" in program.read_bytes() or b"libc++.so" in program.read_bytes()
            ):
                return compiler
    raise RuntimeError(f"no C++ compiler that links libstdc++.so, among {candidates}")


def find_nvcc() -> Path | None:
    """The nvcc of CUDA_HOME, of the PATH, or of the usual folder."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        nvcc = Path(home) / "bin" / "nvcc"
        return nvcc if nvcc.exists() else None
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    return Path(found) if found else None


def cuda_home(nvcc: Path) -> Path:
    """The toolkit's folder. nvcc names it, since nvcc on the PATH may be a script or a link."""
    output = subprocess.run(
        [str(nvcc), "--dryrun", "-E", "-x", "cu", os.devnull],
        check=False,
        capture_output=True,
        text=True,
    ).stderr
    top = re.search(r"^#\$ TOP=(.+)$", output, re.MULTILINE)
    return Path(top[1]).resolve() if top else nvcc.resolve().parent.parent


def nvcc_version(nvcc: Path) -> str:
    """The full version, as in ``13.0.88``."""
    output = subprocess.run([str(nvcc), "--version"], check=True, capture_output=True, text=True)
    version = re.search(r"\bV(\d+\.\d+\.\d+)", output.stdout)
    return version[1] if version else "unknown"


def find_cutlass() -> Path | None:
    """CUTLASS's include folder: below CUTLASS_PATH, else of the package nvidia-cutlass."""
    chosen = os.environ.get("CUTLASS_PATH")
    if chosen:
        candidates = [Path(chosen).resolve() / "include", Path(chosen).resolve()]
    else:
        spec = importlib.util.find_spec("cutlass_library")
        folder = Path(spec.origin).parent if spec is not None and spec.origin else None
        candidates = [folder / "source" / "include"] if folder is not None else []
    found = (path for path in candidates if (path / "cutlass" / "cutlass.h").exists())
    return next(found, None)


def cutlass_identity() -> str:
    """The folder of CUTLASS and its version, for fingerprints."""
    folder = find_cutlass()
    if folder is None:
        return "none"
    return f"{folder} {(folder / 'cutlass' / 'version.h').read_text()}"


def wants_cutlass() -> bool:
    """Whether the kernels for Hopper's tensor cores are built for 9.0a (BARAQUANT_CUTLASS)."""
    choice = os.environ.get("BARAQUANT_CUTLASS", "")
    if choice not in ("", "0", "1"):
        sys.exit(f"baraquant: expected BARAQUANT_CUTLASS to be 0 or 1, but got {choice!r}")
    return choice != "0"


def split_architectures(text: str) -> list[str]:
    """The entries of a list as TORCH_CUDA_ARCH_LIST holds it."""
    return [entry for entry in re.split(r"[;, ]+", text) if entry]


def for_hopper(architectures: str) -> str:
    """The list, with 9.0a in the place of 9.0.

    Every GPU of 9.0 has the instructions of 9.0a, and Hopper's tensor cores are reached by these
    alone. An entry with PTX cannot be replaced: PTX of 9.0a runs nowhere else.
    """
    entries = split_architectures(architectures)
    if not wants_cutlass():
        return ";".join(entries)
    for entry in entries:
        if entry in ("9.0+PTX", "Hopper") and "9.0a" not in entries:
            sys.exit(
                "baraquant: expected TORCH_CUDA_ARCH_LIST to name Hopper as 9.0a, but got "
                f"{entry}, which leaves out the instructions of Hopper's tensor cores. Name 9.0a "
                "instead (or set BARAQUANT_CUTLASS=0, which builds for this list; products of "
                "integers then run at a third of their speed on Hopper)"
            )
    return ";".join(dict.fromkeys("9.0a" if entry == "9.0" else entry for entry in entries))


def hopper_headers(architectures: str) -> Path | None:
    """CUTLASS's headers, if the kernels for Hopper's tensor cores are to be built."""
    named = {entry.removesuffix("+PTX") for entry in split_architectures(architectures)}
    if "9.0a" not in named or not wants_cutlass():
        return None
    folder = find_cutlass()
    if folder is None:
        sys.exit(
            f"baraquant: the kernels for Hopper (9.0a of the GPU architectures {architectures}) "
            "need CUTLASS's headers, and there are none here. Run: "
            "pip install --no-deps nvidia-cutlass (or set CUTLASS_PATH to a folder that holds "
            "them, or BARAQUANT_CUTLASS=0, which builds without these kernels; products of "
            "integers then run at a third of their speed on Hopper)"
        )
    return folder
