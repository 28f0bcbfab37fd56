# SPDX-License-Identifier: BSD-3-Clause
"""GGUF, the format of llama.cpp: our integers in blocks of Q4_0 and Q8_0.

A block holds 32 integers of a row and their scale in float16. A layer's scale is for 32 values, or
for more: then several blocks repeat it. A reader computes ``scale * integer`` in float32, which are
the bits of the converted layer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._fields import check_bool
from .._packages import need
from ..workflow.serialization.disk import new_file
from ._layers import IntegerLayer, check_layers, integer_layers

_CALLER = "to_gguf"
_BLOCK = 32
_TYPES = {4: "Q4_0", 8: "Q8_0"}


@dataclass(frozen=True)
class _Entry:
    """A tensor of the file: its GGUF name, and the layer or the tensor that it comes from."""

    name: str
    source: IntegerLayer | Tensor
    heads: int = 0  # the rows of q and k are permuted within this many heads; 0: they are not
    offset: float = 0.0


def to_gguf(model: nn.Module, path: str | os.PathLike[str], *, float_inputs: bool = False) -> None:
    """Write a quantized language model as a GGUF file, with its own integers and scales.

    Layers with 4-bit weights become Q4_0, and layers with 8-bit weights Q8_0. Their weights must be
    symmetric, with a scale for 32 inputs, a multiple of 32, or a whole row. Their scales must be
    float16 values, because a block stores its scale so: quantize with ``scale_dtype="float16"``.
    Then a reader that computes in float32 dequantizes the bits of the converted layer. Floating
    matrices keep their dtype; norms and biases become float32.

    The file holds the weights and the configuration, and no tokenizer. transformers reads it with
    ``from_pretrained(folder, gguf_file=name)`` and takes the tokenizer of the original model. It
    cannot read Gemma 1, and LFM2 only with ``config=model.config``. What its reader does not look
    up has its default there: biases and ``head_dim`` of some architectures.

    Args:
        model: A converted ``ForCausalLM`` of transformers: Llama, Mistral, Qwen 2, Qwen 3, Phi 3
            (and 4), LFM2, Nemotron, or the text models Gemma 1, 2 and 3.
        path: The file. It is replaced if it exists.
        float_inputs: GGUF cannot say that inputs are rounded. False refuses layers that round
            theirs, such as those of ``W8A8()``. True writes their weights alone, so that readers
            compute with other inputs than the converted model does.

    Raises:
        ImportError: The package gguf is missing.
        TypeError: ``model`` is not a model of transformers, or an argument has another type.
        ValueError: A layer or the configuration is something that the format cannot hold.
        OSError: The file cannot be written.

    Example::

        baraquant.quantize_(model, baraquant.W4A16(32, scale_dtype="float16"))
        baraquant.export.to_gguf(model, "model-q4_0.gguf")
    """
    check_bool(_CALLER, "float_inputs", float_inputs)
    gguf: Any = need(_CALLER, "gguf", "gguf")
    layers = integer_layers(model, _CALLER)
    row = architecture_of(model)
    check_layers(layers, _CALLER, lambda layer: _why_not(layer, float_inputs))
    entries = _entries(gguf, model, layers, row)
    with new_file(_CALLER, path) as partial:
        _write(gguf, partial, model, entries, row)


def _why_not(layer: IntegerLayer, float_inputs: bool) -> str | None:
    group, features = layer.group_size, layer.qweight.shape[1]
    if layer.float_name not in ("Linear", "Embedding"):
        return f"expected a Linear or an Embedding, but got a {layer.float_name}"
    smoothing = (layer.smooth is not None, "smoothing", "SmoothQuant")
    for is_given, what, scheme in (smoothing, (layer.rotate > 0, "rotation", "rotate")):
        if is_given:
            return (
                f"expected no {what} of the input, which GGUF cannot hold; quantize with a scheme "
                f"without {scheme}"
            )
    if layer.input is not None and not float_inputs:
        kind = "static" if layer.input.scale is not None else "dynamic"
        return (
            f"expected a floating input, but got int{layer.input.bits} ({kind}), which GGUF cannot "
            "hold; quantize with weights only (W4A16, W8A16), or pass float_inputs=True to write "
            "the weights alone"
        )
    if layer.bits not in _TYPES:
        return f"expected 4 or 8 bits (Q4_0, Q8_0), but got {layer.bits}"
    if layer.zero_point is not None:
        return "expected symmetric weights (Q4_0, Q8_0), but got zero points"
    if features % _BLOCK != 0:
        return (
            f"expected a multiple of {_BLOCK} inputs, but got {features}; keep the layer floating "
            "(a rule that maps it to None)"
        )
    if group is not None and group % _BLOCK != 0:
        return f"expected a scale for a multiple of {_BLOCK} inputs, but got group_size={group}"
    stored = layer.scale.half().to(layer.scale.dtype)
    if not torch.equal(stored, layer.scale) or not bool(torch.isfinite(layer.scale).all()):
        return (
            "expected scales that are exact in float16, as a block stores them, but got others; "
            'quantize or train with scale_dtype="float16" in the configuration'
        )
    return None


def _entries(
    gguf: Any, model: nn.Module, layers: dict[str, IntegerLayer], row: Architecture
) -> list[_Entry]:
    """Return the tensors of the file."""
    config: Any = model.config
    architecture = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[row.name]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    heads = {"attn_q": config.num_attention_heads, "attn_k": _key_heads(config)}
    heads = heads if row.permutes else {}
    entries: dict[str, _Entry] = {}
    tied = _tied_head(model, layers)
    for path, source in _sources(model, layers):
        module, _, end = path.rpartition(".")
        if module == tied:
            continue
        name = names.get_name(module)
        if name is None or end not in ("weight", "bias"):
            raise ValueError(
                f"{_CALLER}: {path}: expected a tensor that GGUF's {row.name!r} has a name for, "
                "but it has none"
            )
        offset = row.norm_offset if name.endswith("_norm") and end == "weight" else 0.0
        if name.endswith("shortconv.conv") and isinstance(source, Tensor):
            source = source.squeeze(1).float()  # as llama.cpp's convolution takes it
        permuted = heads.get(name.rpartition(".")[2], 0)
        entries[f"{name}.{end}"] = _Entry(f"{name}.{end}", source, permuted, offset)
    factors = rope_factors(config)
    if factors is not None:
        entries["rope_freqs.weight"] = _Entry("rope_freqs.weight", factors)
    return list(entries.values())


def _sources(
    model: nn.Module, layers: dict[str, IntegerLayer]
) -> list[tuple[str, IntegerLayer | Tensor]]:
    """Return weights and biases under the names that the floating model has for them."""
    found: list[tuple[str, IntegerLayer | Tensor]] = []
    for path, layer in layers.items():
        found.append((f"{path}.weight", layer))
        if layer.bias is not None:
            found.append((f"{path}.bias", layer.bias))
    inside = tuple(f"{path}." for path in layers)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not name.startswith(inside):
            if not tensor.is_floating_point() or tensor.dtype == torch.float64:
                raise ValueError(
                    f"{_CALLER}: {name}: expected float32, float16 or bfloat16, but got "
                    f"{tensor.dtype}"
                )
            found.append((name, tensor))
    return found


def _tied_head(model: Any, layers: dict[str, IntegerLayer]) -> str | None:
    """Return the path of the head if it equals the embedding, so that the file leaves it out."""
    names = {module: path for path, module in model.named_modules(remove_duplicate=True)}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    head_path, path = names[head], names[embedding]
    ours, theirs = layers.get(head_path), layers.get(path)
    if getattr(head, "bias", None) is not None:
        return None
    if ours is None or theirs is None:
        is_same = ours is theirs and head.weight is embedding.weight
    else:
        is_same = ours.bits == theirs.bits and torch.equal(ours.qweight, theirs.qweight)
        is_same = is_same and torch.equal(ours.scale, theirs.scale)
    return head_path if is_same else None


def _write(gguf: Any, path: Any, model: Any, entries: list[_Entry], row: Architecture) -> None:
    writer = gguf.GGUFWriter(path, row.name)
    try:
        write_config(gguf, writer, model.config, row)
        bits = [entry.source.bits for entry in entries if isinstance(entry.source, IntegerLayer)]
        most = _TYPES[max(sorted(set(bits)), key=bits.count)]
        writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{most}"))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        head_dim = head_dim_of(model.config)
        for entry in entries:
            kind, shape, size = _layout(gguf, entry)
            writer.add_tensor_info(entry.name, shape, None, size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:  # one at a time: a model need not fit into memory twice
            writer.write_tensor_data(_bytes(entry, head_dim).numpy())
    finally:
        writer.close()


def _layout(gguf: Any, entry: _Entry) -> tuple[Any, list[int], int]:
    """Return the type of a tensor in the file, its shape, and its size in bytes."""
    kinds, source = gguf.GGMLQuantizationType, entry.source
    if isinstance(source, IntegerLayer):
        kind = kinds[_TYPES[source.bits]]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        return kind, list(source.qweight.shape), source.qweight.numel() // values * size
    dtype = _stored_dtype(source)
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    return kinds[names[dtype]], list(source.shape), source.numel() * dtype.itemsize


def _stored_dtype(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.dim() > 1 else torch.float32


def _bytes(entry: _Entry, head_dim: int) -> Tensor:
    """Return the bytes of a tensor of the file, uint8."""
    source = entry.source
    if not isinstance(source, IntegerLayer):
        tensor = source.detach().cpu()
        tensor = _permute(tensor, entry.heads, head_dim)
        if entry.offset != 0.0:
            tensor = tensor.float() + entry.offset
        return tensor.to(_stored_dtype(source)).contiguous().view(torch.uint8)
    integers, scale = source.qweight.cpu(), source.grouped_scale.cpu()
    features = integers.shape[1]
    repeats = (source.group_size or features) // _BLOCK
    scale = scale.repeat_interleave(repeats, dim=1)[:, : features // _BLOCK]
    integers = _permute(integers, entry.heads, head_dim)
    return _blocks(integers, _permute(scale, entry.heads, head_dim), source.bits)


def _permute(rows: Tensor, heads: int, head_dim: int) -> Tensor:
    """Put rows that are rotated together, half a head apart, side by side."""
    if heads == 0:
        return rows
    halves = rows.reshape(heads, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _blocks(integers: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Return blocks of a float16 scale and 32 integers: ``[N, bytes]`` uint8.

    In Q4_0 byte i holds the integers i (low bits) and i + 16, each plus 8.
    """
    rows = integers.shape[0]
    scales = scale.reshape(-1, 1).half().view(torch.uint8)  # [blocks, 2]
    values = integers.reshape(-1, _BLOCK)
    if bits == 4:
        unsigned = (values + 8).view(torch.uint8)
        values = unsigned[:, :16] | unsigned[:, 16:] << 4
    return torch.cat([scales, values.view(torch.uint8)], dim=1).view(rows, -1)


# ---- What a file says beside its tensors: one row for each architecture --------------------------

# GGUF has one name for an architecture, and programs that read it know what the name implies: which
# activation, whether rows are permuted, and so on. A configuration that differs from what the name
# implies cannot be stored. It is refused here.

SILU = ("silu", "swish")
GELU = ("gelu_pytorch_tanh",)


def _key_heads(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


@dataclass(frozen=True)
class Architecture:
    """A kind of model.

    Attributes:
        name: What GGUF calls it.
        activations: The activations that the name implies, as transformers calls them; empty: the
            configuration has none.
        permutes: Whether the rows of q and k are stored in another order: pairs of features that
            are rotated together lie side by side in the file, and half a head apart in
            transformers.
        norm_offset: What is added to the weights of norms: Gemma's layers add 1 to theirs.
        rotary: The share of the features of a head that are rotated.
        feed_forward: Returns the features between the layers of an MLP.
        key_heads: Returns the number of heads of keys and values, or one for each layer.
        check: Returns what the name does not cover in a configuration, or None.
        write: Writes further keys: ``write(writer, config)``.
    """

    name: str
    activations: tuple[str, ...] = SILU
    permutes: bool = False
    norm_offset: float = 0.0
    rotary: float = 1.0
    feed_forward: Callable[[Any], int] = lambda config: config.intermediate_size
    key_heads: Callable[[Any], int | list[int]] = _key_heads
    check: Callable[[Any], str | None] = lambda config: None
    write: Callable[[Any, Any], None] = lambda writer, config: None


def _why_not_window(config: Any) -> str | None:
    window = getattr(config, "sliding_window", None)
    is_used = getattr(config, "use_sliding_window", window is not None)
    if is_used and window is not None and window < config.max_position_embeddings:
        return (
            f"sliding_window={window}, which GGUF has no key for in this architecture; set "
            "config.sliding_window to None, or config.max_position_embeddings to the window"
        )
    return None


def _why_not_gemma2(config: Any) -> str | None:
    if _has_full_attention_other_than(config, every=2):
        return "layer_types other than alternating sliding_attention and full_attention"
    return _why_not_scalar(config, layers_of_27b=46)


def _why_not_scalar(config: Any, layers_of_27b: int) -> str | None:
    scalar = config.head_dim
    if config.num_hidden_layers == layers_of_27b:  # its readers divide by another number
        scalar = config.hidden_size // config.num_attention_heads
    if config.query_pre_attn_scalar != scalar:
        return f"query_pre_attn_scalar={config.query_pre_attn_scalar}, not {scalar}"
    return None


def _has_full_attention_other_than(config: Any, every: int) -> bool:
    """Whether other layers than each so many-th have full attention, or the others no window."""
    expected = [
        "sliding_attention" if (layer + 1) % every else "full_attention"
        for layer in range(config.num_hidden_layers)
    ]
    return list(config.layer_types) != expected


def _write_gemma(writer: Any, config: Any) -> None:
    if config.attn_logit_softcapping is not None:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _why_not_gemma3(config: Any) -> str | None:
    if config.attn_logit_softcapping is not None or config.final_logit_softcapping is not None:
        return "a soft cap of logits"
    if getattr(config, "use_bidirectional_attention", False):
        return "use_bidirectional_attention=True"
    if _has_full_attention_other_than(config, every=6):
        return "layer_types other than five times sliding_attention, then full_attention"
    local = config.rope_parameters.get("sliding_attention") or {}
    if local.get("rope_theta", 10000.0) != 10000.0 or local.get("rope_type") != "default":
        return f"the rope parameters {local} of sliding_attention, not rope_theta=10000"
    return _why_not_scalar(config, layers_of_27b=62)


def _write_nemotron(writer: Any, config: Any) -> None:
    writer.add_layer_norm_eps(config.norm_eps)  # transformers reads it as that of an RMS norm


def _feed_forward_of_lfm2(config: Any) -> int:
    size: int = config.intermediate_size
    if config.block_auto_adjust_ff_dim:
        size = 2 * size // 3
        if config.block_ffn_dim_multiplier is not None:
            size = int(config.block_ffn_dim_multiplier * size)
            size = -(-size // config.block_multiple_of) * config.block_multiple_of
    return size


def _key_heads_of_lfm2(config: Any) -> list[int]:
    """Return 0 for the layers that convolve."""
    return [0 if kind == "conv" else _key_heads(config) for kind in config.layer_types]


def _why_not_lfm2(config: Any) -> str | None:
    return "conv_bias=True" if config.conv_bias else None


# By transformers' model_type. Mistral's files are llama's: without a window it is the same model.
ARCHITECTURES = {
    "llama": Architecture("llama", permutes=True),
    "mistral": Architecture("llama", permutes=True, check=_why_not_window),
    "qwen2": Architecture("qwen2", check=_why_not_window),
    "qwen3": Architecture("qwen3", check=_why_not_window),
    "gemma": Architecture("gemma", GELU, norm_offset=1.0),
    "gemma2": Architecture(
        "gemma2", GELU, norm_offset=1.0, check=_why_not_gemma2, write=_write_gemma
    ),
    # A window of 0 says that there is none.
    "phi3": Architecture(
        "phi3", check=_why_not_window, write=lambda writer, config: writer.add_sliding_window(0)
    ),
    "nemotron": Architecture(
        "nemotron", ("relu2",), norm_offset=1.0, rotary=0.5, write=_write_nemotron
    ),
    "lfm2": Architecture(
        "lfm2",
        (),
        feed_forward=_feed_forward_of_lfm2,
        key_heads=_key_heads_of_lfm2,
        check=_why_not_lfm2,
        write=lambda writer, config: writer.add_shortconv_l_cache(config.conv_L_cache),
    ),
    # Gemma 3 has no soft caps: its window alone is written.
    "gemma3_text": Architecture(
        "gemma3", GELU, norm_offset=1.0, check=_why_not_gemma3, write=_write_gemma
    ),
}


def architecture_of(model: nn.Module) -> Architecture:
    """Return the row of a model."""
    config: Any = getattr(model, "config", None)
    model_type = getattr(config, "model_type", None)
    if not isinstance(model_type, str):
        raise TypeError(
            f"{_CALLER}: expected a model of transformers, whose config names an architecture, but "
            f"got a {type(model).__name__}"
        )
    if model_type not in ARCHITECTURES:
        raise ValueError(
            f"{_CALLER}: expected an architecture among {', '.join(ARCHITECTURES)}, but got "
            f"{model_type!r}"
        )
    embeddings = getattr(model, "get_output_embeddings", lambda: None)()
    if embeddings is None:
        raise ValueError(
            f"{_CALLER}: expected a language model with a head (AutoModelForCausalLM), but got a "
            f"{type(model).__name__} without one"
        )
    row = ARCHITECTURES[model_type]
    activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    reason = row.check(config) or _why_not_rope(config, row.rotary)
    if row.activations and activation not in row.activations:
        reason = f"the activation {activation!r}, not {row.activations[0]!r}"
    if reason is not None:
        raise ValueError(
            f"{_CALLER}: expected a configuration that GGUF's {row.name!r} covers, but got {reason}"
        )
    return row


def write_config(gguf: Any, writer: Any, config: Any, row: Architecture) -> None:
    """Write the keys of a configuration; ``gguf`` is the package."""
    name = getattr(config, "_name_or_path", "") or config.model_type
    # For the name "mistral" transformers looks up an architecture that the package gguf lacks.
    name = "Mistral" if name == "mistral" else name
    heads, head_dim = config.num_attention_heads, head_dim_of(config)
    writer.add_name(name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(row.feed_forward(config))
    writer.add_head_count(heads)
    writer.add_head_count_kv(row.key_heads(config))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    writer.add_rope_dimension_count(int(head_dim * row.rotary))
    rope = rope_of(config)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    row.write(writer, config)


def head_dim_of(config: Any) -> int:
    """Return the number of features of an attention head."""
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def rope_of(config: Any) -> dict[str, Any]:
    """Return the parameters of the rotary embedding, of full attention where there are several."""
    rope = getattr(config, "rope_parameters", None)
    if rope is None:  # transformers 4
        scaling = getattr(config, "rope_scaling", None) or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        return {"rope_theta": config.rope_theta, **scaling, "rope_type": kind}
    full = rope.get("full_attention", rope)
    return {"rope_theta": 10000.0, "rope_type": "default", **full}


def rope_factors(config: Any) -> Tensor | None:
    """Return the divisors of the rotary frequencies, ``[head_dim / 2]``; None: all are 1.

    This is Llama 3.1's rule: long waves are slowed down by ``factor``, short ones stay, and between
    the two the divisor changes gradually.
    """
    rope = rope_of(config)
    if rope["rope_type"] != "llama3":
        return None
    size = head_dim_of(config)
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    waves = 2 * math.pi * float(rope["rope_theta"]) ** exponents
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / waves
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - share) / factor + share)).float()


def _why_not_rope(config: Any, rotary: float) -> str | None:
    rope = rope_of(config)
    kind = rope["rope_type"]
    if kind not in ("default", "linear", "llama3"):
        return f"the rope type {kind!r}, not default, linear or llama3"
    found = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    if found != rotary:
        return f"partial_rotary_factor={found}, not {rotary}"
    return None
