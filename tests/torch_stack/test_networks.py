# SPDX-License-Identifier: BSD-3-Clause
"""Networks with the ops of a family and other work in between: compiled, exported, packaged."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import nn as bnn
from baraquant import ops
from tests.support.aot_inductor import packaged
from tests.support.calls.affine import outputs
from tests.support.served_products import K, Served, by_kind

# AOTInductor of torch 2.11 hands a dtype argument to a custom op as another dtype.
IS_2_11 = torch.__version__.startswith("2.11.")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


class Affine(nn.Module):
    """Every verb and granularity once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 16)
        self.weight_quantizer = bnn.FakeQuantize(
            torch.linspace(0.01, 0.1, 16), None, "per_channel", axis=0, quant_min=-8, quant_max=7
        )
        self.register_buffer("group_scale", torch.full((16, 4), 0.02))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = ops.fake_quantize_per_tensor(x, 0.05, 0)
        token_scale, _ = ops.choose_qparams_per_token(x)
        q = ops.quantize_per_token(x, token_scale, None)
        x = ops.dequantize_per_token(q, token_scale, None)
        weight = self.weight_quantizer(self.linear.weight)
        groups = ops.quantize_per_group(weight, self.group_scale, None, 8, dtype=torch.float32)
        weight = weight + ops.dequantize_per_group(groups, self.group_scale, None, 8)
        return nn.functional.linear(x, weight, self.linear.bias), q


class Range(nn.Module):
    """Each op once, and an observer, whose buffers are the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 16)
        ends = {"quant_min": 0, "quant_max": 255}
        self.observer = bnn.FakeQuantize(mode="observed", symmetric=False, **ends)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.observer(x)
        q, scale, zero_point = ops.dynamic_range_quantize_per_token(x, symmetric=False)
        x = ops.dequantize_per_token(q, scale, zero_point)
        weight = ops.dynamic_fake_quantize_per_group(self.linear.weight, 8, -1, -8, 7)
        s, z = ops.choose_qparams_per_channel(weight, 0)
        weight = ops.fake_quantize_per_channel(weight, s, z, 0)
        return nn.functional.linear(x, weight, self.linear.bias), q, scale, zero_point


class Products(nn.Module):
    """A layer that is trained and two that are deployed; `dtypes`: with ops that take a dtype."""

    def __init__(self, dtypes: bool = True) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.first, last = nn.Linear(32, 24), nn.Linear(24, 16)
        weight, scale, _ = ops.dynamic_range_quantize_per_channel(last.weight.detach(), 0)
        for name, tensor in {"weight": weight, "scale": scale, "bias": last.bias.detach()}.items():
            self.register_buffer(name, tensor.clone())
        self.register_buffer("sums", weight.sum(1, dtype=torch.int32))
        self.register_buffer("square", self.first.weight.detach()[:, :24].clone())

    def forward(self, x: Tensor) -> Tensor:
        x = ops.qat_linear(x, self.first.weight, self.first.bias, symmetric=False)
        narrow = ops.qat_linear(
            x, self.square, weight_quant_min=-2, weight_quant_max=1, quant_min=-7, quant_max=7
        )
        x = torch.relu(x + narrow)
        y = ops.quantized_linear(
            x, self.weight, self.scale, self.bias, symmetric=False, weight_sum=self.sums
        )
        y = y + ops.quantized_linear(x, self.weight, self.scale, quant_min=-8, quant_max=7)
        if not self.dtypes:
            return y
        q = ops.quantize_per_tensor(x, 0.05, 3, 0, 255, dtype=torch.uint8)
        static = ops.smoothquant_linear(
            q, self.weight, self.scale, 0.05, act_zero_point=3, dtype=torch.float16
        )
        q, sa, za = ops.dynamic_range_quantize_per_token(x, symmetric=False)
        given = {"input_zero_point": za, "dtype": torch.bfloat16}
        return y + static + ops.int8_linear(q, self.weight, sa, self.scale, **given)


class Together(nn.Module):
    """Networks of the same input in one program, since each takes seconds to compile; images."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("scale", torch.linspace(0.05, 0.2, 4))

    def forward(self, x: Tensor, images: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        rounded = ops.fake_quantize_per_channel(images, self.scale, None, 1)
        return rounded, [outputs(network(x)) for network in self.networks]


def together(device: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    # Only Products goes without ops that take a dtype.
    others = (Affine(), Range()) if options.get("dtypes", True) else ()
    return Together(*others, Products(**options)).to(device).eval().requires_grad_(False)


IMAGES = (2, 4, 9, 9)
STRIDES = torch.contiguous_format, torch.channels_last


def assert_like_eager(run: Callable[..., Any], eager: nn.Module, device: str) -> None:
    """For several numbers of rows, the range growing: near after the product, exact before it.

    Also of images in other strides than those that it was compiled for.
    """
    for rows, layout in ((6, STRIDES[0]), (2, STRIDES[1]), (37, STRIDES[0])):
        x = torch.randn(rows, 32, device=device) * rows
        images = torch.randn(IMAGES, device=device).to(memory_format=layout)
        (rounded, found), (right, expected) = run(x, images), eager(x, images)
        assert torch.equal(rounded, right)
        for (y, *rest), (wanted, *wanted_rest) in zip(found, expected, strict=True):
            torch.testing.assert_close(y, wanted)
            assert len(rest) == len(wanted_rest) and all(map(torch.equal, rest, wanted_rest))


@pytest.mark.inductor
def test_compiled(device: str) -> None:
    eager = together(device)
    module = copy.deepcopy(eager)
    run = torch.compile(module, fullgraph=True, dynamic=True)
    assert_like_eager(run, eager, device)
    mine, right = (one.networks[1].observer.state_dict() for one in (module, eager))
    assert mine.keys() == right.keys() and all(torch.equal(mine[key], right[key]) for key in right)


@pytest.mark.inductor
def test_packaged(tmp_path: Path, device: str) -> None:
    """Compiled once for any number of rows; the package runs without the module it came from."""
    eager = together(device, dtypes=not IS_2_11)
    rows = torch.export.Dim("rows", min=2, max=4096)
    example = torch.randn(6, 32, device=device), torch.randn(IMAGES, device=device)
    program = torch.export.export(copy.deepcopy(eager), example, dynamic_shapes=({0: rows}, None))
    assert_like_eager(packaged(program, tmp_path / "it.pt2", device), eager, device)


# --- steps in training


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(K, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(ops.qat_linear(x, self.first.weight, self.first.bias, symmetric=False))
        four_bits = {"weight_quant_min": -8, "weight_quant_max": 7}
        return ops.qat_linear(x, self.second.weight, self.second.bias, **four_bits)


class AroundServed(nn.Module):
    """A layer that learns before and after one that is served.

    They have no bias, whose gradient is a sum that TorchInductor takes in an order of its own.
    """

    def __init__(self, kind: str, device: str) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(K, K, bias=False, device=device) for _ in range(2))
        self.served = Served(kind, torch.float32, device, n=K)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * 4
        return self.last(h + self.served(h))


def check_steps(module: nn.Module, backend: str, device: str, autocast: bool = False) -> None:
    """Forward and backward for any number of rows, in one graph."""

    def step(run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
        run.zero_grad()  # type: ignore[attr-defined]
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            y = run(x)
        y.square().sum().backward()
        return [y.detach(), *(p.grad.clone() for p in run.parameters())]  # type: ignore[attr-defined]

    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, dynamic=True, backend=backend)
    for rows in (6, 2, 37):
        x = torch.randn(rows, K, device=device)
        for got, right in zip(step(compiled, x), step(module, x), strict=True):
            limits: dict[str, float] = {}
            if isinstance(module, AroundServed):
                # A gradient is a sum: its rounding is relative to the summands, not to what is
                # left.
                limits = {"rtol": 1.3e-6, "atol": 1.3e-6 * float(right.abs().max())}
            torch.testing.assert_close(got, right, **limits)


@pytest.mark.inductor
@pytest.mark.parametrize("backend", ("inductor", "aot_eager"))
def test_training(backend: str, device: str) -> None:
    """With aot_eager under autocast."""
    torch.manual_seed(0)
    check_steps(Layers().to(device), backend, device, autocast=backend == "aot_eager")


@pytest.mark.inductor
@by_kind
def test_training_around_a_served_layer(kind: str, device: str) -> None:
    torch.manual_seed(0)
    check_steps(AroundServed(kind, device), "inductor", device)
