# SPDX-License-Identifier: BSD-3-Clause
"""Networks with the ops of a family and other work in between: compiled, exported, packaged."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn

import toolchain
from baraquant import nn as bnn
from baraquant import ops
from tests.support.aot_inductor import skip_where_it_crashes
from tests.support.calls.affine import outputs
from tests.support.served_products import K, Served, by_kind

# AOTInductor of torch 2.11 hands a dtype argument to a custom op as another dtype.
IS_2_11 = torch.__version__.startswith("2.11.")


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    """A fresh one, and for AOTInductor's packages, which load torch, one that can link them."""
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.cxx": (None, toolchain.program_compiler())}):
        yield


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


NETWORKS: tuple[Callable[..., nn.Module], ...] = (Affine, Range, Products)
by_network = pytest.mark.parametrize("network", NETWORKS)


def made(network: Callable[..., nn.Module], device: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return network(**options).to(device).eval().requires_grad_(False)


def observed(module: nn.Module) -> list[Tensor]:
    """The state of an observer, by name: programs order their buffers as they like."""
    named = {name.split(".")[-1].split("observer_")[-1]: b for name, b in module.named_buffers()}
    return [named[n] for n in ("min_val", "max_val", "scale", "zero_point") if n in named]


def assert_like_eager(run: Callable[[Tensor], Any], eager: nn.Module, device: str) -> None:
    """For several numbers of rows, the range growing: near after the product, exact before it."""
    for rows in (6, 2, 37):
        x = torch.randn(rows, 32, device=device) * rows
        (y, *rest), (expected, *expected_rest) = outputs(run(x)), outputs(eager(x))
        torch.testing.assert_close(y, expected)
        assert len(rest) == len(expected_rest) and all(map(torch.equal, rest, expected_rest))


@pytest.mark.inductor
@by_network
def test_compiled(network: Callable[..., nn.Module], device: str) -> None:
    eager = made(network, device)
    module = copy.deepcopy(eager)
    run = torch.compile(module, fullgraph=True, dynamic=True)
    assert_like_eager(run, eager, device)
    assert all(map(torch.equal, observed(module), observed(eager)))


def exported(eager: nn.Module, device: str) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=4096)
    example = (torch.randn(6, 32, device=device),)
    return torch.export.export(copy.deepcopy(eager), example, dynamic_shapes=({0: rows},))


def packaged(program: torch.export.ExportedProgram, folder: Path) -> Any:
    path = str(folder / "network.pt2")
    return torch._inductor.aoti_load_package(
        torch._inductor.aoti_compile_and_package(program, package_path=path)
    )


@pytest.mark.inductor
@by_network
def test_packaged(network: Callable[..., nn.Module], tmp_path: Path, device: str) -> None:
    """Compiled once for any number of rows; the package runs without the module it came from."""
    skip_where_it_crashes(device)
    if IS_2_11 and network is not Products:
        pytest.xfail("AOTInductor of torch 2.11 changes dtype arguments")
    eager = made(network, device, **({"dtypes": not IS_2_11} if network is Products else {}))
    assert_like_eager(packaged(exported(eager, device), tmp_path), eager, device)


@pytest.mark.inductor
def test_packaged_and_called_with_other_strides(tmp_path: Path, device: str) -> None:
    """Compiled for contiguous images, called with channels_last ones too."""
    skip_where_it_crashes(device)
    scale = torch.linspace(0.05, 0.2, 4, device=device)

    class Images(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.fake_quantize_per_channel(x, scale, None, 1)

    x = torch.randn(2, 4, 9, 9, device=device)
    package = packaged(torch.export.export(Images(), (x,)), tmp_path)
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(package(given), Images()(x))


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
