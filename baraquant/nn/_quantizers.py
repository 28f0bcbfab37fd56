# SPDX-License-Identifier: BSD-3-Clause
"""The fake quantizers of a layer in training, made from its configuration."""

import torch
from torch import Tensor, nn

from ..configs import FakeQuantConfig, QATConfig
from .fake_quantize import FakeQuantize
from .learned import LearnedFakeQuantize

# What a moving average gives to each batch, as torch.ao's observers do.
AVERAGING_CONSTANT = 0.01


class QuantizesWeight(nn.Module):  # type: ignore[misc]
    """A layer whose ``weight`` passes through ``weight_fake_quant``; one scale per channel is of
    the weight's first dimension, and groups lie along its last.
    """  # noqa: D205

    __constants__: tuple[str, ...] = ("fold", "rounds_input")
    weight: Tensor
    config: QATConfig
    weight_fake_quant: nn.Module
    input_fake_quant: nn.Module
    fold: int  # where groups are observed: as rows of this length; else 0
    rounds_input: bool

    def _set_quantizers(self, config: QATConfig, activation: FakeQuantConfig | None) -> None:
        self.config = config
        self.weight_fake_quant = _of_weight(config.weight, self.weight)
        self.input_fake_quant = _of_activation(activation, config.observer, self.weight)
        self.rounds_input = activation is not None
        weight = config.weight
        is_observed = not weight.dynamic and not weight.learned
        self.fold = weight.group_size if is_observed and weight.group_size is not None else 0

    def quantized_weight(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weight as it will be stored: int8, with its scale and its zero point.

        Both are of shape ``[channels]``, or ``[channels, groups]`` for groups.
        """
        weight = self.weight.detach()
        rows = weight.reshape(-1, self.fold) if self.fold > 0 else weight
        integers, scale, zero_point = self.weight_fake_quant.quantize(rows)
        integers = integers.reshape(weight.shape).contiguous()
        channels = weight.shape[0]
        if self.fold > 0:
            shape = [channels, scale.numel() // channels]
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        elif scale.dim() < 2 and scale.numel() == 1:
            scale = scale.reshape(1).expand(channels).contiguous()
            zero_point = zero_point.reshape(1).expand(channels).contiguous()
        return integers, scale, zero_point

    def _fake_quantized_weight(self) -> Tensor:
        rows = self.weight.reshape(-1, self.fold) if self.fold > 0 else self.weight
        quantizer = self.weight_fake_quant
        rows = quantizer(rows) if self.training else quantizer.round(rows)
        return rows.reshape(self.weight.shape) if self.fold > 0 else rows

    def _rounded_input(self, input: Tensor) -> Tensor:
        if not self.rounds_input:
            return input
        if self.training:
            return self.input_fake_quant(input)
        return self.input_fake_quant.round(input)


def check_groups(config: FakeQuantConfig, features: int, name: str) -> None:
    """Check that groups divide a dimension."""
    size = config.group_size
    if size is not None and (size > features or features % size != 0):
        raise ValueError(f"expected group_size to divide {name} ({features}), but got {size}")


def _of_weight(config: FakeQuantConfig, weight: Tensor) -> FakeQuantize | LearnedFakeQuantize:
    granularity, size = config.granularity, config.group_size
    low, high = config.quant_min, config.quant_max
    if config.dynamic:
        axis = 0 if granularity == "per_channel" else None
        return FakeQuantize(
            granularity=granularity,
            axis=axis,
            group_size=size,
            quant_min=low,
            quant_max=high,
            mode="dynamic",
            symmetric=config.symmetric,
        )
    channels = weight.shape[0]
    if config.learned:
        groups = 1 if size is None else weight.shape[-1] // size
        shapes = {"per_tensor": (1,), "per_channel": (channels,), "per_group": (channels, groups)}
        learned = LearnedFakeQuantize(
            granularity,
            axis=0 if granularity == "per_channel" else None,
            group_size=size,
            shape=shapes[granularity],
            quant_min=low,
            quant_max=high,
            symmetric=config.symmetric,
            device=weight.device,
            dtype=_compute_dtype(weight),
        )
        if not weight.is_meta:
            learned.initialize(weight)
        return learned
    scales = weight.numel() // size if size is not None else channels
    per_tensor = granularity == "per_tensor"
    observed = FakeQuantize(
        granularity="per_tensor" if per_tensor else "per_channel",
        axis=None if per_tensor else 0,
        channels=None if per_tensor else scales,
        quant_min=low,
        quant_max=high,
        mode="observed",
        symmetric=config.symmetric,
        averaging_constant=1.0,  # the weight of the moment, until the observer is disabled
    )
    observed.to(weight.device, _compute_dtype(weight))
    with torch.no_grad():
        observed(weight.detach().reshape(-1, size) if size is not None else weight.detach())
    return observed


def _of_activation(config: FakeQuantConfig | None, observer: str, weight: Tensor) -> nn.Module:
    if config is None:
        return nn.Identity()
    low, high = config.quant_min, config.quant_max
    if config.learned:
        return LearnedFakeQuantize(
            quant_min=low,
            quant_max=high,
            symmetric=config.symmetric,
            per_sample=True,
            device=weight.device,
            dtype=_compute_dtype(weight),
        )
    if config.dynamic:
        return FakeQuantize(
            granularity=config.granularity,
            group_size=config.group_size,
            quant_min=low,
            quant_max=high,
            mode="dynamic",
            symmetric=config.symmetric,
        )
    observed = FakeQuantize(
        quant_min=low,
        quant_max=high,
        mode="observed",
        symmetric=config.symmetric,
        averaging_constant=AVERAGING_CONSTANT if observer == "moving_average" else None,
    )
    # Evaluation before the first batch gives NaN, not what looks like numbers.
    observed.scale.fill_(float("nan"))
    return observed.to(weight.device, _compute_dtype(weight))


def _compute_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32
