# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers that multiply integers: one to train with, and its twin to deploy.

``QatLinear`` trains float weights, but its forward is the int8 product itself: weight and input are
quantized and multiplied as integers, and the gradient goes straight through. ``Int8Linear`` holds
the integers alone, a quarter of the bytes, and computes the same bits, whatever the batch.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from baraquant import ops


class QatLinear(nn.Linear):
    """A linear layer whose forward is that of the deployed one.

    Args:
        linear: The trained float layer; its parameters are copied.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight = nn.Parameter(linear.weight.detach().clone())  # [out, in]
        self.bias = nn.Parameter(linear.bias.detach().clone())  # [out]

    def forward(self, x: Tensor) -> Tensor:
        """Computes the layer: ``[..., in]`` to ``[..., out]``."""
        return ops.qat_linear(x, self.weight, self.bias)


class Int8Linear(nn.Module):
    """A linear layer of stored integers, whose input is quantized on the fly.

    Args:
        weight: int8 ``[out, in]``.
        weight_scale: ``[out]``.
        bias: ``[out]``.
    """

    def __init__(self, weight: Tensor, weight_scale: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the layer: ``[..., in]`` to ``[..., out]``."""
        return ops.quantized_linear(x, self.weight, self.weight_scale, self.bias)


def trainable(network: nn.Sequential) -> nn.Sequential:
    """Puts a ``QatLinear`` in the place of every linear layer of a float network."""
    return nn.Sequential(
        *(QatLinear(layer) if isinstance(layer, nn.Linear) else layer for layer in network)
    )


@torch.no_grad()
def save(network: nn.Sequential, path: Path) -> None:
    """Stores the linear layers of a network as int8 weights, scales and biases (safetensors).

    The integers are those that ``qat_linear`` computes with. Of a float network this is
    quantization after training.
    """
    tensors = {}
    for index, layer in enumerate(layer for layer in network if isinstance(layer, nn.Linear)):
        weight, scale, _ = ops.dynamic_range_quantize_per_channel(layer.weight, 0)
        tensors |= {f"{index}.weight": weight, f"{index}.weight_scale": scale}
        tensors[f"{index}.bias"] = layer.bias
    save_file(tensors, path)


def load(path: Path, device: torch.device | str = "cpu") -> nn.Sequential:
    """Builds a network of ``Int8Linear`` layers, with ReLU between them, from a file alone."""
    tensors = load_file(path, device=str(device))
    layers: list[nn.Module] = []
    for index in range(len(tensors) // 3):
        own = (tensors[f"{index}.{name}"] for name in ("weight", "weight_scale", "bias"))
        layers += [Int8Linear(*own), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
