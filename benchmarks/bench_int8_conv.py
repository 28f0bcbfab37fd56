# SPDX-License-Identifier: BSD-3-Clause
"""Speed of convolutions that multiply integers, beside PyTorch's float32 ones.

A row is a ``QuantizedConv2d`` as a model has it: a contiguous floating input, which is quantized
with one static scale, and a floating output. Each is measured in turns with ``torch.nn.Conv2d``,
contiguous and in the memory format channels_last. The layers are all convolutions of ResNet-18
that differ, and the depthwise ones of MobileNetV2, for images of 224 x 224. Inputs are in the
caches, as within a model. A size is the number of images.

    python -m benchmarks.bench_int8_conv                        # on a GPU if there is one
    python -m benchmarks.bench_int8_conv --sizes 1 8 --what resnet18
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.bench import Call, Timer, describe, free_memory
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run, timer_of
from benchmarks.bench_plot import plot_speedups
from benchmarks.bench_report import Part
from benchmarks.bench_row import OWN, Row, Target, empty_row

# isort: split
import baraquant.nn as bnn
from baraquant import ops
from tests.support.cases import name_of

LAST = "channels_last"
LEAST = 1.5  # times the speed of float32, for ResNet-18's layers on a CPU


@dataclass(frozen=True)
class Layer:
    """A convolution: channels in and out, kernel, stride, and the input's height and width."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int
    groups: int = 1

    def __str__(self) -> str:
        name = "depthwise" if self.groups > 1 else f"to {self.outputs}"
        return f"{self.kernel}x{self.kernel} {name}, stride {self.stride}"

    def floats(self) -> nn.Conv2d:
        """PyTorch's layer."""
        sides = self.kernel // 2
        return nn.Conv2d(
            self.inputs, self.outputs, self.kernel, self.stride, sides, groups=self.groups
        ).eval()

    def operations(self, images: int) -> int:
        """Multiplications and additions."""
        out = (self.size + self.stride - 1) // self.stride
        depth = self.inputs // self.groups * self.kernel**2
        return 2 * images * self.outputs * depth * out**2


def _depthwise(channels: int, stride: int, size: int) -> Layer:
    return Layer(channels, channels, 3, stride, size, channels)


LAYERS = {
    "resnet18": (
        Layer(3, 64, 7, 2, 224),
        Layer(64, 64, 3, 1, 56),
        Layer(64, 128, 3, 2, 56), Layer(64, 128, 1, 2, 56), Layer(128, 128, 3, 1, 28),
        Layer(128, 256, 3, 2, 28), Layer(128, 256, 1, 2, 28), Layer(256, 256, 3, 1, 14),
        Layer(256, 512, 3, 2, 14), Layer(256, 512, 1, 2, 14), Layer(512, 512, 3, 1, 7),
    ),
    "mobilenet_v2": (
        _depthwise(32, 1, 112), _depthwise(96, 2, 112), _depthwise(144, 1, 56),
        _depthwise(144, 2, 56), _depthwise(192, 1, 28), _depthwise(192, 2, 28),
        _depthwise(384, 1, 14), _depthwise(576, 1, 14), _depthwise(576, 2, 14),
        _depthwise(960, 1, 7),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ConvPlan(Plan):
    """A plan over the convolutions of a network."""

    network: str

    def cases(self) -> list[Layer]:
        """Its layers."""
        return list(LAYERS[self.network])


def parse_images(text: str) -> int:
    """How many images a call gets."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError(f"expected a number of images, such as 8, but got {text!r}")


def quantized(floats: nn.Conv2d, scale: float) -> bnn.QuantizedConv2d:
    """The layer of integers that stands for one of floats, for inputs of this scale."""
    integers, weight_scale, _ = ops.dynamic_range_quantize_per_channel(floats.weight.detach(), 0)
    return bnn.QuantizedConv2d(
        integers,
        weight_scale,
        None if floats.bias is None else floats.bias.detach(),
        input_fake_quant=bnn.FakeQuantize(scale).to(integers.device),
        stride=floats.stride,
        padding=floats.padding,
        dilation=floats.dilation,
        groups=floats.groups,
        padding_mode=floats.padding_mode,
    )


def calls(device: torch.device, layer: Layer, images: int) -> dict[str, Call]:
    """Ours, and PyTorch's two."""
    x = torch.randn(images, layer.inputs, layer.size, layer.size, device=device)
    floats, last = layer.floats().to(device), layer.floats().to(device)
    last.load_state_dict(floats.state_dict())
    last.to(memory_format=torch.channels_last)
    x_last = x.contiguous(memory_format=torch.channels_last)
    own = quantized(floats, float(x.abs().max()) / 127)
    name = f"{name_of(x.dtype)} conv2d"
    return {
        OWN: lambda _: own(x),
        name: lambda _: floats(x),
        f"{name} {LAST}": lambda _: last(x_last),
    }


def target_of(device: str, network: str) -> Target | None:
    """What the speed should be; None where nothing was asked for."""
    return Target("float32 conv2d", LEAST) if (device, network) == ("cpu", "resnet18") else None


def measure(
    timer: Timer,
    device: torch.device,
    plan: ConvPlan,
    size: str,
    dtype: torch.dtype,
    layers: list[Layer],
) -> Iterator[Row]:
    """The rows of one number of images; one that fails hinders no other."""
    images = parse_images(size)
    for layer in layers:
        shape = [images, layer.inputs, layer.size, layer.size]
        asked = target_of(device.type, plan.network)
        row = empty_row(device, dtype, shape, plan.network, "int8_conv", str(layer), asked)
        try:
            with torch.no_grad():
                results = timer.compare(calls(device, layer, images))
            row.fill(results, OWN, operations=layer.operations(images))
        except Exception as error:  # such as too little memory
            row.fail(describe(error))
        yield row
    free_memory(device)


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The title of each network with its parts: functions that yield rows."""
    rows = functools.partial(measure, timer_of(options), options.device)
    for network in options.what or LAYERS:
        sizes = ["1"] if options.quick else ["1", "8"]
        plan = ConvPlan(sizes, ["float32"], [torch.get_num_threads()], network)
        yield network, list(parts_of([plan], options, rows))


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("int8_conv", __doc__, list(LAYERS), sizes="1 8, images")
    options = parse(parser, argv, parse_images)
    return run(sections(options), options, plot_speedups)


if __name__ == "__main__":
    main()
