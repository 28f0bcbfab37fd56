# SPDX-License-Identifier: BSD-3-Clause
"""The parts of the language model: its text, the decoder and its cache, training, the cosines."""

from __future__ import annotations

import copy
import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
import language_model
import lm_deployment
import lm_generation
import lm_gradients
import lm_report
import lm_text
import lm_training
from lm_decoder import MLPS, SIZES, Cache, Decoder, rotate
from lm_gradients import Cosines

TINY = SIZES["tiny"]
FLOAT32 = torch.float32


# --- the text


def library(folder: Path) -> list[str]:
    names = [f"module{index:02}.py" for index in range(40)]
    for name in [*names, "test/test_a.py", "site-packages/b.py", "_sysconfigdata_x.py", "notes.md"]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    return names


@pytest.mark.exhaustive
def test_files_are_on_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = library(tmp_path)
    with pytest.raises(SystemExit, match=r"expected at least 1,000,000 bytes .* found 600"):
        lm_text.load_text(torch.device("cpu"), tmp_path)
    monkeypatch.setattr(lm_text, "LEAST_BYTES", 1)
    text = lm_text.load_text(torch.device("cpu"), tmp_path)
    halves = [bytes(half.tolist()) for half in (text.training, text.validation)]
    assert hashlib.sha256(b"".join(halves)).hexdigest() == text.sha256
    files = [half.decode().split("\0")[:-1] for half in halves]
    assert sorted(files[0] + files[1]) == [f"# {name}\n" for name in names]
    assert text.files == (len(files[0]), len(files[1])) and 0 < len(files[1]) < 10


def some_text(length: int = 1000) -> lm_text.Text:
    counted = (torch.arange(length) % 256).to(torch.uint8)
    return lm_text.Text(counted, counted.flip(0), (1, 1), "")


@pytest.mark.exhaustive
def test_batches_are_windows_of_the_text() -> None:
    first, second = (lm_text.batches(some_text(), 3, 4, 16) for _ in range(2))
    batch = next(first)
    assert batch.shape == (4, 17) and torch.equal(batch, next(second))
    assert torch.equal(batch.diff(dim=1) % 256, torch.ones(4, 16, dtype=torch.long))
    assert not torch.equal(batch, next(first))
    whole = torch.cat(lm_text.validation_batches(some_text(), 5, 2, 16))
    assert whole.shape == (5, 17)
    assert whole[0, 0] == 999 % 256 and whole[-1, -1] == 0  # from the first byte to the last


# --- the model and its training


@pytest.mark.parametrize("mlp", MLPS)
def test_the_decoder_looks_back_only(mlp: str, device: str) -> None:
    torch.manual_seed(0)
    model = Decoder(TINY, mlp).to(device).eval()
    tokens = torch.randint(256, (2, 12), device=device)
    other = tokens.clone()
    other[:, 8:] = 7
    logits, changed = model(tokens), model(other)
    assert logits.shape == (2, 12, 256)
    torch.testing.assert_close(logits[:, :8], changed[:, :8])
    assert not torch.allclose(logits[:, 8:], changed[:, 8:])


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
def test_decoding_writes_the_most_likely_bytes(
    scheme: Any, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    model = Decoder(TINY).to(device)
    if scheme is not None:
        model, _ = lm_deployment.quantized(model, scheme, [torch.zeros(1, 1, dtype=torch.long)])
    model = lm_generation.deployed(model, dtype)
    assert not any(p.requires_grad for p in model.parameters())
    assert all(p.dtype == dtype for p in model.parameters() if p.is_floating_point())
    assert model.cos.dtype == FLOAT32
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
def test_text_is_continued_up_to_the_context() -> None:
    torch.manual_seed(0)
    model = lm_generation.deployed(Decoder(TINY), FLOAT32)
    for count, length in ((5, 7), (100, TINY.context)):
        written = lm_generation.continued(model, "ab", count)
        assert written.startswith("ab") and written == lm_generation.continued(model, "ab", count)
        assert len(written) <= length  # bytes that are no text count less


@pytest.mark.exhaustive
def test_rotary_positions_are_relative() -> None:
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).double()
    speeds = torch.tensor([1.0, 0.3, 0.1, 0.01], dtype=torch.float64)
    angles = torch.outer(torch.arange(20.0).double(), speeds)

    def product(i: int, j: int) -> Tensor:
        turned = [rotate(x, angles[p].cos(), angles[p].sin()) for x, p in ((q, i), (k, j))]
        return turned[0] @ turned[1]

    torch.testing.assert_close(product(3, 1), product(17, 15))
    assert abs(product(3, 1) - product(3, 2)) > 1e-3


@pytest.mark.exhaustive
def test_sizes_are_as_they_say() -> None:
    def parameters(size: str, mlp: str) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in Decoder(SIZES[size], mlp).parameters())

    assert 25e6 < parameters("gpu", "gelu") < parameters("gpu", "swiglu") < 27e6
    assert 0.8e6 < parameters("cpu", "swiglu") < 0.9e6


@pytest.mark.exhaustive
def test_the_rate_rises_and_falls() -> None:
    rates = [lm_training.rate(step, 100) for step in range(100)]
    assert rates[:2] == [0.1, 0.2] and rates[9] == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True) and 0.1 <= rates[-1] < 0.102


@pytest.mark.exhaustive
def test_peak_memory_is_the_most_that_is_held(device: str) -> None:
    mib = 2**20
    with lm_training.peak_memory(torch.device(device)) as found:
        first = torch.empty(mib, dtype=torch.uint8, device=device)
        second = torch.empty(2 * mib, dtype=torch.uint8, device=device)
        del first
        third = torch.empty(mib // 2, dtype=torch.uint8, device=device)
    assert found == [3 * mib] and second.nbytes + third.nbytes < 3 * mib


@pytest.mark.exhaustive
def test_training_lowers_the_loss_and_counts_its_steps() -> None:
    torch.manual_seed(0)
    model, ticks = Decoder(TINY), []
    text = some_text()
    before = lm_training.validate(model, [next(lm_text.batches(text, 1, 4, 16))], FLOAT32)
    stream = lm_text.batches(text, 0, 4, 16)
    trained = lm_training.train(
        model, stream, 60, 3e-3, FLOAT32, lambda count, loss: ticks.append((count, loss))
    )
    after = lm_training.validate(model, [next(lm_text.batches(text, 1, 4, 16))], FLOAT32)
    assert trained.chunk == 2 and len(trained.curve) == 30 and after < 0.8 * before
    assert ticks == [(2, loss) for loss in trained.curve]
    assert trained.peak_bytes > 4 * 4 * 16 * 256  # at least the logits


@pytest.mark.exhaustive
def test_other_logits_are_found() -> None:
    torch.manual_seed(0)
    model = Decoder(TINY)
    other = copy.deepcopy(model)
    batches = [torch.randint(256, (2, 9)) for _ in range(3)]
    assert lm_training.has_same_logits(model, other, batches, FLOAT32)
    with torch.no_grad():
        other.embedding.weight[batches[2][1, -2]] += 1e-3
    assert not lm_training.has_same_logits(model, other, batches, FLOAT32)


# --- the gradients


def two_prepared(config: Any = None) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(0)
    floats = Decoder(TINY)
    models = [copy.deepcopy(floats).train() for _ in range(2)]
    for model, own in zip(models, (baraquant.W8A8(), config or baraquant.W8A8()), strict=True):
        baraquant.qat.prepare_(model, {lm_deployment.QUANTIZED: own}, progress=False)
    return *models, torch.randint(256, (3, 17))


def test_cosines_show_where_a_gradient_is_wrong() -> None:
    exact, other, batch = two_prepared()
    found = lm_gradients.compare(exact, other, batch, FLOAT32)
    assert len(found) == 2 * 4 * 2
    assert all(float(value) == pytest.approx(1, abs=1e-12) for value in found.values())

    def halve(_: nn.Module, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        half = grads[0].clone()
        half[..., ::2] = 0
        return (half,)

    layer = "blocks.0.mlp.up"
    other.get_submodule(layer).register_full_backward_pre_hook(halve)
    captured = lm_gradients.capture(exact, batch, FLOAT32)[1][layer]
    found = lm_gradients.compare(exact, other, batch, FLOAT32)
    weight = captured.grads["weight"].clone()
    kept = weight.clone()
    kept[::2] = 0
    expected = float(torch.cosine_similarity(weight.flatten(), kept.flatten(), dim=0))
    assert float(found["alone", layer, "weight"]) == pytest.approx(expected, abs=1e-5)
    assert 0.5 < expected < 0.9
    for (way, path, what), value in found.items():
        is_before = path.startswith("blocks.0.attention")
        is_wrong = path == layer or (way == "step" and is_before)
        assert (float(value) < 0.99999) == is_wrong, (way, path, what)


@pytest.mark.exhaustive
def test_another_forward_is_an_error() -> None:
    exact, other, batch = two_prepared(baraquant.W4A8(None))
    with pytest.raises(AssertionError, match="the forward passes differ"):
        lm_gradients.compare(exact, other, batch, FLOAT32)


@pytest.mark.exhaustive
def test_the_least_cosine_is_kept_and_training_goes_on() -> None:
    torch.manual_seed(0)
    floats, ticks = Decoder(TINY), []
    names = ("W8A8", "W8A8-int8_input-nearest")
    configs = {name: {lm_deployment.QUANTIZED: baraquant.W8A8()} for name in names}
    stream = lm_text.batches(some_text(), 0, 2, 16)
    (found,) = lm_gradients.least_cosines(
        floats, configs, stream, 4, 1e-3, FLOAT32, 2, ticks.append
    )
    assert found.scheme == names[1] and found.steps == 2 and len(ticks) == 4
    assert found.worst("alone")[0] == pytest.approx(1, abs=1e-12)
    assert lm_report.judge_cosines([found]) == {names[1]: "passed"}
    for worst, verdict in ((0.99, "failed: step 0.99000 < 0.999"), (math.nan, "failed: step nan")):
        least = copy.deepcopy(found.least)
        least["step"]["blocks.0.mlp.down"]["input"] = worst
        changed = Cosines(found.scheme, 2, least)
        assert changed.worst("step")[1] == "input of blocks.0.mlp.down"
        assert lm_report.judge_cosines([changed])[names[1]].startswith(verdict)
        assert not language_model.all_passed([], [changed], {})
    other = Cosines("W8A8-int8-nearest", 2, found.least)
    assert lm_report.judge_cosines([other]) == {}  # nothing is asked of it
