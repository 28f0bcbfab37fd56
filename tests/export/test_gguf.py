# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files: transformers' own reader computes our logits, bit for bit."""

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant.export import gguf as exporter
from tests.export.tiny_decoders import OPTIONS, quantized, tiny, tokens
from tests.support.lattices import lattice
from tests.support.models.made import prepared
from tests.support.models.made import quantized as made_quantized
from tests.support.optional_packages import package
from tests.support.pytorch_products import products_of_pytorch
from tests.support.schemes import described

gguf = package("gguf")
package("transformers")

Q4 = baraquant.W4A16(32)
OF_INTEGERS = [baraquant.W8A8(), baraquant.W4A8(None), baraquant.W4A8(32, group_factors=False)]
SCHEMES: dict[str, Any] = {
    "Q4_0": Q4, "Q4_0 of groups of 64": baraquant.W4A16(64),
    "Q4_0 of channels": baraquant.W4A16(None), "Q8_0": described("int8 per_group(32)"),
    "Q8_0 of channels": baraquant.W8A16(),
}  # fmt: skip
OTHERS = [name for name in OPTIONS if name not in ("llama", "gemma", "lfm2")]
READ = [("llama", scheme) for scheme in SCHEMES]
READ += [("lfm2", "Q4_0"), ("lfm2", "Q8_0")]  # a scheme of channels would round its convolutions
READ += itertools.product(OTHERS, ("Q4_0", "Q8_0 of channels"))


def written(model: Any, folder: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    """A file, and its tensors by name."""
    path = folder / "model.gguf"
    baraquant.export.to_gguf(model, path, **options)
    return path, {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def kinds_of(tensors: dict[str, Any]) -> dict[str, str]:
    return {name: tensor.tensor_type.name for name, tensor in tensors.items()}


def read_back(path: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    options |= {"gguf_file": path.name, "dtype": torch.float32}
    return AutoModelForCausalLM.from_pretrained(path.parent, **options)


def same_logits(model: Any, path: Path) -> None:
    # Where it takes the number of tokens from the tokenizer, it needs the configuration.
    needed = {"config": model.config} if model.config.model_type == "lfm2" else {}
    theirs = read_back(path, **needed).eval()
    kind = type(model).__name__.replace("Mistral", "Llama")  # one architecture in GGUF
    assert type(theirs).__name__ == kind
    with torch.no_grad(), products_of_pytorch():
        ours, read = model(tokens()).logits, theirs(tokens()).logits
    assert torch.equal(ours, read)
    assert not bool((ours == ours[:, :1]).all())  # they depend on the tokens


@pytest.mark.parametrize("rows", [1, 5])
def test_blocks_are_what_gguf_dequantizes(rows: int) -> None:
    """Every integer, in every place of a block, with scales of both signs."""
    for bits, kind in ((4, "Q4_0"), (8, "Q8_0")):
        low = -(1 << bits - 1)
        integers = torch.arange(rows * 256).remainder(1 << bits).add(low).to(torch.int8)
        integers = integers.view(rows, 256)
        scale = torch.randn(rows, 8).half().float()
        packed = exporter._blocks(integers, scale, bits).numpy()
        read = gguf.dequantize(packed, gguf.GGMLQuantizationType[kind])
        expected = integers * scale.repeat_interleave(32, dim=1)
        assert torch.equal(torch.from_numpy(read), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "scheme"), READ)
def test_transformers_reads_our_logits(name: str, scheme: str, tmp_path: Path) -> None:
    model = quantized(tiny(name), SCHEMES[scheme])
    path, tensors = written(model, tmp_path)
    assert scheme.split()[0] in kinds_of(tensors).values()
    same_logits(model, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["Q4_0", "Q8_0"])
def test_gemma_1_holds_our_weights(scheme: str, tmp_path: Path) -> None:
    """transformers' reader does not know Gemma 1: its tensors are read one by one."""
    model = quantized(tiny("gemma"), SCHEMES[scheme])
    path, tensors = written(model, tmp_path)
    floats = {name: gguf.dequantize(t.data, t.tensor_type) for name, t in tensors.items()}
    read = {name: torch.from_numpy(values.copy()) for name, values in floats.items()}
    block = model.model.layers[1]
    assert torch.equal(read["blk.1.attn_q.weight"], block.self_attn.q_proj.weight)
    assert torch.equal(read["blk.1.attn_k.weight"], block.self_attn.k_proj.weight)
    assert torch.equal(read["blk.1.ffn_norm.weight"], block.post_attention_layernorm.weight + 1)
    assert torch.equal(read["output_norm.weight"], model.model.norm.weight + 1)
    assert gguf.GGUFReader(path).fields["general.architecture"].contents() == "gemma"


@pytest.mark.exhaustive
def test_quantized_embeddings_and_mixed_layers(tmp_path: Path) -> None:
    """An integer table, a 4-bit and an 8-bit layer side by side, and floating ones."""
    rules = {nn.Embedding: SCHEMES["Q8_0"], "*.q_proj": Q4, "*.down_proj": baraquant.W8A16()}
    rules |= {"*": None}
    model = quantized(tiny("llama"), rules)
    assert type(model.model.embed_tokens) is baraquant.nn.QuantizedEmbedding
    path, tensors = written(model, tmp_path)
    kinds = kinds_of(tensors)
    assert kinds["token_embd.weight"] == kinds["blk.0.ffn_down.weight"] == "Q8_0"
    assert kinds["blk.0.attn_q.weight"] == "Q4_0" and kinds["blk.0.attn_v.weight"] == "F32"
    same_logits(model, path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["llama tied", "qwen3"])
def test_tied_tables(name: str, tmp_path: Path) -> None:
    """A head that equals the embedding is left out; a head of its own integers is not."""
    floating = quantized(tiny(name), {"lm_head": None, nn.Embedding: None, nn.Linear: Q4})
    path, tensors = written(floating, tmp_path)
    assert "output.weight" not in tensors
    same_logits(floating, path)
    own = quantized(tiny(name), {"lm_head": Q4, "*": None})
    path, tensors = written(own, tmp_path)
    assert "output.weight" in tensors
    same_logits(own, path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floating_layers_keep_their_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    model = quantized(tiny("qwen2").to(dtype), {"*.mlp.*": Q4, "*": None})
    path, tensors = written(model, tmp_path)
    kinds = kinds_of(tensors)
    stored = "F16" if dtype == torch.float16 else "BF16"
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == stored
    assert kinds["blk.0.attn_q.bias"] == kinds["output_norm.weight"] == "F32"
    read = read_back(path)
    state = read.state_dict()
    for key, value in model.state_dict().items():
        if key in state:
            assert torch.equal(state[key], value.float()), key
    for index, block in enumerate(read.model.layers):
        ours = model.model.layers[index].mlp.down_proj
        assert torch.equal(block.mlp.down_proj.weight.to(dtype), ours.weight)


@pytest.mark.exhaustive
def test_rope_factors_are_transformers_own(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    }  # fmt: skip
    model = quantized(tiny("llama", rope_parameters=rope, head_dim=64), Q4)
    _, tensors = written(model, tmp_path)
    factors = torch.from_numpy(tensors["rope_freqs.weight"].data.copy())
    frequencies = 1 / 5e5 ** (torch.arange(0, 64, 2) / 64)
    torch.testing.assert_close(frequencies / factors, model.model.rotary_emb.inv_freq)
    assert factors[0] == 1 and factors[-1] == 8 and bool((factors > 1).any())


@pytest.mark.exhaustive
def test_biases_of_attention_and_mlp_are_written(tmp_path: Path) -> None:
    model = quantized(tiny("llama", attention_bias=True, mlp_bias=True), Q4)
    found = written(model, tmp_path)[1].items()
    tensors = {name: torch.from_numpy(tensor.data.copy()) for name, tensor in found}
    attention = model.model.layers[0].self_attn
    # llama.cpp's order: the two halves of each of the 4 heads are interleaved.
    expected = attention.q_proj.bias.view(4, 2, 8).transpose(1, 2).flatten()
    assert torch.equal(tensors["blk.0.attn_q.bias"], expected)
    assert torch.equal(tensors["blk.0.attn_v.bias"], attention.v_proj.bias)
    assert torch.equal(tensors["blk.0.ffn_down.bias"], model.model.layers[0].mlp.down_proj.bias)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_weights_on_a_lattice_keep_their_bits(
    kind: str, scale: torch.dtype, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Integers times scales, as quantization-aware training elsewhere leaves them."""
    for server in ("float32", "float16"):
        model, bits = tiny("llama").to(dtype), int(kind[1])
        for parameter in (p for p in model.parameters() if p.dim() == 2):
            parameter.data = lattice((*parameter.shape,), bits, scale, dtype)
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        scheme = described(f"int{bits} per_group(32)", scale_dtype=server)
        report = baraquant.quantize_(model, scheme)
        assert all("100 % of its scales" in about for about in report.changed.values())
        path, tensors = written(model, tmp_path)
        read = read_back(path)
        for key, module in model.named_modules():
            if hasattr(module, "weight_scale"):
                own = weights[f"{key}.weight"]
                assert torch.equal(read.get_submodule(key).weight.to(dtype), own), key
        block = tensors["blk.1.ffn_down.weight"]
        values = torch.from_numpy(gguf.dequantize(block.data, block.tensor_type)).to(dtype)
        assert torch.equal(values, weights["model.layers.1.mlp.down_proj.weight"])
        assert block.tensor_type.name == kind


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", OF_INTEGERS)
def test_weights_alone_of_integer_layers(scheme: Any, tmp_path: Path) -> None:
    model = quantized(tiny("llama"), scheme)
    read = read_back(written(model, tmp_path, float_inputs=True)[0])
    for key, module in model.named_modules():
        if hasattr(module, "qweight"):
            assert torch.equal(read.get_submodule(key).weight, module.weight), key


# --- what is refused ----------------------------------------------------------------------------


def refused(model: Any, folder: Path, match: str, kind: Any = ValueError, **options: Any) -> None:
    with pytest.raises(kind, match=match):
        baraquant.export.to_gguf(model, folder / "model.gguf", **options)
    assert list(folder.iterdir()) == []


def llama(scheme: Any = Q4, name: str = "llama", half: bool = True, **options: Any) -> Any:
    return quantized(tiny(name, **options), scheme, half=half)


def static() -> Any:
    rules = {nn.Embedding: None, nn.Linear: baraquant.W8A8Static()}
    return made_quantized(tiny("llama"), rules, tokens())


def with_scale(value: float) -> Any:
    model = llama()
    model.model.layers[1].mlp.up_proj.weight_scale[3, 1] = value
    return model


def other_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=96, n_positions=32)
    return quantized(GPT2LMHeadModel(config), Q4)


def extra_tensor() -> Any:
    model = llama()
    model.model.layers[0].gain = nn.Parameter(torch.ones(2, 2))
    return model


def double() -> Any:
    model = llama()
    model.model.norm.double()
    return model


INEXACT = "layers.1.mlp.up_proj: expected scales that are exact in float16"
# Of each the model, and what is said; by a ValueError, where no other is named.
REFUSED: dict[str, tuple[Any, ...]] = {
    "asymmetric": (lambda: llama(baraquant.W4A16(32, symmetric=False)),
        "embed_tokens: expected symmetric weights"),
    "int3": (lambda: llama(described("int3 per_group(32)")), "embed_tokens: expected 4 or 8 bits"),
    "int6": (lambda: llama(described("int6")), "embed_tokens: expected 4 or 8 bits .* but got 6"),
    "groups of 16": (lambda: llama(baraquant.W4A16(16)),
        "embed_tokens: expected a scale for a multiple of 32 inputs"),
    "dynamic": (lambda: llama(baraquant.W8A8()),
        r"q_proj: expected a floating input, but got int8 \(dynamic\)"),
    "rotated": (lambda: llama(baraquant.W8A16(rotate=16)),
        "expected no rotation of the input, which GGUF cannot hold.*without rotate"),
    "groups, dynamic": (lambda: llama(baraquant.W4A8(32, group_factors=False)),
        "q_proj: expected a floating input, but got int8"),
    "static": (static, r"expected a floating input, but got int8 \(static\)"),
    "scales": (lambda: llama(half=False),
        'embed_tokens: expected scales that are exact in float16.*scale_dtype="fl'),
    **{str(scale): (lambda scale=scale: with_scale(scale), INEXACT) for scale in (1e6, 1e-9, 0.1)},
    "sizes": (lambda: llama(baraquant.W8A16(), intermediate_size=80),
        "down_proj: expected a multiple of 32"),
    "convolution": (lambda: llama(baraquant.W8A16(), "lfm2"),
        "conv.conv: expected a Linear or an Embedding"),
    "bias of a convolution": (lambda: llama(name="lfm2", conv_bias=True), "got conv_bias=True"),
    "rotary": (lambda: llama(name="nemotron", partial_rotary_factor=0.25),
        "got partial_rotary_factor=0.25, not 0.5"),
    "window of phi3": (lambda: llama(name="phi3", sliding_window=8), "got sliding_window=8"),
    "gelu": (lambda: llama(hidden_act="gelu"), "'llama' covers, but got the activation 'gelu"),
    "rope": (lambda: llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4,
        "factor": 2.0}), "got the rope type 'dynamic'"),
    "window": (lambda: llama(name="mistral", sliding_window=8), "got sliding_window=8"),
    "gemma2 scalar": (lambda: llama(name="gemma2", query_pre_attn_scalar=64),
        "got query_pre_attn_scalar=64"),
    "gemma3 layers": (lambda: llama(name="gemma3", layer_types=["full_attention"] * 2),
        "got layer_types other than five times"),
    "cap": (lambda: llama(name="gemma3", final_logit_softcapping=30.0), "got a soft cap of logits"),
    "floating": (lambda: tiny("llama"), "without a quantized layer"),
    "prepared": (lambda: prepared(tiny("llama"), Q4),
        "it is prepared for training; call baraquant.qat.convert_"),
    "no module": (lambda: {"a": 1}, "expected model to be a Module, but got dict", TypeError),
    "not transformers": (lambda: quantized(nn.Sequential(nn.Linear(32, 4)), Q4),
        "expected a model of transformers", TypeError),
    "unknown": (other_model, "expected an architecture among llama, .* but got 'gpt2'"),
    "no head": (lambda: llama().model,
        "expected a language model with a head .* but got a LlamaModel"),
    "extra tensor": (extra_tensor, "layers.0.gain: expected a tensor that GGUF"),
    "float64": (double, "model.norm.weight: expected float32, float16 or bfloat16"),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", REFUSED)
def test_models(case: str, tmp_path: Path) -> None:
    make, match, *kind = REFUSED[case]
    refused(make(), tmp_path, match, *kind)


@pytest.mark.exhaustive
def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(baraquant.W8A8())
    model.model.layers[1].mlp.up_proj.smooth = torch.full((64,), 2.0)
    refused(model, tmp_path, "layers.1.mlp.up_proj: expected no smoothing", float_inputs=True)
    model = llama()
    refused(model, tmp_path, "expected float_inputs to be a bool", TypeError, float_inputs=1)
    with pytest.raises(OSError, match="expected a folder that can be written to"):
        baraquant.export.to_gguf(model, tmp_path / "missing" / "model.gguf")
    with pytest.raises(IsADirectoryError, match="expected a file"):
        baraquant.export.to_gguf(model, tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused(model, tmp_path, r'install it with: pip install "baraquant\[gguf\]"', ImportError)
