# SPDX-License-Identifier: BSD-3-Clause
"""from_pretrained with BaraquantConfig: the bits of loading, then baraquant.quantize_."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant.transformers import BaraquantConfig, use_for_compressed_tensors
from baraquant.transformers._versions import IS_5
from baraquant.workflow.stream import Stream
from tests.hf.models import TOKENS, build, every_other, load, logits, saved, transformers
from tests.support.tiny_transformers import build as tiny

SCHEMES: dict[str, Any] = {
    "W8A8": baraquant.W8A8(),
    "W8A8 asymmetric": baraquant.W8A8(symmetric=False),
    "rotated": baraquant.W8A8(rotate=16),
    "rotated groups": baraquant.W4A16(8, rotate=32),
    "W8A16": baraquant.W8A16(),
    "W4A16": baraquant.W4A16(32),
    "W4A16 asymmetric": baraquant.W4A16(32, symmetric=False),
    "W4A8": baraquant.W4A8(32, group_factors=False),
    "W3A16": baraquant.W3A16(32),
    "W2A16": baraquant.W2A16(32),
    "dictionary": {"*layer*.0.*": baraquant.W8A8(), nn.Linear: baraquant.W4A16(None)},
    "embeddings": {nn.Embedding: baraquant.W8A16(), nn.Linear: baraquant.W8A16()},
}
# Each is here for something that the others lack: ties of biases, forwards of their own, modules
# without a parameter of their own left, convolutions, experts, several towers.
ARCHITECTURES = ["bert", "deberta_v2", "funnel", "modernbert", "t5", "bart", "gpt2", "opt", "gemma"]
ARCHITECTURES += ["falcon", "mamba2", "jamba", "recurrent_gemma", "swinv2", "clip", "llava"]
ARCHITECTURES += ["whisper", "qwen3_moe", "vit", "wavlm"]
# What transformers keeps floating; 4.57 keeps all of the last part of BERT.
HEADS = ("lm_head", "cls.predictions.decoder" if IS_5 else "cls")
QUERY_AND_KEY = r"model\.layers\.\d+\.self_attn\.[qk]_proj"


def by_hand(name: str, folder: Path, scheme: Any, dtype: torch.dtype) -> nn.Module:
    model = load(name, folder, dtype=dtype)

    def is_taken(module: nn.Module, path: str) -> bool:
        return isinstance(module, nn.Linear) and not path.startswith(HEADS)

    baraquant.quantize_(model, scheme, filter_fn=None if isinstance(scheme, dict) else is_taken)
    return model


def test_one_scheme_while_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "float", "llama", shard="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    arrived, add = [], Stream.add  # the weights that are quantized when they arrive
    monkeypatch.setattr(Stream, "add", lambda *given: arrived.append(given[1]) or add(*given))
    config = BaraquantConfig(baraquant.W8A8())
    model = load("llama", folder, quantization_config=config)
    assert torch.equal(logits(model), logits(by_hand("llama", folder, config.scheme, None)))
    assert len(arrived) == 14 == len(model.hf_quantizer.report.changed)
    assert type(model.lm_head) is nn.Linear
    left_out = model.hf_quantizer.report.left_out
    assert "output layer" in left_out["lm_head"]
    assert "linear layers alone" in left_out["model.embed_tokens"]
    assert '"quant_method": "baraquant"' in repr(model.config)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scheme", "name", "dtype"), every_other(SCHEMES, "embeddings"), ids=str)
def test_same_as_quantize_(scheme: str, name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = saved(tmp_path / "float", name, dtype)
    wanted = by_hand(name, folder, SCHEMES[scheme], dtype)
    model = load(name, folder, dtype=dtype, quantization_config=BaraquantConfig(SCHEMES[scheme]))
    assert model.dtype == dtype
    assert torch.equal(logits(model), logits(wanted))
    kinds = {path: type(module).__name__ for path, module in wanted.named_modules()}
    assert {path: type(m).__name__ for path, m in model.named_modules()} == kinds
    if scheme == "embeddings" and name in ("tied_llama", "opt", "bert"):
        ends = model.get_input_embeddings(), model.get_output_embeddings()
        assert ends[0].qweight is ends[1].qweight and not model.config.tie_word_embeddings
        model.tie_weights()  # transformers calls it in many places


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name: str, tmp_path: Path) -> None:
    entry = tiny.TINY[name]
    for needed in (entry.model, entry.config):
        if not hasattr(transformers, needed):
            pytest.skip(f"transformers {transformers.__version__} has no {needed}")
    original = tiny.liven(tiny.build(name))
    original.save_pretrained(tmp_path)
    scheme = {"*": baraquant.W8A16()}
    wanted = type(original).from_pretrained(tmp_path)
    kept = tuple(getattr(wanted, "_keep_in_fp32_modules", None) or ())
    report = baraquant.quantize_(wanted, scheme, filter_fn=lambda _, path: not path.endswith(kept))
    model = type(original).from_pretrained(tmp_path, quantization_config=BaraquantConfig(scheme))
    got = model.hf_quantizer.report
    assert got.changed == report.changed
    assert got.computes == report.computes and got.integer_products == report.integer_products
    assert got.left_out.keys() == report.left_out.keys()
    assert (got.bytes_before, got.bytes_after) == (report.bytes_before, report.bytes_after)
    # Some models of transformers compute something else if they are said to be quantized.
    for module in model.modules():
        if hasattr(module, "config") and hasattr(module.config, "_is_quantized"):
            del module.config._is_quantized
    outputs = tiny.outputs(model, entry.inputs()), tiny.outputs(wanted, entry.inputs())
    assert len(outputs[0]) == len(outputs[1]) > 0
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.exhaustive
def test_tied_head_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path, "tied_llama")
    scheme = {"lm_head": baraquant.W8A16()}
    model = load("tied_llama", folder, quantization_config=BaraquantConfig(scheme))
    assert type(model.model.embed_tokens) is nn.Embedding
    assert torch.equal(logits(model), logits(by_hand("tied_llama", folder, scheme, None)))
    assert not model.config.tie_word_embeddings


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_same", [True, False])
def test_file_with_both_tied_weights(is_same: bool, tmp_path: Path) -> None:
    """Pickled files hold both; if they differ, transformers 5 does not tie them."""
    model = build("tied_llama")
    model.config.save_pretrained(tmp_path)
    state = dict(model.state_dict())
    if not is_same:
        state["lm_head.weight"] = state["lm_head.weight"] * 2 + 0.01
    torch.save(state, tmp_path / "pytorch_model.bin")
    scheme = {nn.Embedding: baraquant.W8A16(), nn.Linear: baraquant.W8A16()}
    model = load("tied_llama", tmp_path, quantization_config=BaraquantConfig(scheme))
    assert (model.lm_head.qweight is model.model.embed_tokens.qweight) == (is_same or not IS_5)
    assert torch.equal(logits(model), logits(by_hand("tied_llama", tmp_path, scheme, None)))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "names", [[], ["lm_head"], ["model.layers.0", "lm_head"], ["k_proj", "mlp"], [QUERY_AND_KEY]]
)
def test_modules_to_not_convert(names: list[str], tmp_path: Path) -> None:
    folder, floating = saved(tmp_path, "llama"), names
    if names == [QUERY_AND_KEY]:
        floating = ["q_proj", "k_proj"]
    config = BaraquantConfig(baraquant.W8A8(), modules_to_not_convert=names)
    model = load("llama", folder, quantization_config=config)
    for path, module in build("llama").named_modules():
        if isinstance(module, nn.Linear):
            keeps = any(f".{name}." in f".{path}." for name in floating)
            kind = nn.Linear if keeps else baraquant.nn.QuantizedLinear
            assert type(model.get_submodule(path)) is kind, path


@pytest.mark.exhaustive
@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}], ids=str)
def test_device_map(device_map: Any, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    folder = saved(tmp_path, "llama")
    config = BaraquantConfig(baraquant.W8A8(symmetric=False))
    model = load("llama", folder, quantization_config=config, device_map=device_map)
    expected = by_hand("llama", folder, config.scheme, None).to(model.device)
    assert torch.equal(logits(model), logits(expected))


@pytest.mark.exhaustive
def test_new_head_is_quantized_after_loading(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bert")
    config = BaraquantConfig(baraquant.W8A8(), modules_to_not_convert=[])
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(folder, quantization_config=config, num_labels=3)
    assert type(model.classifier) is baraquant.nn.QuantizedLinear
    assert model.classifier.qweight.float().std() > 10  # initial values, not arbitrary memory
    assert not model.classifier.bias.any()
    assert logits(model).shape == (2, 3)


@pytest.mark.exhaustive
def test_missing_bias_is_zero(tmp_path: Path) -> None:
    model = build("qwen2")
    model.config.save_pretrained(tmp_path)
    state = dict(model.state_dict())
    del state["model.layers.0.self_attn.q_proj.bias"]
    torch.save(state, tmp_path / "pytorch_model.bin")
    model = load("qwen2", tmp_path, quantization_config=BaraquantConfig(baraquant.W8A8()))
    assert not model.model.layers[0].self_attn.q_proj.bias.any()
    assert model.model.layers[1].self_attn.q_proj.bias.any()


@pytest.mark.exhaustive
def test_mismatched_size_is_quantized_after_loading(tmp_path: Path) -> None:
    folder = saved(tmp_path, "llama")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.vocab_size = 50
    model = load(
        "llama", folder, config=config, ignore_mismatched_sizes=True,
        quantization_config=BaraquantConfig(baraquant.W8A8(), modules_to_not_convert=[]),
    )  # fmt: skip
    # Some versions of transformers take the size of the file with any quantizer, for floats too.
    words = model.model.embed_tokens.weight.shape[0]
    assert words == 50 or transformers.__version__.startswith("5.17")
    assert model.lm_head.qweight.shape == (words, 64)
    assert model(TOKENS % 50).logits.isfinite().all()


@pytest.mark.exhaustive
def test_half_the_model_elsewhere(tmp_path: Path) -> None:
    """The base model of a folder with a head, and the other way round."""
    folder = saved(tmp_path / "whole", "llama")
    config = BaraquantConfig(baraquant.W8A8())
    base = transformers.AutoModel.from_pretrained(folder, quantization_config=config)
    whole = load("llama", folder, quantization_config=config)
    assert torch.equal(base(TOKENS).last_hidden_state, whole.model(TOKENS).last_hidden_state)


@pytest.mark.parametrize("name", ["llama", "tied_llama"])
def test_in_inference_mode(name: str, tmp_path: Path) -> None:
    """What is loaded there can be trained and written to, also out of a quantized folder."""
    source = saved(tmp_path / "float", name)
    with torch.inference_mode():
        models = [load(name, source, quantization_config=BaraquantConfig(baraquant.W8A8()))]
        models[0].save_pretrained(tmp_path / "integers")
        with use_for_compressed_tensors():
            models.append(load(name, tmp_path / "integers"))
        read = load(name, source)
        baraquant.export.from_compressed_tensors(read, tmp_path / "integers")
    for model in (*models, read):
        assert not any(t.is_inference() for t in model.state_dict().values())
        assert model.lm_head.weight is model.get_input_embeddings().weight or name == "llama"
        rows = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
        model(inputs_embeds=rows).logits.sum().backward()
        assert rows.grad is not None and torch.equal(logits(model), logits(models[0]))


# The peak of what is resident above what is there before: private memory only, as the kernel may
# drop the pages of the mapped file at any time.
PROGRAM = """
import ctypes, gc, sys, threading, time
import torch, transformers, baraquant
from baraquant.transformers import BaraquantConfig
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
def private():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
def measured(load):
    gc.collect(); ctypes.CDLL(None).malloc_trim(0)
    before, peak, done = private(), [0], threading.Event()
    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], private() - before)
            time.sleep(0.001)
    thread = threading.Thread(target=watch); thread.start()
    model = load()
    done.set(); thread.join()
    tensors = (*model.parameters(), *model.buffers())
    return peak[0], sum(tensor.numel() * tensor.element_size() for tensor in tensors)
kind, folder = transformers.LlamaForCausalLM, sys.argv[1]
warm = kind.from_pretrained(sys.argv[2], quantization_config=BaraquantConfig(baraquant.W8A8()))
config = BaraquantConfig({"*": baraquant.W8A8()})
print(*measured(lambda: kind.from_pretrained(folder, quantization_config=config)))
print(*measured(lambda: kind.from_pretrained(folder)))
"""


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_float_model_is_never_in_memory(tmp_path: Path) -> None:
    """The peak stays below that of the float model: one float layer at a time, and the integers."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}
    folder = saved(tmp_path / "float", "llama", **sizes)
    command = [sys.executable, "-c", PROGRAM, str(folder), str(saved(tmp_path / "warm", "llama"))]
    # Each tensor has pages of its own, so that freed memory counts as freed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line.split() for line in result.stdout.splitlines()[-2:]]
    (peak, integers), (_, floats) = [[int(word) for word in line] for line in lines]
    assert integers < 0.3 * floats
    assert peak < integers + 0.35 * floats, (peak / floats, integers / floats)
