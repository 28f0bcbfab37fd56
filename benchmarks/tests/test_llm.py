# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of language models runs whole, and decodes at the same place again and again."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import bench_llm, llama
from benchmarks.bench_llm import LLM, VARIANTS, LlmRow, Models, known_schemes
from benchmarks.bench_row import TakesAtMost
from benchmarks.llama import SHAPES, Decoder, parse_model
from benchmarks.peers import Scheme, schemes
from benchmarks.tests.whole_runs import files_in, written

pytest.importorskip("transformers")
CPU = torch.device("cpu")
COMMAND = ["--device=cpu", "--quick", "--sizes", "tiny/1"]
RUNS = ["quantize", "prefill 1x16", "decode 1", "decode 2", "decode 2, no attention"]


def refuse(model: nn.Module) -> None:
    raise NotImplementedError("no such way")


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floating model, one scheme of ours, and another package's that cannot quantize."""
    floats, own, *_ = schemes("")
    peer = Scheme("other W8A8", "W8A8", refuse, "torch")
    monkeypatch.setattr(bench_llm, "known_schemes", lambda: [floats, own, peer])


def test_runs_whole(tmp_path: Path) -> None:
    rows = bench_llm.main([*COMMAND, *files_in(tmp_path)])
    *measured, failed = rows
    models = [(op, variant) for op in ("float32", "W8A8") for variant in VARIANTS]
    expected = [(*model, run) for model in models for run in RUNS]
    assert [(row.op, row.variant, row.case) for row in measured] == expected
    assert (failed.op, failed.variant, failed.case) == ("other W8A8", "plain", "quantize")
    assert failed.error == "NotImplementedError: no such way"
    for row in measured:
        assert row.error is None and row.seconds > 0 and not row.targets
        assert (row.held.keys() == {"model"}) == (row.case == "quantize")
        is_compared = row.case != "quantize" and (row.op, row.variant) != ("float32", "plain")
        assert row.speedups.keys() == ({"float32"} if is_compared else set())
    sizes = {row.op: row.held["model"] for row in measured if row.held}
    assert sizes["W8A8"] < sizes["float32"] and {row.model for row in rows} == {"tiny of 1 layers"}
    assert measured[1].tokens == 16 / measured[1].seconds and measured[0].tokens is None
    _, head = written(tmp_path, "llm", rows)
    assert "| ms | tokens/s | faster than float | model GiB | peak GiB |" in head


def test_a_part_is_chosen() -> None:
    asked = ["--schemes", "W8A8", "--variants", "optimized", "--rows", "3", "--prompts", "--bare"]
    rows = bench_llm.main([*COMMAND, *asked])
    assert {(row.op, row.variant) for row in rows} == {("float32", "plain"), ("W8A8", "optimized")}
    assert {row.case for row in rows} == {"quantize", "decode 3"}
    for wrong in ("--busy", "--sizes 3b", "--sizes tiny/3", "--prompts 16", "--schemes W3A3"):
        with pytest.raises(SystemExit):
            bench_llm.main([*COMMAND, *wrong.split()])


def test_a_package_that_was_asked_for_and_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    floats = bench_llm.known_schemes()[0]
    name = "no_such_package"
    peer = Scheme("none W8A8", "W8A8", lambda model: __import__(name), name)
    monkeypatch.setattr(bench_llm, "known_schemes", lambda: [floats, peer])
    command = [*COMMAND, "--variants", "plain", "--rows", "--prompts", "--bare"]
    assert [row.op for row in bench_llm.main(command)] == ["float32"]
    asked = bench_llm.main([*command, "--schemes", "none W8A8"])[-1]
    assert asked.error == f"ModuleNotFoundError: No module named '{name}'"


def test_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that would not end in time is left out, and a run that is ended keeps its rows."""
    now, kept = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def run(*_: object) -> tuple[dict[str, list[int]], dict[str, float | str]]:
        now[0] += 40
        if now[0] > 40:  # of the models before this one
            kept.append((json.loads((tmp_path / "llm.json").read_text()), tmp_path / "llm.md"))
        return {"decode 1": [1, 1]}, {"decode 1": 1.0}

    monkeypatch.setattr(Models, "run", run)
    out = str(tmp_path / "{family}")
    rows = bench_llm.main([*COMMAND, "--schemes", "W8A8", "--budget", "130", "--out", out])
    assert [row.note for row in rows if row.case == "quantize"] == [
        *("", "", ""),
        "not measured: the budget of 130 s was used up",
    ]
    assert [len(found["rows"]) for found, table in kept if table.exists()] == [2, 4]
    assert (tmp_path / "llm.png").exists()


def test_busy() -> None:
    """Calls are timed by the clock that is asked for, which here stands still."""
    options = options_of("cpu")
    assert Models(options).timer.clock is time.perf_counter
    options.busy = True
    timer = Models(options).timer
    assert timer.clock is time.process_time
    timer.clock = lambda: 1.0
    assert timer.compare({"call": lambda _: None}) == {"call": 0.0}


def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that compiles nothing."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.append(options) or f)
    command = [*COMMAND, "--what", "compiled", "--schemes", "W8A8", "--rows", "1", "--prompts"]
    assert [row.error for row in bench_llm.main([*command, "--bare"])] == [None] * 8
    assert ["options" in options for options in asked] == [False, True] * 2


def test_every_scheme_quantizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for scheme in known_schemes():
        if scheme.kind and scheme.package is None:
            model = llama.llama(parse_model("tiny/1"), CPU, torch.float32)
            before = sum(isinstance(module, nn.Linear) for module in model.modules())
            scheme.quantize(model)
            assert (before, sum(isinstance(m, nn.Linear) for m in model.modules())) == (8, 1)


def test_decoding_stays_at_its_place() -> None:
    """What it computes is what the model says after the prompt, each time."""
    model = llama.llama(SHAPES["tiny"], CPU, torch.float32)
    with torch.inference_mode():
        decoder = Decoder(model, model.forward, 2)
        for layer in decoder.cache.layers:
            layer.keys[:, :, llama.PROMPT :] = 9  # nobody may read on
        found = []
        for _ in range(3):
            decoder.rewind()
            found.append(decoder.step())
        decoder.rewind()
        without = Decoder(model, model.forward, 2, attends=False)
        without.cache, without.arguments = decoder.cache, decoder.arguments
        found.append(without.step())
        decoder.rewind()
        found.append(decoder.step())
    assert all(torch.equal(found[0], found[k]) for k in (1, 2, 4))
    assert found[3].shape == found[0].shape == (2, 1, SHAPES["tiny"].vocabulary)
    assert not torch.equal(found[0], found[3])


def test_shapes() -> None:
    def parameters(name: str) -> int:
        model = llama.llama(SHAPES[name], torch.device("meta"), torch.bfloat16)
        assert model.dtype == torch.bfloat16
        return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())

    assert parameters("1b") == 1_235_814_400 and parameters("8b") == 8_030_261_248
    assert 95e6 < parameters("100m") < 105e6


def options_of(device: str) -> argparse.Namespace:
    return argparse.Namespace(device=torch.device(device), quick=True, budget=1.0, busy=False)


def test_targets() -> None:
    own = {scheme.name: scheme for scheme in schemes("")}

    def targets(
        name: str, case: str, variant: str = "optimized", size: str = "8b/8"
    ) -> list[object]:
        models = Models(options_of("cuda"))
        return models.targets("compiled", size, own[name], variant, case)

    assert targets("W8A8", "decode 1") == [TakesAtMost("bfloat16", 0.52)]
    assert targets("W4A8", "decode 1") == [TakesAtMost("bfloat16", 0.36)]
    assert targets("W8A8", "prefill 1x4096") == [TakesAtMost("bfloat16", 0.66)]
    assert not targets("W8A8", "decode 16") and not targets("W8A8", "decode 1", "plain")
    for name in ("W8A8", "W4A8"):
        assert targets(name, "decode 16, no attention") == [TakesAtMost("bfloat16", 0.7)]
    assert not targets("W8A8", "decode 1", size="8b")


def test_cells() -> None:
    target = TakesAtMost("bfloat16", 0.52)
    names = ("compiled", "W8A8", "decode 16", "bfloat16", [16, 1], None, [target])
    row = LlmRow(*names, model="8b of 8 layers", variant="optimized", baseline="bfloat16")
    row.fill({"baraquant": 1e-3, "bfloat16": 2e-3}, "baraquant")
    row.held = {"model": 3 << 30, "peak": 5 << 30}
    assert dict(zip(LLM.columns([row]), LLM.cells(row), strict=True)) == {
        "scheme": "W8A8",
        "variant": "optimized",
        "model": "8b of 8 layers bfloat16, compiled",
        "run": "decode 16",
        "ms": "1.000",
        "tokens/s": "16,000",
        "faster than float": "2.00 ×",
        "model GiB": "3.00",
        "peak GiB": "5.00",
        "note": "",
        "target": "time ≤ 0.52x bfloat16",
        "": "met",
    }


@pytest.mark.inductor
def test_models_compile() -> None:
    command = [*COMMAND, "--what", "compiled", "--variants", "optimized", "--schemes", "W8A8"]
    rows = bench_llm.main([*command, "--rows", "1", "--prompts"])
    assert not [(row.op, row.error) for row in rows if row.error]


def test_runs_on_cuda(cuda: str) -> None:
    rows = bench_llm.main(["--device", cuda, *COMMAND[1:], "--schemes", "W8A8"])
    assert not [(row.op, row.error) for row in rows if row.error]
    for row in rows:
        assert (row.case == "quantize") == (row.held.keys() == {"model", "peak"})
        assert all(count > 0 for count in row.held.values())
