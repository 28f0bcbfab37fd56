# SPDX-License-Identifier: BSD-3-Clause
"""Models by their descriptions, as files.cpp builds them, and quantized ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from baraquant import ops
from baraquant.nn import (
    GELU,
    FakeQuantize,
    FakeQuantizedLinear,
    GatedMLP,
    LayerNorm,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedInt4Linear,
    QuantizedLinear,
    RMSNorm,
    StaticQuantizedInt4Linear,
    StaticQuantizedLinear,
    WeightOnlyInt4Linear,
    WeightOnlyLinear,
)
from tests.support.models.every_layer import Every, integers, scales

LINE = "fc:Linear,8,8,1"
TIED = (
    "embedding:Embedding,20,16,0 first.query:Linear,16,16,1 first.down:Linear,16,16,1 "
    "second:same,first norm:LayerNorm,16 head:tie,embedding"
)
FUSED = (
    "norm:FusedRMSNorm,8,1 mlp:GatedMLP,8,16 part.plain:FusedRMSNorm,8,0 last:FusedLayerNorm,8 "
    "act:FusedGELU head:Linear,8,8,1"
)


def gated(features: int, hidden: int) -> GatedMLP:
    layers = [nn.Linear(features, hidden), nn.Linear(features, hidden)]
    return GatedMLP(*layers, nn.Linear(hidden, features))


FUSED_MODULES: dict[str, Callable[..., nn.Module]] = {
    "FusedLayerNorm": LayerNorm,
    "FusedRMSNorm": lambda size, offset: RMSNorm(size, 1e-6, offset=offset),
    "FusedGELU": GELU,
    "GatedMLP": gated,
}


class Network(nn.Module):
    """A model by its description, as files.cpp builds it."""

    def __init__(self, description: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for entry in description.split():
            path, arguments = entry.split(":")
            parent: nn.Module = self
            *parents, name = path.split(".")
            for part in parents:
                if not hasattr(parent, part):
                    parent.add_module(part, nn.Module())
                parent = getattr(parent, part)
            kind, *rest = arguments.split(",")
            if kind == "Buffer":
                number = torch.complex64 if rest[0] == "complex" else torch.int64
                parent.register_buffer(name, torch.full((int(rest[1]),), 7, dtype=number))
            else:
                parent.add_module(name, self._module(kind, rest, dtype))
        self.eval()

    def _module(self, kind: str, rest: list[str], dtype: torch.dtype) -> nn.Module:
        if kind == "same":
            return self.get_submodule(rest[0])
        if kind == "tie":
            weight = self.get_submodule(rest[0]).weight
            linear = nn.Linear(*reversed(weight.shape), bias=False)
            linear.weight = weight
            return linear
        if kind == "Conv2d":
            sizes = [int(number) for number in rest[:5]]
            return nn.Conv2d(
                *sizes[:2], sizes[2:4], sizes[4],
                rest[5] if rest[5] == "same" else int(rest[5]),
                groups=int(rest[6]), padding_mode=rest[7], dtype=dtype,
            )  # fmt: skip
        numbers = [int(number) for number in rest]
        if kind == "Linear":
            return nn.Linear(*numbers[:2], bias=numbers[2] == 1, dtype=dtype)
        if kind == "Embedding":
            padding = None if numbers[2] < 0 else numbers[2]
            return nn.Embedding(*numbers[:2], padding_idx=padding, dtype=dtype)
        if kind == "Prepared":
            return FakeQuantizedLinear(*numbers)
        if kind in FUSED_MODULES:
            return FUSED_MODULES[kind](*numbers).to(dtype)
        return getattr(nn, kind)(*numbers, dtype=dtype)


EVERY = (
    "embedding:Embedding,7,8,1 table:Embedding,5,8,-1 dynamic:Linear,8,8,1 narrow:Linear,8,8,0 "
    "static:Linear,8,8,1 grouped:Linear,8,8,1 rounded:Linear,8,8,1 "
    "conv1:Conv2d,3,4,3,3,2,1,1,zeros conv2:Conv2d,4,4,1,3,1,same,2,circular norm:BatchNorm1d,8"
)


def every() -> Network:
    """A quantized module of every class that C++ has; Python's tests have one more."""
    model = Network(EVERY)
    for name, module in Every().quantize().named_children():
        model.add_module(name, module)
    model.conv1 = QuantizedConv2d(
        integers(4, 3, 3, 3), scales(4), torch.rand(4), stride=2, padding=1
    )
    return model.eval()


def floats(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(shape) + 0.5).to(torch.promote_types(dtype, torch.float32))


def packed(rows: int, columns: int, dtype: torch.dtype) -> dict[str, Any]:
    """A weight of four bits in groups of four, by the names of its tensors."""
    compute = torch.promote_types(dtype, torch.float32)
    weight = torch.randn(rows, columns, dtype=compute)
    scale, factor, zeros = ops.choose_int4_qparams(weight, 4, symmetric=False)
    bytes_ = ops.quantize_int4(weight, scale, factor, 4, group_zero_point=zeros)
    return {
        "packed": bytes_,
        "weight_scale": scale,
        "group_factor": factor,
        "group_zero_point": zeros,
        "group_size": 4,
        "in_features": columns,
    }


def four_bits(dtype: torch.dtype) -> dict[str, nn.Module]:
    """Layers whose groups have factors."""
    bias, plain = torch.rand(8).to(dtype), packed(8, 8, dtype)
    del plain["group_zero_point"]
    plain["packed"] = torch.full_like(plain["packed"], 0x7A)  # near 8, so that none is too large
    one = floats(dtype=dtype)
    return {
        "int4": QuantizedInt4Linear(**packed(8, 8, dtype), bias=bias, symmetric=False, dtype=dtype),
        "int4_plain": QuantizedInt4Linear(**plain, bias=bias, bits=6, rotate=8, dtype=dtype),
        "int4_tensor": QuantizedInt4Linear(
            **packed(8, 8, dtype), bias=bias, granularity="per_tensor", dtype=dtype
        ),
        "int4_static": StaticQuantizedInt4Linear(
            **packed(8, 8, dtype),
            act_scale=one,
            bias=bias,
            act_zero_point=torch.tensor(3),
            dtype=dtype,
        ),
        "int4_static_plain": StaticQuantizedInt4Linear(
            **plain, act_scale=one, bias=bias, rotate=4, dtype=dtype
        ),
    }


def narrow(bits: int, dtype: torch.dtype) -> dict[str, tuple[str, nn.Module]]:
    """Layers of floating arithmetic that pack their integers, also of an odd number of inputs."""
    how: dict[str, Any] = {"weight_bits": bits, "dtype": dtype}
    high = 1 << (bits - 1)
    zeros = torch.randint(-high, high, (8, 2), dtype=torch.int32)
    tokens = FakeQuantize(mode="dynamic", granularity="per_token", symmetric=False)
    bias, eight = torch.rand(8).to(dtype), ops.pack_int4(integers(8, 8, bits=bits))
    return {
        f"packed{bits}": (
            "Linear,8,8,0",
            WeightOnlyInt4Linear(eight, floats(8, dtype=dtype), in_features=8, **how),
        ),
        f"packed_groups{bits}": (
            "Linear,8,8,1",
            WeightOnlyInt4Linear(
                eight,
                floats(8, 2, dtype=dtype),
                bias,
                in_features=8,
                weight_zero_point=zeros,
                group_size=4,
                input_fake_quant=tokens,
                rotate=2,
                **how,
            ),
        ),
        f"packed_odd{bits}": (
            "Linear,7,8,1",
            WeightOnlyInt4Linear(
                ops.pack_int4(integers(8, 7, bits=bits)),
                floats(8, 2, dtype=dtype),
                bias,
                in_features=7,
                group_size=5,
                **how,
            ),
        ),
    }


def all_widths(dtype: torch.dtype) -> tuple[str, Network]:
    """Every class with every width; the description of the float model, and the quantized one."""
    made: dict[str, tuple[str, nn.Module]] = {}
    for bits in range(2, 9):
        high = 1 << (bits - 1)
        how: dict[str, Any] = {"weight_bits": bits, "dtype": dtype}
        weight, scale, bias = (
            integers(8, 8, bits=bits),
            floats(8, dtype=dtype),
            torch.rand(8).to(dtype),
        )
        zeros = torch.randint(-high, high, (8, 2), dtype=torch.int32)
        fixed = FakeQuantize(floats(dtype=dtype) * 0.1, 1, quant_min=-high, quant_max=high - 1)
        tokens = FakeQuantize(mode="dynamic", granularity="per_token", symmetric=False)
        groups = FakeQuantize(
            floats(3, 2, dtype=dtype),
            0,
            "per_group",
            group_size=4,
            quant_min=-high,
            quant_max=high - 1,
        )
        line, table = "Linear,8,8,1", "Embedding,9,8,-1"
        if bits <= 4:
            made |= narrow(bits, dtype)
        linear = QuantizedLinear(
            weight, scale, bias, symmetric=False, bits=bits, smooth=floats(8, dtype=dtype), **how
        )
        static = StaticQuantizedLinear(
            weight, scale, floats(1, dtype=dtype), bias,
            act_zero_point=torch.tensor(-1), bits=bits, **how,
        )  # fmt: skip
        grouped = WeightOnlyLinear(
            weight, floats(8, 2, dtype=dtype), bias, weight_zero_point=zeros, group_size=4,
            input_fake_quant=tokens, **how,
        )  # fmt: skip
        conv = QuantizedConv2d(
            integers(6, 2, 3, 1, bits=bits), floats(6, 2, dtype=dtype), torch.rand(6).to(dtype),
            group_size=1, groups=3, padding=2, input_fake_quant=copy.deepcopy(fixed), **how,
        )  # fmt: skip
        made |= {
            f"linear{bits}": (line, linear),
            f"static{bits}": (line, static),
            f"grouped{bits}": (line, grouped),
            f"fixed{bits}": (
                line,
                WeightOnlyLinear(weight, scale, bias, input_fake_quant=fixed, **how),
            ),
            f"rotated{bits}": (line, QuantizedLinear(weight, scale, bias, rotate=8, **how)),
            f"static_rotated{bits}": (
                line,
                StaticQuantizedLinear(weight, scale, floats(dtype=dtype), bias, rotate=4, **how),
            ),
            f"rotated_tensor{bits}": (
                "Linear,8,8,0",
                QuantizedLinear(
                    weight, scale, granularity="per_tensor", bits=bits, rotate=4, **how
                ),
            ),
            f"rotated_groups{bits}": (
                line,
                WeightOnlyLinear(
                    weight,
                    floats(8, 2, dtype=dtype),
                    bias,
                    weight_zero_point=zeros,
                    group_size=4,
                    input_fake_quant=tokens,
                    rotate=2,
                    **how,
                ),
            ),
            f"rows{bits}": (
                line,
                WeightOnlyLinear(weight, scale, bias, input_fake_quant=groups, **how),
            ),
            f"plain{bits}": (
                "Linear,8,8,0",
                WeightOnlyLinear(integers(8, 8, bits=bits), scale, **how),
            ),
            f"conv{bits}": ("Conv2d,6,6,3,1,1,2,3,zeros", conv),
            f"table{bits}": (
                table,
                QuantizedEmbedding(integers(9, 8, bits=bits), floats(9, dtype=dtype), **how),
            ),
        }
    made |= {name: ("Linear,8,8,1", layer) for name, layer in four_bits(dtype).items()}
    description = " ".join(f"{name}:{text}" for name, (text, _) in made.items())
    model = Network(description, dtype)
    for name, (_, module) in made.items():
        model.add_module(name, module)
    return description, model.eval()
