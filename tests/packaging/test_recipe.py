# SPDX-License-Identifier: BSD-3-Clause
"""CONTRIBUTING's recipe for an op, followed in a copy of the checkout with the files of recipe/."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toolchain
from tests.support.processes import MadeOnce, ended

ROOT = toolchain.ROOT
RECIPE = Path(__file__).with_name("recipe")
FILES = sorted(str(p.relative_to(RECIPE)) for p in RECIPE.rglob("*.*") if p.suffix != ".pyc")
OP = "round_to_power_of_two_scale"
NOT_COPIED = {".git", ".venv", "build", "dist", "results", "recipe", "include", "share"}

# What the tools of the house say of the new op, besides its own test.
TESTS = (
    "tests/scales",
    "tests/ops/test_docs.py",
    "tests/ops/test_plan.py",
    "tests/ops/test_wrong_calls.py::test_type_and_words",
    "tests/affine/test_reference.py::test_same_signature_as_the_op",
    "tests/cpp_api/test_ops.py::test_the_headers_are_those_of_the_schemas",
    "tests/packaging/test_api_pages.py",
    "tests/packaging/test_docs.py::test_table_of_ops_is_whole",
    "tests/torch_stack/test_compile_export.py::test_backward_calls_are_all_there",
)
PROGRAM = """
#include <ATen/ops/tensor.h>
#include <baraquant/ops.h>
int main() {
  const at::Tensor y = baraquant::round_to_power_of_two_scale(at::tensor({1.5f, 0.3f}));
  return y.equal(at::tensor({2.0f, 0.25f})) ? 0 : 1;
}
"""
RUN_TESTS = f"""
import sys, pytest, baraquant
print(baraquant.ops.{OP}, baraquant.__file__, flush=True)
sys.exit(pytest.main(sys.argv[1:]))
"""
BUILD_PROGRAM = """
import sys
from pathlib import Path
from cpp_programs import build_program, run_program
source = Path(sys.argv[1])
build_program(source, source.with_suffix(""), "-Wall", "-Wextra", "-Werror")
run_program(source.with_suffix(""))
"""

# Lint, but mypy of the new op alone: the other modules are the checkout's, where lint checks them.
LINT = """
import sys
import lint
def commands(fix, commands_of_all=lint.commands):
    todo, missing = commands_of_all(fix)
    todo["mypy"] = [[*command, *sys.argv[2:]] for command in todo.get("mypy", [])]
    return todo, missing
lint.commands = commands
sys.exit(lint.main())
"""


class Copy:
    """A copy of the checkout, and the programs that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder, self.folder / "scripts"))),
            "BARAQUANT_WERROR": "1",
            "CXX": self.compiler(folder / "c++", os.environ.get("CXX", "c++")),
        }
        nvcc = toolchain.find_nvcc()
        if nvcc is not None:
            self.environment["PYTORCH_NVCC"] = self.compiler(folder / "nvcc", str(nvcc))

    def compiler(self, program: Path, compiler: str) -> str:
        """A compiler that takes the objects of the checkout: nothing is compiled anew."""
        reused = (sys.executable, Path(__file__).with_name("reused_objects.py"))
        words = map(str, ("env", f"PYTHONPATH={ROOT / 'scripts'}", *reused, ROOT, self.folder))
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} {compiler} "$@"\n')
        program.chmod(0o755)
        return str(program)

    def python(self, *arguments: str | Path) -> str:
        command = (sys.executable, *arguments)
        done = ended(command, self.environment, cwd=self.folder, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout[-8000:]
        return done.stdout

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


def follow_the_recipe(folder: Path) -> None:
    """The files by hand, then what house.py, `make headers` and `make build` do."""
    copy = Copy(folder)
    ignored = shutil.ignore_patterns(*NOT_COPIED, "*.so", "*__pycache__", "*_cache")
    shutil.copytree(ROOT, copy.folder, ignore=ignored)
    shutil.copytree(RECIPE, copy.folder, dirs_exist_ok=True)
    copy.python("scripts/house.py", "--write")
    copy.python("scripts/build.py")
    copy.python("scripts/ops.py")
    copy.python("scripts/lint.py", "--fix", "--optional")
    copy.python("scripts/build.py")


@pytest.fixture(scope="module")
def copy(made_once: MadeOnce) -> Copy:
    return Copy(made_once("recipe", follow_the_recipe))


def test_the_recipe_names_its_files() -> None:
    """At most ten by hand; CONTRIBUTING explains each of them, and no other."""
    _, _, text = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## An op in an hour\n")
    row = r"^\| \[([\w./]+)\]\(tests/packaging/recipe/\1\) \|"
    named = re.findall(row, text.partition("\n## ")[0], re.MULTILINE)
    assert sorted(named) == FILES
    assert len(FILES) <= 10


@pytest.mark.packaging
def test_written_files_name_the_op(copy: Copy) -> None:
    assert f"def {OP}(scale: Tensor) -> Tensor:" in copy.text("baraquant/ops/scales.py")
    assert f'"{OP}"' in copy.text("baraquant/ops/__init__.py")
    assert f"inline at::Tensor {OP}(const at::Tensor& scale)" in copy.text("csrc/api/ops/scales.h")
    assert '#include "ops/scales.h"\n' in copy.text("csrc/api/ops.h")
    assert f".. autofunction:: {OP}\n" in copy.text("docs/api/ops.rst")
    assert f".. function:: {OP}\n" in copy.text("docs/api/reference.rst")
    assert ".. cpp-header:: ops/scales.h\n" in copy.text("docs/api/cpp.rst")
    assert f"| `{OP}` |" in copy.text("docs/ops.md")
    assert f'"{OP}"' in copy.text("baraquant/_vmap/table.py").partition("ELEMENTWISE")[2]


@pytest.mark.packaging
def test_the_copy_passes_lint(copy: Copy) -> None:
    typed = ("baraquant/ops", "baraquant/_vmap", "baraquant/reference/scales.py")
    copy.python("-c", LINT, "--optional", *typed)


@pytest.mark.packaging
def test_the_copy_passes_its_tests(copy: Copy) -> None:
    """Its own, and those that look at every op."""
    options = ("-q", "-p", "no:cacheprovider", "-m", "not exhaustive")
    printed = copy.python("-c", RUN_TESTS, *options, *TESTS)
    assert re.search(r"^\d+ passed", printed.splitlines()[-1]), printed[-2000:]
    assert str(copy.folder) in printed.splitlines()[0]


@pytest.mark.packaging
def test_a_program_in_cpp_calls_it(copy: Copy, tmp_path: Path) -> None:
    source = tmp_path / "program.cpp"
    source.write_text(PROGRAM)
    copy.python("-c", BUILD_PROGRAM, source)


@pytest.mark.packaging
def test_the_cuda_kernel_compiles(copy: Copy) -> None:
    """Where torch is a CUDA build, the build has compiled it, and the tests above have run it."""
    if toolchain.find_nvcc() is None:
        pytest.skip("there is no nvcc here")
    code = "import check_cuda as c, sys; "
    code += "c.sources = lambda: [c.toolchain.CSRC / 'scales/cuda/kernels.cu']; sys.exit(c.main())"
    printed = copy.python("-c", code)
    assert "scales/cuda/kernels.cu" in printed or "the build for this torch compiles" in printed
