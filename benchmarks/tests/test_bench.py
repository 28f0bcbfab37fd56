# SPDX-License-Identifier: BSD-3-Clause
"""The benchmarks still run, and their harness computes what it says."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
import torch

import toolchain
from benchmarks import bench, bench_cli, bench_report
from benchmarks.bench import Compiler, Timer
from benchmarks.bench_row import AnyOf, AnyTarget, Case, HoldsLess, Row, Target, Within
from benchmarks.tests.whole_runs import files_in, written
from tests.support.processes import run

CPU = torch.device("cpu")


def row(*targets: AnyTarget) -> Row:
    row = Row("forward", "fake_quantize", "per_tensor", "float32", [16, 4096])
    row.targets = list(targets)
    return row


@pytest.mark.parametrize(
    ("text", "dtype", "elements"),
    [
        ("64MiB", torch.float32, 1 << 24),
        ("64MiB", torch.bfloat16, 1 << 25),
        ("1 GiB", torch.float64, 1 << 27),
        ("2^28", torch.float16, 1 << 28),
        ("14336x4096", torch.float32, 14336 * 4096),
        ("17", torch.float32, 17),
    ],
)
def test_sizes(text: str, dtype: torch.dtype, elements: int) -> None:
    assert bench_cli.parse_size(text, dtype) == elements


@pytest.mark.parametrize("text", ["", "64MB", "2**28", "-1", "4096x", "1.5GiB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as"):
        bench_cli.parse_size(text, torch.float32)


def test_row_rates_and_ratios() -> None:
    results = {"copy": 1e-3, "baraquant": 2e-3, "PyTorch": 6e-3}
    filled = row().fill(results, "baraquant", moved=8e6, copied=5e6)
    assert filled.gbps == pytest.approx(4.0)
    assert filled.copy_gbps == pytest.approx(5.0)
    assert filled.of_copy == pytest.approx(0.8)
    assert filled.speedups == {"PyTorch": pytest.approx(3.0)}
    assert filled.bound == pytest.approx(1.6e-3)
    assert filled.met == []


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("copy", 0.8), True),
        (Target("copy", 0.81), False),
        (Target("PyTorch", 3.0), True),
        (Target("PyTorch", 3.01), False),
    ],
)
def test_verdict(target: Target, met: bool) -> None:
    results = {"copy": 1e-3, "baraquant": 2e-3, "PyTorch": 6.001e-3}
    assert row(target).fill(results, "baraquant", 8.0001e6, 5e6).met == [met]


@pytest.mark.parametrize(("seconds", "met"), [(4.4e-6, True), (4.6e-6, False)])
def test_verdict_on_a_launch(seconds: float, met: bool) -> None:
    """A launch of 2 µs, and 10 kB at 10 GB/s: 3 µs, of which 1.5 may be missed."""
    results = {"launch": 2e-6, "copy": 1e-3, "baraquant": seconds}
    filled = row(Within(1.5e-6)).fill(results, "baraquant", moved=1e4, copied=1e7)
    assert filled.bound == pytest.approx(3e-6)
    assert filled.reached == [pytest.approx(seconds - 3e-6)]
    assert filled.met == [met]
    assert filled.speedups == {}
    over = (seconds - 3e-6) * 1e6
    assert f"bound {over:+.1f} µs" in bench_report.cells(filled)[7]


def test_bound_of_a_product() -> None:
    """The bytes of 1 ms, or the operations of 4 ms, where the peak is known."""
    results = {"copy": 1e-3, "baraquant": 8e-3}
    for peak, bound in ((0, 1e-3), (1e12, 4e-3), (1e13, 1e-3)):
        filled = row().fill(results, "baraquant", 5e6, 5e6, 4e9, peak)
        assert filled.bound == pytest.approx(bound)
        assert filled.of_bound == pytest.approx(bound / 8e-3)
        assert filled.tops == pytest.approx(0.5)
        assert bench_report.columns([filled])[5:7] == ("TOPS", "of bound")
        assert bench_report.cells(filled)[5:7] == ("0.5", f"{bound / 8e-3:.1%}")


@pytest.mark.parametrize(
    ("peers", "met"),
    [
        ({"a": 0.98, "b": 0.86}, True),
        ({"a": 0.96, "b": 0.86}, True),
        ({"a": 0.98}, True),
        ({"a": 0.96, "b": 0.84}, False),
        ({"a": 0.96}, None),
        ({}, None),
    ],
)
def test_verdict_on_alternatives(peers: dict[str, float], met: bool | None) -> None:
    """One that is met is enough; one that is unknown may have been."""
    target = AnyOf((Target("a", 0.97), Target("b", 0.85)))
    assert str(target) == "≥ 0.97x a or ≥ 0.85x b"
    assert row(target).fill({"baraquant": 1.0, **peers}, "baraquant").met == [met]


@pytest.mark.parametrize(
    ("held", "met"),
    [({"baraquant": 9, "linear": 10}, True), ({"baraquant": 10, "linear": 10}, False), ({}, None)],
)
def test_verdict_on_memory(held: dict[str, int], met: bool | None) -> None:
    asked = row(HoldsLess("linear"))
    asked.held = {name: count << 20 for name, count in held.items()}
    assert asked.fill({"baraquant": 1.0}, "baraquant").met == [met]
    text = "holds 9.0 MiB (baraquant) vs 10.0 MiB (linear)"
    assert (bench_report.cells(asked)[7] == text) is (met is True)


def test_verdict_on_each_target() -> None:
    results = {"copy": 1e-3, "baraquant": 2e-3, "PyTorch": 6e-3}
    targets = (Target("PyTorch", 2), Target("copy", 0.9), Target("torch.compile", 1))
    filled = row(*targets).fill(results, "baraquant", 8e6, 5e6)
    assert filled.met == [True, False, None]
    assert bench_report.cells(filled)[-2:] == (
        "≥ 2x PyTorch, ≥ 90% of copy, ≥ 1x torch.compile",
        "met, missed, ?",
    )
    assert bench_report.count_verdicts([filled]) == (
        "1 of 3 targets met; 1 of them without the figure they are set against; 0 of 1 rows failed."
    )


def test_a_failed_call_is_missed_and_a_failed_peer_is_named() -> None:
    failed = row(Target("copy", 0.9)).fill({"copy": 1.0, "baraquant": "boom"}, "baraquant", 1, 1)
    assert (failed.error, failed.met, failed.seconds) == ("boom", [False], None)
    lonely = row(Target("PyTorch", 2)).fill({"baraquant": 1.0, "PyTorch": "no op"}, "baraquant")
    assert lonely.peer_errors == {"PyTorch": "no op"}
    assert lonely.met == [None]
    assert bench_report.count_verdicts([failed]) == "0 of 1 targets met; 1 of 1 rows failed."


def test_timer_reads_the_clock_and_records_errors() -> None:
    """On a clock of its own: how long a call takes depends on what else the machine does."""
    clock = [0.0]

    def taking(seconds: float):
        def call(index: int) -> None:
            clock[0] += seconds

        return call

    def broken(index: int) -> None:
        raise RuntimeError("no such kernel")

    calls = {"short": taking(0.25), "long": taking(1.0), "bad": broken}
    error = "RuntimeError: no such kernel"
    timer = Timer(CPU, budget=60, clock=lambda: clock[0])
    assert timer.compare(calls) == {"short": 0.25, "long": 1.0, "bad": error}


def test_timer_takes_the_median_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    values = {"a": [5.0, 1.0, 3.0, 8.0, 0.0], "b": [2.0, 9.0, 4.0, 1.0, 1.0]}
    left = {name: iter(numbers) for name, numbers in values.items()}

    def prepare(name: str):
        def measure() -> float:
            order.append(name)
            return next(left[name])

        return lambda: measure

    results = Timer(CPU, budget=60).in_turns({name: prepare(name) for name in "ab"}, rounds=5)
    assert results == {name: statistics.median(numbers) for name, numbers in values.items()}
    rounds = {"".join(order[at : at + 2]) for at in range(0, 10, 2)}
    assert rounds == {"ab", "ba"}  # each once in a round, in both orders


def test_results_rotate() -> None:
    made: list[torch.Tensor] = []

    def make(index: int) -> torch.Tensor:
        made.append(torch.empty(1024))
        return made.pop()

    kept = bench._Kept(make, 3)
    for index in range(7):
        kept(index)
    assert len({tensor.data_ptr() for tensor in kept.results}) == 3


def test_timer_divides_events_by_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA branch's arithmetic, on a clock of its own: each call takes 2 ms."""
    clock, slept = [0.0], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.time = clock[0]

        def elapsed_time(self, other: Event) -> float:
            return other.time - self.time

    def call(index: int) -> None:
        clock[0] += 2.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append, raising=False)
    timer = Timer(torch.device("cuda"), rounds=3, batch_seconds=0.01)
    assert timer.compare({"call": call}) == {"call": pytest.approx(0.002)}
    assert clock[0] == 2 * (3 + 2 * 3 + 3 * 5)  # warm-up, two estimates, three rounds of five
    assert slept == [bench.HEAD_START] * 5


def test_compiling_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.append(options) or f)
    assert Compiler(60)(abs) is abs
    assert asked == [{"fullgraph": True, "dynamic": False}]
    assert Compiler(-1)(abs) is None
    assert len(asked) == 1


def test_a_case_rotates_and_asks_only_a_gpu_for_bandwidth() -> None:
    case = Case(CPU, torch.bfloat16, [2, 64])
    assert (case.nbytes, case.copied, case.exceeds_caches) == (256, 512, False)
    assert len({x.data_ptr() for x in case.inputs}) == len(case.inputs) == 64
    assert case.row("token", "quantize", "per_token", None, Target("copy", 1)).targets == [
        Target("copy", 1)
    ]


def test_plans_are_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    parser = bench_cli.parser_of("affine", None, ["forward"])
    options = bench_cli.parse(parser, ["--device=cpu", "--dtypes", "float32", "--json={family}.x"])
    assert options.json == Path("affine.x")
    plans = [
        bench_cli.SegmentPlan(["17"], ["bfloat16"], [1], ["token"]),
        bench_cli.SegmentPlan(["17", "18"], ["float16"], [1], ["token", "tensor"]),
    ]
    measured = []
    for part in bench_cli.parts_of(plans, options, lambda plan, *work: iter([work])):
        measured += part()
    assert measured == [
        ("17", torch.float32, ["token"]),
        ("17", torch.float32, ["tensor"]),
        ("18", torch.float32, ["token", "tensor"]),
    ]
    with pytest.raises(SystemExit):
        bench_cli.parse(parser, ["--sizes", "64MB"])
    assert "expected a size such as 64MiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"), [([], "given back, by default"), (["--keep-memory"], "kept")]
)
def test_memory_is_kept_on_demand_alone(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A benchmark allocates as its user's process does, and its result says so."""
    asked: list[bool] = []
    monkeypatch.setattr(bench, "keep_freed_memory", lambda: asked.append(True))
    monkeypatch.setattr(bench_cli, "keep_freed_memory", lambda: asked.append(True))
    parser = bench_cli.parser_of("affine", None, ["forward"])
    path = tmp_path / "{family}.json"
    parsed = bench_cli.parse(parser, ["--device=cpu", f"--json={path}", *options])
    Timer(CPU, rounds=1).compare({"nothing": lambda index: None})
    bench_cli.run([("forward", [])], parsed, lambda rows, about, path: None)
    about = json.loads((tmp_path / "affine.json").read_text())["environment"]
    assert (len(asked), about["freed_memory"]) == (len(options), said)


def test_an_empty_launch(cuda: str) -> None:
    seconds = Timer(torch.device(cuda), rounds=3).compare({"launch": bench.empty_launch})["launch"]
    assert seconds > 0


def test_timer_inside_a_graph(cuda: str) -> None:
    x = torch.ones(1 << 16, device=cuda)
    timer = Timer(torch.device(cuda), rounds=3)
    assert bench.synchronizes(lambda _: x.sum().item())
    assert not bench.synchronizes(lambda _: x + 1)
    seconds = timer._prepare_graph(lambda _: x + 1, rotation=2, batch=20)()
    assert seconds > 0
    assert timer.compare({"add": lambda _: x + 1}, rotation=2)["add"] > 0
    timer.graphs = True
    found = timer.compare({"add": lambda _: x + 1, "sum": lambda _: x.sum().item()})
    assert found["add"] > 0 and "cannot be captured" in found["sum"]


@pytest.mark.packaging
@pytest.mark.parametrize("family", ["affine", "range", "fused", "int8_mm", "llm"])
def test_programs_start_anywhere(family: str, tmp_path: Path) -> None:
    command = (sys.executable, "-m", f"benchmarks.bench_{family}", "--help")
    result = run(*command, cwd=tmp_path, env={"PYTHONPATH": str(toolchain.ROOT)})
    assert result.returncode == 0, result.stderr
    assert f"{{family}} in a path stands for {family}." in result.stdout


def test_affine_runs_on_cuda(cuda: str) -> None:
    from benchmarks import bench_affine

    rows = bench_affine.main(["--device", cuda, "--quick", "--sizes", "8192", "2^20"])
    assert rows
    assert not [(r.op, r.case, r.error) for r in rows if r.error]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory):
    """A whole run with tiny sizes: its rows, and the folder with what it wrote."""
    from benchmarks import bench_affine

    folder = tmp_path_factory.mktemp("bench")
    small = ["--device=cpu", "--quick", "--threads=1", "--sizes=8192"]
    small += ["--dtypes", "float32", "bfloat16"]
    return bench_affine.main([*small, *files_in(folder)]), folder


@pytest.mark.exhaustive
def test_affine_runs_whole(report) -> None:
    rows, _ = report
    assert not [(r.op, r.case, r.error) for r in rows if r.error]
    assert not [(r.op, r.case, r.peer_errors) for r in rows if r.peer_errors]
    kinds = ("call overhead", "forward", "forward + backward", "scale gradient")
    assert {r.what for r in rows} == {*kinds}
    granularities = {r.case for r in rows if r.what == "forward"}
    assert len(granularities) == 6
    for r in rows:
        assert r.seconds is not None and r.seconds > 0
        assert len(r.met) == len(r.targets)
        assert None not in r.met


def test_affine_counts_the_bytes_that_must_move(report) -> None:
    """Per element, without the scale: of one scale the share of 8192 elements is 4 bytes."""
    rows, folder = report
    written(folder, "affine", rows)
    moved = {
        (r.op, r.dtype): r.gbps * 1e9 * r.seconds / 8192
        for r in rows
        if r.case == "per_tensor" and r.gbps
    }
    expected = {
        ("quantize", "float32"): 5,
        ("dequantize", "float32"): 5,
        ("fake_quantize", "float32"): 8,
        ("quantize", "bfloat16"): 3,
        ("dequantize", "bfloat16"): 3,
        ("fake_quantize", "bfloat16"): 4,
        ("fake_quantize, input kept", "float32"): 20,
        ("fake_quantize, input kept", "bfloat16"): 10,
        ("fake_quantize, bit mask", "float32"): 16.25,
        ("fake_quantize, bit mask", "bfloat16"): 8.25,
        ("fake_quantize_backward_qparams", "float32"): 12,
        ("fake_quantize_backward_qparams", "bfloat16"): 6,
    }
    assert moved == pytest.approx(expected, abs=0.01)
