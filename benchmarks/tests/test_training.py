# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of a training step runs, its variants train the same block, and it counts right."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import bench_report, bench_training, training_block, training_step
from benchmarks.bench_row import Row, TakesAtMost
from benchmarks.tests.whole_runs import files_in, written
from benchmarks.training_block import CHAIN, OWN_INT8, OWN_W8A8, Block, Variant
from benchmarks.training_llama import OWN_W4A8, LlamaStep, llama_variants, shape_of
from benchmarks.training_plot import plot_training
from benchmarks.training_row import TRAINING, PeaksAtMost, TrainingRow
from benchmarks.training_step import PHASES, Step, Stepper

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = [2, 8, 64]
VARIANTS = {variant.name: variant for variant in training_block.variants("float32")}
HERE = [name for name, variant in VARIANTS.items() if not variant.missing]


def step_of(name: str, compiled: bool = False) -> Step:
    return Step.of(VARIANTS[name], CPU, torch.float32, SHAPE, compiled)


def outputs(name: str) -> list[Tensor]:
    """What a step computes: the output, and the gradients of the input and of four weights."""
    step = step_of(name)
    y = step.forward(step.x)
    y.backward(step.grad)
    weights = dict(step.block.named_parameters())
    grads = [weights[f"{layer}.weight"].grad for layer in ("qkv", "out", "up", "down")]
    return [y.detach(), step.x.grad, *grads]


def error(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape and a.dtype == b.dtype
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", HERE)
def test_variants_train_the_same_block(name: str) -> None:
    """Each is near the block in floats, and no quantized one is the block itself."""
    # Where the scale lets the largest values be clipped, their gradient is 0.
    most = 0.35 if "W4A8" in name else 0.15 if name.startswith("torch") else 0.05
    for got, wanted in zip(outputs(name), outputs("float32"), strict=True):
        assert error(got, wanted) < most
        assert (error(got, wanted) > 1e-5) is (name != "float32")


@pytest.mark.parametrize("name", [CHAIN, "fake_quantize_per_channel W8A8"])
def test_the_chains_compute_what_w8a8_does(name: str) -> None:
    for got, wanted in zip(outputs(name), outputs(OWN_W8A8), strict=True):
        assert error(got, wanted) < 2e-3  # but for ties, and the order of sums


def test_every_linear_layer_is_prepared() -> None:
    for name in HERE:
        kinds = [type(m) for m in step_of(name).block.modules()]
        assert (nn.Linear in kinds) is (name == "float32"), name


@pytest.mark.parametrize("name", HERE)
def test_a_step_trains(name: str) -> None:
    """All parameters move, and the optimizer's state is that of the parameters' dtype."""
    step = step_of(name)
    before = {n: p.detach().clone() for n, p in step.block.named_parameters()}
    marks: list[int] = []
    step.run(lambda: marks.append(1))
    assert len(marks) == 1 + len(PHASES)
    assert step.x.grad is not None
    for n, parameter in step.block.named_parameters():
        assert not torch.equal(parameter, before[n]), n
        assert step.optimizer.state[parameter]["exp_avg"].dtype == parameter.dtype
    step.clear()
    assert step.x.grad is None and all(p.grad is None for p in step.block.parameters())


def test_all_start_from_the_same_weights() -> None:
    plain, own = (dict(step_of(n).block.named_parameters()) for n in ("float32", OWN_W8A8))
    assert plain.keys() == own.keys() and all(torch.equal(plain[n], own[n]) for n in plain)


def test_what_is_kept_leaves_parameters_out() -> None:
    held = {name: training_step.held_bytes(step_of(name)) for name in ("float32", OWN_W8A8, CHAIN)}
    weights = sum(p.nbytes for p in step_of("float32").block.parameters() if p.dim() > 1)
    rows, width = SHAPE[0] * SHAPE[1], SHAPE[2]
    inputs = 4 * rows * (width + width + 4 * width)  # of qkv, up and down; that of out is twofold
    assert held["float32"] > inputs
    assert held[CHAIN] >= held["float32"] + weights  # the rounded weights
    kept_less = held["float32"] - held[OWN_W8A8]
    scales = 4 * (4 * rows + 9 * width)
    assert kept_less == inputs - (inputs + 4 * rows * width) // 4 - scales


# --- a whole run ---------------------------------------------------------------------------------


def run(folder: Path, *options: str) -> list[Row]:
    return bench_training.main([*options, "--sizes", "2x8x64", *files_in(folder)])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Row], Path]]:
    """A whole run of a tiny size: its rows, and the folder with what it wrote."""
    folder = tmp_path_factory.mktemp("bench")
    yield run(folder, "--device=cpu", "--quick", "--threads=1"), folder


def check(rows: list[Row], modes: set[str]) -> None:
    assert not [(r.op, r.what, r.error) for r in rows if r.error]
    assert {r.what for r in rows} == modes
    for row in rows:
        if row.seconds is None:
            assert row.note.endswith("is not installed")
            continue
        assert row.seconds > 0 and not row.peer_errors
        assert row.of_baseline == row.seconds / row.peers.get(row.baseline, row.seconds)
        if row.what != "graph":
            assert list(row.phases) == list(PHASES)
            assert row.held[row.op] > 0


def test_runs_whole(report: tuple[list[Row], Path]) -> None:
    rows, folder = report
    check(rows, {"eager"})
    assert [r.op for r in rows] == list(VARIANTS)
    assert all(r.threads == 1 and r.shape == SHAPE and not r.targets for r in rows)
    own = next(r for r in rows if r.op == OWN_W8A8)
    assert own.peers.keys() == {"float32", CHAIN} and own.held.keys() == {
        "float32",
        CHAIN,
        OWN_W8A8,
    }
    assert own.peaks == {} and own.peak_of_baseline is None
    found, head = written(folder, "training", rows)
    assert [row["phases"] for row in found["rows"]] == [row.phases for row in rows]
    assert "| forward ms | backward ms | optimizer ms | step ms | of float |" in head


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torchao" else find(name)
    )
    chosen = [Variant("float32"), VARIANTS["torchao W8A8 asymmetric"]]
    monkeypatch.setattr(bench_training, "variants", lambda baseline: chosen)
    rows = bench_training.main(["--device=cpu", "--quick", "--sizes", "2x8x64"])
    assert [(r.note, r.error, r.seconds is None) for r in rows] == [
        ("", None, False),
        ("torchao is not installed", None, True),
    ]
    assert "torchao is not installed" in TRAINING.cells(rows[1])
    assert bench_report.count_verdicts(rows) == "0 of 0 targets met; 0 of 2 rows failed."


def test_what_fails_hinders_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(block: nn.Module) -> None:
        raise NotImplementedError("no such way")

    chosen = [Variant("float32"), Variant("bad", refuse), VARIANTS[CHAIN]]
    monkeypatch.setattr(bench_training, "variants", lambda baseline: chosen)
    rows = bench_training.main(["--device=cpu", "--quick", "--sizes", "2x8x64"])
    assert [r.error for r in rows] == [None, "NotImplementedError: no such way", None]
    assert rows[2].of_baseline is not None

    def exhausted(*args: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Stepper, "measure", exhausted)
    rows = bench_training.main(["--device=cpu", "--quick", "--sizes", "2x8x64"])
    assert [r.error for r in rows] == ["RuntimeError: out of memory"] * 3


@pytest.mark.exhaustive
def test_compiled_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that compiles nothing: the real one takes seconds for each row."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.append(options) or f)
    rows = bench_training.main(["--device=cpu", "--what", "compiled", "--sizes", "2x8x64"])
    check(rows, {"compiled"})
    assert [r.op for r in rows] == [n for n, v in VARIANTS.items() if "compiled" in v.modes]
    assert asked == [{"fullgraph": True, "dynamic": False}] * sum(
        r.seconds is not None for r in rows
    )


def test_compiling_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_training, "COMPILE_FOR", -1)
    rows = bench_training.main(["--device=cpu", "--what", "compiled", "--sizes", "2x8x64"])
    assert {(r.note, r.error) for r in rows if not r.note.endswith("installed")} == {
        ("not compiled: the time was used up", None)
    }


@pytest.mark.inductor
@pytest.mark.parametrize("name", [OWN_W8A8, CHAIN])
def test_variants_compile(name: str) -> None:
    torch._dynamo.reset()
    eager, compiled = step_of(name), step_of(name, compiled=True)
    for step in (eager, compiled):
        step.run()
    torch.testing.assert_close(compiled.x.grad, eager.x.grad, rtol=1e-3, atol=1e-3)


# --- figures -------------------------------------------------------------------------------------


def row_of(seconds: float, peaks: dict[str, int], mode: str = "eager") -> TrainingRow:
    targets = bench_training.targets_of(VARIANTS[OWN_W8A8], mode, "bfloat16", CUDA)
    row = TrainingRow(mode, OWN_W8A8, mode, "bfloat16", SHAPE, None, targets, baseline="bfloat16")
    row.peaks = peaks
    return row.fill({OWN_W8A8: seconds, "bfloat16": 20e-3, CHAIN: 50e-3}, OWN_W8A8)


def test_targets_on_a_gpu() -> None:
    time_targets = [TakesAtMost("bfloat16", 1.0), TakesAtMost(CHAIN, 0.5)]
    good = row_of(20e-3, {OWN_W8A8: 100, "bfloat16": 100})
    assert good.targets == [*time_targets, PeaksAtMost("bfloat16")]
    assert good.reached == pytest.approx([1.0, 0.4, 1.0]) and good.met == [True, True, True]
    bad = row_of(26e-3, {OWN_W8A8: 101, "bfloat16": 100})
    assert bad.met == [False, False, False] and bad.of_baseline == pytest.approx(1.3)
    assert row_of(20e-3, {}).met == [True, True, None]
    graph = row_of(20e-3, {}, "graph")
    assert graph.targets == time_targets and graph.met == [True, True]
    failed = row_of(20e-3, {})
    failed.fill({OWN_W8A8: "RuntimeError: no"}, OWN_W8A8)
    assert failed.met == [False, False, False]
    assert bench_training.targets_of(VARIANTS[CHAIN], "eager", "bfloat16", CUDA) == []
    integers = bench_training.targets_of(VARIANTS[OWN_INT8], "eager", "bfloat16", CUDA)
    assert integers == [TakesAtMost("bfloat16", 0.68), PeaksAtMost("bfloat16")]
    assert bench_training.targets_of(VARIANTS[OWN_W8A8], "eager", "float32", CPU) == []


def test_cells() -> None:
    row = row_of(26e-3, {OWN_W8A8: 3 << 20, "bfloat16": 2 << 20})
    row.phases, row.held = dict(zip(PHASES, (1e-3, 2e-3, 23e-3), strict=True)), {OWN_W8A8: 1 << 19}
    cells = dict(zip(TRAINING.columns([row]), TRAINING.cells(row), strict=True))
    assert cells == {
        "training": OWN_W8A8,
        "mode": "eager",
        "batch x tokens x width": "2x8x64 bfloat16",
        "forward ms": "1.00",
        "backward ms": "2.00",
        "optimizer ms": "23.00",
        "step ms": "26.00",
        "of float": "1.300",
        "kept MiB": "0.5",
        "peak MiB": "3.0",
        "peak of float": "1.500",
        "note": "",
        "target": f"time ≤ 1x bfloat16, time ≤ 0.5x {CHAIN}, peak ≤ bfloat16",
        "": "missed, missed, missed",
    }


def test_phases_on_a_gpu_come_from_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own, which each phase moves by a millisecond more than the one before."""
    clock, asked = [0.0], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            clock[0] += len(asked)
            asked.append(self)
            self.time = clock[0]

        def elapsed_time(self, other: Event) -> float:
            return other.time - self.time

    waits: list[int] = []  # how many steps had run
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(len(runs)))
    step = step_of("float32")
    step.x = step.x.detach().requires_grad_()
    figures = training_step.Figures()

    runs: list[object] = []

    def counted(*marks: Any) -> None:
        runs.append(marks)
        step.run(*marks)

    class OnDevice:  # what phases_measure asks for the device of
        x = type("X", (), {"device": CUDA})
        run, clear = staticmethod(counted), step.clear

    measure = training_step.phases_measure(OnDevice(), figures.phases)  # type: ignore[arg-type]
    assert measure() == pytest.approx(6e-3)
    assert figures.medians() == pytest.approx(dict(zip(PHASES, (1e-3, 2e-3, 3e-3), strict=True)))
    assert waits == [training_step.LEAD + 1], "no wait between the steps in front"
    assert training_step.Figures().medians() == {}


def test_only_the_largest_size_is_drawn(tmp_path: Path) -> None:
    about = {"device": "a GPU", "torch": "2.13"}
    path = tmp_path / "empty.png"
    plot_training([], about, path)
    assert not path.exists()
    rows = [row_of(20e-3, {OWN_W8A8: 100}), row_of(20e-3, {OWN_W8A8: 100}, "graph")]
    plot_training(rows, about, path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["64MiB", "4096", "4x4096", "0x4x64", "2x8x200", "2x8x64x1"])
def test_sizes_that_are_no_batch(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_training.parse_shape("4x2048x4096") == [4, 2048, 4096]
    with pytest.raises(SystemExit):
        bench_training.main(["--device=cpu", "--sizes", text])
    assert "expected batch x tokens x width, such as 4x2048x4096" in capsys.readouterr().err


def test_the_block_is_a_transformers() -> None:
    """Causal, and with as many parameters as are usual: 12 times the width squared."""
    block = Block(256, CPU, torch.float32)
    assert block.heads == 2
    assert sum(p.numel() for p in block.parameters() if p.dim() == 2) == 12 * 256**2
    x = torch.randn(1, 6, 256)
    later = x.clone()
    later[:, 4:] += 1
    same = (block(x) == block(later)).all(dim=-1)
    assert same.tolist() == [[True] * 4 + [False] * 2]


def test_full_size_on_a_gpu() -> None:
    parser_options = type("Options", (), {"device": CUDA, "quick": False, "model": "block"})
    for mode in bench_training.MODES:
        (plan,) = bench_training.plans_of(mode, parser_options)  # type: ignore[arg-type]
        batch, tokens, width = bench_training.parse_shape(plan.sizes[0])
        assert (batch * tokens, width, plan.dtypes) == (8192, 4096, ["bfloat16"])
        names = [v.name for v in VARIANTS.values() if mode in v.modes]
        assert {"float32", OWN_W8A8, CHAIN} <= set(names)


def test_runs_on_cuda(cuda: str, tmp_path: Path) -> None:
    rows = run(tmp_path, "--device", cuda, "--quick", "--what", "eager", "graph")
    check(rows, {"eager", "graph"})
    assert all(r.peaks[r.op] > 0 for r in rows if r.what == "eager" and r.seconds)
    own = [r for r in rows if r.op == OWN_W8A8]
    assert [len(r.met) for r in own] == [3, 2] and None not in own[0].met + own[1].met


def test_only_some_variants() -> None:
    given = ["--device=cpu", "--quick", "--what", "eager", "--sizes", "2x8x64", "--only"]
    rows = bench_training.main([*given, OWN_INT8])
    assert [row.op for row in rows] == ["float32", OWN_INT8]
    with pytest.raises(SystemExit):
        bench_training.main([*given, "no such variant"])


# --- a whole model -------------------------------------------------------------------------------

LLAMA = ["--device=cpu", "--quick", "--model", "llama", "--threads=1"]
LLAMA_VARIANTS = {variant.name: variant for variant in llama_variants("float32")}


def test_llama_runs_whole(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    rows = bench_training.main([*LLAMA, "--sizes", "1x8x256", *files_in(tmp_path)])
    check(rows, {"eager"})
    assert [row.op for row in rows] == list(LLAMA_VARIANTS) and not any(r.targets for r in rows)
    written(tmp_path, "training", rows)
    for wrong in (["--sizes", "1x8x512"], ["--only", CHAIN]):
        with pytest.raises(SystemExit):
            bench_training.main([*LLAMA, *wrong])


@pytest.mark.parametrize("name", [OWN_INT8, OWN_W4A8])
def test_a_step_trains_a_whole_model(name: str) -> None:
    """Embedding and head are trained too, and stay floating."""
    pytest.importorskip("transformers")
    floats, step = (
        LlamaStep.of(LLAMA_VARIANTS[one], CPU, torch.float32, [2, 8, 256])
        for one in ("float32", name)
    )
    kinds = [type(module) for module in step.block.modules()]
    assert kinds.count(nn.Linear) == kinds.count(nn.Embedding) == 1
    losses = [one.forward(one.x).item() for one in (floats, step)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02) and losses[0] != losses[1]
    before = {n: p.detach().clone() for n, p in step.block.named_parameters()}
    step.run()
    assert not [n for n, p in step.block.named_parameters() if torch.equal(p, before[n])]


@pytest.mark.inductor
def test_the_blocks_of_a_whole_model_compile() -> None:
    pytest.importorskip("transformers")
    torch._dynamo.reset()
    sizes = CPU, torch.float32, [1, 8, 256]
    eager, compiled = (LlamaStep.of(LLAMA_VARIANTS[OWN_INT8], *sizes, c) for c in (False, True))
    for step in (eager, compiled):
        step.run()
    torch.testing.assert_close(compiled.forward(compiled.x), eager.forward(eager.x))


def test_targets_of_a_whole_model() -> None:
    def targets(name: str, mode: str) -> list[Any]:
        return bench_training.targets_of(LLAMA_VARIANTS[name], mode, "bfloat16", CUDA, "llama")

    assert targets(OWN_INT8, "compiled") == [
        TakesAtMost("bfloat16", 0.82),
        PeaksAtMost("bfloat16"),
    ]
    assert targets(OWN_W4A8, "compiled")[0] == TakesAtMost("bfloat16", 0.95)
    assert not targets(OWN_W4A8, "eager") and not targets(OWN_W8A8, "compiled")
    assert shape_of(2048).vocabulary == 32_000 and shape_of(256).vocabulary == 512
