# SPDX-License-Identifier: BSD-3-Clause
"""The example with a sentence encoder runs to its end, on a tiny model with random weights."""

import json
import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import docstrings
import minilm_report
from minilm_report import Row

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


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
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def run(*arguments):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "smoothquant_minilm.py", *map(str, arguments)],
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_a_small_run(tmp_path):
    tiny_model(tmp_path / "model")
    out = tmp_path / "out"
    sizes = {"passages": 40, "calibration": 20, "longest": 24, "steps": 3, "repeats": 1}
    options = [text for key, value in sizes.items() for text in (f"--{key}", value)]
    done = run("--quick", "--device", "cpu", "--model", tmp_path / "model", "--out", out, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((out / "smoothquant_minilm.json").read_text())
    rows = {row["name"]: row for row in figures["rows"]}
    assert list(rows) == [
        "float32",
        "W8A8",
        "W8A8 static",
        "SmoothQuant",
        "SmoothQuant static",
        "W4A8",
        "W4A8, trained",
    ]
    assert rows["float32"]["cosine"] == pytest.approx(1, abs=1e-5)
    for name, row in rows.items():
        assert row["cosine"] > (0.9 if name.startswith("W4") else 0.99)
        assert 0 <= row["retrieval"] <= 100 and row["latency_ms"] > 0 < row["throughput"]
        assert name in done.stdout
    assert rows["W8A8"]["file_bytes"] < rows["float32"]["file_bytes"] / 2
    assert (out / "smoothquant_minilm.png").stat().st_size > 10_000
    assert "20 passages to calibrate with, 40 to measure with" in done.stdout
    assert "Training moves four-bit weights" in done.stdout


def test_without_a_model(tmp_path):
    done = run("--model", tmp_path)
    assert done.returncode == 1 and "has no config.json" in done.stderr


def test_passages(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "test").mkdir()
    source = '''
def fill(text):
    """Wrap the text to a width.

    Returns one string, with newlines between
    the lines that it has been broken into here.
    """
class Whole:
    def part(self):
        """Has one sentence of several words only."""
    async def other(self):
        """This is e.g. a sentence with a dot within.  And `this` is the rest of it, which
        has to be of at least ten words to count."""
'''
    (tmp_path / "pkg" / "__init__.py").write_text(source)
    (tmp_path / "pkg" / "again.py").write_text(source)
    (tmp_path / "test" / "other.py").write_text(source.replace("Wrap", "Fold"))
    (tmp_path / "broken.py").write_text("def (")
    found = docstrings.passages(tmp_path)
    assert [passage.name for passage in found] == ["pkg.fill", "pkg.Whole.other"]
    assert found[0].sentence == "Wrap the text to a width."
    assert found[0].rest.startswith("Returns one string, with newlines between the lines")
    assert found[1].sentence == "This is e.g. a sentence with a dot within."


def test_the_split_keeps_modules_whole():
    found = [
        docstrings.Passage(f"{m}.{n}", f"{m} {n}", "rest", f"{m}.py")
        for m in range(200)
        for n in range(3)
    ]
    known, asked = docstrings.split(found)
    assert sorted(known + asked, key=found.index) == found
    assert not {p.module for p in known} & {p.module for p in asked}
    assert 0.2 < len(known) / len(found) < 0.4


def test_the_conclusion_says_what_the_rows_say():
    rows = [
        Row("float32", 1.0, 1.0, 60.0, 1000, 1.0, 10.0),
        Row("W8A8", 0.98, 0.9, 59.0, 250, 1.0, 20.0),
        Row("SmoothQuant", 0.999, 0.99, 59.75, 250, 1.0, 20.0),
        Row("W4A8", 0.9, 0.8, 50.0, 150, 1.0, 20.0),
        Row("W4A8, trained", 0.95, 0.9, 58.0, 150, 1.0, 20.0),
    ]
    text = " ".join(minilm_report.conclude(rows))
    assert "SmoothQuant is nearest to the float model: cosine 0.9990, retrieval -0.2 points" in text
    assert "4.00 times smaller" in text
    assert "from cosine 0.9000 to 0.9500, and retrieval from 50.0 % to 58.0 %" in text
    assert len(minilm_report.conclude(rows[:3])) == 1
