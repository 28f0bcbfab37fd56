# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of language models runs whole, and decodes at the same place again and again."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import bench_llm, llama
from benchmarks.bench_llm import LLM, VARIANTS, LlmRow, Models
from benchmarks.llama import SHAPES, Decoder
from benchmarks.peers import Scheme, schemes
from benchmarks.tests.whole_runs import files_in, written
from benchmarks.training_row import TakesAtMost

pytest.importorskip("transformers")
CPU = torch.device("cpu")
COMMAND = ["--device=cpu", "--quick", "--layers", "1", "--vocabulary", "64"]
RUNS = ["quantize", "prefill 1x16", "decode 1", "decode 2"]


def refuse(model: nn.Module) -> None:
    raise NotImplementedError("no such way")


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floating model, one scheme of ours, and another package's that cannot quantize."""
    floats, own, *_ = schemes("")
    peer = Scheme("other W8A8", "W8A8", refuse, "torch")
    monkeypatch.setattr(bench_llm, "schemes", lambda _: [floats, own, peer])


def test_runs_whole(tmp_path: Path) -> None:
    rows = bench_llm.main([*COMMAND, *files_in(tmp_path)])
    *measured, failed = rows
    models = [(op, variant) for op in ("float32", "W8A8") for variant in VARIANTS]
    expected = [(*model, run) for model in models for run in RUNS]
    assert [(row.op, row.variant, row.case) for row in measured] == expected
    assert (failed.op, failed.variant, failed.case) == ("other W8A8", "plain", "quantize")
    assert failed.error == "NotImplementedError: no such way"
    for row in measured:
        assert row.error is None and row.seconds > 0 and not row.targets and not row.held
        is_compared = row.case != "quantize" and (row.op, row.variant) != ("float32", "plain")
        assert row.speedups.keys() == ({"float32"} if is_compared else set())
    assert measured[1].tokens == 16 / measured[1].seconds and measured[0].tokens is None
    _, head = written(tmp_path, "llm", rows)
    assert "| ms | tokens/s | faster than float | model GiB | peak GiB |" in head


def test_a_part_is_chosen() -> None:
    asked = ["--schemes", "W8A8", "--variants", "optimized", "--rows", "3", "--prompts"]
    rows = bench_llm.main([*COMMAND, *asked])
    assert {(row.op, row.variant) for row in rows} == {
        *(("float32", "plain"), ("float32", "optimized"), ("W8A8", "optimized"))
    }
    assert {row.case for row in rows} == {"quantize", "decode 3"}
    for wrong in (["--size", "3b"], ["--prompts", "16"], ["--schemes", "W3A3"]):
        with pytest.raises(SystemExit):
            bench_llm.main([*COMMAND, *wrong])


def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that compiles nothing, and then with no time left."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.append(options) or f)
    command = [*COMMAND, "--what", "compiled", "--schemes", "W8A8", "--rows", "1", "--prompts"]
    assert [row.error for row in bench_llm.main(command)] == [None] * 8
    assert ["options" in options for options in asked] == [False, True] * 2
    monkeypatch.setattr(bench_llm, "COMPILE_FOR", -1)
    rows = bench_llm.main(command)
    assert {(row.case, row.note) for row in rows} == {
        ("quantize", "not compiled: the time was used up")
    }


def test_decoding_stays_at_its_place() -> None:
    """What it computes is what the model says after the prompt, each time."""
    model = llama.llama(SHAPES["tiny"], CPU, torch.float32)
    with torch.inference_mode():
        decoder = Decoder(model, model.forward, 2)
        torch.manual_seed(1)
        for layer in decoder.cache.layers:
            layer.keys[:, :, llama.PROMPT :] = 9  # nobody may read on
        found = []
        for _ in range(3):
            decoder.rewind()
            found.append(decoder.step())
    assert found[0].shape == (2, 1, SHAPES["tiny"].vocabulary)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_shapes() -> None:
    def parameters(name: str) -> int:
        model = llama.llama(SHAPES[name], torch.device("meta"), torch.bfloat16)
        assert model.dtype == torch.bfloat16
        return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())

    assert parameters("1b") == 1_235_814_400 and parameters("8b") == 8_030_261_248
    assert 95e6 < parameters("100m") < 105e6


def options_of(device: str, layers: int | None = 8) -> argparse.Namespace:
    return argparse.Namespace(
        device=torch.device(device), layers=layers, vocabulary=None, quick=True
    )


def test_targets() -> None:
    own = {scheme.name: scheme for scheme in schemes("")}

    def targets(
        name: str, case: str, variant: str = "optimized", **options: object
    ) -> list[object]:
        models = Models(options_of("cuda", **options))  # type: ignore[arg-type]
        return models.targets("compiled", "8b", own[name], variant, case)

    assert targets("W8A8", "decode 1") == [TakesAtMost("bfloat16", 0.52)]
    assert targets("W4A8", "decode 1") == [TakesAtMost("bfloat16", 0.36)]
    assert targets("W8A8", "prefill 1x4096") == [TakesAtMost("bfloat16", 0.66)]
    assert not targets("W8A8", "decode 16") and not targets("W8A8", "decode 1", "plain")
    assert not targets("W8A8", "decode 1", layers=None)


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
