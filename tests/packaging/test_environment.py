# SPDX-License-Identifier: BSD-3-Clause
"""scripts/environment.py in a small project: pip installs small wheels out of a folder."""

import json
import os
import re
import shutil
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import environment
import toolchain
from tests.support.processes import ended

ROOT = toolchain.ROOT
PIP = next((Path(p) / "pip" for p in sys.path if (Path(p) / "pip").is_dir()), None)
PROJECT = """
dependencies = ["torch>=2.11,<2.16", "small>=2"]
build = ["builder"]
test = ["tester"]
lint = ["linter"]
minilm = ["weights==1.0"] # needs another torch
"""
AVAILABLE = {
    **{f"torch-{version}": "" for version in ("2.12.0", "2.13.0", "2.14.0")},
    **dict.fromkeys(("small-1.0", "small-2.0"), ""),
    "builder-1.0": "small",
    "tester-1.0": "torch",
    "weights-1.0": "torch==2.14.0",
}
LISTED = "import importlib.metadata as m, json; "
LISTED += "print(json.dumps({d.name: d.version for d in m.distributions()}))"


def make_wheel(folder: Path, name: str, needs: str) -> None:
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        project, version = name.split("-")
        metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
        metadata += f"Requires-Dist: {needs}\n" if needs else ""
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def packages_of(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python*/site-packages"))


class Project:
    """A checkout, an interpreter of its own, and a folder of wheels."""

    def __init__(self, folder: Path) -> None:
        self.root, self.wheels = folder / "checkout", folder / "wheels"
        (self.root / "scripts").mkdir(parents=True)
        (self.root / "pyproject.toml").write_text(PROJECT)
        for name in ("environment.py", "toolchain.py"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts")
        self.wheels.mkdir()
        for name, needs in AVAILABLE.items():
            make_wheel(self.wheels, name, needs)
        venv.create(folder / "python", symlinks=True)
        self.python = folder / "python" / "bin" / "python"
        # This environment's pip: to install one takes seconds.
        assert PIP is not None
        (packages_of(self.python) / "pip").symlink_to(PIP)
        self.in_venv = self.root / ".venv" / "bin" / "python"

    def install(self, *packages: str) -> None:
        command = [self.python, "-m", "pip", "install", "--no-index", "--no-deps"]
        done = ended((*command, "--find-links", self.wheels, *packages), os.environ)
        assert done.returncode == 0, done.stdout + done.stderr

    def prepare(self, *options: str, network: bool = True, before: str = "pass") -> tuple[str, str]:
        """The interpreter that is printed, or "" where it fails, and what is said."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "BARA"))}
        variables |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "CUDA_HOME": "/none"}
        variables |= {"PIP_FIND_LINKS": str(self.wheels)} if network else {}
        script = self.root / "scripts" / "environment.py"
        code = f"import sys; sys.path.insert(0, {str(script.parent)!r}); {before}; import runpy; "
        code += f"sys.argv[0] = {str(script)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
        run = ended((self.python, "-c", code, *options), variables)
        assert (run.returncode == 0) == bool(run.stdout), run.stderr
        return run.stdout.strip(), run.stderr

    def installed(self, python: Path | None = None) -> dict[str, str]:
        # Away from what could be taken for a package.
        listed = ended((python or self.python, "-c", LISTED), os.environ, cwd=self.wheels)
        assert listed.returncode == 0, listed.stderr
        found: dict[str, str] = json.loads(listed.stdout)
        return {k: v for k, v in found.items() if k not in ("pip", "setuptools")}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    if PIP is None:
        pytest.skip("there is no pip in this environment")
    return Project(tmp_path)


@pytest.mark.packaging
def test_what_is_missing_is_installed_beside_the_torch_that_is_there(project: Project) -> None:
    project.install("torch==2.12.0", "small==1.0")
    here = str(project.python)
    nothing = project.prepare("--need", "test", network=False)
    assert not nothing[0] and "packages are missing and could not be installed" in nothing[1]
    options = ("--need", "test", "--want", "lint", "--bare", "minilm")
    said = project.prepare(*options)
    assert said[0] == here and "linter could not be installed; going on without" in said[1]
    expected = {"torch": "2.12.0", "small": "2.0", "builder": "1.0", "tester": "1.0"}
    assert project.installed() == {**expected, "weights": "1.0"}
    assert project.prepare("--need", "test", "--bare", "minilm", network=False) == (here, "")
    assert project.prepare(*options, network=False)[0] == here  # the linter can be done without
    assert not project.in_venv.exists()


@pytest.mark.packaging
def test_without_torch_a_virtual_environment_is_made_and_used_again(project: Project) -> None:
    project.in_venv.parent.mkdir(parents=True)
    project.in_venv.symlink_to(project.root / "a Python that is gone")
    made = project.prepare("--need", "test")
    assert made[0] == str(project.in_venv) and "making .venv" in made[1]
    assert project.installed() == {}
    expected = {"torch": "2.13.0", "small": "2.0", "builder": "1.0", "tester": "1.0"}
    assert project.installed(project.in_venv) == expected
    assert project.prepare("--need", "test", network=False) == (made[0], "")


@pytest.mark.packaging
def test_a_system_managed_python_gets_a_layer_over_it(project: Project) -> None:
    """Where something is missing. PEP 668: a file beside the standard library says so."""
    project.install("torch==2.12.0", "small==2.0")
    (project.root / "EXTERNALLY-MANAGED").touch()
    managed = f"sys.base_prefix = sys.prefix; import sysconfig; root = {str(project.root)!r}; "
    managed += "sysconfig.get_path = lambda name: root; "
    # The layer sees the packages of the Python below this one, which is a layer itself.
    managed += f"import os; os.environ['PYTHONPATH'] = {str(packages_of(project.python))!r}"
    layer = project.prepare("--need", "test", before=managed)
    assert layer[0] == str(project.in_venv) and "--system-site-packages" in layer[1]
    assert "include-system-site-packages = true" in (project.root / ".venv/pyvenv.cfg").read_text()
    assert project.installed() == {"torch": "2.12.0", "small": "2.0"}
    made = {path.name for path in packages_of(project.in_venv).glob("*er-1.0.dist-info")}
    assert made == {"builder-1.0.dist-info", "tester-1.0.dist-info"}
    assert list(packages_of(project.in_venv).glob("torch*")) == []
    project.install("builder", "tester")
    shutil.rmtree(project.root / ".venv")
    assert project.prepare("--need", "test", before=managed) == (str(project.python), "")


def test_every_group_that_make_names_can_be_read() -> None:
    makefile = (ROOT / "Makefile").read_text()
    names = re.findall(r"--(?:need|want|bare) ([a-z,]+)", makefile)
    assert len(names) > 10
    for name in ["dependencies", "build", "cuda", *",".join(names).split(",")]:
        assert environment.requirements(name)
