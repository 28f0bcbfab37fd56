# SPDX-License-Identifier: BSD-3-Clause
"""Labels a wheel for a release: with the torch that it was built for, and what it can run on.

`python -m build` names every wheel of a Python alike, and says that it goes with each supported
torch. But the compiled library goes with one minor version alone. Here the wheel gets

    the version     0.1.0+torch2.15.cpu, or 0.1.0+torch2.15.cu13 with CUDA kernels
    the requirement torch==2.15.*
    the platform    of torch's own wheel, such as manylinux_2_28_x86_64, if the libraries need no
                    newer libc or libstdc++ than it has; else it stays linux_x86_64

The torch and CUDA are read from the library's bytes, so a label cannot disagree with its contents.
Standard library only.

Usage:
    release_wheel.py WHEEL [--torch FOLDER] [--out FOLDER]: writes the labelled wheel
    release_wheel.py --tag v0.1.0: fails unless that is v and pyproject.toml's version
"""

from __future__ import annotations

import argparse
import mmap
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import plain_wheel  # noqa: E402

LIBRARY = "baraquant/libbaraquant.so"
RECORD = re.compile(rb"baraquant-build-record:version=([^;\0]*);torch=(\d+\.\d+)[^;\0]*;")
CUDA = re.compile(rb"libcudart\.so\.(\d+)\0")
NEEDED = re.compile(rb"\0(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)(?=\0)")
# Those that the system must bring; what lies beside them in the folder needs no more.
TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")

Versions = dict[str, tuple[int, ...]]

# What every system has that a platform's name promises, where torch itself asks for less.
PROMISED: dict[str, Versions] = {
    "manylinux_2_28": {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
}


def fail(text: str) -> NoReturn:
    """Ends the program with one line."""
    raise SystemExit(f"release_wheel.py: {text}")


def needed(libraries: Iterable[bytes | mmap.mmap]) -> Versions:
    """The newest version of each of the system's interfaces that libraries ask for."""
    newest: Versions = {}
    for data in libraries:
        for match in NEEDED.finditer(data):
            version = tuple(int(number) for number in match[2].split(b"."))
            name = match[1].decode()
            newest[name] = max(version, newest.get(name, ()))
    return newest


def platform_of_torch(torch: Path, ours: Versions) -> str | None:
    """The platform of torch's wheel, where a system that torch runs on has what ours need."""
    found = sorted(torch.parent.glob("torch-*.dist-info/WHEEL"))
    tags = re.findall(r"^Tag: \S+-(manylinux\S+)$", found[0].read_text(), re.M) if found else []
    promised = (PROMISED.get(tag.removesuffix("_x86_64"), {}) for tag in tags[:1])
    theirs: Versions = next(promised, {}).copy()
    for name in TORCH_LIBRARIES:
        with (
            (torch / "lib" / name).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            for interface, version in needed([data]).items():
                theirs[interface] = max(version, theirs.get(interface, ()))
    newer = [name for name, version in ours.items() if version > theirs.get(name, ())]
    for name in newer:
        wants = ".".join(map(str, ours[name]))
        has = ".".join(map(str, theirs.get(name, ()))) or "none"
        print(f"note: needs {name} {wants}, but torch's platform has {has}", file=sys.stderr)
    return str(tags[0]) if tags and not newer else None


def label(library: bytes) -> tuple[str, str]:
    """The label of a library, as in ``torch2.15.cu13``, and its torch, as in ``2.15``."""
    record = RECORD.search(library)
    if record is None:
        fail(f"expected {LIBRARY} to hold the record of its build, but found none")
    torch = record[2].decode()
    cuda = CUDA.search(library)
    return f"torch{torch}.{'cu' + cuda[1].decode() if cuda else 'cpu'}", torch


def relabelled(metadata: str, version: str, torch: str) -> str:
    """METADATA with another version, and one minor version of torch as its requirement."""
    text, versions = re.subn(r"^Version: .*$", f"Version: {version}", metadata, count=1, flags=re.M)
    requirement = r"^Requires-Dist: torch[<>=!~ ][^;\n]*$"
    text, torches = re.subn(requirement, f"Requires-Dist: torch=={torch}.*", text, flags=re.M)
    if (versions, torches) != (1, 1):
        fail(f"expected one Version and one Requires-Dist of torch, but got {versions}, {torches}")
    return text


def release(wheel: Path, torch: Path | None, out: Path) -> Path:
    """Writes the labelled wheel into a folder and returns its path."""
    name, version, *tags = wheel.name.removesuffix(".whl").split("-")
    if len(tags) != 3 or "+" in version:
        fail(f"expected NAME-VERSION-PYTHON-ABI-PLATFORM.whl without a label, but got {wheel.name}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root)
        text, built_for = label((root / LIBRARY).read_bytes())
        new = f"{version}+{text}"
        if torch is not None:
            ours = needed(path.read_bytes() for path in root.rglob("*.so"))
            tags[2] = platform_of_torch(torch, ours) or tags[2]
        information = root / f"{name}-{new}.dist-info"
        (root / f"{name}-{version}.dist-info").rename(information)
        metadata = information / "METADATA"
        metadata.write_text(relabelled(metadata.read_text("utf-8"), new, built_for), "utf-8")
        about = information / "WHEEL"
        about.write_text(
            re.sub(r"^Tag: .*$", f"Tag: {'-'.join(tags)}", about.read_text("utf-8"), flags=re.M)
        )
        (information / "RECORD").unlink()
        out.mkdir(parents=True, exist_ok=True)
        target = out / f"{name}-{new}-{'-'.join(tags)}.whl"
        plain_wheel.pack(root, information, target)
    return target


def check_tag(tag: str) -> None:
    """Fails unless the tag is v and the version of pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found is not None
    if tag != f"v{found[1]}":
        fail(f"expected the tag v{found[1]} (pyproject.toml), but got {tag}; change one of them")


def main(arguments: list[str] | None = None) -> None:
    """Labels a wheel, or checks a tag."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", nargs="?", type=Path, help="what python -m build has made")
    parser.add_argument("--torch", type=Path, help="torch's folder, whose platform may be taken")
    parser.add_argument("--out", type=Path, default=Path("wheelhouse"), help="where it is written")
    parser.add_argument("--tag", help="check this tag, and nothing else")
    options = parser.parse_args(arguments)
    if (options.wheel is None) == (options.tag is None):
        parser.error("expected a wheel or --tag, and not both")
    if options.tag is not None:
        check_tag(options.tag)
    else:
        print(release(options.wheel, options.torch, options.out))


if __name__ == "__main__":
    main()
