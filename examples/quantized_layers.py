# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers for quantization-aware training, and their integer twins for use afterwards.

``QuantLinear`` trains: float weights pass through fake quantization on every step, and the scales
are parameters, learned with the weights (Esser et al., "Learned Step Size Quantization", 2020). The
input's scale is one of them, or is taken on the fly from the values of each sample.
``IntLinear`` runs: it holds integers alone, and computes the same bits, since
``fake_quantize(x) == dequantize(quantize(x))`` holds for every op of baraquant. ``save`` packs the
integers to their true width, so that three-bit weights cost three bits each on disk.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from baraquant import ops

# Where the scale of a layer's input comes from: a parameter, or each sample's own values.
INPUT_SCHEMES = ("learned", "symmetric", "asymmetric")


@dataclass(frozen=True)
class Widths:
    """How a layer is quantized.

    Attributes:
        weight_bits: Width of the signed weights, 2 to 8.
        input_bits: Width of the layer's input, 2 to 8.
        group_size: Neighbouring weights of a row that share a scale, a divisor of the row's
            length; None gives each row (output channel) one scale.
        inputs: The scale of the input. ``learned``: one for all samples, trained; the integers are
            unsigned, as pixels and ReLU are. ``symmetric`` and ``asymmetric``: chosen on the fly
            from the range of each sample; the integers are signed, or unsigned with a zero point.
    """

    weight_bits: int
    input_bits: int
    group_size: int | None = None
    inputs: str = "learned"

    @property
    def weight_range(self) -> tuple[int, int]:
        """The smallest and the largest integer of a weight, such as -8 and 7."""
        return -(2 ** (self.weight_bits - 1)), 2 ** (self.weight_bits - 1) - 1

    @property
    def input_range(self) -> tuple[int, int]:
        """The smallest and the largest integer of an input, such as 0 and 15."""
        if self.inputs == "symmetric":
            return -(2 ** (self.input_bits - 1)), 2 ** (self.input_bits - 1) - 1
        return 0, 2**self.input_bits - 1


def fit_scale(rows: Tensor, quant_min: int, quant_max: int, candidates: int) -> Tensor:
    """Finds for each row the scale that quantizes it with the least squared error.

    The first candidate is the symmetric rule, ``max(abs(x)) / quant_max``, which clips nothing.
    The others are smaller: few bits gain more from a fine step than they lose by clipping.

    Args:
        rows: Values, ``[rows, n]``.
        quant_min: Smallest integer.
        quant_max: Largest integer.
        candidates: How many scales to try.

    Returns:
        Scales, ``[rows, 1]``; a row of zeros gets 1.
    """
    widest = rows.abs().amax(dim=1, keepdim=True) / quant_max
    widest = torch.where(widest > 0, widest, 1.0)
    best_scale, best_error = widest, torch.full_like(widest, torch.inf)
    for step in range(candidates):
        scale = widest * (1 - step / candidates)
        rounded = ops.fake_quantize_per_token(rows, scale, None, quant_min, quant_max)
        error = (rounded - rows).square().sum(dim=1, keepdim=True)
        best_scale = torch.where(error < best_error, scale, best_scale)
        best_error = torch.minimum(error, best_error)
    return best_scale


class QuantLinear(nn.Module):
    """A linear layer that quantizes its input and weight, and learns the scales of both.

    Args:
        linear: The trained float layer; its parameters are copied.
        inputs: What the layer sees on training data, ``[samples, in_features]``, to choose the
            first scale of the input from.
        widths: Bits and granularity.
        candidates: How many scales ``fit_scale`` tries; 1 is the symmetric rule itself.
    """

    def __init__(
        self, linear: nn.Linear, inputs: Tensor, widths: Widths, candidates: int = 40
    ) -> None:
        super().__init__()
        self.widths = widths
        self.weight = nn.Parameter(linear.weight.detach().clone())  # [out, in]
        self.bias = nn.Parameter(linear.bias.detach().clone())  # [out]

        rows = self.weight.detach().reshape(-1, widths.group_size or linear.in_features)
        scale = fit_scale(rows, *widths.weight_range, candidates)
        if widths.group_size is None:
            self.weight_scale = nn.Parameter(scale.reshape(-1))  # [out]
        else:
            self.weight_scale = nn.Parameter(scale.reshape(len(self.weight), -1))  # [out, groups]
        # A scale's gradient sums over all that it scales. Esser et al. divide by
        # sqrt(count * quant_max), which brings its steps to the size of a weight's steps.
        _damp(self.weight_scale, rows.shape[1], widths.weight_range[1])
        if widths.inputs == "learned":
            scale = fit_scale(inputs.reshape(1, -1), *widths.input_range, candidates)
            self.input_scale = nn.Parameter(scale.reshape(1))
            _damp(self.input_scale, linear.in_features, widths.input_range[1])
        else:
            self.register_parameter("input_scale", None)

    def quantized_weight(self) -> Tensor:
        """The weight as integers, int8 ``[out, in]``."""
        args = (self.weight.detach(), self.weight_scale.detach(), None)
        if self.widths.group_size is None:
            return ops.quantize_per_channel(*args, 0, *self.widths.weight_range)
        return ops.quantize_per_group(*args, self.widths.group_size, 1, *self.widths.weight_range)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the layer on fake-quantized values: ``[..., in]`` to ``[..., out]``."""
        if self.input_scale is None:
            x = ops.dynamic_fake_quantize_per_token(
                x, *self.widths.input_range, symmetric=self.widths.inputs == "symmetric"
            )
        else:
            x = ops.fake_quantize_per_tensor(x, self.input_scale, None, *self.widths.input_range)
        args = (self.weight, self.weight_scale, None)
        if self.widths.group_size is None:
            weight = ops.fake_quantize_per_channel(*args, 0, *self.widths.weight_range)
        else:
            weight = ops.fake_quantize_per_group(
                *args, self.widths.group_size, 1, *self.widths.weight_range
            )
        return F.linear(x, weight, self.bias)


class IntLinear(nn.Module):
    """A linear layer whose weight is stored as integers, and whose input becomes integers.

    Args:
        weight: int8 ``[out, in]``.
        weight_scale: ``[out]``, or ``[out, groups]``.
        input_scale: ``[1]``; None where each sample has its own.
        bias: ``[out]``.
        widths: Bits and granularity.
    """

    def __init__(
        self,
        weight: Tensor,
        weight_scale: Tensor,
        input_scale: Tensor | None,
        bias: Tensor,
        widths: Widths,
    ) -> None:
        super().__init__()
        self.widths = widths
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("input_scale", input_scale)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the layer: ``[..., in]`` to ``[..., out]``."""
        symmetric = self.widths.inputs == "symmetric"
        dtype = torch.int8 if symmetric else torch.uint8
        if self.input_scale is None:
            integers, scale, zero_point = ops.dynamic_range_quantize_per_token(
                x, *self.widths.input_range, symmetric=symmetric, dtype=dtype
            )
            x = ops.dequantize_per_token(integers, scale, zero_point)
        else:
            integers = ops.quantize_per_tensor(
                x, self.input_scale, None, *self.widths.input_range, dtype=dtype
            )
            x = ops.dequantize_per_tensor(integers, self.input_scale, None)
        if self.widths.group_size is None:
            weight = ops.dequantize_per_channel(self.weight, self.weight_scale, None, 0)
        else:
            weight = ops.dequantize_per_group(
                self.weight, self.weight_scale, None, self.widths.group_size, 1
            )
        return F.linear(x, weight, self.bias)


def quantize_network(
    network: nn.Sequential, samples: Tensor, widths: Widths, candidates: int = 40
) -> nn.Sequential:
    """Puts a ``QuantLinear`` in the place of every linear layer of a trained float network.

    What comes back is the network quantized after training; trained on, it is the network of
    quantization-aware training.

    Args:
        network: Linear and ReLU layers.
        samples: Training data to choose the scales of the inputs from, ``[samples, features]``.
        widths: Bits and granularity of every layer.
        candidates: How many scales ``fit_scale`` tries.
    """
    layers: list[nn.Module] = []
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, nn.Linear):
                layers.append(QuantLinear(layer, samples, widths, candidates))
            else:
                layers.append(layer)
            samples = layer(samples)  # the float network's values: each layer is fitted alone
    return nn.Sequential(*layers)


def save(network: nn.Sequential, path: Path) -> int:
    """Stores a quantized network as packed integers, scales and biases (safetensors).

    Returns:
        The bytes of all tensors in the file.
    """
    layers = [layer for layer in network if isinstance(layer, QuantLinear)]
    widths = layers[0].widths
    tensors = {}
    for index, layer in enumerate(layers):
        tensors[f"{index}.weight"] = pack(layer.quantized_weight(), widths.weight_bits)
        tensors[f"{index}.weight_scale"] = layer.weight_scale.detach()
        if layer.input_scale is not None:
            tensors[f"{index}.input_scale"] = layer.input_scale.detach()
        tensors[f"{index}.bias"] = layer.bias.detach()
    about = {"widths": asdict(widths), "shapes": [tuple(layer.weight.shape) for layer in layers]}
    save_file(tensors, path, {"network": json.dumps(about)})
    return storage_bytes(tensors.values())


def load(path: Path, device: torch.device | str = "cpu") -> nn.Sequential:
    """Builds a network of ``IntLinear`` layers, with ReLU between them, from a file alone."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        about = json.loads(file.metadata()["network"])
        widths = Widths(**about["widths"])
        layers: list[nn.Module] = []
        for index, shape in enumerate(about["shapes"]):
            packed, weight_scale, bias = (
                file.get_tensor(f"{index}.{name}") for name in ("weight", "weight_scale", "bias")
            )
            learned = widths.inputs == "learned"
            input_scale = file.get_tensor(f"{index}.input_scale") if learned else None
            weight = unpack(packed, widths.weight_bits, shape)
            layers += [IntLinear(weight, weight_scale, input_scale, bias, widths), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def pack(integers: Tensor, bits: int) -> Tensor:
    """Packs signed integers into a string of bits, the low bit first.

    Args:
        integers: int8 values of at most ``bits`` bits, of any shape.
        bits: Width, 1 to 8.

    Returns:
        uint8 ``[ceil(numel * bits / 8)]``.
    """
    places = torch.arange(bits, device=integers.device)
    stream = (integers.reshape(-1, 1).int() >> places & 1).reshape(-1)  # two's complement
    stream = F.pad(stream, (0, -len(stream) % 8)).reshape(-1, 8)
    return (stream << torch.arange(8, device=integers.device)).sum(dim=1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, shape: Iterable[int]) -> Tensor:
    """Undoes ``pack``: int8 integers of the given shape."""
    shape = torch.Size(shape)
    stream = (packed.reshape(-1, 1).int() >> torch.arange(8, device=packed.device) & 1).reshape(-1)
    stream = stream[: shape.numel() * bits].reshape(-1, bits)
    values = (stream << torch.arange(bits, device=packed.device)).sum(dim=1)
    sign = 1 << (bits - 1)
    return ((values ^ sign) - sign).to(torch.int8).reshape(shape)  # extends the sign bit


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Counts the bytes of all elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _damp(scale: nn.Parameter, count: int, quant_max: int) -> None:
    """Multiplies every gradient of ``scale`` by ``1 / sqrt(count * quant_max)``."""
    factor = (count * quant_max) ** -0.5
    scale.register_hook(lambda grad: grad * factor)
