# SPDX-License-Identifier: BSD-3-Clause
"""The short run holds every value, `pairs` every two of them, the parts every test."""

import itertools
import random
import sys

import pytest

from tests.support.processes import ROOT, run
from tests.support.short_run.cover import cover
from tests.support.short_run.options import parse_part

pytest_plugins = ["pytester"]
INI = f"[pytest]\npythonpath = {ROOT}"
CONFTEST = """
import pytest
from tests.support.short_run import options

@pytest.fixture(params=["cpu"])
def device(request):
    return request.param

@pytest.fixture
def cuda():
    return "cuda"

def pytest_addoption(parser):
    options.add_options(parser)

def pytest_configure(config):
    for name in "cuda exhaustive inductor process packaging smoke cover pairs".split():
        config.addinivalue_line("markers", name)
    options.register(config, "no CUDA device")
"""


def values(rows: list[tuple[int, ...]]) -> list[set[tuple[int, int]]]:
    return [set(enumerate(row)) for row in rows]


# --- the chooser ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (4, 9, 12), (2, 2, 2, 2)])
def test_a_product_takes_as_many_as_its_longest_axis(sizes: tuple[int, ...]) -> None:
    rows = values(list(itertools.product(*map(range, sizes))))
    chosen = cover(rows)
    assert set().union(*(rows[i] for i in chosen)) == set().union(*rows)
    assert len(chosen) == max(sizes)
    assert chosen == sorted(set(chosen))


@pytest.mark.parametrize("seed", range(5))
def test_any_combinations_are_covered(seed: int) -> None:
    draw = random.Random(seed)
    rows = values([tuple(draw.randrange(6) for _ in range(3)) for _ in range(60)])
    chosen = cover(rows)
    assert set().union(*(rows[i] for i in chosen)) == set().union(*rows)
    assert len(chosen) <= 18


def test_pairs_differ() -> None:
    """Of 4 dtypes and 12 layouts each dtype meets three layouts, not one dtype nine of them."""
    rows = list(itertools.product(range(4), range(12)))
    chosen = [rows[i] for i in cover(values(rows))]
    assert [sum(dtype == d for dtype, _ in chosen) for d in range(4)] == [3, 3, 3, 3]


# --- the hooks -----------------------------------------------------------------------------------


EXAMPLE = """
import pytest

class Call:
    def __init__(self, verb, size):
        self.facets = {verb, size}

CALLS = [Call(verb, size) for verb in "abc" for size in range(3)]

@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("layout", range(5))
def test_plain(dtype, layout, device):
    pass

@pytest.mark.parametrize(("a", "b"), [(x, y) for x in "xy" for y in "xy"])
@pytest.mark.parametrize("flag", [False, True])
def test_rows_stay_together(a, b, flag):
    pass

@pytest.mark.cover(("dtype", "op"))
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("op", range(3))
@pytest.mark.parametrize("layout", range(2))
def test_pairs(dtype, op, layout):
    pass

@pytest.mark.pairs
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("op", range(3))
@pytest.mark.parametrize("layout", range(4))
def test_every_two(dtype, op, layout):
    pass

@pytest.mark.parametrize("call", CALLS)
def test_facets(call):
    pass

@pytest.mark.cover(case=lambda case: case)
@pytest.mark.parametrize("case", [(x, y) for x in "xyz" for y in "pq"])
def test_facets_by_mark(case):
    pass

@pytest.mark.cover(scheme=None)
@pytest.mark.parametrize("scheme", range(4))
@pytest.mark.parametrize("flag", [False, True])
def test_any_will_do(scheme, flag):
    pass

@pytest.fixture(params=range(4))
def made(request):
    return request.param

@pytest.mark.parametrize("flag", [False, True])
def test_of_a_fixture(made, flag):
    pass

@pytest.mark.process
def test_process():
    pass

@pytest.mark.inductor
@pytest.mark.parametrize("name", [1, 2, pytest.param(3, marks=pytest.mark.smoke)])
def test_inductor(name):
    pass

@pytest.mark.parametrize("name", [1, 2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_left_out(name):
    pass

@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_gpu(dtype, cuda):
    raise AssertionError("there is none")

@pytest.mark.cuda
def test_marked():
    raise AssertionError("there is none")
"""
SHORT = {
    "plain": 5, "rows_stay_together": 4, "pairs": 6, "every_two": 4, "facets": 3,
    "facets_by_mark": 3, "any_will_do": 2, "of_a_fixture": 4, "inductor": 1, "left_out": 2,
}  # fmt: skip


@pytest.fixture
def example(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_example=EXAMPLE)
    return pytester


def names(example: pytest.Pytester, *arguments: str) -> list[str]:
    """Of the tests that are run."""
    run = example.inline_run("-p", "no:cacheprovider", *arguments)
    passed, skipped, failed = run.listoutcomes()
    assert not skipped and not failed
    return [report.nodeid for report in passed]


def test_the_short_run(example: pytest.Pytester) -> None:
    found = [n.split("::test_")[1].split("[")[0] for n in names(example, "-m", "not exhaustive")]
    assert {name: found.count(name) for name in found} == SHORT


def test_the_full_run_holds_every_two_values(example: pytest.Pytester) -> None:
    found = [name.split("[")[1][:-1] for name in names(example) if "every_two" in name]
    assert len(found) < 2 * 3 * 4
    for two in ((0, 1), (0, 2), (1, 2)):
        pairs = {tuple(name.split("-")[i] for i in two) for name in found}
        assert len(pairs) == {(0, 1): 4 * 3, (0, 2): 4 * 2, (1, 2): 3 * 2}[two]


@pytest.mark.parametrize("options", [(), ("-m", "not exhaustive")], ids=["all", "short"])
def test_the_parts_hold_every_test_once(example: pytest.Pytester, options: tuple[str, ...]) -> None:
    parts = [names(example, *options, "--part", f"{part}/3") for part in (1, 2, 3)]
    assert all(parts)
    assert sorted(itertools.chain(*parts)) == sorted(names(example, *options))


@pytest.mark.parametrize("text", ["2", "0/2", "3/2", "a/b"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected K/N with 1 <= K <= N, but got"):
        parse_part(text)


@pytest.mark.process
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_what_cuda_alone_runs_is_counted(
    example: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    """Three that take CUDA and the twins of ten that take a device."""
    done = example.runpytest_subprocess(*processes)
    done.stdout.fnmatch_lines(["CUDA: no CUDA device, 13 tests were not collected", "*80 passed*"])


# --- the tools of the short run ------------------------------------------------------------------

# A test of each tool of PyTorch, and of each kind that is marked; the short run holds some of them.
TOOLS = {
    "opcheck": "torch_stack/test_compile_export.py::test_opcheck",
    "torch.compile": "torch_stack/test_compile_export.py::test_compile",
    "TorchInductor": "torch_stack/test_compile_export.py::test_inductor",
    "AOTInductor": "torch_stack/test_exported_dtypes.py::test_a_package",
    "compiled autograd": "torch_stack/test_compile_export.py::test_compiled_autograd",
    "torch.export": "torch_stack/test_compile_export.py::test_export",
    "torch.jit.script": "torch_stack/test_script.py::test_script",
    "torch.jit.trace": "torch_stack/test_script.py::test_trace",
    "vmap": "torch_stack/test_vmap.py::test_like_a_loop",
    "autocast": "torch_stack/test_autograd.py::test_autocast_changes_nothing",
    "checkpoint": "torch_stack/test_autograd.py::test_checkpoint",
    "processes": "nn/test_distributed.py::test_union_over_a_group",
    "a program on libtorch": "cpp_api/test_modules.py::test_what_cpp_alone_has",
    "a program without torch": "cpp/test_cpp.py::test_program",
    "the example of each op": "ops/test_docs.py::test_example_runs",
}


@pytest.mark.process
def test_the_short_run_holds_every_tool() -> None:
    files = {ROOT / "tests" / name.partition("::")[0] for name in TOOLS.values()}
    options = ("--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not exhaustive")
    done = run(sys.executable, "-m", "pytest", *options, *sorted(files), cwd=ROOT)
    found = {line.partition("[")[0].removeprefix("tests/") for line in done.stdout.splitlines()}
    assert found >= {*TOOLS.values()}, done.stderr
