# SPDX-License-Identifier: BSD-3-Clause
"""What the build makes: the library, the wheel, and the messages when something is missing."""

from __future__ import annotations

import email
import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import baraquant
import toolchain
from baraquant import _C, _library

ROOT = toolchain.ROOT
PACKAGE = Path(baraquant.__file__).resolve().parent
LIBRARY = PACKAGE / "libbaraquant.so"


def output_of(*command: str | Path) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout


def run_python(
    code: str, *, cwd: Path, python: str | Path = sys.executable, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that sees `path` and its own packages, not this checkout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [str(python), "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
    )


# --- the library


def test_library_has_no_python_symbol() -> None:
    symbols = output_of("nm", "-D", "--undefined-only", LIBRARY).split()
    assert any("TypeMeta" in s or "at4_ops" in s or "torch" in s for s in symbols)  # nm did work
    assert [s for s in symbols if re.match(r"_?Py[A-Z_]|.*(THPVariable|pybind11)", s)] == []


def test_library_needs_no_python_library() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", LIBRARY))
    assert "libtorch_cpu.so" in needed
    assert [name for name in needed if "python" in name] == []


def test_library_exports_little() -> None:
    """Hidden visibility: a program may link against what is marked BARAQUANT_API."""
    exported = output_of("nm", "-DC", "--defined-only", LIBRARY)
    assert "baraquant::build_info()" in exported
    own = [line for line in exported.splitlines() if "baraquant::affine::" in line]
    assert own == []


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
    """A folder with a copy of the package."""
    ignored = shutil.ignore_patterns("__pycache__", "include", "share")
    shutil.copytree(PACKAGE, tmp_path / "baraquant", ignore=ignored)
    return tmp_path


def import_error(folder: Path, before: str = "") -> str:
    result = run_python(f"{before}\nimport baraquant", cwd=folder, path=folder)
    assert result.returncode == 1, "the import should fail"
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: "), result.stderr
    return last


@pytest.mark.exhaustive
def test_copy_can_be_imported(copied: Path) -> None:
    result = run_python("import baraquant; print(baraquant.__file__)", cwd=copied, path=copied)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(copied / "baraquant" / "__init__.py")


def test_import_without_torch(copied: Path) -> None:
    message = import_error(copied, "import sys; sys.modules['torch'] = None")
    assert "baraquant needs PyTorch 2.11 to 2.15" in message
    assert "pip install --no-build-isolation" in message


def test_import_without_library(copied: Path) -> None:
    (copied / "baraquant" / "libbaraquant.so").unlink()
    message = import_error(copied)
    assert "compiled library is missing" in message
    assert "pip install --no-build-isolation" in message


@pytest.mark.packaging
def test_import_without_library_in_a_checkout(copied: Path) -> None:
    (copied / "baraquant" / "libbaraquant.so").unlink()
    (copied / "setup.py").touch()
    (copied / "csrc").mkdir()
    assert import_error(copied).endswith(f"make -C {copied} build")


@pytest.mark.packaging
def test_import_with_another_torch(copied: Path) -> None:
    library = copied / "baraquant" / "libbaraquant.so"
    record = f"torch={torch.__version__};".encode()
    data = library.read_bytes()
    assert record in data
    other = b"torch=1" + record[len(b"torch=1") :]
    library.write_bytes(data.replace(record, other))
    message = import_error(copied)
    assert f"built for torch 1{torch.__version__[1:]}, but torch {torch.__version__}" in message
    assert "pip install --no-build-isolation" in message


@pytest.mark.packaging
def test_import_with_an_undefined_symbol(copied: Path) -> None:
    source = copied / "undefined.cpp"
    source.write_text(
        'extern "C" void a_symbol_of_another_abi(); void (*use)() = &a_symbol_of_another_abi;'
        'extern const char record[]; const char record[] = "baraquant-build-record:version=0.1.0;'
        f'torch={torch.__version__};";'
    )
    library = copied / "baraquant" / "libbaraquant.so"
    library.unlink()
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    subprocess.run(
        [*compiler.split(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    message = import_error(copied)
    assert "cannot be loaded" in message
    assert "a_symbol_of_another_abi" in message
    assert "pip install --no-build-isolation" in message


@pytest.mark.packaging
def test_import_without_the_module(copied: Path) -> None:
    for module in (copied / "baraquant").glob("_C.*.so"):
        module.unlink()
    message = import_error(copied)
    assert "baraquant._C cannot be imported" in message
    assert "pip install --no-build-isolation" in message


# --- the wheel


@pytest.fixture(scope="session")
def wheel(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The wheel of this checkout. The objects of the build in place are used again."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("there is no pip in this environment")

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
        result = subprocess.run(
            [*command, "--no-index", "--wheel-dir", str(folder), str(ROOT)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr

    (path,) = made_once("wheel", make).glob("baraquant-*.whl")
    return path


def outside() -> dict[str, str]:
    """The environment without this folder in PYTHONPATH, where pip would find it installed."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and Path(path).resolve() != ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}


def reach_packages(environment: Path) -> None:
    """Lets a virtual environment see the packages of this one, behind its own."""
    (packages,) = (environment / "lib").glob("python*/site-packages")
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    (packages / "torch_in_use.pth").write_text(
        "\n".join(path for path in sys.path if "-packages" in path or path in user) + "\n"
    )


@pytest.fixture(scope="session")
def installed(wheel: Path, made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The interpreter of a fresh environment with the wheel, which reaches torch by a .pth file."""

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        reach_packages(folder)
        python = str(folder / "bin" / "python")
        install = [sys.executable, "-m", "pip", "--python", python, "install"]
        subprocess.run([*install, "--no-index", "--no-deps", str(wheel)], env=outside(), check=True)

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
def test_wheel_works_in_a_fresh_environment(installed: Path, tmp_path: Path) -> None:
    code = """
import json, torch, baraquant
x = torch.tensor([-9.0, -0.75, 0.25, 1.5], requires_grad=True)
y = torch.ops.baraquant.fake_quantize_per_tensor(x, torch.tensor(0.5), None, -8, 7)
y.sum().backward()
print(json.dumps([baraquant.__file__, y.tolist(), x.grad.tolist()]))
"""
    result = run_python(code, cwd=tmp_path, python=installed)
    assert result.returncode == 0, result.stderr
    file, y, gradient = json.loads(result.stdout)
    assert Path(file).is_relative_to(installed.parent.parent)
    assert y == [-4.0, -1.0, 0.0, 1.5]
    assert gradient == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.packaging
def test_info_of_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    def info(option: str) -> str:
        result = subprocess.run(
            [str(installed), "-m", "baraquant.info", option],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert json.loads(info("--json"))["problems"] == []
    prefix = Path(info("--cmake-prefix").split(";")[0])
    assert prefix.is_relative_to(installed.parent.parent)
    assert (prefix / "share/cmake/baraquant/baraquantConfig.cmake").is_file()
    assert (prefix / "include/baraquant/build_info.h").is_file()


# --- a fresh environment


@pytest.fixture(scope="session")
def bare(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
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
    result = subprocess.run(
        [bare, "-m", *line.split()],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        # Without dependencies: torch, which is another environment's, may want another setuptools.
        env={**outside(), "PATH": path, "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    code = "import baraquant; print(baraquant.__file__)"
    result = run_python(code, cwd=tmp_path, python=bare)
    assert Path(result.stdout.strip()).is_relative_to(bare.parent.parent), result.stderr
    result = run_python("from baraquant.info import main; main([])", cwd=tmp_path, python=bare)
    assert result.stdout.strip().endswith("All is well."), result.stdout + result.stderr
    (made,) = bare.parent.parent.glob("lib/python*/site-packages/baraquant-*.dist-info")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        expected = archive.read(name).decode()
    fields = [
        email.message_from_string(text) for text in ((made / "METADATA").read_text(), expected)
    ]
    for field in ("Name", "Version", "Requires-Dist", "Provides-Extra", "License-File"):
        first, second = (
            sorted(text.replace(" ", "").replace("'", '"') for text in message.get_all(field, []))
            for message in fields
        )
        assert first == second
    assert (made / "RECORD").read_text().count("baraquant/libbaraquant.so,sha256=") == 1
    uninstall = [bare, "-m", "pip", "uninstall", "-y", "baraquant"]
    subprocess.run(uninstall, env=outside(), cwd=tmp_path, check=True, capture_output=True)
    assert not (made.parent / "baraquant").exists()
