# SPDX-License-Identifier: BSD-3-Clause
"""The language model: its training on a tiny size, its options, and what it reports."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import baraquant
import language_model
import lm_experiment
import lm_options
import lm_report
import lm_schemes
from lm_decoder import SIZES
from lm_report import Run
from lm_training import Training

ROOT = Path(__file__).resolve().parents[2]
ABSENT = lm_schemes.missing(lm_schemes.DEFAULT)  # what the installed baraquant lacks
TRAINED = [name for name in lm_schemes.DEFAULT if name not in ABSENT]


def run(out: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """What the program prints, and its JSON."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "language_model.py", "--size", "tiny", "--out", str(out), *options]
    done = subprocess.run(
        command,
        cwd=ROOT / "examples",
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    file = out / "language_model.json"
    return done, json.loads(file.read_text()) if file.exists() else {}


@pytest.mark.packaging
def test_a_small_run(tmp_path: Path, device: str) -> None:
    options = ["--parts", "training", "--steps", "5", "--seeds", "2", "--strict"]
    done, report = run(tmp_path, *options, "--device", device)
    assert report, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert done.returncode == int(not report["passed"])
    assert all(line in text for line in report["conclusion"])
    assert "profiler" not in done.stderr  # which writes notes of its own unless told not to
    for name, reason in ABSENT.items():  # said, never replaced by another
        assert name in text and f"Not trained, because {reason}" in text
    assert report["passed"] is False if ABSENT else True
    assert [(row["mode"], row["scheme"]) for row in report["rows"]] == [
        (mode, scheme) for mode in ("scratch", "checkpoint") for scheme in TRAINED
    ]
    for row in report["rows"]:
        assert row["seeds"] == 2 and row["step_seconds"] > 0 and row["peak_bytes"] > 100_000
        assert row["tokens_per_second"] > 0
        assert row["validation"][0] < row["before"] and row["validation"][1] > 0
        assert row["same_bits"] == (None if row["scheme"] == "float" else 2)
        assert bool(row["verdict"]) == ("-int8" in row["scheme"])
        assert (row["change"] == 0) == (row["scheme"] == "W8A8")
    runs = {(r["mode"], r["scheme"], r["seed"]): r for r in report["runs"]}
    assert len(runs) == 2 * 2 * len(TRAINED)
    for seed in (0, 1):
        float_run = runs["scratch", "float", seed]
        assert runs["checkpoint", "float", seed]["before"] == float_run["validation"]
        assert len(float_run["training"]["curve"]) == 5
    files = sum(report["text"]["files"])
    assert files > 100 and f"sha256 {report['text']['sha256'][:12]}" in text
    assert report["sample"].startswith("def read(self")
    assert report["done"] == [0, 1] and report["deployed"] == report["deployment_rows"] == []
    assert (tmp_path / "language_model.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in json.dumps(report)


@pytest.mark.packaging
def test_gelu_bfloat16_and_one_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "tiny", "--steps", "3", "--seeds", "1", "--mlp", "gelu", "--modes"]
    options += ["checkpoint", "--schemes", "W4A8-groups", "W8A8", "--dtype", "bfloat16"]
    options += ["--parts", "training"]
    code = language_model.main([*options, "--device", "cpu", "--out", str(tmp_path)])
    assert code == 0
    text = capsys.readouterr().out
    assert "Converted to integers, 2 of 2 models" in text
    report = json.loads((tmp_path / "language_model.json").read_text())
    found = [(row["mode"], row["scheme"]) for row in report["rows"]]
    assert found == [("scratch", "float"), ("checkpoint", "W8A8"), ("checkpoint", "W4A8-groups")]
    assert report["settings"]["dtype"] == "bfloat16" and report["settings"]["steps"] == 3


@pytest.mark.skipif(bool(ABSENT), reason="this baraquant has no backward pass of integers")
@pytest.mark.packaging
def test_gradients_of_integers_are_compared(tmp_path: Path, device: str) -> None:
    options = ["--steps", "6", "--seeds", "1", "--modes", "scratch", "--cosine", "3"]
    options += ["--parts", "training"]
    done, report = run(tmp_path, *options, "--device", device)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [name for name in TRAINED if lm_schemes.SCHEMES[name].is_asked]
    assert [found["scheme"] for found in report["cosines"]] == names
    for found in report["cosines"]:
        for way in ("alone", "step"):
            for layer, cosines in found["least"][way].items():
                assert layer.startswith("blocks.0.")
                exact = 1 - 1e-6 if device == "cpu" else 0.999
                is_weight_exact = way == "alone" and "int8_input" in found["scheme"]
                assert cosines["weight"] > (exact if is_weight_exact else 0.99)
                assert 0.99 < cosines["input"] < 1
    assert "Gradients of W8A8-int8_input-nearest" in done.stdout


def test_what_baraquant_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(symmetric: bool = True) -> baraquant.QuantConfig:
        return baraquant.W8A8(symmetric)

    asked = {name for name, scheme in lm_schemes.SCHEMES.items() if scheme.is_asked}
    assert asked == {
        f"W8A8-{backward}-{rounding}"
        for backward in ("int8_input", "int8")
        for rounding in ("nearest", "stochastic")
    }
    assert set(ABSENT) in (set(), asked)
    for name in asked - set(ABSENT):
        config: Any = lm_schemes.SCHEMES[name].config()
        assert f"W8A8-{config.backward}-{config.rounding}" == name
    arguments = lm_schemes.SCHEMES["W8A8-int8-nearest"].arguments
    scheme = lm_schemes.Scheme(older, arguments)
    monkeypatch.setitem(lm_schemes.SCHEMES, "W8A8-int8-nearest", scheme)
    reason = lm_schemes.missing(["W8A8", "W8A8-int8-nearest"])["W8A8-int8-nearest"]
    assert reason == "this baraquant's older takes no backward and no rounding"
    args = lm_options.parse_args(["--schemes", "W8A8", "W8A8-int8-nearest"], "")
    assert args.schemes == ["W8A8"] and args.missing == {"W8A8-int8-nearest": reason}
    assert not language_model.all_passed([], [], args.missing)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "1"], "have to be at least 1, --steps and --tuning-steps 2"),
        (["--seeds", "0"], "have to be at least 1"),
        (["--batch", "0"], "have to be at least 1"),
        (["--learning-rate", "nan"], "has to be a positive number, but is nan"),
        (["--tuning-rate", "0"], "--tuning-rate has to be a positive number, but is 0.0"),
        (["--size", "tiny", "--cosine", "21"], "has to lie between 0 and --steps, which is 20"),
        (["--schemes", "W8A8", "--cosine", "2"], "no scheme to compare with W8A8"),
        (["--schemes", "W9A9"], "invalid choice: 'W9A9'"),
        (["--deployments", "W8A8-int8-nearest"], "invalid choice: 'W8A8-int8-nearest'"),
        (["--parts", "nothing"], "invalid choice: 'nothing'"),
        (["--resume", "nowhere.json"], "the JSON of an earlier run, but nowhere.json is no file"),
    ],
)
def test_wrong_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        lm_options.parse_args(options, "")
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.exhaustive
def test_planned_steps_are_those_of_all_runs() -> None:
    def planned(*options: str, seeds: int = 2) -> int:
        args = lm_options.parse_args(["--size", "tiny", *options], "")
        return lm_experiment.planned_steps(args, SIZES["tiny"], seeds)

    training = ["--parts", "training", "--schemes", "W8A8"]
    assert planned(*training) == 2 * (20 + 20 + 5) + 1  # float comes with it; the speeds
    assert planned(*training, "W4A8", "--modes", "scratch", seeds=3) == 3 * 2 * 20 + 1
    # The float model and W4A16 are trained on, and deployed; GPTQ is not trained.
    deployment = ["--parts", "deployment", "--deployments", "W4A16", "W4A16-GPTQ"]
    assert planned(*deployment) == 2 * (20 + 5 + 5 + 3) + 1
    # What is trained anyway is not trained twice. Sensitivity adds itself and its row.
    every = ["training", "sensitivity", "--schemes", "W4A16"]
    assert planned(*deployment[:2], *every, *deployment[2:]) == 2 * (20 + 20 + 5 + 5 + 5) + 2


# --- the report


@pytest.mark.parametrize(
    ("loss", "base", "seeds", "verdict"),
    [
        (2.004, (2.0, 0.01), 3, "passed"),
        (1.996, (2.0, 0.01), 3, "passed"),
        (2.02, (2.0, 0.1), 3, "failed: more than 0.5% off"),
        (2.004, (2.0, 0.001), 3, "failed: beyond the seeds' spread"),
        (math.nan, (2.0, 0.1), 3, "failed: more than 0.5% off and beyond the seeds' spread"),
        (2.0, (2.0, 0.0), 1, "not judged: one seed has no spread"),
        (2.0, None, 0, "not judged: no W8A8"),
    ],
)
def test_verdicts(loss: float, base: tuple[float, float] | None, seeds: int, verdict: str) -> None:
    assert lm_report.judge(loss, base, seeds) == verdict


def one_run(scheme: str, seed: int, loss: float, mode: str = "scratch") -> Run:
    training = Training([3.0, loss], 1, 0.25 + seed, 0.5, 2**20 * (seed + 1))
    same = None if scheme == "float" else True
    return Run(mode, scheme, seed, 5.5, loss, training, same)


@pytest.mark.exhaustive
def test_rows_say_what_the_runs_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = {"float": (1.9, 2.0), "W8A8": (2.0, 2.1), "W8A8-int8-nearest": (2.0, 2.2)}
    runs = [one_run(name, seed, own[seed]) for seed in (0, 1) for name, own in losses.items()]
    rows = lm_report.summarize(runs, {"W8A8": (1234.5, 1.5)})
    floats, base, integers = rows
    assert base.validation == pytest.approx((2.05, 0.0707), abs=1e-4) and base.change == 0
    assert floats.change == pytest.approx(1.95 / 2.05 - 1) and floats.verdict == ""
    assert integers.verdict == "failed: more than 0.5% off"
    assert (base.step_seconds, base.peak_bytes, base.same_bits) == (0.75, 2**21, 2)
    assert (floats.same_bits, base.tokens_per_second, integers.faster) == (None, 1234.5, None)
    assert not language_model.all_passed([row.verdict for row in rows], [], {})
    assert language_model.all_passed([row.verdict for row in rows[:2]], [], {})
    text = " ".join(lm_report.conclude(rows, [], {"W8A8-int8-stochastic": "it lacks this"}))
    assert "W8A8, trained from scratch, has a validation loss of 2.0500 ± 0.0707" in text
    assert "(float: 1.9500 ± 0.0707)" in text
    assert "W8A8-int8-nearest, trained from scratch: failed: more than 0.5% off (+2.44%)" in text
    assert "4 of 4 models give bit for bit" in text
    assert "Not trained, because it lacks this: W8A8-int8-stochastic." in text
    lm_report.print_tables(rows, [], Console(width=150))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    expected = "W8A8 5.500 2.0500 ± 0.0707 +0.00% 750.0 500.0 2.0 2 of 2 1,234 1.50 x"
    assert lines.count(expected) == 1
    lm_report.plot(runs, rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
