# SPDX-License-Identifier: BSD-3-Clause
"""The schemes of a served model: ours, and those of other packages, where they are installed.

Each quantizes the linear layers of a model in place, all but its head. What is compared has the
same ``kind``, such as ``W4A16``: bits of weights and of inputs. Groups have 128 weights.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import baraquant

GROUP_SIZE = 128
HEAD = "lm_head"  # the layer that stays floating
# The packages, by the names under which they are imported, and those of their distributions.
PACKAGES = {
    "humming": "humming-kernels",
    "torchao": "torchao",
    "gemlite": "gemlite",
    "bitsandbytes": "bitsandbytes",
}


def missing(package: str | None) -> str:
    """That a package is not installed; or nothing."""
    is_here = package is None or importlib.util.find_spec(package) is not None
    return "" if is_here else f"{package} is not installed"


def versions() -> dict[str, str]:
    """The version of each package that is compared with, or that it is not installed."""
    found = {}
    for package, distribution in PACKAGES.items():
        is_here = not missing(package)
        found[package] = importlib.metadata.version(distribution) if is_here else "not installed"
    return found


def swap_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    """Puts what ``make`` makes of it in the place of each linear layer but the head."""
    for name, child in list(model.named_children()):
        if not isinstance(child, nn.Linear):
            swap_linears(child, make)
        elif name != HEAD:
            setattr(model, name, make(child))


def own(config: Any, calibration: Any = None) -> Callable[[nn.Module], object]:
    """What quantizes with one of our configurations, and the data that it needs."""

    def quantize(model: nn.Module) -> object:
        rules = {HEAD: None} if hasattr(model, HEAD) else {}
        rules |= {nn.Linear: config}
        return baraquant.quantize_(model, rules, calibration=calibration, progress=False)

    return quantize


def swapped(make: Callable[[nn.Linear], nn.Module]) -> Callable[[nn.Module], object]:
    """What quantizes by putting other layers in the place of the linear ones."""
    return lambda model: swap_linears(model, make)


class OfRows(nn.Module):
    """A layer that takes rows alone, for inputs of any dimensions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the layer makes of the rows, in the shape of the input."""
        rows: torch.Tensor = self.layer(x.flatten(0, -2))
        return rows.unflatten(0, x.shape[:-1])


def humming(weight: str, activation: str | None) -> Callable[[nn.Linear], nn.Module]:
    """Makes a layer of humming of a linear one."""

    def make(linear: nn.Linear) -> nn.Module:
        from humming.layer import HummingLayer

        group = {"group_size": GROUP_SIZE} if weight == "int4" else {}
        layer = HummingLayer(
            shape_n=linear.out_features,
            shape_k=linear.in_features,
            weight_config={"dtype": weight, **group},
            input_config=None if activation is None else {"dtype": activation},
            torch_dtype=linear.weight.dtype,
        ).to(linear.weight.device)
        layer.load_from_unquantized(linear.weight.detach())
        layer.transform()
        return OfRows(layer)

    return make


def torchao(name: str, **options: Any) -> Callable[[nn.Module], object]:
    """What quantizes with one of torchao's configurations."""

    def quantize(model: nn.Module) -> None:
        from torchao import quantization

        config = getattr(quantization, name)(**options)

        def is_chosen(module: nn.Module, path: str) -> bool:
            return isinstance(module, nn.Linear) and path != HEAD

        quantization.quantize_(model, config, filter_fn=is_chosen)

    return quantize


def gemlite(name: str) -> Callable[[nn.Linear], nn.Module]:
    """Makes a layer of gemlite of a linear one, with one of its processors."""

    def make(linear: nn.Linear) -> nn.Module:
        from gemlite import helper

        weight = linear.weight.detach()
        processor = getattr(helper, name)(device=weight.device, dtype=weight.dtype)
        if "W4" not in name:
            return processor.from_linear(linear)
        groups = weight.reshape(-1, GROUP_SIZE).float()
        scale = groups.abs().amax(1, keepdim=True) / 7.5
        integers = (groups / scale + 8).round().clamp(0, 15).to(torch.uint8)
        zero = torch.full_like(scale, 8)
        scale, zero = scale.to(weight.dtype), zero.to(weight.dtype)
        return processor.from_weights(integers.reshape(weight.shape), scale, zero)

    return make


def bitsandbytes_int8(linear: nn.Linear) -> nn.Module:
    """A layer of bitsandbytes with int8 weights and inputs, no input apart as an outlier."""
    import bitsandbytes as bnb

    sizes = linear.in_features, linear.out_features
    new = bnb.nn.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False, threshold=0.0)
    weight = linear.weight.data.cpu()
    new.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    return new.to(linear.weight.device)


def bitsandbytes_nf4(linear: nn.Linear) -> nn.Module:
    """A layer of bitsandbytes with NF4 weights and floating inputs."""
    import bitsandbytes as bnb

    weight = linear.weight
    new = bnb.nn.Linear4bit(
        *(linear.in_features, linear.out_features),
        bias=False,
        compute_dtype=weight.dtype,
        quant_type="nf4",
    )
    new.weight = bnb.nn.Params4bit(weight.data.cpu(), requires_grad=False, quant_type="nf4")
    return new.to(weight.device)


@dataclass(frozen=True)
class Scheme:
    """A way to serve linear layers.

    Attributes:
        name: Its name in tables; that of a peer begins with its package.
        kind: What it is compared with; None for layers that are not quantized.
        quantize: Quantizes a model in place; it has to contain the layers.
        package: The package that does so, if it is not ours.
        compiled: Whether its users compile it, because eagerly it runs op by op.
    """

    name: str
    kind: str | None
    quantize: Callable[[nn.Module], object]
    package: str | None = None
    compiled: bool = False

    def layers(self, linears: list[nn.Linear]) -> list[nn.Module]:
        """The quantized layers that take the place of linear ones."""
        model = nn.Sequential(*linears).eval()
        self.quantize(model)
        return list(model.requires_grad_(False))


def schemes(baseline: str) -> list[Scheme]:
    """All that are compared; ``baseline`` is the name of the layers that are not quantized."""

    def peer(package: str, kind: str, quantize: Callable[[nn.Module], object]) -> Scheme:
        return Scheme(f"{package} {kind}", kind, quantize, package, package == "torchao")

    int4 = {"group_size": GROUP_SIZE, "int4_packing_format": "tile_packed_to_4d"}
    return [
        Scheme(baseline, None, lambda model: None),
        Scheme("W8A8", "W8A8", own(baraquant.W8A8())),
        Scheme("W4A8", "W4A8", own(baraquant.W4A8(GROUP_SIZE))),
        Scheme("W4A16", "W4A16", own(baraquant.W4A16(GROUP_SIZE))),
        Scheme("W8A16", "W8A16", own(baraquant.W8A16())),
        peer("humming", "W8A8", swapped(humming("int8", "int8"))),
        peer("humming", "W4A8", swapped(humming("int4", "int8"))),
        peer("humming", "W4A16", swapped(humming("int4", None))),
        peer("humming", "W8A16", swapped(humming("int8", None))),
        peer("torchao", "W8A8", torchao("Int8DynamicActivationInt8WeightConfig")),
        peer("torchao", "W4A16", torchao("Int4WeightOnlyConfig", **int4)),
        peer("torchao", "W8A16", torchao("Int8WeightOnlyConfig")),
        peer("gemlite", "W8A8", swapped(gemlite("A8W8_int8_dynamic"))),
        peer("gemlite", "W4A16", swapped(gemlite("A16W4_HQQ_INT"))),
        peer("gemlite", "W8A16", swapped(gemlite("A16W8_INT8"))),
        peer("bitsandbytes", "W8A8", swapped(bitsandbytes_int8)),
        peer("bitsandbytes", "W4A16", swapped(bitsandbytes_nf4)),
    ]
