# SPDX-License-Identifier: BSD-3-Clause
"""The affine family compiled ahead of time: AOTInductor packages, compiled, loaded and run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn

import toolchain
from baraquant import nn as bnn
from baraquant import ops
from tests.support.aot_inductor import skip_where_it_crashes


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    """AOTInductor's packages load torch."""
    with torch._inductor.config.patch({"cpp.cxx": (None, toolchain.program_compiler())}):
        yield


class Network(nn.Module):
    """Every verb and granularity once, with other work in between."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 16)
        self.weight_quantizer = bnn.FakeQuantize(
            torch.linspace(0.01, 0.1, 16), None, "per_channel", axis=0, quant_min=-8, quant_max=7
        )
        self.register_buffer("group_scale", torch.full((16, 4), 0.02))

    def forward(self, x: Tensor, token_scale: Tensor) -> tuple[Tensor, Tensor]:
        x = ops.fake_quantize_per_tensor(x, 0.05, 0)
        q = ops.quantize_per_token(x, token_scale, None)
        x = ops.dequantize_per_token(q, token_scale, None)
        weight = self.weight_quantizer(self.linear.weight)
        groups = ops.quantize_per_group(weight, self.group_scale, None, 8, dtype=torch.float32)
        weight = weight + ops.dequantize_per_group(groups, self.group_scale, None, 8)
        return nn.functional.linear(x, weight, self.linear.bias), q


@pytest.mark.inductor
@pytest.mark.xfail(
    torch.__version__.startswith("2.11."),
    reason="AOTInductor of torch 2.11 hands a dtype argument to a custom op as another dtype",
    raises=RuntimeError,
    strict=True,
)
def test_package(tmp_path: Path, device: str) -> None:
    """Compiled once for any number of rows; the package runs without the module it came from."""
    skip_where_it_crashes(device)
    network = Network().to(device).requires_grad_(False)

    def inputs(rows: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(rows, 32, device=device)
        return x, x.abs().amax(-1, keepdim=True) / 127

    rows = torch.export.Dim("rows", min=2, max=4096)
    exported = torch.export.export(network, inputs(6), dynamic_shapes=({0: rows}, {0: rows}))
    package = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(tmp_path / "network.pt2")
    )
    compiled = torch._inductor.aoti_load_package(package)
    for count in (6, 2, 37):
        x, scale = inputs(count)
        (y, q), (expected_y, expected_q) = compiled(x, scale), network(x, scale)
        assert torch.equal(q, expected_q)
        torch.testing.assert_close(y, expected_y)


@pytest.mark.inductor
def test_package_called_with_other_strides(tmp_path: Path, device: str) -> None:
    """Compiled for contiguous images, called with channels_last ones: refused or right."""
    skip_where_it_crashes(device)
    scale = torch.linspace(0.05, 0.2, 4, device=device)

    class Images(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.fake_quantize_per_channel(x, scale, None, 1)

    x = torch.randn(2, 4, 9, 9, device=device)
    exported = torch.export.export(Images(), (x,))
    package = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(tmp_path / "images.pt2")
    )
    compiled = torch._inductor.aoti_load_package(package)
    assert torch.equal(compiled(x), Images()(x))
    other = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(compiled(other), Images()(x))
