# SPDX-License-Identifier: BSD-3-Clause
"""The supported torch and Python: one range, wherever it is written; the workflows cover it.

What the workflows of .github name exists.
"""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import environment
import toolchain
from tests.support.optional_packages import package

ROOT = toolchain.ROOT
PROJECT = (ROOT / "pyproject.toml").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# The torch of these minor versions has no wheel for an older Python.
OLDEST_PYTHON = {15: "3.11"}
# Files that tell users which torch they need.
PAGES = ("README.md", "CONTRIBUTING.md", "docs/install.md")
TOLD = (*PAGES, "docs/limits.md", "setup.py", "baraquant/_library.py")
JOBS = [("ci.yml", "test"), ("ci.yml", "package"), ("release.yml", "wheel")]


def torch_minors() -> list[int]:
    """The minor versions of torch 2 that pyproject.toml asks for."""
    found = re.search(r'"torch>=2\.(\d+),<2\.(\d+)"', PROJECT)
    assert found is not None
    return list(range(int(found[1]), int(found[2])))


def pythons() -> list[str]:
    """The versions of Python that pyproject.toml names, oldest first."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)


def possible() -> set[tuple[int, str]]:
    """The pairs of a minor version of torch and a Python that have a wheel of PyTorch."""
    known = pythons()
    return {
        (torch, python)
        for torch, python in itertools.product(torch_minors(), known)
        if known.index(python) >= known.index(OLDEST_PYTHON.get(torch, known[0]))
    }


def read(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / name).read_text()
    workflow: dict[str, Any] = package("yaml").safe_load(text)
    return workflow


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


def combinations(matrix: dict[str, Any]) -> list[dict[str, str]]:
    """What GitHub makes of a matrix: the product of its lists without `exclude`, or `include`."""
    axes = {name: values for name, values in matrix.items() if name not in ("include", "exclude")}
    if not axes:
        return list(matrix["include"])
    assert "include" not in matrix
    made = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    left_out = matrix.get("exclude", [])
    return [one for one in made if not any(row.items() <= one.items() for row in left_out)]


def pairs(job: dict[str, Any]) -> set[tuple[int, str]]:
    """The minor version of torch and the Python of each combination."""
    made = combinations(job["strategy"]["matrix"])
    return {(int(one["torch"].split(".")[1]), one["python"]) for one in made}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_exists(path: Path) -> None:
    workflow = read(path.name)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] > 0, name
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(workflow["jobs"])
        text = commands(job)
        for script in re.findall(r"(?<![\w/])(?:scripts/\w+\.py|\.ci/\w+)", text):
            assert (ROOT / script).is_file(), script
        for target in re.findall(r"\bmake ([a-z-]+)", text):
            assert target in targets
        for line in re.sub(r"\$\{\{.*?\}\}", "VALUE", text).splitlines():
            words = shlex.split(line)  # fails where a quote is not closed
            packages = words[words.index("install") :] if "install" in words else []
            for package_name in packages:
                if re.match(r"torch\b", package_name):  # never any torch that happens to be there
                    assert re.fullmatch(r"torch==(2\.\d+\.\d+|VALUE)", package_name), line


def test_each_step_uses_an_action_of_one_commit() -> None:
    """Whatever a tag of theirs points at tomorrow; the comment beside it says the version."""
    used: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for job in read(path.name)["jobs"].values():
            for step in job["steps"]:
                assert ("uses" in step) != ("run" in step)
                name, _, version = step.get("uses", "").partition("@")
                used.setdefault(name, set()).add(version)
    assert all(len(versions) == 1 for versions in used.values()), used
    assert all(re.fullmatch(r"[0-9a-f]{40}", v) for name, (v,) in used.items() if name)
    texts = "".join(path.read_text() for path in WORKFLOWS)
    assert len(re.findall(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", texts, re.M)) == texts.count("uses:")


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_no_job_asks_for_a_torch_that_its_python_cannot_have(workflow: str, job: str) -> None:
    assert pairs(read(workflow)["jobs"][job]) <= possible()


def test_every_torch_and_every_python_is_tested() -> None:
    jobs = read("ci.yml")["jobs"]
    assert {torch for torch, _ in pairs(jobs["test"])} == set(torch_minors())
    assert {python for _, python in pairs(jobs["test"])} == set(pythons())
    ends = {(torch_minors()[0], pythons()[0]), (torch_minors()[-1], pythons()[-1])}
    assert ends <= pairs(jobs["test"]) and ends <= pairs(jobs["package"])


def test_a_release_has_a_wheel_for_every_pair() -> None:
    """For the CPU and for CUDA; none is left out that PyTorch has."""
    job = read("release.yml")["jobs"]["wheel"]
    for device in ("cpu", "cuda"):
        made = [c for c in combinations(job["strategy"]["matrix"]) if c["device"] == device]
        assert pairs({"strategy": {"matrix": {"include": made}}}) == possible()
        assert len(made) == len(possible())


def test_one_tag_is_one_release() -> None:
    workflow = read("release.yml")
    on = workflow[True]  # YAML reads the word on as a truth value
    assert on == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}
    jobs = workflow["jobs"]
    (only,) = (name for name, job in jobs.items() if job.get("permissions"))
    assert only == "release"
    assert set(jobs["release"]["needs"]) == {"sdist", "wheel"}  # all of them, or no release
    assert jobs["release"]["if"] == "github.ref_type == 'tag'"
    assert commands(jobs["release"]).count("gh release create") == 1
    assert "--tag" in commands(jobs["sdist"])  # the tag is that of pyproject.toml
    assert jobs["wheel"]["needs"] == "sdist"


@pytest.mark.parametrize("name", TOLD)
def test_every_file_tells_the_same_range_of_torch(name: str) -> None:
    first, *_, last = torch_minors()
    told = re.findall(r"[Tt]orch \(?2\.(\d+)\s+to\s+2\.(\d+)", (ROOT / name).read_text())
    assert set(told) == {(str(first), str(last))}


def test_make_installs_a_torch_that_is_supported() -> None:
    assert int(environment.TORCH.split(".")[1]) in torch_minors()


def test_the_oldest_python_is_the_one_that_the_tools_check_for() -> None:
    oldest = pythons()[0]
    assert f'requires-python = ">={oldest}"' in PROJECT
    assert f'python_version = "{oldest}"' in PROJECT  # mypy
    assert f'target-version = "py{oldest.replace(".", "")}"' in PROJECT  # ruff
    for name in PAGES:
        assert f"Python {oldest} or newer" in (ROOT / name).read_text()
