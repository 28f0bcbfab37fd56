# SPDX-License-Identifier: BSD-3-Clause
"""The example with a sentence encoder: all of it on a tiny model with random weights, and what
eight bits keep of the real one, where its weights are installed.
"""

import copy
import itertools
import json
import string
import sys

import numpy as np
import pytest
import torch
from torch import nn

import baraquant
import docstrings
import few_bits
import minilm_report
import minilm_speed
import sentence_encoder
from tests.support.processes import ROOT, run


def tiny_model(folder):
    """Write a BERT of two small layers, whose tokens are letters."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = string.ascii_lowercase + string.digits + string.punctuation
    vocabulary = [*specials, *letters, *(f"##{letter}" for letter in letters)]
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": len(vocabulary)}
    config = transformers.BertConfig(**sizes)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)


@pytest.mark.packaging
def test_few_bits(tmp_path):
    tiny_model(tmp_path / "model")
    out = tmp_path / "out"
    sizes = {"passages": 40, "calibration": 20, "longest": 24, "steps": 3}
    options = [text for key, value in sizes.items() for text in (f"--{key}", str(value))]
    folders = ("--model", tmp_path / "model", "--out", out)
    script = ROOT / "examples" / "minilm_few_bits.py"
    done = run(sys.executable, script, "--device", "cpu", *folders, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((out / "minilm_few_bits.json").read_text())["few_bits_rows"]
    wanted = [(bits, method) for bits in (4, 3) for method in few_bits.ALONE]
    assert [(row["bits"], row["method"]) for row in rows] == wanted
    lost = {(row["bits"], row["method"]): row["lost"][0] for row in rows}
    for method in few_bits.UNTRAINED:
        assert 0 < lost[4, method] < lost[3, method] < 1
    assert all(0 <= row["more"]["retrieval"][0] <= 100 for row in rows)
    assert (out / "minilm_few_bits.png").stat().st_size > 10_000


@pytest.mark.packaging
def test_a_small_run(tmp_path):
    tiny_model(tmp_path / "model")
    out = tmp_path / "out"
    sizes = {"passages": 40, "calibration": 20, "longest": 24, "steps": 3, "repeats": 3}
    options = [text for key, value in sizes.items() for text in (f"--{key}", str(value))]
    folders = ("--model", tmp_path / "model", "--out", out)
    script = ROOT / "examples" / "smoothquant_minilm.py"
    done = run(sys.executable, script, "--quick", "--device", "cpu", *folders, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((out / "smoothquant_minilm.json").read_text())
    rows = {row["name"]: row for row in figures["rows"]}
    names = ["float32", "W8A8", "W8A8 static", "SmoothQuant", "SmoothQuant static"]
    fused = ["W8A8, fused ops", "SmoothQuant, fused ops"]
    assert list(rows) == [*names, *fused, "W4A8", "W4A8, trained"]
    assert rows["float32"]["cosine"] == pytest.approx(1, abs=1e-5)
    assert figures["about"]["freed_memory"] == "given back, by default"
    assert rows["float32"]["change"] == 0 and rows["float32"]["interval"] == [0, 0]
    table = (out / "smoothquant_minilm.md").read_text()
    for name, row in rows.items():
        assert row["cosine"] > (0.9 if name.startswith("W4") else 0.99)
        assert row["change"] == pytest.approx(row["retrieval"] - rows["float32"]["retrieval"])
        assert row["interval"][0] <= row["change"] <= row["interval"][1]
        assert list(row["speeds"]) == ["1 x 64", "32 x 64", "32 x 128"]
        for speed in row["speeds"].values():
            assert speed["seconds"] > 0 and 0 < speed["spread"][0] <= speed["spread"][1]
        assert name in done.stdout and f"| {name} |" in table
    assert rows["W8A8"]["file_bytes"] < rows["float32"]["file_bytes"] / 2
    assert (out / "smoothquant_minilm.png").stat().st_size > 10_000
    assert "20 passages to calibrate with, 40 to measure with" in done.stdout
    assert "Training moves four-bit weights" in done.stdout
    assert str(tmp_path) not in json.dumps(figures) + table


@pytest.fixture(scope="module")
def minilm():
    """The real encoder, and batches of two sets of modules."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    try:
        folder = sentence_encoder.find_model(None)
    except SystemExit as error:
        pytest.skip(str(error).removeprefix("error: "))
    tokenizer = sentence_encoder.Tokenizer(folder, 48, "cpu")
    known, asked = docstrings.split(docstrings.passages())
    texts = [[f"{p.sentence} {p.rest}" for p in half[:32]] for half in (known, asked)]
    batches = [[tokenizer(half[:16]), tokenizer(half[16:])] for half in texts]
    return sentence_encoder.SentenceEncoder(folder).eval().float(), *batches


@pytest.mark.packaging
@pytest.mark.parametrize("config", [baraquant.W8A8(), baraquant.SmoothQuant(0.5)])
def test_what_eight_bits_keep_of_the_real_encoder(minilm, config, tmp_path):
    least = 0.995 if config == baraquant.W8A8() else 0.997
    floats, known, asked = minilm
    model = copy.deepcopy(floats)
    report = baraquant.quantize_(model, config, calibration=known)
    assert len(report.changed) == 39 and not report.left_out
    with torch.inference_mode():
        cosine = torch.cat([(model(**b) * floats(**b)).sum(1) for b in asked])
    assert cosine.shape == (32,) and least < float(cosine.mean()) < 0.99999
    path = tmp_path / "model.safetensors"
    baraquant.save(model, path)
    assert path.stat().st_size < sum(p.nbytes for p in floats.parameters()) / 3.9


def test_the_split_keeps_modules_whole():
    pairs = itertools.product(range(200), range(3))
    found = [docstrings.Passage(f"{m}.{n}", f"{m} {n}", "rest", f"{m}.py") for m, n in pairs]
    known, asked = docstrings.split(found)
    assert sorted(known + asked, key=found.index) == found
    assert not {p.module for p in known} & {p.module for p in asked}
    assert 0.2 < len(known) / len(found) < 0.4


def test_the_interval_is_that_of_a_bootstrap():
    generator = np.random.default_rng(1)
    floats = generator.random(400) < 0.6
    got = np.where(generator.random(400) < 0.1, ~floats, floats)
    low, high = minilm_report.interval(got, floats)
    drawn = generator.integers(400, size=(4000, 400))
    changes = 100 * (got[drawn].mean(axis=1) - floats[drawn].mean(axis=1))
    expected = np.quantile(changes, [0.025, 0.975])
    assert [low, high] == pytest.approx(list(expected), abs=0.4)
    assert high - low > 4
    assert minilm_report.interval(floats, floats) == (0.0, 0.0)


def test_speeds_are_compared_within_a_round(monkeypatch):
    """A machine that becomes slower halfway makes no difference to the ratios."""

    class Clocked(nn.Module):
        def __init__(self, cost):
            super().__init__()
            self.cost, self.calls = cost, 0

        def forward(self, x):
            clock[0] += self.cost * (1 if self.calls < 5 else 10)
            self.calls += 1

    clock = [0.0]
    monkeypatch.setattr(minilm_speed.time, "perf_counter", lambda: clock[0])
    models = {"slow": Clocked(6.0), "fast": Clocked(2.0)}
    speeds = minilm_speed.measure(models, {"x": torch.zeros(1)}, 9)
    assert [model.calls for model in models.values()] == [10, 10]
    assert speeds["fast"].faster == pytest.approx(3)
    assert speeds["fast"].spread == pytest.approx((3, 3))
    assert speeds["slow"].faster == 1 and speeds["fast"].seconds == pytest.approx(20)
