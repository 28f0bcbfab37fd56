# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of a LoRA step runs, its bases train the same adapters, and it counts right."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import bench_lora, lora_block
from benchmarks.bench_lora import LORA, LoraRow, WeighsAtMost
from benchmarks.bench_row import Row, TakesAtMost
from benchmarks.lora_block import LAYERS, OWN_INT8, RANK, LoraStep
from benchmarks.tests.whole_runs import files_in, written
from tests.support.optional_packages import package

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = [2, 8, 256]
VARIANTS = {variant.name: variant for variant in lora_block.variants("float32")}
HERE = [name for name, variant in VARIANTS.items() if not variant.missing]
LINEAR = 7  # in a layer


def step_of(name: str, with_peft: bool | None = False) -> LoraStep:
    return LoraStep.of(VARIANTS[name], CPU, torch.float32, SHAPE, with_peft=with_peft)


def outputs(step: LoraStep) -> list[Tensor]:
    """The output, and the gradients of the input and of all adapters, which start alike."""
    generator = torch.Generator().manual_seed(3)
    trained = [p for p in step.block.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter in trained:
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    y = step.forward(step.x)
    y.backward(step.grad)
    return [y.detach(), step.x.grad, *(p.grad for p in trained)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HERE)
def test_bases_train_the_same_adapters(name: str) -> None:
    most = 0.3 if "W4" in name else 0.05
    for got, wanted in zip(outputs(step_of(name)), outputs(step_of("float32")), strict=True):
        error = float((got - wanted).norm() / wanted.norm())
        assert error < most and (error > 1e-5) is (name != "float32")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HERE)
def test_own_adapters_compute_what_pefts_do(name: str) -> None:
    package("peft")
    own, pefts = outputs(step_of(name)), outputs(step_of(name, with_peft=True))
    for got, wanted in zip(own, pefts, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HERE)
def test_a_step_trains_adapters_alone(name: str) -> None:
    step = step_of(name)
    state = step.block.state_dict()
    before = {n: t.clone() for n, t in state.items()}
    step.run()
    step.run()
    changed = {n for n, t in step.block.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == {n for n in state if "lora_" in n}
    assert len(changed) == 2 * LINEAR * LAYERS
    trained = [p for group in step.optimizer.param_groups for p in group["params"]]
    sizes = 2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 896)
    assert sum(p.numel() for p in trained) == LAYERS * RANK * sizes


def test_weights_are_counted() -> None:
    numbers = LAYERS * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 896)
    rows = LAYERS * (2 * 256 + 2 * 128 + 2 * 896 + 256)
    groups = numbers // 128
    weights = {name: step_of(name).weights for name in HERE}
    assert weights["float32"] == 4 * numbers
    assert weights[OWN_INT8] == weights["baraquant W8A16"] == numbers + 4 * rows
    assert weights["baraquant W4A16 groups of 128"] == numbers // 2 + 4 * groups


# --- a whole run ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Row], Path]]:
    """A whole run of a tiny size: its rows, and the folder with what it wrote."""
    folder = tmp_path_factory.mktemp("bench")
    options = ["--device=cpu", "--quick", "--threads=1", "--sizes", "1x4x256"]
    yield bench_lora.main([*options, *files_in(folder)]), folder


@pytest.mark.exhaustive
def test_runs_whole(report: tuple[list[Row], Path]) -> None:
    rows, folder = report
    assert [row.op for row in rows] == list(VARIANTS) and {row.what for row in rows} == {"eager"}
    assert not [(row.op, row.error) for row in rows if row.error]
    for row in rows:
        if row.seconds is None:
            assert row.note.endswith("is not installed")
            continue
        assert row.shape == [1, 4, 256] and row.layers == LAYERS and row.held[row.op] > 0
        assert row.of_baseline == row.seconds / row.peers.get(row.baseline, row.seconds)
        assert row.adapters == lora_block.adapter_name()
    own = next(row for row in rows if row.op == OWN_INT8)
    assert 0.25 < own.weights_of_baseline < 0.26 and own.targets == []
    found, head = written(folder, "lora", rows)
    assert [row["weights"] for row in found["rows"]] == [row.weights for row in rows]
    assert {row["adapters"] for row in found["rows"]} == {lora_block.adapter_name()}
    assert "weights of float" in head


def test_runs_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says whose adapters it measured."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "peft" else find(name)
    )
    chosen = [VARIANTS["float32"], VARIANTS[OWN_INT8]]
    monkeypatch.setattr(bench_lora, "variants", lambda baseline: chosen)
    rows = bench_lora.main(["--device=cpu", "--quick", "--sizes", "1x4x256"])
    assert [row.error for row in rows] == [None, None]
    assert {row.adapters for row in rows} == {"the benchmark's own adapters, of PEFT's arithmetic"}


@pytest.mark.exhaustive
def test_compiled_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that compiles nothing: the real one takes seconds for each row."""
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    rows = bench_lora.main(["--device=cpu", "--what", "compiled", "--sizes", "1x4x256"])
    assert [(r.op, r.error) for r in rows] == [
        (n, None) for n, v in VARIANTS.items() if "compiled" in v.modes
    ]


@pytest.mark.inductor
def test_bases_compile() -> None:
    torch._dynamo.reset()
    eager = step_of(OWN_INT8)
    compiled = LoraStep.of(VARIANTS[OWN_INT8], CPU, torch.float32, SHAPE, True, False)
    for step in (eager, compiled):
        step.run()
    torch.testing.assert_close(compiled.x.grad, eager.x.grad, rtol=1e-3, atol=1e-3)


def test_targets_on_a_gpu() -> None:
    targets = bench_lora.targets_of(VARIANTS[OWN_INT8], "bfloat16", CUDA)
    assert targets == [TakesAtMost("bfloat16", 1.0), WeighsAtMost("bfloat16", 0.51)]
    for weights, met in ((None, None), (51, True), (52, False)):
        row = LoraRow(
            *("eager", OWN_INT8, "eager", "bfloat16", SHAPE, None, targets), baseline="bfloat16"
        )
        if weights is not None:
            row.weights = {OWN_INT8: weights << 20, "bfloat16": 100 << 20}
        row.fill({OWN_INT8: 20e-3, "bfloat16": 25e-3}, OWN_INT8)
        assert row.met == [True, met] and row.reached[0] == pytest.approx(0.8)
    shown = dict(zip(LORA.columns([row]), LORA.cells(row), strict=True))
    assert shown["weights MiB"] == "52.0" and shown["weights of float"] == "0.520"
    assert shown["target"] == "time ≤ 1x bfloat16, weights ≤ 0.51x bfloat16"
    assert shown[""] == "met, missed" and shown["step ms"] == "20.00"
    assert bench_lora.targets_of(VARIANTS["baraquant W8A16"], "bfloat16", CUDA) == []
    assert bench_lora.targets_of(VARIANTS[OWN_INT8], "bfloat16", CPU) == []


def test_full_size_on_a_gpu() -> None:
    options = type("Options", (), {"device": CUDA, "quick": False})
    for mode in bench_lora.MODES:
        (plan,) = bench_lora.plans_of(mode, options)  # type: ignore[arg-type]
        batch, tokens, width = bench_lora.parse_shape(plan.sizes[0])
        assert (batch * tokens, width, plan.dtypes) == (8192, 4096, ["bfloat16"])
    with torch.device("meta"):
        layer = lora_block.DecoderLayer(4096, torch.device("meta"), torch.bfloat16)
    assert layer.up_proj.out_features == 14336 and layer.kv_heads == 8


@pytest.mark.parametrize("text", ["4096", "4x4096", "0x4x256", "2x8x128", "2x8x256x1"])
def test_sizes_that_are_no_batch(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_lora.main(["--device=cpu", "--sizes", text])
    assert "expected batch x tokens x width, such as 4x2048x4096" in capsys.readouterr().err


def test_runs_on_cuda(cuda: str) -> None:
    rows = bench_lora.main(["--device", cuda, "--quick", "--what", "eager"])
    assert not [(row.op, row.error) for row in rows if row.error]
    own = next(row for row in rows if row.op == OWN_INT8)
    assert own.peaks[OWN_INT8] > 0 and None not in own.met
