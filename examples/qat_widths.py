# SPDX-License-Identifier: BSD-3-Clause
"""How the networks of the demo are quantized: their widths, and scales fitted to data."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baraquant import QuantConfig, TensorConfig, ops
from baraquant.nn import FakeQuantizedLinear, LearnedFakeQuantize

# Where the scale of a layer's input comes from: a parameter, or each sample's own values.
INPUT_SCHEMES = ("learned", "symmetric", "asymmetric")


@dataclass(frozen=True)
class Widths:
    """How every layer of a network is quantized.

    Attributes:
        weight_bits: Width of the weights, 2 to 8; their scales are learned.
        input_bits: Width of the layer's input, 2 to 8.
        group_size: Neighbouring weights of a row that share a scale, a divisor of the row's
            length; None gives each row (output channel) one scale.
        inputs: The scale of the input. ``learned``: one for all samples, trained, with a zero
            point. ``symmetric`` and ``asymmetric`` (with a zero point): chosen on the fly from the
            range of each sample.
    """

    weight_bits: int
    input_bits: int
    group_size: int | None = None
    inputs: str = "learned"

    def config(self) -> QuantConfig:
        """What ``baraquant.qat.prepare_`` takes."""
        granularity = "per_channel" if self.group_size is None else "per_group"
        weight = TensorConfig(
            self.weight_bits, granularity, learned=True, group_size=self.group_size
        )
        if self.inputs == "learned":
            inputs = TensorConfig(self.input_bits, "per_tensor", symmetric=False, learned=True)
        else:
            symmetric = self.inputs == "symmetric"
            inputs = TensorConfig(self.input_bits, "per_token", symmetric=symmetric)
        return QuantConfig(weight, inputs)

    def __str__(self) -> str:
        """A short name, such as ``w3a4-group32-learned``."""
        granularity = f"group{self.group_size}" if self.group_size else "channel"
        return f"w{self.weight_bits}a{self.input_bits}-{granularity}-{self.inputs}"


@torch.no_grad()
def fit_scales(network: nn.Sequential, samples: Tensor, candidates: int = 40) -> None:
    """Sets the learned scales of a prepared network to those of least squared error.

    Args:
        network: Its layers, one after the other; in evaluation mode afterwards.
        samples: Training data, ``[samples, features]``.
        candidates: How many scales to try; the first one is that of the range, which clips
            nothing. With 1 it is that.
    """
    network.eval()
    for layer in network:
        if isinstance(layer, FakeQuantizedLinear):
            fit(layer.weight_fake_quant, layer.float_weight(), candidates)
            if isinstance(layer.input_fake_quant, LearnedFakeQuantize):
                fit(layer.input_fake_quant, samples, candidates)
        samples = layer(samples)


@torch.no_grad()
def fit(quantizer: LearnedFakeQuantize, values: Tensor, candidates: int) -> None:
    """Sets the scales of one quantizer, and its zero points, where it has any, to the range's.

    Few bits gain more from a fine step than they lose by clipping: beside the scale of the range,
    ``max(abs(x)) / quant_max`` where it is symmetric, smaller ones are tried.
    """
    quantizer.initialize(values)
    rows = values.reshape(quantizer.scale.numel(), -1)  # those that share a scale
    limits = quantizer.quant_min, quantizer.quant_max
    widest, zero_point = ops.choose_qparams_per_token(rows, *limits, symmetric=quantizer.symmetric)
    best_scale, best_error = widest, torch.full_like(widest, torch.inf)
    for step in range(candidates):
        scale = widest * (1 - step / candidates)
        rounded = ops.fake_quantize_per_token(rows, scale, zero_point, *limits)
        error = (rounded - rows).square().sum(dim=1, keepdim=True)
        best_scale = torch.where(error < best_error, scale, best_scale)
        best_error = torch.minimum(error, best_error)
    quantizer.scale.copy_(best_scale.reshape(quantizer.scale.shape))
