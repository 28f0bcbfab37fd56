# SPDX-License-Identifier: BSD-3-Clause
"""examples/cpp, built by CMake and by the bare compiler, and run without Python."""

import shutil
import sys
from pathlib import Path

import numpy
import pytest
import torch

import baraquant
import baraquant.info
import toolchain
from digits import float_network
from tests.support.libtorch import TORCH, build_program, run, run_program
from tests.support.processes import MadeOnce

EXAMPLES = toolchain.ROOT / "examples" / "cpp"
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

LARGE = ("qat_digits", "serve")

# As the example's README says it.
FIND_TORCH = """
cmake_minimum_required(VERSION 3.18)
project(only_torch LANGUAGES CXX)
find_package(Torch REQUIRED)
"""
# In place of ops.cpp, which test_compiler builds.
SMALL = """
#include <baraquant/build_info.h>
#include <c10/core/ScalarType.h>
#include <cstdio>
int main() {
  const auto& built = baraquant::build_info();
  std::printf("baraquant %s, built for torch %s\\n", built.version, built.torch_version);
  return c10::elementSize(c10::kChar) == 1 ? 0 : 1;
}
"""


def check_ops(program: Path, *results: str) -> None:
    printed = run_program(program)
    assert all(f"{result}: as expected" in printed for result in results)
    assert f"baraquant {baraquant.__version__}, built for torch {torch.__version__}" in printed
    check_needed(program)


def check_needed(program: Path) -> None:
    needed = [Path(line.split()[0]).name for line in run("ldd", program).stdout.splitlines()]
    assert "libbaraquant.so" in needed
    assert [name for name in needed if "python" in name] == []


def why_not_cmake(tmp_path: Path) -> str | None:
    """Why torch's own CMake package cannot be used here; None where it can."""
    if shutil.which("cmake") is None:
        return "there is no cmake here"
    if torch.version.cuda is None:
        return None  # then it must work
    source = tmp_path / "only_torch"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(FIND_TORCH)
    found = run(
        *("cmake", "-S", source, "-B", tmp_path / "only_torch_build"),
        f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
    )
    if found.returncode == 0:
        return None
    errors = [line for line in found.stdout.splitlines() if line.strip()]
    at = next((i for i, line in enumerate(errors) if "CMake Error" in line), len(errors) - 1)
    return "find_package(Torch) alone fails with this CUDA torch: " + " ".join(errors[at : at + 3])


@pytest.fixture(scope="module", params=DEVICES)
def data(request: pytest.FixtureRequest, made_once: MadeOnce) -> Path:
    """What export_digits.py writes on a device; the folder has its name."""

    def export(folder: Path) -> None:
        options = (folder / request.param, "--device", request.param)
        written = run(sys.executable, EXAMPLES / "export_digits.py", *options)
        assert written.returncode == 0, written.stdout

    return made_once(f"exported_{request.param}", export) / request.param


def check_training_and_serving(folder: Path, data: Path, written: Path) -> None:
    """Runs qat_digits and serve; what C++ has written is loaded in Python."""
    on_cuda = ["--cuda"] if data.name == "cuda" else []
    options = ["--epochs", "4", *on_cuda]
    table = run_program(folder / "qat_digits", data / "digits.csv", written, *options)
    assert table.count("the same") == 6, table
    assert "DIFFERENT" not in table
    check_files(data / "digits.csv", written)
    served = run_program(folder / "serve", data, *on_cuda)
    assert served.count("gives the bits of Python") == 3, served


def check_files(digits: Path, written: Path) -> None:
    """The networks that C++ has trained, in Python: as accurate as the program says."""
    rows = numpy.loadtxt(digits, delimiter=",", dtype="float32")
    rows = rows[len(rows) * 7 // 10 :]
    labels, images = torch.from_numpy(rows[:, 0]), torch.from_numpy(rows[:, 1:] / 16)
    files = sorted(written.glob("*.safetensors"))
    assert len(files) == 6
    for file in files:
        network = baraquant.load_(float_network, file).eval()
        hits = network(images).argmax(dim=1) == labels
        assert hits.float().mean() > (0.6 if file.stem.startswith("w2") else 0.8), file.stem


def configure_and_build(layout: str, folder: Path) -> None:
    """The example's large programs, by CMake, in `folder`/build; of another layout a small one."""
    source, build, prefix = EXAMPLES, folder / "build", baraquant.info.cmake_prefix()
    libtorch = folder / "libtorch"
    if layout == "zip":
        libtorch.mkdir()  # with the folders of the zip from pytorch.org, as in pip's package
        for name in ("include", "lib", "share"):
            (libtorch / name).symlink_to(TORCH / name)
        source, prefix = folder / "source", f"{libtorch};{prefix}"
        shutil.copytree(EXAMPLES, source)
        (source / "ops.cpp").write_text(SMALL)
    configured = run(
        *("cmake", "-S", source, "-B", build),
        *("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O0"),  # they run for a second
        f"-DCMAKE_CXX_COMPILER={toolchain.program_compiler()}",
        f"-DCMAKE_PREFIX_PATH={prefix}",
    )
    assert configured.returncode == 0, configured.stdout
    found = (build / "CMakeCache.txt").read_text()
    assert (f"Torch_DIR:PATH={libtorch}/" in found) == (layout == "zip")
    targets = ("ops",) if layout == "zip" else LARGE
    built = run("cmake", "--build", build, "--parallel", "3", "--target", *targets)
    assert built.returncode == 0, built.stdout


@pytest.mark.packaging
@pytest.mark.parametrize("layout", ["pip", "zip"])
def test_cmake(layout: str, tmp_path: Path, data: Path, made_once: MadeOnce) -> None:
    reason = why_not_cmake(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    programs = made_once(layout, lambda folder: configure_and_build(layout, folder)) / "build"
    if layout == "zip":
        check_ops(programs / "ops")
    else:
        check_needed(programs / "serve")
        check_training_and_serving(programs, data, tmp_path / "cpp")


@pytest.mark.packaging
def test_compiler(tmp_path: Path) -> None:
    build_program(EXAMPLES / "ops.cpp", tmp_path / "ops", "-O2")
    check_ops(tmp_path / "ops", "forward", "backward", "int8_linear")


@pytest.mark.packaging
def test_compiler_of_whole_programs(tmp_path: Path, data: Path) -> None:
    if why_not_cmake(tmp_path) is None:
        pytest.skip("test_cmake has built and run them")
    for name in LARGE:
        build_program(EXAMPLES / f"{name}.cpp", tmp_path / name, "-O1", "-Wall", "-Wextra")
    check_training_and_serving(tmp_path, data, tmp_path / "cpp")
