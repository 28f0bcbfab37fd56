# SPDX-License-Identifier: BSD-3-Clause
"""The language model: small runs of it, and the parts that its figures rest on."""

import copy
import hashlib
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
import few_bits
import few_bits_report
import language_model
import lm_deployment
import lm_deployment_report
import lm_generation
import lm_gradients
import lm_report
import lm_schemes
import lm_text
import lm_training
from lm_decoder import MLPS, SIZES, Cache, Decoder
from lm_deployment import Deployed
from lm_generation import Decoded
from lm_report import Run
from lm_training import Training

TINY = SIZES["tiny"]
FLOAT32 = torch.float32


def run(out: Path, *options: str) -> dict[str, Any]:
    """The JSON that the program writes; what it asks of itself holds.

    It draws after every seed, which takes longer than a seed: here each last picture is drawn.
    """
    pictures: dict[Callable[..., None], tuple[Any, ...]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("plot", "plot_deployments", "plot_few_bits", "plot_mixture"):
            draw = getattr(language_model, name)
            keep = partial(lambda draw, *given: pictures.update({draw: given}), draw)
            patch.setattr(language_model, name, keep)
        assert language_model.main(["--size", "tiny", *options, "--out", str(out)]) == 0
    for draw, given in pictures.items():
        draw(*given)
    report: dict[str, Any] = json.loads((out / "language_model.json").read_text())
    assert str(out) not in json.dumps(report)
    return report


# --- small runs


@pytest.mark.packaging
def test_training(tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["--parts", "training", "--steps", "5", "--seeds", "2", "--cosine", "3"]
    report = run(tmp_path, *parts, "--device", device)
    text = " ".join(capsys.readouterr().out.split())
    assert all(line in text for line in report["conclusion"])
    assert report["passed"] and lm_schemes.missing(lm_schemes.DEFAULT) == {}
    assert [(row["mode"], row["scheme"]) for row in report["rows"]] == [
        (mode, scheme) for mode in ("scratch", "checkpoint") for scheme in lm_schemes.DEFAULT
    ]
    for row in report["rows"]:
        assert row["seeds"] == 2 and row["step_seconds"] > 0 and row["peak_bytes"] > 100_000
        assert row["validation"][0] < row["before"] and row["validation"][1] > 0
        assert row["same_bits"] == (None if row["scheme"] == "float" else 2)
        assert bool(row["verdict"]) == ("-int8" in row["scheme"])
        assert (row["change"] == 0) == (row["scheme"] == "W8A8")
    runs = {(r["mode"], r["scheme"], r["seed"]): r for r in report["runs"]}
    for seed in (0, 1):
        trained = runs["scratch", "float", seed]["validation"]
        assert runs["checkpoint", "float", seed]["before"] == trained
    names = [name for name in lm_schemes.DEFAULT if lm_schemes.SCHEMES[name].is_asked]
    assert [found["scheme"] for found in report["cosines"]] == names
    for found in report["cosines"]:
        for cosines in (*found["least"]["alone"].values(), *found["least"]["step"].values()):
            assert cosines["weight"] > 0.99 and 0.99 < cosines["input"] < 1
    assert f"sha256 {report['text']['sha256'][:12]}" in text
    assert (tmp_path / "language_model.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.packaging
def test_deployment_and_a_run_that_goes_on(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--steps", "3", "--parts", "deployment", "sensitivity", "--device", device]
    small += ["--deployments", "W4A16", "W4A16-GPTQ", "W4A16-AWQ", "W4A8-factors"]
    report = run(tmp_path / "first", *small, "--seeds", "1")
    resume = ["--resume", str(tmp_path / "first/language_model.json")]
    again = run(tmp_path / "second", *small, "--seeds", "2", *resume)
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
        assert row["seeds"] == 2 and set(row["tokens_per_second"]) == {"1", "32"}
        assert bool(row["verdict"]) == (tuned and scheme != "float")
        assert (row["change"] == [0, 0]) == (scheme == "float")
        assert 10_000 < row["file_bytes"] <= rows["float", False]["file_bytes"]
    how = "CUDA graph" if device == "cuda" else "eager"
    assert {one["how"] for one in again["decoded"]} == {how}
    assert again["mixture"]["bytes"] <= again["mixture"]["budget"]
    assert f"greedy decoding with a cache, {how}" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match=r"language_model.json is of a run with other settings"):
        other = {"cpu": "bfloat16", "cuda": "float32"}[device]  # than each device's own
        run(tmp_path / "other", *small, *resume, "--dtype", other)


@pytest.mark.packaging
def test_few_bits(tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = run(
        tmp_path, "--parts", "few_bits", "--steps", "8", "--seeds", "1", "--device", device
    )
    rows = {(row["bits"], row["method"]): row for row in report["few_bits_rows"]}
    assert list(rows) == [(bits, method) for bits in (4, 3, 2) for method in few_bits.METHODS]
    found = {(one["bits"], one["method"], one["tuned"]): one for one in report["few_bits"]}
    floats = {tuned: found[0, "float", tuned]["loss"] for tuned in (False, True)}
    assert floats[True] < floats[False]
    for (bits, method), row in rows.items():
        tuned = method in few_bits.TUNED
        assert row["lost"][0] == found[bits, method, tuned]["loss"] - floats[tuned]
        assert row["seeds"] == 1 and row["seconds"] > 0 and row["group"] == 32
        assert bool(row["verdict"]) == (method == few_bits.RECIPE)
    assert rows[2, "nearest"]["lost"][0] > rows[2, "GPTQ"]["lost"][0]
    text = " ".join(capsys.readouterr().out.split())
    assert all(line in text for line in report["conclusion"])
    assert (tmp_path / "language_model.few_bits.png").read_bytes().startswith(b"\x89PNG")


# --- the reports

NAN, judge_deployed = math.nan, lm_deployment_report.judge
judge_few_bits = few_bits_report.judge


@pytest.mark.parametrize(
    ("judge", "given", "verdict"),
    [
        (lm_report.judge, (2.004, (2.0, 0.01), 3), "passed"),
        (lm_report.judge, (2.02, (2.0, 0.1), 3), "failed: more than 0.5% off"),
        (lm_report.judge, (2.004, (2.0, 0.001), 3), "failed: beyond the seeds' spread"),
        (lm_report.judge, (NAN, (2.0, 0.1), 1), "not judged: one seed has no spread"),
        (judge_deployed, ((0.0099, 0.1), 0.5), "passed"),
        (judge_deployed, ((NAN, 0.0), None), "failed: more than 1% above float"),
        (judge_deployed, ((0.005, 0.0), 0.49), "failed: less than 50% of GPTQ's loss recovered"),
        (judge_few_bits, (2, 0.1, 0.75), "passed"),
        (judge_few_bits, (3, 0.1, NAN), "failed: less than 60% of GPTQ's loss regained"),
        (judge_few_bits, (4, 0.01, None), "failed: 0.01000 lost, where GPTQ loses nothing"),
    ],
)
def test_verdicts(judge: Callable[..., str], given: tuple[Any, ...], verdict: str) -> None:
    assert judge(*given) == verdict


def test_rows_say_what_the_runs_say() -> None:
    losses = {"float": (1.9, 2.0), "W8A8": (2.0, 2.1), "W8A8-int8-nearest": (2.0, 2.2)}
    runs = [
        Run("scratch", name, seed, 5.5, own[seed], Training([3.0], 1, 0.25 + seed, 0.5, seed), None)
        for seed in (0, 1)
        for name, own in losses.items()
    ]
    floats, base, integers = rows = lm_report.summarize(runs, {"W8A8": (1234.5, 1.5)})
    assert base.validation == pytest.approx((2.05, 0.0707), abs=1e-4) and base.change == 0
    assert floats.change == pytest.approx(1.95 / 2.05 - 1) and floats.verdict == ""
    assert integers.verdict == "failed: more than 0.5% off"
    assert (base.step_seconds, base.tokens_per_second, integers.faster) == (0.75, 1234.5, None)
    assert not language_model.all_passed([row.verdict for row in rows], [], {})
    assert language_model.all_passed([row.verdict for row in rows[:2]], [], {})
    text = " ".join(lm_report.conclude(rows, [], {}))
    assert "W8A8, trained from scratch, has a validation loss of 2.0500 ± 0.0707" in text


def test_a_deployment_is_compared_with_the_float_model_of_its_seed() -> None:
    found = []
    for seed, base in ((0, 1.0), (1, 1.2)):
        gptq = base + 0.01 + 0.001 * seed
        for scheme, is_tuned, loss in (
            *(("float", False, base), ("W4A16", False, base + 0.02), ("W4A16-GPTQ", False, gptq)),
            *(("float", True, base - 0.1), ("W4A16", True, base - 0.098)),
            ("W4A8", True, base - 0.08),
        ):
            found.append(Deployed(scheme, is_tuned, seed, loss, 1000 + seed, 0.5 + seed))
    decoded = [Decoded("W4A16", batch, 100.0 * batch, 1.5, "eager") for batch in (1, 32)]
    rows = lm_deployment_report.summarize_deployments(found, decoded)
    by_key = {(row.scheme, row.tuned): row for row in rows}
    gptq, tuned = by_key["W4A16-GPTQ", False], by_key["W4A16", True]
    assert by_key["float", True].change == (0, 0)
    assert gptq.change == pytest.approx((math.expm1(0.0105), 0.00071), abs=1e-5)
    assert gptq.perplexity[0] == pytest.approx((math.exp(1.01) + math.exp(1.211)) / 2)
    assert gptq.tokens_per_second == {"1": 100.0, "32": 3200.0}  # those of the same layers
    assert tuned.recovered == pytest.approx(1 - math.expm1(0.002) / gptq.change[0])
    assert lm_deployment_report.conclude_deployments(rows) == [
        "W4A16, deployed after training with it: passed (+0.20 ± 0.00 %; 81% of what GPTQ loses is "
        "recovered).",
        "W4A8, deployed after training with it: failed: more than 1% above float (+2.02 ± 0.00 %).",
    ]


# --- the parts


@pytest.mark.exhaustive
def test_a_file_is_trained_on_or_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"module{index:02}.py" for index in range(40)]
    for name in (*names, "test/test_a.py", "site-packages/b.py", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    monkeypatch.setattr(lm_text, "LEAST_BYTES", 1)
    text = lm_text.load_text(torch.device("cpu"), tmp_path)
    halves = [bytes(half.tolist()) for half in (text.training, text.validation)]
    assert hashlib.sha256(b"".join(halves)).hexdigest() == text.sha256
    files = [half.decode().split("\0")[:-1] for half in halves]
    assert sorted(files[0] + files[1]) == [f"# {name}\n" for name in names]
    assert text.files == (len(files[0]), len(files[1])) and 0 < len(files[1]) < 10


@pytest.mark.parametrize("mlp", MLPS)
def test_a_cache_changes_nothing_but_the_time(mlp: str, device: str) -> None:
    torch.manual_seed(0)
    model = Decoder(TINY, mlp).to(device).eval()
    tokens = torch.randint(256, (2, TINY.context), device=device)
    cache = Cache(TINY, 2, tokens.device, FLOAT32)
    with torch.no_grad():
        whole = model(tokens)
        parts = [model(part, cache) for part in tokens.split([5, 1, 3, *[1] * 23], dim=1)]
    assert cache.length.tolist() == [TINY.context]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("scheme", [None, baraquant.W8A8(), baraquant.W4A16(8)], ids=str)
@pytest.mark.parametrize("dtype", [FLOAT32, torch.bfloat16])
def test_decoding_writes_the_likeliest_bytes(scheme: Any, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    model = Decoder(TINY).to(device)
    if scheme is not None:
        model, _ = lm_deployment.quantized(model, scheme, [torch.zeros(1, 1, dtype=torch.long)])
    model = lm_generation.deployed(model, dtype)
    assert all(p.dtype == dtype for p in model.parameters() if p.is_floating_point())
    prompt, first = torch.randint(256, (3, 10), device=device).split([9, 1], dim=1)
    decoding = lm_generation.Decoding(model, prompt, 12)
    assert decoding.how == ("eager" if device == "cpu" else "CUDA graph")
    written = decoding(first).clone()
    assert torch.equal(decoding(first), written)  # it begins anew
    cache, last = Cache(TINY, 3, prompt.device, dtype), first
    with torch.inference_mode():
        model(prompt, cache)
        for column in range(12):
            last = model(last, cache)[:, -1:].argmax(dim=-1)
            assert torch.equal(written[:, column : column + 1], last)


@pytest.mark.exhaustive
def test_other_logits_are_found() -> None:
    model = Decoder(TINY)
    other = copy.deepcopy(model)
    batches = [torch.randint(256, (2, 9)) for _ in range(3)]
    assert lm_training.has_same_logits(model, other, batches, FLOAT32)
    with torch.no_grad():
        other.embedding.weight[batches[2][1, -2]] += 1e-3
    assert not lm_training.has_same_logits(model, other, batches, FLOAT32)


def test_cosines_show_where_a_gradient_is_wrong() -> None:
    torch.manual_seed(0)
    floats, batch = Decoder(TINY), torch.randint(256, (3, 17))
    exact, other = (copy.deepcopy(floats).train() for _ in range(2))
    for model in (exact, other):
        scheme = {lm_deployment.QUANTIZED: baraquant.W8A8()}
        baraquant.qat.prepare_(model, scheme, progress=False)
    found = lm_gradients.compare(exact, other, batch, FLOAT32)
    assert all(float(value) == pytest.approx(1, abs=1e-12) for value in found.values())

    def halve(_: nn.Module, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        half = grads[0].clone()
        half[..., ::2] = 0
        return (half,)

    layer = "blocks.0.mlp.up"
    other.get_submodule(layer).register_full_backward_pre_hook(halve)
    found = lm_gradients.compare(exact, other, batch, FLOAT32)
    assert len(found) == 2 * 4 * 2 and 0.5 < float(found["alone", layer, "weight"]) < 0.9
    for (way, path, what), value in found.items():
        is_before = path.startswith("blocks.0.attention")
        is_wrong = path == layer or (way == "step" and is_before)
        assert (float(value) < 0.99999) == is_wrong, (way, path, what)
