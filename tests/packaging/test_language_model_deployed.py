# SPDX-License-Identifier: BSD-3-Clause
"""The language model as it is deployed: a small run, its going on, the rows, mixed precision."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import baraquant
import language_model
import lm_deployment
import lm_deployment_report
import lm_generation
import lm_schemes
from lm_decoder import SIZES, Decoder
from lm_deployment import Deployed
from lm_generation import Decoded

TINY = SIZES["tiny"]
SMALL = ["--size", "tiny", "--steps", "3", "--parts", "deployment", "sensitivity"]
SMALL += ["--deployments", "W4A16", "W4A16-GPTQ", "W4A16-AWQ", "W4A8-factors"]


def run(out: Path, *options: str) -> dict[str, Any]:
    code = language_model.main([*SMALL, *options, "--out", str(out)])
    assert code == 0
    report: dict[str, Any] = json.loads((out / "language_model.json").read_text())
    return report


@pytest.mark.packaging
def test_a_small_run_and_one_that_goes_on(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path / "first", "--seeds", "1", "--device", device)
    again = run(
        tmp_path / "second",
        *("--seeds", "2", "--device", device),
        *("--resume", str(tmp_path / "first/language_model.json")),
    )
    assert (report["done"], again["done"]) == ([0], [0, 1])
    for name in ("runs", "deployed"):  # those of the first seed are taken as they are
        assert again[name][: len(report[name])] == report[name]
        assert len(again[name]) == 2 * len(report[name])
    assert again["decoded"] == report["decoded"] and again["mixture"] == report["mixture"]
    rows = {(row["scheme"], row["tuned"]): row for row in again["deployment_rows"]}
    untrained = ["float", "W4A16", "W4A16-AWQ", "W4A16-GPTQ", "W4A8-factors", "mixed"]
    expected = [(name, False) for name in untrained]
    assert list(rows) == [*expected, ("float", True), ("W4A8-factors", True), ("W4A16", True)]
    for (scheme, tuned), row in rows.items():
        assert row["seeds"] == 2 and row["file_bytes"] > 10_000
        assert (row["seconds"] is None) == (tuned or scheme == "float")
        assert set(row["tokens_per_second"]) == {"1", "32"}
        assert bool(row["verdict"]) == (tuned and scheme != "float")
        assert (row["change"] == [0, 0]) == (scheme == "float")
        assert row["file_bytes"] <= rows["float", False]["file_bytes"]
    how = "CUDA graph" if device == "cuda" else "eager"
    assert {one["how"] for one in again["decoded"]} == {how}
    assert set(again["mixture"]["chosen"].values()) <= set(lm_schemes.COMPARED)
    assert again["mixture"]["bytes"] <= again["mixture"]["budget"]
    text = " ".join(capsys.readouterr().out.split())
    assert f"greedy decoding with a cache, {how}" in text and "blocks.0.mlp.down" in text
    for name in ("", ".deployed", ".sensitivity"):
        picture = tmp_path / "first" / f"language_model{name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.packaging
def test_another_run_is_not_gone_on_from(tmp_path: Path) -> None:
    options = ["--deployments", "float", "--parts", "deployment", "--device", "cpu"]
    run(tmp_path, *options, "--seeds", "1")
    earlier = ["--resume", str(tmp_path / "language_model.json")]
    for other in (["--steps", "4"], ["--dtype", "bfloat16"], ["--mlp", "gelu"]):
        with pytest.raises(
            SystemExit, match=r"language_model.json is of a run with other settings"
        ):
            run(tmp_path / "other", *options, *earlier, *other)


# --- what is deployed


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", lm_schemes.DEPLOYMENTS)
def test_every_deployment_quantizes_all_layers_of_the_blocks(name: str, device: str) -> None:
    torch.manual_seed(0)
    model = Decoder(TINY).to(device)
    data = [torch.randint(256, (2, 32), device=device)]
    validation = [torch.randint(256, (2, 33), device=device)]
    config = lm_schemes.DEPLOYMENTS[name].config(TINY.group)
    one, served = lm_deployment.deploy(model, name, config, data, validation, torch.float32, 7)
    linear = [path for path, m in served.named_modules() if type(m) is torch.nn.Linear]
    assert ("head" in linear) and (len(linear) == 1) == (name != "float")
    assert (one.scheme, one.tuned, one.seed) == (name, False, 7)
    assert one.loss == pytest.approx(math.log(256), abs=0.2)
    assert 4 * 2 * 256 * 32 < one.file_bytes < 4 * 40_000


@pytest.mark.exhaustive
def test_a_layer_that_stays_floating_is_an_error() -> None:
    data = [torch.randint(256, (2, 32))]
    with pytest.raises(AssertionError, match=r"layers of blocks stay floating: .*mlp.down"):
        lm_deployment.quantized(Decoder(TINY), baraquant.W4A16(32), data)


@pytest.mark.exhaustive
def test_the_choice_of_layers_lies_between_four_and_eight_bits() -> None:
    torch.manual_seed(0)
    model = Decoder(TINY)
    found = lm_deployment.mixture(model, [torch.randint(256, (2, 32))])
    sizes = {}
    for name, config in (("W4A16", baraquant.W4A16(8)), ("W8A16", baraquant.W8A16())):
        every = found.report.choose(bits=100) if name == "W8A16" else None
        sizes[name] = sum(layer.bytes[name] for layer in found.report.layers)
        assert every is None or set(every.values()) == {config}
    assert found.budget == found.report.other_bytes + sum(sizes.values()) // 2
    assert found.choice.bytes <= found.budget
    plain = found.as_dict()
    assert baraquant.Sensitivity.from_dict(plain["report"]) == found.report
    assert list(plain["chosen"]) == [layer.path for layer in found.report.layers]


# --- the rows


def one(scheme: str, seed: int, loss: float, tuned: bool = False, size: int = 1000) -> Deployed:
    seconds = None if tuned or scheme == "float" else 0.5 + seed
    return Deployed(scheme, tuned, seed, loss, size + seed, seconds)


def some() -> list[Deployed]:
    found = []
    for seed, base in ((0, 1.0), (1, 1.2)):
        found += [one("float", seed, base, size=4000), one("W4A16", seed, base + 0.02)]
        found += [one("W4A16-GPTQ", seed, base + 0.01 + 0.001 * seed)]
        found += [one("float", seed, base - 0.1, True), one("W4A16", seed, base - 0.098, True)]
        found += [one("W4A8", seed, base - 0.08, True), one("W8A8", seed, base - 0.1, True)]
    return found


def test_rows_compare_each_seed_with_its_own_float_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded = [Decoded("W4A16", batch, 100.0 * batch, 1.5, "eager") for batch in (1, 32)]
    rows = lm_deployment_report.summarize_deployments(some(), decoded)
    by_key = {(row.scheme, row.tuned): row for row in rows}
    gptq, tuned = by_key["W4A16-GPTQ", False], by_key["W4A16", True]
    assert by_key["float", False].change == (0, 0) and by_key["float", True].change == (0, 0)
    assert gptq.change == pytest.approx((math.expm1(0.0105), 0.00071), abs=1e-5)
    assert gptq.perplexity[0] == pytest.approx((math.exp(1.01) + math.exp(1.211)) / 2)
    assert (gptq.seconds, gptq.file_bytes) == (1.0, 1001)
    assert gptq.tokens_per_second == {"1": 100.0, "32": 3200.0}  # those of the same layers
    assert tuned.recovered == pytest.approx(1 - math.expm1(0.002) / gptq.change[0])
    assert tuned.verdict == "passed" and tuned.seconds is None
    assert by_key["W4A8", True].verdict == "failed: more than 1% above float"
    assert by_key["W8A8", True].verdict == ""  # asked at four bits alone
    lines = lm_deployment_report.conclude_deployments(rows)
    assert lines == [
        "W4A16, deployed after training with it: passed (+0.20 ± 0.00 %; 81% of what GPTQ loses is "
        "recovered).",
        "W4A8, deployed after training with it: failed: more than 1% above float (+2.02 ± 0.00 %).",
    ]
    lm_deployment_report.print_deployments(rows, decoded, Console(width=200))
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    expected = "W4A16-GPTQ 3.0512 ± 0.4322 +1.06 ± 0.07 % 1 1.00 100 (1.50 x) 3,200 (1.50 x)"
    assert shown.count(expected) == 1
    lm_deployment_report.plot_deployments(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("change", "recovered", "verdict"),
    [
        ((0.0099, 0.1), 0.5, "passed"),
        ((-0.02, 0.1), None, "passed"),
        ((0.0101, 0.0), 0.6, "failed: more than 1% above float"),
        ((0.005, 0.0), 0.49, "failed: less than 50% of GPTQ's loss recovered"),
        ((math.nan, 0.0), None, "failed: more than 1% above float"),
        (None, None, "not judged: no float"),
    ],
)
def test_verdicts(
    change: tuple[float, float] | None, recovered: float | None, verdict: str
) -> None:
    assert lm_deployment_report.judge(change, recovered) == verdict


def test_what_gptq_does_not_lose_is_not_recovered() -> None:
    noisy = [*some(), one("W4A8", 0, 1.05), one("W4A8-GPTQ", 0, 1.01), one("W4A8-GPTQ", 1, 1.19)]
    for row in lm_deployment_report.summarize_deployments(noisy, []):
        assert (row.recovered is not None) == ((row.scheme, row.tuned) == ("W4A16", True))


@pytest.mark.exhaustive
def test_speeds_are_those_of_each_batch() -> None:
    models = {name: lm_generation.deployed(Decoder(TINY), torch.float32) for name in "ab"}
    found = lm_generation.decoding_speeds(models, torch.randint(256, (4, 33)))
    assert [(f.scheme, f.batch) for f in found] == [("a", 1), ("b", 1), ("a", 32), ("b", 32)]
    assert all(f.tokens_per_second > 0 and f.faster > 0 and f.how == "eager" for f in found)
    assert found[0].faster == 1
