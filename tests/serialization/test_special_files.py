# SPDX-License-Identifier: BSD-3-Clause
"""Readers and writers refuse what is no file at once: nobody waits for its other end."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import nn

import baraquant
from tests.serialization.writers import WRITERS, cached_exporter, projections
from tests.support.compressed_folders import Block


@contextmanager
def pipe(path: Path) -> Iterator[None]:
    os.mkfifo(path)
    yield


@contextmanager
def device(path: Path) -> Iterator[None]:
    """A link to a terminal, since only root makes devices."""
    ends = os.openpty()
    path.symlink_to(os.ttyname(ends[1]))
    yield
    for end in ends:
        os.close(end)


@contextmanager
def listening(path: Path) -> Iterator[None]:
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as one:
        os.chdir(path.parent)  # the name of a socket may have 107 bytes
        one.bind(path.name)
        os.chdir(here)
        yield


@contextmanager
def folder(path: Path) -> Iterator[None]:
    path.mkdir()
    yield


KINDS = {"pipe": pipe, "device": device, "socket": listening, "folder": folder}


@pytest.fixture(params=KINDS)
def special(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return KINDS[request.param]


@pytest.mark.parametrize("name", WRITERS)
def test_writers(name: str, special: Callable[[Path], object], tmp_path: Path) -> None:
    writer, path = WRITERS[name], tmp_path / WRITERS[name].target
    with special(path), cached_exporter():
        kind, before = path.lstat().st_mode, os.fspath(path.resolve())
        if special is folder and not writer.replaces:
            (path / "file").touch()  # an empty folder may be replaced
        with pytest.raises(OSError, match=re.escape(before)):
            writer.write(writer.build(0), path)
        assert path.lstat().st_mode == kind and list(tmp_path.iterdir()) == [path]


def test_load(special: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with special(path), pytest.raises(OSError, match=re.escape(os.fspath(path))):
        baraquant.load_(nn.Sequential(nn.Linear(2, 2)), path)


FILES = ["config.json", "model.safetensors", "model.safetensors.index.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_folder(name: str, special: Callable[[Path], object], tmp_path: Path) -> None:
    served = baraquant.export.to_compressed_tensors(projections(0), tmp_path / "served")
    (served / name).unlink(missing_ok=True)
    with special(served / name), pytest.raises(OSError, match=re.escape(str(served / name))):
        baraquant.export.from_compressed_tensors(Block().eval(), served)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "extra/notes.txt"])
def test_a_file_of_a_source(name: str, special: Callable[[Path], object], tmp_path: Path) -> None:
    """Weights are looked into, so they are refused; what is copied leaves out what is no file."""
    source = tmp_path / "source"
    (source / "extra").mkdir(parents=True)
    (source / "extra" / "kept.txt").touch()

    def write() -> Path:
        model, path = projections(0), tmp_path / "served"
        return baraquant.export.to_compressed_tensors(model, path, source=source)

    with special(source / name):
        if name.startswith("tokenizer") or (special is folder and name.startswith("extra")):
            assert (write() / "extra" / "kept.txt").is_file()
        else:
            with pytest.raises(OSError, match=re.escape(str(source / name))):
                write()
            assert not (tmp_path / "served").exists()
