# SPDX-License-Identifier: BSD-3-Clause
"""Decoder layers with LoRA adapters over a frozen base: floating, ours, and bitsandbytes'.

The adapters are PEFT's where PEFT is installed. Elsewhere they are :class:`PlainLora`, which
computes the same. They have the dtype of the base, so that no variant pays for casts.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# isort: split
import baraquant
from benchmarks.peers import bitsandbytes_nf4, swapped
from benchmarks.training_block import HEAD_WIDTH, Variant
from benchmarks.training_step import Step

LAYERS, RANK, ALPHA = 2, 16, 32
OWN_INT8 = "baraquant W8A8"


class DecoderLayer(nn.Module):
    """A layer of a decoder as Llama 3 has it: grouped attention and SwiGLU, without biases."""

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        options = {"device": device, "dtype": dtype}
        self.heads = max(width // HEAD_WIDTH, 1)
        self.kv_heads = max(self.heads // 4, 1)
        kv_width, hidden = width // self.heads * self.kv_heads, width * 7 // 2
        self.norm1, self.norm2 = nn.RMSNorm(width, **options), nn.RMSNorm(width, **options)
        self.q_proj = nn.Linear(width, width, bias=False, **options)
        self.k_proj = nn.Linear(width, kv_width, bias=False, **options)
        self.v_proj = nn.Linear(width, kv_width, bias=False, **options)
        self.o_proj = nn.Linear(width, width, bias=False, **options)
        self.gate_proj = nn.Linear(width, hidden, bias=False, **options)
        self.up_proj = nn.Linear(width, hidden, bias=False, **options)
        self.down_proj = nn.Linear(hidden, width, bias=False, **options)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` to the same."""
        normed = self.norm1(x)
        q, k, v = (
            rows.unflatten(-1, (heads, -1)).transpose(1, 2)  # [batch, heads, tokens, head]
            for rows, heads in (
                (self.q_proj(normed), self.heads),
                (self.k_proj(normed), self.kv_heads),
                (self.v_proj(normed), self.kv_heads),
            )
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        normed = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Decoder(nn.Module):
    """Some layers after one another."""

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(DecoderLayer(width, device, dtype) for _ in range(LAYERS)))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` to the same."""
        y: Tensor = self.layers(x)
        return y


class PlainLora(nn.Module):
    """A LoRA adapter as PEFT computes it: ``base(x) + B(A(x)) * scaling``."""

    def __init__(self, base: nn.Module, size: tuple[int, int], options: dict[str, Any]) -> None:
        super().__init__()
        outputs, inputs = size
        self.base_layer = base
        self.lora_A = nn.Linear(inputs, RANK, bias=False, **options)
        self.lora_B = nn.Linear(RANK, outputs, bias=False, **options)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = ALPHA / RANK

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        result: Tensor = self.base_layer(x)
        dtype = result.dtype
        result = result + self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype))) * self.scaling
        return result.to(dtype)


def projections(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """The linear layers of the decoder: parent, name, layer."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name.endswith("_proj"):
                yield parent, name, child


def has_peft() -> bool:
    """Whether PEFT is installed."""
    return importlib.util.find_spec("peft") is not None


def adapter_name() -> str:
    """Whose adapters are measured, for the results."""
    if not has_peft():
        return "the benchmark's own adapters, of PEFT's arithmetic"
    import peft

    return f"adapters of PEFT {peft.__version__}"


def add_adapters(model: nn.Module, options: dict[str, Any], with_peft: bool) -> nn.Module:
    """Freeze a model, and put an adapter over each of its linear layers."""
    model.requires_grad_(False)
    if with_peft:
        import peft

        import baraquant.peft  # noqa: F401 - PEFT then knows quantized layers

        names = sorted({name for _, name, _ in projections(model)})
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=names)
        adapted: nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
        return adapted
    for parent, name, layer in projections(model):
        size = (layer.out_features, layer.in_features)
        setattr(parent, name, PlainLora(layer, size, options))
    return model


def quantize(config: Any) -> Callable[[nn.Module], object]:
    """What quantizes the base."""

    def prepare(model: nn.Module) -> None:
        baraquant.quantize_(model, config, progress=False)
        left = [name for _, name, layer in projections(model) if isinstance(layer, nn.Linear)]
        if left:
            raise RuntimeError(f"expected all linear layers to become integers, but not {left}")

    return prepare


def variants(baseline: str) -> list[Variant]:
    """All bases that are compared; ``baseline`` is the name of the floating one."""
    # A search for better scales would take time, and change none that is measured.
    w4a16 = baraquant.W4A16(group_size=128, scale_rule="max")
    return [
        Variant(baseline),
        Variant(OWN_INT8, quantize(baraquant.W8A8())),
        Variant("baraquant W8A16", quantize(baraquant.W8A16())),
        Variant("baraquant W4A16 groups of 128", quantize(w4a16)),
        Variant("bitsandbytes NF4 (QLoRA)", swapped(bitsandbytes_nf4), ("eager",), "bitsandbytes"),
    ]


@dataclass
class LoraStep(Step):
    """A step that trains adapters alone; ``weights`` are the bytes of the frozen layers."""

    weights: int = 0

    @classmethod
    def of(cls, variant: Variant, device: torch.device, dtype: torch.dtype, shape: list[int],
           compiled: bool = False, with_peft: bool | None = None) -> "LoraStep":  # fmt: skip
        """The step of a variant for an input ``[batch, tokens, width]``; the same for all."""
        torch.manual_seed(0)
        model: nn.Module = Decoder(shape[-1], device, dtype)
        x, grad = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
        variant.prepare(model)
        weights = weight_bytes(model)
        with_peft = has_peft() if with_peft is None else with_peft
        model = add_adapters(model, {"device": device, "dtype": dtype}, with_peft).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        options = {"capturable": True} if device.type == "cuda" else {}
        optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True, **options)
        forward = torch.compile(model, dynamic=False) if compiled else model
        return cls(model, forward, x.requires_grad_(), grad, optimizer, weights)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all tensors of the linear layers, with scales and what else a layer keeps."""
    kept: dict[int, int] = {}
    for _, _, layer in projections(model):
        tensors = [*layer.parameters(), *layer.buffers()]
        state = getattr(getattr(layer, "weight", None), "quant_state", None)  # bitsandbytes'
        if state is not None:
            tensors += [value for value in vars(state).values() if isinstance(value, Tensor)]
            nested = getattr(state, "state2", None)
            if nested is not None:
                tensors += [value for value in vars(nested).values() if isinstance(value, Tensor)]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
    return sum(kept.values())
