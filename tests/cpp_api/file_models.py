# SPDX-License-Identifier: BSD-3-Clause
"""Models by their descriptions, as files.cpp builds them, and quantized ones."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from baraquant import nn as bnn
from baraquant import ops
from tests.support.models.every_layer import Every, integers, scales

RunJobs = Callable[..., list[list[str]]]  # the fixture of conftest.py
LINE = "fc:Linear,8,8,1"
TIED = (
    "embedding:Embedding,20,16,0 first.query:Linear,16,16,1 first.down:Linear,16,16,1 "
    "second:same,first norm:LayerNorm,16 head:tie,embedding"
)
FUSED = (
    "norm:FusedRMSNorm,8,1 mlp:GatedMLP,8,16 part.plain:FusedRMSNorm,8,0 last:FusedLayerNorm,8 "
    "act:FusedGELU head:Linear,8,8,1"
)


def gated(features: int, hidden: int) -> nn.Module:
    layers = [nn.Linear(features, hidden), nn.Linear(features, hidden)]
    return bnn.GatedMLP(*layers, nn.Linear(hidden, features))


FUSED_MODULES: dict[str, Callable[..., nn.Module]] = {
    "FusedLayerNorm": bnn.LayerNorm,
    "FusedRMSNorm": lambda size, offset: bnn.RMSNorm(size, 1e-6, offset=offset),
    "FusedGELU": bnn.GELU,
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
            return bnn.FakeQuantizedLinear(*numbers)
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
    weight = integers(4, 3, 3, 3), scales(4), torch.rand(4)
    model.conv1 = bnn.QuantizedConv2d(*weight, stride=2, padding=1)
    return model.eval()


def shared_widths(bits: int) -> tuple[str, Network]:
    """One module at two places, and its weight in others, of its width and of a wider one."""
    text = "first:Linear,3,3,0 again:same,first other:Linear,3,3,0 wider:Linear,3,3,0"
    model, weight = Network(text), integers(3, 3, bits=bits)
    model.first = model.again = bnn.QuantizedLinear(weight, scales(3), weight_bits=bits)
    model.other = bnn.QuantizedLinear(weight, scales(3), weight_bits=bits)
    model.wider = bnn.QuantizedLinear(weight, scales(3), weight_bits=bits + 1)
    return text, model


def saved(path: Path, text: str = LINE, config: Any = None, **options: Any) -> Network:
    """A model that is quantized, with W8A8 if nothing else is said, and saved."""
    model = Network(text)
    baraquant.quantize_(model, config or baraquant.W8A8(), **options)
    baraquant.save(model, path)
    return model


def floats(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(shape) + 0.5).to(torch.promote_types(dtype, torch.float32))


def packed(rows: int, columns: int, dtype: torch.dtype) -> dict[str, Any]:
    """A weight of four bits in groups of four, by the names of its tensors."""
    compute = torch.promote_types(dtype, torch.float32)
    weight = torch.randn(rows, columns, dtype=compute)
    scale, factor, zeros = ops.choose_int4_qparams(weight, 4, symmetric=False)
    bytes_ = ops.quantize_int4(weight, scale, factor, 4, group_zero_point=zeros)
    tensors = {"packed": bytes_, "weight_scale": scale, "group_factor": factor}
    return tensors | {"group_zero_point": zeros, "group_size": 4, "in_features": columns}


def four_bits(dtype: torch.dtype) -> dict[str, nn.Module]:
    """Layers whose groups have factors."""
    more = {"bias": torch.rand(8).to(dtype), "dtype": dtype}
    first, second, third, plain = (packed(8, 8, dtype) | more for _ in range(4))
    del plain["group_zero_point"]
    plain["packed"] = torch.full_like(plain["packed"], 0x7A)  # near 8, so that none is too large
    one, three = floats(dtype=dtype), torch.tensor(3)
    return {
        "int4": bnn.QuantizedInt4Linear(**first, symmetric=False),
        "int4_plain": bnn.QuantizedInt4Linear(**plain, bits=6, rotate=8),
        "int4_tensor": bnn.QuantizedInt4Linear(**second, granularity="per_tensor"),
        "int4_static": bnn.StaticQuantizedInt4Linear(**third, act_scale=one, act_zero_point=three),
        "int4_static_plain": bnn.StaticQuantizedInt4Linear(**plain, act_scale=one, rotate=4),
    }


# The description of the floating layer, the class in its place, its arguments and options.
Row = tuple[str, type[nn.Module], tuple[Any, ...], dict[str, Any]]
LINEAR, NO_BIAS, ODD = "Linear,8,8,1", "Linear,8,8,0", "Linear,7,8,1"


def tokens() -> nn.Module:
    return bnn.FakeQuantize(mode="dynamic", granularity="per_token", symmetric=False)


def zero_points(bits: int) -> Tensor:
    high = 1 << (bits - 1)
    return torch.randint(-high, high, (8, 2), dtype=torch.int32)


def narrow(bits: int, dtype: torch.dtype) -> dict[str, Row]:
    """Layers of floating arithmetic that pack their integers, also of an odd number of inputs."""
    bias = torch.rand(8).to(dtype)
    eight, seven = (ops.pack_int4(integers(8, columns, bits=bits)) for columns in (8, 7))
    one, two = floats(8, dtype=dtype), floats(8, 2, dtype=dtype)
    groups = {"weight_zero_point": zero_points(bits), "group_size": 4, "rotate": 2}
    groups |= {"input_fake_quant": tokens(), "in_features": 8}
    made = bnn.WeightOnlyInt4Linear
    return {
        "packed": (NO_BIAS, made, (eight, one), {"in_features": 8}),
        "packed_groups": (LINEAR, made, (eight, two, bias), groups),
        "packed_odd": (ODD, made, (seven, two.clone(), bias), {"in_features": 7, "group_size": 5}),
    }


def of_one_width(bits: int, dtype: torch.dtype) -> dict[str, Row]:
    """Every class that has this width."""
    high = 1 << (bits - 1)
    ends = {"quant_min": -high, "quant_max": high - 1}
    weight, other = (integers(8, 8, bits=bits) for _ in range(2))
    kernel, table = integers(6, 2, 3, 1, bits=bits), integers(9, 8, bits=bits)
    scale, bias, of_conv = floats(8, dtype=dtype), torch.rand(8).to(dtype), torch.rand(6).to(dtype)
    one, vector = (floats(*shape, dtype=dtype) for shape in ((), (1,)))
    pairs = floats(6, 2, dtype=dtype)
    fixed = bnn.FakeQuantize(floats(dtype=dtype) * 0.1, 1, **ends)
    of_groups = bnn.FakeQuantize(floats(3, 2, dtype=dtype), 0, "per_group", group_size=4, **ends)
    smooth = {"symmetric": False, "bits": bits, "smooth": floats(8, dtype=dtype)}
    shifted = {"act_zero_point": torch.tensor(-1), "bits": bits}
    per_tensor = {"granularity": "per_tensor", "bits": bits, "rotate": 4}
    zeros = {"weight_zero_point": zero_points(bits), "group_size": 4, "input_fake_quant": tokens()}
    conv = {"group_size": 1, "groups": 3, "padding": 2, "input_fake_quant": copy.deepcopy(fixed)}
    zeros_of_rotated = zeros | {"rotate": 2, "input_fake_quant": tokens()}
    plain, two = (weight, scale, bias), floats(8, 2, dtype=dtype)
    static, floating = bnn.StaticQuantizedLinear, bnn.WeightOnlyLinear
    found: dict[str, Row] = {
        "linear": (LINEAR, bnn.QuantizedLinear, plain, smooth),
        "static": (LINEAR, static, (weight, scale, vector, bias), shifted),
        "grouped": (LINEAR, floating, (weight, two, bias), zeros),
        "fixed": (LINEAR, floating, plain, {"input_fake_quant": fixed}),
        "rotated": (LINEAR, bnn.QuantizedLinear, plain, {"rotate": 8}),
        "static_rotated": (LINEAR, static, (weight, scale, one, bias), {"rotate": 4}),
        "rotated_tensor": (NO_BIAS, bnn.QuantizedLinear, (weight, scale), per_tensor),
        "rotated_groups": (LINEAR, floating, (weight, two.clone(), bias), zeros_of_rotated),
        "rows": (LINEAR, floating, plain, {"input_fake_quant": of_groups}),
        "plain": (NO_BIAS, floating, (other, scale), {}),
        "conv": ("Conv2d,6,6,3,1,1,2,3,zeros", bnn.QuantizedConv2d, (kernel, pairs, of_conv), conv),
        "table": ("Embedding,9,8,-1", bnn.QuantizedEmbedding, (table, floats(9, dtype=dtype)), {}),
    }
    return found | (narrow(bits, dtype) if bits <= 4 else {})


def all_widths(dtype: torch.dtype) -> tuple[str, Network]:
    """Every class with every width; the description of the float model, and the quantized one."""
    made: dict[str, tuple[str, nn.Module]] = {}
    for bits in range(2, 9):
        for name, (text, kind, arguments, options) in of_one_width(bits, dtype).items():
            layer = kind(*arguments, **options, weight_bits=bits, dtype=dtype)
            made[f"{name}{bits}"] = text, layer
    made |= {name: (LINEAR, layer) for name, layer in four_bits(dtype).items()}
    description = " ".join(f"{name}:{text}" for name, (text, _) in made.items())
    model = Network(description, dtype)
    for name, (_, module) in made.items():
        model.add_module(name, module)
    return description, model.eval()
