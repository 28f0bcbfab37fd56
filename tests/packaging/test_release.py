# SPDX-License-Identifier: BSD-3-Clause
"""What a release holds: the sdist has every file, and a wheel says which torch it goes with."""

import base64
import hashlib
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import baraquant
import release_wheel
import toolchain
from tests.support.processes import MadeOnce, run

ROOT = toolchain.ROOT
VERSION = baraquant.__version__
MINOR = ".".join(torch.__version__.split(".")[:2])
# What was measured is read on the project's pages; who builds does not need it.
MEASURED = "benchmarks/results/"


# --- the sdist


@pytest.fixture(scope="session")
def sdist(made_once: MadeOnce) -> Path:
    """What `python -m build --no-isolation --sdist` makes; the same hook is called here."""
    if not (ROOT / "MANIFEST.in").exists():
        pytest.skip("this is not a checkout")

    def make(folder: Path) -> None:
        code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
        # In a copy: setuptools also takes what an earlier egg-info in the checkout lists.
        copy = folder / "checkout"
        made_here = {".git", ".venv", "build", "dist", "results", "baraquant.egg-info"}
        ignored = {str(ROOT): made_here}
        shutil.copytree(ROOT, copy, ignore=lambda at, names: ignored.get(at, set()) & set(names))
        done = run(sys.executable, "-c", code, folder, cwd=copy, env={"PYTHONPATH": None})
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.rmtree(copy)

    (path,) = made_once("sdist", make).glob("baraquant-*.tar.gz")
    return path


@pytest.mark.packaging
def test_sdist_holds_every_file_of_the_repository_but_results(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = [member.name for member in archive.getmembers() if member.isfile()]
    assert {name.split("/")[0] for name in files} == {f"baraquant-{VERSION}"}
    names = {name.split("/", 1)[1] for name in files}
    assert [n for n in names if re.search(rf"^build/|^baraquant/include|^{MEASURED}", n)] == []
    assert [n for n in names if re.search(r"\.(so|o|pyc)$", n)] == []
    git = run("git", "ls-files", cwd=ROOT)
    if git.returncode != 0:
        pytest.skip("git does not know this checkout")
    tracked = {name for name in git.stdout.splitlines() if (ROOT / name).exists()}
    expected = {name for name in tracked if not name.startswith(MEASURED)}
    assert len(expected) > 500
    assert sorted(expected - names) == []


@pytest.mark.packaging
def test_setup_runs_in_the_unpacked_sdist(sdist: Path, tmp_path: Path) -> None:
    """It finds its sources there; to compile them takes minutes, and is left to the CI."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"baraquant-{VERSION}"
    code = (
        "import pathlib, toolchain; print(toolchain.ROOT);"
        "print(all(p.is_file() for p in toolchain.compiled_sources() + toolchain.headers()));"
        "print(len(toolchain.compiled_sources()) + len(toolchain.cuda_sources()))"
    )
    path = {"PYTHONPATH": None}
    folders = ROOT / "scripts", unpacked / "scripts"
    printed = (run(sys.executable, "-c", code, cwd=one, env=path).stdout for one in folders)
    here, there = map(str.split, printed)
    assert there[0] == str(unpacked)
    assert there[1:] == here[1:] and there[1] == "True"
    version = run(sys.executable, "setup.py", "--version", cwd=unpacked, env=path).stdout
    assert version.split()[-1] == VERSION


# --- the label of a wheel


def make_wheel(folder: Path, torch: str = "2.15.0+cu132", *, extra: bytes = b"") -> Path:
    """A wheel as `python -m build` names it, around a library of a few bytes."""
    information = f"baraquant-{VERSION}.dist-info"
    record = f"\0baraquant-build-record:version={VERSION};torch={torch};\0".encode()
    path = folder / f"baraquant-{VERSION}-cp311-cp311-linux_x86_64.whl"
    metadata = (
        f"Metadata-Version: 2.4\nName: baraquant\nVersion: {VERSION}\n"
        "Requires-Dist: torch<2.16,>=2.11\nRequires-Dist: safetensors>=0.4\n"
        'Requires-Dist: torchvision<0.30,>=0.26; extra == "zoo"\n\nVersion: of the text\n'
    )
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("baraquant/libbaraquant.so", b"\x7fELF" + extra + record)
        wheel.writestr("baraquant/__init__.py", "")
        wheel.writestr(f"{information}/METADATA", metadata)
        about = "Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n"
        wheel.writestr(f"{information}/WHEEL", about)
        wheel.writestr(f"{information}/RECORD", "")
    return path


def make_torch(folder: Path, needs: bytes) -> Path:
    """A folder as torch's wheel leaves it, whose libraries ask for these versions."""
    (folder / "torch-2.15.0.dist-info").mkdir(parents=True)
    tags = "Tag: cp311-cp311-manylinux_2_28_x86_64\n"
    (folder / "torch-2.15.0.dist-info" / "WHEEL").write_text(tags)
    (folder / "torch" / "lib").mkdir(parents=True)
    for name in release_wheel.TORCH_LIBRARIES:
        (folder / "torch" / "lib" / name).write_bytes(b"\x7fELF" + needs)
    return folder / "torch"


@pytest.mark.parametrize("device", ["cpu", "cu13"])
def test_a_wheel_is_labelled_with_what_it_was_built_for(device: str, tmp_path: Path) -> None:
    extra, label = b"" if device == "cpu" else b"\0libcudart.so.13\0", f"torch2.15.{device}"
    made = release_wheel.release(make_wheel(tmp_path, extra=extra), None, tmp_path / "out")
    assert made.name == f"baraquant-{VERSION}+{label}-cp311-cp311-linux_x86_64.whl"
    information = f"baraquant-{VERSION}+{label}.dist-info"
    with zipfile.ZipFile(made) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    metadata = files[f"{information}/METADATA"].decode()
    assert f"\nVersion: {VERSION}+{label}\n" in metadata
    assert "\nVersion: of the text\n" in metadata
    assert "\nRequires-Dist: torch==2.15.*\n" in metadata
    assert '\nRequires-Dist: torchvision<0.30,>=0.26; extra == "zoo"\n' in metadata
    record = files.pop(f"{information}/RECORD").decode().splitlines()
    assert record.pop() == f"{information}/RECORD,,"
    for line in record:
        name, digest, size = line.split(",")
        content = files.pop(name)
        expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert (digest, int(size)) == (f"sha256={expected}", len(content))
    assert files == {}


@pytest.mark.parametrize(
    ("ours", "platform"),
    [
        (b"\0GLIBC_2.28\0GLIBCXX_3.4.24\0CXXABI_1.3.9\0", "manylinux_2_28_x86_64"),
        (b"\0GLIBC_2.26\0GLIBCXX_3.4.24\0CXXABI_1.3.11\0", "manylinux_2_28_x86_64"),
        (b"\0GLIBC_2.34\0GLIBCXX_3.4.21\0", "linux_x86_64"),
        (b"\0GLIBC_2.17\0GLIBCXX_3.4.30\0", "linux_x86_64"),
    ],
)
def test_the_platform_is_torchs_unless_more_is_needed(
    ours: bytes, platform: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = make_torch(tmp_path / "site", b"\0GLIBC_2.28\0GLIBCXX_3.4.22\0CXXABI_1.3.9\0")
    made = release_wheel.release(make_wheel(tmp_path, extra=ours), theirs, tmp_path / "out")
    assert made.name.endswith(f"-cp311-cp311-{platform}.whl")
    with zipfile.ZipFile(made) as wheel:
        (about,) = (name for name in wheel.namelist() if name.endswith("/WHEEL"))
        assert f"\nTag: cp311-cp311-{platform}\n" in wheel.read(about).decode()
    assert ("note: needs" in capsys.readouterr().err) == (platform == "linux_x86_64")


def test_the_label_of_the_library_that_was_built_here() -> None:
    library = Path(baraquant.__file__).with_name("libbaraquant.so").read_bytes()
    device = "cu13" if baraquant._C.build_info()["with_cuda"] else "cpu"
    assert release_wheel.label(library) == (f"torch{MINOR}.{device}", MINOR)
    needed = release_wheel.needed([library])
    assert needed["GLIBC"] >= (2, 14) and needed["GLIBCXX"] >= (3, 4)
    listed = run("readelf", "-V", Path(baraquant.__file__).with_name("libbaraquant.so")).stdout
    for name, version in needed.items():
        told = re.findall(rf"Name: {name}_([\d.]+)\b", listed)
        assert max(tuple(map(int, text.split("."))) for text in told) == version


def test_a_wheel_without_a_record_and_a_labelled_one_are_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, torch="unknown")
    with pytest.raises(SystemExit, match="to hold the record of its build, but found none"):
        release_wheel.release(wheel, None, tmp_path / "out")
    labelled = release_wheel.release(make_wheel(tmp_path), None, tmp_path / "out")
    with pytest.raises(SystemExit, match="without a label, but got baraquant-"):
        release_wheel.release(labelled, None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == [labelled]


def test_the_tag_of_a_release_is_its_version() -> None:
    release_wheel.main(["--tag", f"v{VERSION}"])
    for tag in (VERSION, f"v{VERSION}.1", "main"):
        with pytest.raises(SystemExit, match=f"expected the tag v{VERSION} .*, but got {tag}"):
            release_wheel.main(["--tag", tag])
    with pytest.raises(SystemExit):
        release_wheel.main([])
