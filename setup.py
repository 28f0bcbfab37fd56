# SPDX-License-Identifier: BSD-3-Clause
"""Builds libbaraquant.so (the ops; no Python symbol in it) and the small module baraquant._C.

Environment variables:
    BARAQUANT_CUDA: 0 or 1 leaves out or demands the CUDA kernels. Unset: they are built where
        torch is a CUDA build and nvcc is found.
    BARAQUANT_WERROR: 1 turns warnings into errors; later builds in this checkout keep that, so
        that they do not compile everything anew. 0 turns it off.
    TORCH_CUDA_ARCH_LIST: the GPU architectures. Unset: those of the visible GPUs, or a default.
    BARAQUANT_CUTLASS: 0 leaves out the kernels for Hopper's tensor cores. Unset or 1: they are
        built where 9.0a is among the architectures, and need CUTLASS's headers.
    CUTLASS_PATH: a folder with CUTLASS's headers, below include/ or in it. Unset: those of the
        package nvidia-cutlass (pip install --no-deps nvidia-cutlass).
    BARAQUANT_SANITIZE: address or thread instruments the code for that sanitizer. `make asan` and
        `make tsan` set it, for a build in a folder of its own.
    MAX_JOBS: how many compilers run at a time. Unset: one for each core.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "scripts"))
import plain_wheel  # noqa: E402
import toolchain  # noqa: E402

# ninja, installed into a virtual environment that is not activated
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
NVCC = toolchain.find_nvcc()
if NVCC is not None:
    os.environ.setdefault("CUDA_HOME", str(toolchain.cuda_home(NVCC)))  # before torch guesses it

try:
    import torch
    from torch.utils import cpp_extension
except ImportError:
    sys.exit(
        "baraquant: setup.py needs PyTorch 2.11 to 2.15 in this environment. Install torch, then "
        "run: pip install --no-build-isolation ."
    )


# Some compilers link libstdc++ statically; a second copy of it in the process crashes at the first
# message that torch and we write into one stream. Named so, the shared one comes first.
LINK_FLAGS = ["-Wl,-s", "-l:libstdc++.so.6"]
NO_UNDEFINED = ["-Wl,-z,defs"]  # a missing symbol is an error of the link
# A sanitizer's report names functions, so the symbols stay. Its runtime is preloaded by whoever
# runs the library, so its symbols are undefined here.
SANITIZER_FLAGS = toolchain.sanitizer_flags()
if SANITIZER_FLAGS:
    LINK_FLAGS = ["-l:libstdc++.so.6", *(f for f in SANITIZER_FLAGS if f.startswith("-fsan"))]
    NO_UNDEFINED = []

VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]  # type: ignore[index]


def wants_cuda() -> bool:
    """Whether the CUDA kernels are built (BARAQUANT_CUDA, else: torch and nvcc have CUDA)."""
    choice = os.environ.get("BARAQUANT_CUDA", "")
    if choice not in ("", "0", "1"):
        sys.exit(f"baraquant: expected BARAQUANT_CUDA to be 0 or 1, but got {choice!r}")
    missing = []
    if torch.version.cuda is None:
        missing.append("a CUDA build of torch")
    if NVCC is None:
        missing.append("nvcc (CUDA_HOME or PATH)")
    if choice == "1" and missing:
        sys.exit(f"baraquant: BARAQUANT_CUDA=1, but this environment lacks {' and '.join(missing)}")
    return choice != "0" and not missing


def cuda_architectures() -> str:
    """TORCH_CUDA_ARCH_LIST, else the visible GPUs' architectures, else the default list."""
    chosen = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if chosen:
        return chosen
    if not torch.cuda.is_available():
        return toolchain.DEFAULT_ARCHITECTURES
    visible = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(
        f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
        for major, minor in sorted(visible)
    )


def warnings_are_errors() -> bool:
    """BARAQUANT_WERROR, remembered in build/."""
    mark = ROOT / "build" / "werror"
    choice = os.environ.get("BARAQUANT_WERROR", "1" if mark.exists() else "0")
    if choice == "1":
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    else:
        mark.unlink(missing_ok=True)
    return choice == "1"


def relative(paths: list[Path]) -> list[str]:
    """Paths from the root, which setuptools demands of sources."""
    return [str(p.relative_to(ROOT)) for p in paths]


def extensions() -> list[Extension]:
    """libbaraquant.so, then _C, which links against it."""
    with_cuda = wants_cuda()
    # GCC warns of values that only its own instrumentation leaves unset.
    werror = warnings_are_errors() and not SANITIZER_FLAGS
    # Macros on the command line, not in a header: an object is compiled anew when one changes, as
    # it must be for another torch, whose headers (-isystem) the dependency files do not list.
    macros: list[tuple[str, str | None]] = [
        ("BARAQUANT_VERSION", f'"{VERSION}"'),
        ("BARAQUANT_TORCH_VERSION", f'"{torch.__version__}"'),
        ("BARAQUANT_NVCC_VERSION", '""'),
        ("BARAQUANT_CUDA_ARCHITECTURES", '""'),
    ]
    sources = toolchain.compiled_sources()
    libraries = ["c10", "torch", "torch_cpu"]
    device = "cpu"
    nvcc_flags = [*toolchain.NVCC_FLAGS, *(toolchain.NVCC_WERROR if werror else [])]
    if with_cuda:
        assert NVCC is not None
        device = "cuda"
        sources += toolchain.cuda_sources()
        libraries += ["c10_cuda", "torch_cuda", "cudart"]
        architectures = toolchain.for_hopper(cuda_architectures())
        os.environ["TORCH_CUDA_ARCH_LIST"] = architectures  # BuildExtension makes -gencode of it
        nvcc_flags += ["--threads", str(min(toolchain.cores(), len(architectures.split(";"))))]
        cutlass = toolchain.hopper_headers(architectures)
        nvcc_flags += ["-isystem", str(cutlass)] if cutlass else []
        macros[2:] = [
            ("BARAQUANT_NVCC_VERSION", f'"{toolchain.nvcc_version(NVCC)}"'),
            ("BARAQUANT_CUDA_ARCHITECTURES", f'"{architectures}"'),
            ("BARAQUANT_WITH_CUDA", None),
            *([("BARAQUANT_WITH_CUTLASS", None)] if cutlass else []),
        ]
    # -isystem: the warnings in torch's own headers are not ours.
    paths = cpp_extension.include_paths(device)
    system = [part for path in paths for part in ("-isystem", path)]
    cxx_flags = [*toolchain.CXX_FLAGS, *(toolchain.CXX_WERROR if werror else []), *system]
    cxx_flags += SANITIZER_FLAGS
    headers = [*relative(toolchain.headers()), "setup.py", "scripts/toolchain.py"]
    library = Extension(
        "baraquant.libbaraquant",
        relative(sources),
        include_dirs=[str(toolchain.CSRC)],
        define_macros=macros,
        library_dirs=cpp_extension.library_paths(device),
        libraries=libraries,
        extra_compile_args={"cxx": cxx_flags, "nvcc": [*nvcc_flags, *system]},  # type: ignore[arg-type]
        extra_link_args=["-Wl,-soname,libbaraquant.so", *NO_UNDEFINED, "-fopenmp", *LINK_FLAGS],
        depends=[*headers, *relative([toolchain.SYMBOLS])],
        language="c++",
    )
    module = Extension(
        "baraquant._C",
        relative(sorted((toolchain.CSRC / "python").glob("*.cpp"))),
        include_dirs=[str(toolchain.CSRC)],
        define_macros=macros[:2],
        library_dirs=cpp_extension.library_paths("cpu"),
        libraries=["baraquant", "c10", "torch_cpu", "torch", "torch_python"],
        extra_compile_args={"cxx": cxx_flags},  # type: ignore[arg-type]
        extra_link_args=["-Wl,-rpath,$ORIGIN", *LINK_FLAGS],
        depends=headers,
        language="c++",
    )
    return [library, module]


class BuildLibraries(cpp_extension.BuildExtension):  # type: ignore[misc]
    """BuildExtension, which also installs the headers and the CMake package beside the library."""

    def finalize_options(self) -> None:
        super().finalize_options()
        os.environ.setdefault("MAX_JOBS", str(toolchain.cores()))
        # A virtual environment's own headers are not ours, and their folder is another in each
        # environment: nothing is compiled anew for the next one over the same torch.
        own = os.path.join(sys.exec_prefix, "include")
        self.include_dirs = [path for path in self.include_dirs if path != own]

    def run(self) -> None:
        inplace = self.inplace
        super().run()
        self.install_development_files(Path(self.build_lib) / "baraquant")
        if inplace:
            self.install_development_files(ROOT / "baraquant")

    def build_extension(self, ext: Extension) -> None:
        # A folder for each: both would else write, and ninja would read, the same build.ninja.
        shared = self.build_temp
        self.build_temp = os.path.join(shared, ext.name)
        if ext.name == "baraquant._C":
            ext.library_dirs.append(os.path.join(self.build_lib, "baraquant"))
        else:
            script = toolchain.version_script(VERSION, Path(self.build_temp))
            ext.extra_link_args.append(f"-Wl,--version-script={script}")
        # Without ninja nothing else notices that a flag has changed.
        mark = Path(self.build_temp) / "flags.txt"
        flags = repr((ext.sources, ext.define_macros, ext.extra_compile_args))
        self.force = bool(self.force) or not mark.exists() or mark.read_text() != flags
        super().build_extension(ext)
        mark.write_text(flags)
        self.build_temp = shared

    def get_ext_filename(self, ext_name: str) -> str:
        if ext_name.split(".")[-1] == "libbaraquant":
            return os.path.join(*ext_name.split(".")) + ".so"
        return str(super().get_ext_filename(ext_name))

    def install_development_files(self, package: Path) -> None:
        """Writes include/baraquant/ and share/cmake/baraquant/ below the package."""
        for folder in ("include", "share"):
            shutil.rmtree(package / folder, ignore_errors=True)
        for header in toolchain.headers():
            target = package / "include" / "baraquant" / toolchain.installed_as(header)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(header, target)
        cmake = package / "share" / "cmake" / "baraquant"
        cmake.mkdir(parents=True)
        values = {
            "@BARAQUANT_VERSION@": VERSION,
            "@BARAQUANT_TORCH_VERSION@": torch.__version__.split("+")[0],
        }
        for template in sorted((ROOT / "cmake").glob("*.cmake.in")):
            text = template.read_text()
            for name, value in values.items():
                text = text.replace(name, value)
            (cmake / template.stem).write_text(text)


class BuildPython(build_py):
    """build_py that first clears what an earlier build left: a wheel takes all of build/lib."""

    def run(self) -> None:
        for left in (Path(self.build_lib) / "baraquant").rglob("*.py*"):
            if left.is_file():
                left.unlink()
        super().run()


COMMANDS = {"build_ext": BuildLibraries, "build_py": BuildPython}
if plain_wheel.is_needed():
    COMMANDS["bdist_wheel"] = plain_wheel.PlainWheel

# pyproject.toml cannot hold the licence: setuptools before 77 refuses the form that PEP 639 gave
# it, and later ones warn of the older form.
KNOWS_PEP_639 = int(setuptools.__version__.split(".")[0]) >= 77

setup(
    ext_modules=extensions(),
    cmdclass=COMMANDS,
    **{"license_expression" if KNOWS_PEP_639 else "license": "BSD-3-Clause"},
)
