# SPDX-License-Identifier: BSD-3-Clause
"""The demo runs to its end on a small budget, and what it stores is what it says."""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import baraquant
import few_bits
import qat_deploy
import qat_report
import qat_widths
from baraquant import nn as bnn
from baraquant import ops
from qat_report import Run
from qat_widths import Widths
from tests.support import processes


@pytest.fixture(scope="session")
def demo(made_once: processes.MadeOnce) -> tuple[str, Path]:
    """What one quick run prints, and its folder."""

    def make(out: Path) -> None:
        script = processes.ROOT / "examples" / "qat_digits.py"
        done = processes.run(sys.executable, script, "--quick", "--seeds", "1", "--out", out)
        assert done.returncode == 0, done.stdout + done.stderr
        (out / "stdout").write_text(done.stdout)

    out = made_once("demo", make)
    return (out / "stdout").read_text(), out


@pytest.mark.packaging
def test_demo_prints_and_writes(demo: tuple[str, Path]) -> None:
    text, out = demo
    assert "13 of 13 give bit for bit" in " ".join(text.split())
    report = json.loads((out / "qat_digits.json").read_text())
    assert report["conclusion"] in " ".join(text.split())
    assert len(report["runs"]) == len(report["summary"]) == 13
    schemes = Counter(run["widths"]["inputs"] for run in report["runs"])
    assert schemes == {"learned": 9, "symmetric": 2, "asymmetric": 2}
    assert all(run["integers_equal"] for run in report["runs"])
    assert (out / "qat_digits.png").read_bytes().startswith(b"\x89PNG")
    for run in report["runs"]:
        path = out / "models" / f"{Widths(**run['widths'])}-seed0.safetensors"
        assert path.stat().st_size == run["file_bytes"] > run["tensor_bytes"]
        stored = safetensors.torch.load_file(path)
        assert sum(tensor.nbytes for tensor in stored.values()) == run["tensor_bytes"]
        bits = run["widths"]["weight_bits"]
        names = [f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("qweight", "packed")]
        sizes = [stored[name].numel() for name in names if name in stored]
        assert sizes == [64 * 64 * bits // 8, 64 * 64 * bits // 8, 64 * 10 * bits // 8]
    assert len(list((out / "models").glob("w*.safetensors"))) == 13


@pytest.mark.packaging
def test_demo_deploys(demo: tuple[str, Path]) -> None:
    """Float, quantized and trained: as accurate, a quarter of the bytes, training's very logits."""
    text, out = demo
    report = json.loads((out / "qat_digits.json").read_text())
    (deployment,) = report["deployments"]
    assert deployment["logits_equal"] is True
    assert report["deployed"] in " ".join(text.split())
    assert "the logits of 1 of 1 networks are bit for bit those of training" in report["deployed"]
    accuracy, size = deployment["accuracy"], deployment["tensor_bytes"]
    for key, name in qat_deploy.NETWORKS.items():
        row = [name.replace(", ", r", "), rf"{accuracy[key]:.1f} ± 0.0", f"{size[key]:,}"]
        assert len(re.findall(" +".join(map(re.escape, row)), text)) == 1
        assert report["times"]["one_image"][key] > 0 and report["times"]["all_images"][key] > 0
        assert accuracy[key] > 94
    hidden = qat_deploy.HIDDEN
    weights, channels = 64 * hidden + hidden**2 + hidden * 10, 2 * hidden + 10
    assert size["float"] == 4 * (weights + channels) and len(size) == 3
    assert size["ptq"] == size["qat"] == weights + 8 * channels
    for key in ("ptq", "qat"):
        stored = safetensors.torch.load_file(out / "models" / f"int8-{key}-seed0.safetensors")
        dtypes = {name: tensor.dtype for name, tensor in stored.items()}
        assert len(dtypes) == 9
        assert all(dtypes[f"{layer}.qweight"] == torch.int8 for layer in (0, 2, 4))
        assert sum(tensor.nbytes for tensor in stored.values()) == size[key]


@pytest.mark.packaging
def test_demo_learns(demo: tuple[str, Path]) -> None:
    """Even on this budget: the digits are learned, and QAT repairs what two bits break."""
    report = json.loads((demo[1] / "qat_digits.json").read_text())
    for summary in report["summary"]:
        mean = {way: value[0] for way, value in summary["accuracy"].items()}
        assert mean["float"] > 90
        if summary["widths"]["weight_bits"] == 2:
            assert mean["qat"] > mean["ptq"] > mean["ptq_max"]
            assert mean["qat"] > mean["float"] - 3
            assert summary["gains"] == [pytest.approx(mean["qat"] - mean["ptq"])]


def prepared(widths: Widths) -> tuple[nn.Sequential, torch.Tensor]:
    """A small network, prepared and fitted to the data beside it."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.rand(16, 8)
    baraquant.qat.prepare_(network, widths.config())
    qat_widths.fit_scales(network, x)
    return network, x


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", ["per_tensor", "per_channel", "per_group"])
def test_fitted_scales_err_less_than_those_of_the_range(shape: str, symmetric: bool) -> None:
    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    values[3] = 0
    scales = {"per_tensor": (1,), "per_channel": (5,), "per_group": (5, 4)}[shape]
    arguments = {"per_tensor": {}, "per_channel": {"axis": 0}, "per_group": {"group_size": 16}}
    grid: Any = {"quant_min": -2, "quant_max": 1, "symmetric": symmetric}
    quantizer = bnn.LearnedFakeQuantize(shape, shape=scales, **grid, **arguments[shape])

    def error(candidates: int) -> torch.Tensor:
        qat_widths.fit(quantizer, values, candidates)
        rows = (quantizer(values) - values).reshape(quantizer.scale.numel(), -1)
        return rows.detach().square().sum(dim=1)

    fitted, by_range = error(40), error(1)
    choose = getattr(ops, f"choose_qparams_{shape}")
    scale, zero_point = choose(values, *arguments[shape].values(), **grid)
    assert torch.equal(quantizer.scale.detach().reshape(-1), scale.reshape(-1))
    assert torch.equal(quantizer.calculate_qparams()[1].reshape(-1), zero_point.reshape(-1))
    assert (fitted <= by_range).all() and fitted.sum() < 0.9 * by_range.sum()


@pytest.mark.parametrize("inputs", qat_widths.INPUT_SCHEMES)
@pytest.mark.parametrize("group_size", [None, 4])
def test_widths_say_what_is_stored(inputs: str, group_size: int | None, tmp_path: Path) -> None:
    widths = Widths(3, 5, group_size, inputs)
    network, x = prepared(widths)
    for layer in (network[0], network[2]):
        weight, activation = layer.config.weight, layer.config.activation
        assert (weight.bits, activation.bits) == (3, 5) and weight.learned
        assert weight.group_size == group_size
        assert activation.learned == (inputs == "learned")
        assert activation.symmetric == (inputs == "symmetric")
    trained = network(x).detach()
    baraquant.qat.convert_(network)
    baraquant.save(network, tmp_path / "network.safetensors")
    fresh = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
    loaded = baraquant.load_(fresh, tmp_path / "network.safetensors")
    assert torch.equal(loaded(x), trained)
    assert {loaded[0].weight_bits, loaded[2].weight_bits} == {3}
    stored = safetensors.torch.load_file(tmp_path / "network.safetensors")
    integers = stored["0.qweight" if group_size is None else "0.packed"]
    assert integers.numel() == 8 * 12 * 3 // 8
    size = sum(tensor.nbytes for tensor in stored.values())
    assert qat_deploy.stored_bytes(tmp_path / "network.safetensors") == size
    group = "channel" if group_size is None else "group4"
    assert str(widths) == f"w3a5-{group}-{inputs}"


def test_latencies_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own, which a layer moves on."""
    order, clock = [], [0.0]
    monkeypatch.setattr(qat_deploy.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(qat_deploy, "TIMED_SECONDS", 1.0)

    class Layer(nn.Module):
        def __init__(self, name: str, seconds: float) -> None:
            super().__init__()
            self.name, self.seconds = name, seconds

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            order.append(self.name)
            clock[0] += self.seconds
            return x

    networks = {"a": Layer("a", 0.125), "b": Layer("b", 0.5)}
    assert qat_deploy.latencies(networks, torch.zeros(1, 4)) == {"a": 0.125, "b": 0.5}
    assert order == ["a", "a", "b", "b"] * 2


def test_gains_are_paired_over_the_seeds() -> None:
    def one(seed: int, bits: int, ptq: float, qat: float, input_bits: int = 8) -> Run:
        accuracy = {"float": 97.0, "ptq_max": 50.0, "ptq": ptq, "qat": qat}
        return Run(seed, Widths(bits, input_bits), accuracy, 100, 110, integers_equal=True)

    runs = [one(0, 4, 96, 97), one(1, 4, 90, 93), one(0, 4, 96, 96, 4), one(1, 4, 90, 89, 4)]
    runs += [one(0, 2, 80, 90), one(1, 2, 80, 79.5)]
    summaries = qat_report.summarize(runs)
    assert [summary.gains for summary in summaries] == [(1, 3), (0, -1), (10, -0.5)]
    assert [summary.header_bytes for summary in summaries] == [10] * 3
    assert qat_report.gained(summaries) == (
        "Against fitted scales, seed by seed and in the mean over granularities and inputs, "
        "training makes +0.8 ± 0.4 points with 4-bit weights (2 of 2 seeds gain) and +4.8 ± 7.4 "
        "points with 2-bit weights (1 of 2 seeds gain)."
    )


@pytest.mark.packaging
def test_few_bits(tmp_path: Path) -> None:
    script = processes.ROOT / "examples" / "digits_few_bits.py"
    small = "--seeds", "2", "--float-epochs", "10", "--epochs", "2", "--out", tmp_path
    done = processes.run(sys.executable, script, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "digits_few_bits.json").read_text())
    rows = {(row["bits"], row["method"]): row for row in report["few_bits_rows"]}
    assert list(rows) == [(bits, method) for bits in (4, 3, 2) for method in few_bits.METHODS]
    assert all(row["seeds"] == 2 and len(row["more"]["accuracy"]) == 2 for row in rows.values())
    lost = {key: row["lost"][0] for key, row in rows.items()}
    assert lost[2, "nearest"] > lost[2, "GPTQ"] > lost[4, "GPTQ"]
    assert (tmp_path / "digits_few_bits.png").read_bytes().startswith(b"\x89PNG")
