# SPDX-License-Identifier: BSD-3-Clause
"""Whatever interrupts C++: a model changes whole or not at all; a file is the old or the new."""

import itertools
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import baraquant
import toolchain
from cpp_programs import PATIENCE, environment
from tests.cpp_api.file_models import LINE, Network, saved
from tests.serialization.test_special_files import device, pipe
from tests.support import libtorch
from tests.support.libtorch import STRICT
from tests.support.processes import MadeOnce

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
# The ops and the allocations of memory of each call that fail.
SOME = pytest.param(10, 10, id="some", marks=pytest.mark.smoke)
MANY = pytest.param(200, 60, id="many", marks=pytest.mark.exhaustive)


@pytest.fixture(scope="module")
def faulty(made_once: MadeOnce) -> Path:
    def build(folder: Path) -> None:
        libtorch.build_program(HERE / "transaction.cpp", folder / "transaction", *STRICT)

    return made_once("cpp_transaction", build) / "transaction"


@pytest.mark.parametrize(("ops", "memory"), [SOME, MANY])
def test_calls_that_change_a_model(ops: int, memory: int, faulty: Path, tmp_path: Path) -> None:
    printed = libtorch.run_program(faulty, tmp_path / "model", str(ops), str(memory))
    lines = [line.split("\t") for line in printed.splitlines()]
    assert len(lines) == 28 and sum(int(total) for *_, total, _ in lines) > 50_000
    assert [line for line in lines if line[-1] != "right"] == []


@pytest.fixture(scope="module")
def faults(made_once: MadeOnce) -> Path:
    def build(folder: Path) -> None:
        compiler = toolchain.program_compiler().split()
        options = ("-std=c++20", "-O1", "-fPIC", "-shared", *STRICT, "-o", folder / "faults.so")
        built = libtorch.run(*compiler, *options, HERE / "faults.cpp", "-ldl")
        assert built.returncode == 0, built.stdout

    return made_once("cpp_faults", build) / "faults.so"


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two files, which the program of C++ copies by loading and saving them."""
    for seed in (0, 1):
        torch.manual_seed(seed)
        saved(tmp_path / str(seed))
    return [tmp_path / "0", tmp_path / "1"]


def start(program: Path, jobs: Path, *pairs: tuple[Any, Any], **more: str) -> subprocess.Popen:
    lines = ["\t".join(("copy", "float32", LINE, str(a), str(b), "-")) for a, b in pairs]
    jobs.write_text("\n".join(lines) + "\n")
    env = {**environment(), "BARAQUANT_TEST_JOBS": str(jobs), **more}
    return subprocess.Popen([program], env=env, stdout=subprocess.PIPE, text=True)


def printed_by(process: subprocess.Popen) -> list[str]:
    with process:
        try:
            return process.communicate(timeout=PATIENCE)[0].splitlines()
        finally:
            process.kill()


def lines_of(process: subprocess.Popen) -> list[str]:
    out = printed_by(process)
    assert process.returncode == 0
    return out


@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_each_step(kind: str, program: Path, faults: Path, models: Any, tmp_path: Path) -> None:
    folder, jobs = tmp_path / "saved", tmp_path / "jobs"
    path, (old, new) = folder / "model", (model.read_bytes() for model in models)
    for step in itertools.count():
        folder.mkdir(exist_ok=True)
        path.write_bytes(old)
        fault = {"LD_PRELOAD": str(faults), "BARAQUANT_TEST_FAULT": f"{kind} {step} {folder}"}
        process = start(program, jobs, (models[1], path), **fault)
        (line, *_) = [*printed_by(process), ""]
        if process.returncode == 0 and line == "ok":
            break
        if kind == "kill":
            assert process.returncode == -signal.SIGKILL
            assert path.read_bytes() in (old, new)
        else:
            error, text, _ = line.split("\t")
            assert error == "RuntimeError" and text.startswith(str(folder))
            assert text.endswith("error")
            assert path.read_bytes() == old and list(folder.iterdir()) == [path]
    assert step > 5 and path.read_bytes() == new
    left = [file for file in folder.iterdir() if file != path]
    assert kind == "kill" or not left
    before = time.time() - 2 * 86400
    for file in left:
        assert file.name.startswith(".model.") and file.name.endswith(".partial")
        os.utime(file, (before, before))
    (folder / ".model.0123456789abcdef.partial").mkdir()  # one of Python's
    os.utime(folder / ".model.0123456789abcdef.partial", (before, before))
    (folder / ".model.fedcba9876543210.partial").touch()  # of a writer that is at work
    assert lines_of(start(program, jobs, (models[0], path))) == ["ok"]
    names = [".model.fedcba9876543210.partial", "model"]
    assert sorted(file.name for file in folder.iterdir()) == names


def test_many_at_a_time(program: Path, models: list[Path], tmp_path: Path) -> None:
    """Four processes save to one path, and one of C++ and this one read it."""
    folder = tmp_path / "saved"
    folder.mkdir()
    path = folder / "model"
    path.write_bytes(models[0].read_bytes())
    wanted = {model.read_bytes() for model in models}
    often = [(models[i % 2], path) for i in range(200)]
    crowd = [start(program, tmp_path / f"jobs{i}", *often) for i in range(4)]
    copies = [(path, tmp_path / f"copy{i}") for i in range(200)]
    crowd.append(start(program, tmp_path / "reader", *copies))
    while any(process.poll() is None for process in crowd):
        model = baraquant.load_(Network(LINE), path)
    assert all(lines_of(process) == ["ok"] * 200 for process in crowd)
    assert {copy.read_bytes() for _, copy in copies} <= wanted and path.read_bytes() in wanted
    baraquant.save(model, path)
    assert path.read_bytes() in wanted and list(folder.iterdir()) == [path]


@pytest.mark.parametrize("kind", [pipe, device])
def test_what_is_no_file(kind: Any, program: Path, models: list[Path], tmp_path: Path) -> None:
    special, text = tmp_path / "special", "expected a file, but it is a pipe, a socket or a device"
    with kind(special):
        printed = lines_of(start(program, tmp_path / "jobs", (special, ""), (models[0], special)))
        places = special, special.resolve()
        assert not special.is_file()
    for line, place in zip(printed, places, strict=True):
        assert line.split("\t")[:2] == ["RuntimeError", f"{place}: {text}"]
