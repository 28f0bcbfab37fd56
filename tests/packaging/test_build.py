# SPDX-License-Identifier: BSD-3-Clause
"""What the build makes: the library, the wheel, and the messages when something is missing."""

import email
import importlib.util
import json
import os
import re
import shutil
import site
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

import baraquant
import toolchain
from baraquant import _C, _library
from tests.support.processes import MadeOnce, run

ROOT = toolchain.ROOT
PACKAGE = Path(baraquant.__file__).resolve().parent
LIBRARY = PACKAGE / "libbaraquant.so"


def output_of(*command: str | Path, **options: Any) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the library


def test_library_needs_no_python() -> None:
    symbols = output_of("nm", "-D", "--undefined-only", LIBRARY).split()
    assert any("TypeMeta" in s or "at4_ops" in s or "torch" in s for s in symbols)  # nm did work
    assert [s for s in symbols if re.match(r"_?Py[A-Z_]|.*(THPVariable|pybind11)", s)] == []
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", LIBRARY))
    assert "libtorch_cpu.so" in needed and not any("python" in name for name in needed)


def test_module_finds_the_library_beside_it() -> None:
    dynamic = output_of("readelf", "-d", _C.__file__ or "")
    assert "[libbaraquant.so]" in dynamic
    assert re.search(r"\((RUNPATH|RPATH)\).*\[\$ORIGIN\]", dynamic)


def test_build_record() -> None:
    info = _C.build_info()
    assert _library.build_torch_version(LIBRARY) == torch.__version__ == info["torch_version"]
    assert f'version = "{info["version"]}"' in (ROOT / "pyproject.toml").read_text()
    assert re.match(r"(gcc|clang) \d+\.", info["compiler"])
    assert bool(info["cuda_architectures"]) == bool(info["nvcc_version"]) == info["with_cuda"]


def test_second_load_changes_nothing() -> None:
    before = set(torch._C._dispatch_get_all_op_names())
    _library.load()
    torch.ops.load_library(str(LIBRARY))
    assert set(torch._C._dispatch_get_all_op_names()) == before


# --- import, where something is missing


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "include", "share")
    shutil.copytree(PACKAGE, tmp_path / "baraquant", ignore=ignored)
    return tmp_path


def import_error(folder: Path, before: str = "") -> str:
    environment = {"PYTHONPATH": str(folder)}  # not this checkout
    result = run(sys.executable, "-c", f"{before}\nimport baraquant", cwd=folder, env=environment)
    assert result.returncode == 1, "the import should fail"
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: "), result.stderr
    return last


def test_import_without_torch(copied: Path) -> None:
    message = import_error(copied, "import sys; sys.modules['torch'] = None")
    assert "baraquant needs PyTorch 2.11 to 2.15" in message
    assert "pip install --no-build-isolation" in message


def without_library(package: Path) -> str:
    (package / "libbaraquant.so").unlink()
    return "compiled library is missing"


def in_a_checkout(package: Path) -> str:
    (package.parent / "setup.py").touch()
    (package.parent / "csrc").mkdir()
    without_library(package)
    return f"make -C {package.parent} build"


def for_another_torch(package: Path) -> str:
    library = package / "libbaraquant.so"
    record = f"torch={torch.__version__};".encode()
    data = library.read_bytes()
    assert record in data
    library.write_bytes(data.replace(record, b"torch=1" + record[len(b"torch=1") :]))
    return f"built for torch 1{torch.__version__[1:]}, but torch {torch.__version__}"


def with_an_undefined_symbol(package: Path) -> str:
    source, library = package / "undefined.cpp", package / "libbaraquant.so"
    source.write_text(
        'extern "C" void a_symbol_of_another_abi(); void (*use)() = &a_symbol_of_another_abi;'
        'extern const char record[]; const char record[] = "baraquant-build-record:version=0.1.0;'
        f'torch={torch.__version__};";'
    )
    library.unlink()
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    output_of(*compiler.split(), "-shared", "-fPIC", source, "-o", library)
    return "a_symbol_of_another_abi"


def without_the_module(package: Path) -> str:
    for module in package.glob("_C.*.so"):
        module.unlink()
    return "baraquant._C cannot be imported"


OTHERS = (in_a_checkout, for_another_torch, with_an_undefined_symbol, without_the_module)
DAMAGES = [without_library, *(pytest.param(one, marks=pytest.mark.packaging) for one in OTHERS)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_import_of_a_damaged_package(damage: Callable[[Path], str], copied: Path) -> None:
    """The last line says what is wrong and what to run."""
    words = damage(copied / "baraquant")
    message = import_error(copied)
    assert words in message
    assert damage is in_a_checkout or "pip install --no-build-isolation" in message


# --- the wheel


@pytest.fixture(scope="session")
def wheel(made_once: MadeOnce) -> Path:
    """The wheel of this checkout. The objects of the build in place are used again."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("there is no pip in this environment")

    def make(folder: Path) -> None:
        options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder)
        output_of(sys.executable, "-m", "pip", "wheel", *options, ROOT, env=outside())

    (path,) = made_once("wheel", make).glob("baraquant-*.whl")
    return path


def outside() -> dict[str, str]:
    """PYTHONPATH without this folder, where pip would find the package installed."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join(p for p in paths if p and Path(p).resolve() != ROOT)}


def reach_packages(environment: Path) -> None:
    """Lets a virtual environment see the packages of this one, behind its own."""
    (packages,) = (environment / "lib").glob("python*/site-packages")
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    (packages / "torch_in_use.pth").write_text(
        "\n".join(path for path in sys.path if "-packages" in path or path in user) + "\n"
    )


@pytest.fixture(scope="session")
def installed(wheel: Path, made_once: MadeOnce) -> Path:
    """The interpreter of a fresh environment with the wheel, which reaches torch by a .pth file."""

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        reach_packages(folder)
        python = str(folder / "bin" / "python")
        install = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index")
        output_of(*install, "--no-deps", wheel, env=outside())

    return made_once("environment", make) / "bin" / "python"


@pytest.mark.packaging
def test_wheel_holds_what_it_should(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"libbaraquant.so", "py.typed", "__init__.py", "info.py", "_C.pyi"}
    expected |= {f"share/cmake/baraquant/baraquantConfig{v}.cmake" for v in ("", "Version")}
    expected |= {f"include/baraquant/{toolchain.installed_as(h)}" for h in toolchain.headers()}
    ours = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.json")]
    expected |= {str(p.relative_to(PACKAGE)) for p in ours}
    assert {f"baraquant/{name}" for name in expected} <= names
    assert any(re.match(r"baraquant/_C\..*\.so$", name) for name in names)
    folders = {name.split("/")[0] for name in names}
    assert {f for f in folders if not f.endswith(".dist-info")} == {"baraquant"}
    left = {n for n in names if n.endswith(".py")} - {f"baraquant/{name}" for name in expected}
    assert left == set()


@pytest.mark.packaging
def test_info_of_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    def info(option: str) -> str:
        command = (installed, "-m", "baraquant.info", option)
        return output_of(*command, cwd=tmp_path, env={"PYTHONPATH": None})

    assert json.loads(info("--json"))["problems"] == []
    prefix = Path(info("--cmake-prefix").split(";")[0])
    assert prefix.is_relative_to(installed.parent.parent)
    assert (prefix / "share/cmake/baraquant/baraquantConfig.cmake").is_file()
    assert (prefix / "include/baraquant/build_info.h").is_file()


# --- a fresh environment


@pytest.fixture(scope="session")
def bare(made_once: MadeOnce) -> Path:
    """The interpreter of a fresh environment: its own pip and setuptools, and torch by a .pth file.

    Python 3.11 puts setuptools 65 into it, which knows neither PEP 639 nor bdist_wheel, and no
    package wheel.
    """

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True, symlinks=True)
        reach_packages(folder)

    return made_once("bare", make) / "bin" / "python"


@pytest.mark.packaging
def test_install_line_works_in_a_fresh_environment(bare: Path, wheel: Path, tmp_path: Path) -> None:
    """The README's line, as it stands; the objects of the wheel's build are used again."""
    line = "pip install --no-build-isolation ."
    assert f"\n{line}\n" in (ROOT / "README.md").read_text()
    # The same ninja: another version would compile everything anew, here and in the next build.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Without dependencies: torch, which is another environment's, may want another setuptools.
    options = {"PATH": path, "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    output_of(bare, "-m", *line.split(), cwd=ROOT, env={**outside(), **options})
    code = "import baraquant; print(baraquant.__file__); from baraquant.info import main; main([])"
    printed = output_of(bare, "-c", code, cwd=tmp_path, env={"PYTHONPATH": None}).split("\n")
    place, *_, last = filter(None, printed)
    assert Path(place).is_relative_to(bare.parent.parent) and last.endswith("All is well.")
    (made,) = bare.parent.parent.glob("lib/python*/site-packages/baraquant-*.dist-info")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        expected = archive.read(name).decode()
    texts = (made / "METADATA").read_text(), expected
    fields = [email.message_from_string(text) for text in texts]
    for field in ("Name", "Version", "Requires-Dist", "Provides-Extra", "License-File"):
        first, second = (
            sorted(text.replace(" ", "").replace("'", '"') for text in message.get_all(field, []))
            for message in fields
        )
        assert first == second
    assert (made / "RECORD").read_text().count("baraquant/libbaraquant.so,sha256=") == 1


# --- setup.py: what it refuses, and which kernels it leaves out


def run_setup(before: str, **environment: str) -> CompletedProcess[str]:
    code = f"import sys; {before}; sys.argv = ['setup.py', '--version']; import runpy; "
    code += "runpy.run_path('setup.py', run_name='__main__')"
    return run(sys.executable, "-c", code, cwd=ROOT, env=environment)


def test_setup_without_torch_says_so_in_one_line() -> None:
    result = run_setup("sys.modules['torch'] = None")
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert "setup.py needs PyTorch" in line and "pip install --no-build-isolation ." in line


def test_setup_with_a_wrong_choice_of_cuda() -> None:
    result = run_setup("pass", BARAQUANT_CUDA="yes")
    assert result.returncode == 1
    assert "expected BARAQUANT_CUDA to be 0 or 1, but got 'yes'" in result.stderr


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is a CUDA build")
def test_setup_with_cuda_demanded_of_a_cpu_torch() -> None:
    result = run_setup("pass", BARAQUANT_CUDA="1")
    assert result.returncode == 1
    assert "this environment lacks a CUDA build of torch" in result.stderr


def test_hopper_kernels_need_cutlass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    monkeypatch.delenv("BARAQUANT_CUTLASS", raising=False)
    for architectures in ("8.0;9.0a", "9.0a+PTX", toolchain.DEFAULT_ARCHITECTURES):
        with pytest.raises(SystemExit, match="Run: pip install --no-deps nvidia-cutlass "):
            toolchain.hopper_headers(architectures)
    assert toolchain.hopper_headers("8.0;10.0+PTX") is None
    monkeypatch.setenv("BARAQUANT_CUTLASS", "0")
    assert toolchain.hopper_headers("9.0a") is None
    monkeypatch.setenv("BARAQUANT_CUTLASS", "1")
    (tmp_path / "include" / "cutlass").mkdir(parents=True)
    (tmp_path / "include" / "cutlass" / "cutlass.h").touch()
    for architectures in ("8.0;9.0a;12.0+PTX", "8.0 9.0a", "9.0a+PTX"):
        assert toolchain.hopper_headers(architectures) == tmp_path / "include"


def test_hopper_is_built_with_its_own_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BARAQUANT_CUTLASS", raising=False)
    assert toolchain.for_hopper("8.0 9.0 10.0+PTX") == "8.0;9.0a;10.0+PTX"
    assert toolchain.for_hopper("9.0;9.0a") == "9.0a"
    for entry in ("9.0+PTX", "Hopper"):
        with pytest.raises(SystemExit, match=r"to name Hopper as 9\.0a, but got"):
            toolchain.for_hopper(f"8.0;{entry}")
        assert toolchain.for_hopper(f"9.0a;{entry}") == f"9.0a;{entry}"
    monkeypatch.setenv("BARAQUANT_CUTLASS", "0")
    assert toolchain.for_hopper("8.0;9.0;9.0+PTX") == "8.0;9.0;9.0+PTX"
    monkeypatch.setenv("BARAQUANT_CUTLASS", "no")
    with pytest.raises(SystemExit, match="expected BARAQUANT_CUTLASS to be 0 or 1, but got 'no'"):
        toolchain.for_hopper("8.0")
