# SPDX-License-Identifier: BSD-3-Clause
"""Models of a single layer, prepared, converted or quantized under every scheme."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8, SmoothQuant, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support.schemes import described

# What `prepare_` takes, by what makes each different.
TRAINED: dict[str, Any] = {
    "w8a8": W8A8(), "w8a8_asymmetric": W8A8(symmetric=False),
    "static": W8A8Static("moving_average"), "w4_channel": described("int4"),
    "w4a8": described("int4, int8 per_token"),
    "w8_tensor": described("int8 per_tensor, int8 per_token"),
    "w4_group": described("int4 per_group(4)"),
    "w3_group_asymmetric": described("int3 per_group(8) asymmetric, int8 per_token"),
    "w8_asymmetric": described("int8 asymmetric"),
    "learned": described("int4 learned, int8 per_tensor learned"),
    "learned_asymmetric": described("int4 asymmetric learned"),
    "observed": described("int8 static, int8 per_token"),
}  # fmt: skip
# What `quantize_` takes.
AFTERWARDS: dict[str, Any] = {
    "w8a8": W8A8(), "w8a8_asymmetric": W8A8(symmetric=False), "static": W8A8Static(),
    "smoothquant": SmoothQuant(0.5),
    "smoothquant_static": SmoothQuant(0.5, W8A8Static(symmetric=False)),
}  # fmt: skip
# What a convolution's and an embedding's weight can have; groups only an embedding's.
CONVOLUTIONS = [name for name in TRAINED if "group" not in name]

LAYERS: dict[str, Callable[..., nn.Module]] = {
    "linear": lambda **more: nn.Linear(16, 8, **more),
    "linear_no_bias": lambda **more: nn.Linear(16, 8, bias=False, **more),
    "conv1d": lambda **more: nn.Conv1d(4, 8, 3, **more),
    "conv2d": lambda **more: nn.Conv2d(4, 8, (1, 3), groups=2, **more),
    "embedding": lambda **more: nn.Embedding(12, 16, padding_idx=0, **more),
}
# Each layer with each scheme that it can have.
PAIRS = [
    (layer, scheme)
    for layer in LAYERS
    for scheme in (CONVOLUTIONS if layer.startswith("conv") else TRAINED)
]


class Holder(nn.Module):
    """A model of one layer: what is prepared and converted is a child."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.child(x)
        return y


def inputs(layer: str, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if layer == "embedding":
        return torch.randint(0, 12, (4, 5), generator=generator)
    shape = {"conv1d": (2, 4, 9), "conv2d": (2, 4, 2, 9)}.get(layer, (5, 16))
    return torch.randn(shape, generator=generator).to(dtype)


def holder(layer: str, seed: int = 0, **more: Any) -> Holder:
    torch.manual_seed(seed)
    return Holder(LAYERS[layer](**more))


def prepared(model: nn.Module, scheme: str, *batches: Any) -> nn.Module:
    """The model prepared, its ranges and learned scales set by the batches; in evaluation."""
    prepare_(model, TRAINED[scheme])
    model.train()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    return model.eval()


def trained(layer: str, scheme: str, **more: Any) -> nn.Module:
    return prepared(holder(layer, **more), scheme, inputs(layer, more.get("dtype", torch.float32)))


def served(layer: str, scheme: str, **more: Any) -> nn.Module:
    model = trained(layer, scheme, **more)
    convert_(model)
    return model


def converted(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    convert_(model)
    return model


def quantized(model: nn.Module, scheme: str, *batches: Any, **more: Any) -> nn.Module:
    config = AFTERWARDS[scheme]
    if config in (W8A8(), W8A8(False)):
        baraquant.quantize_(model, config, **more)
    else:
        baraquant.quantize_(model, config, calibration=list(batches), progress=False, **more)
    return model


def shift(weight: Tensor, bits: int = 8) -> float:
    """More than a half step of a symmetric grid of this width over the whole tensor."""
    return float(weight.abs().amax()) / ((1 << (bits - 1)) - 1) * 0.51
