# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ as the paper has it, written out slowly, and data and schemes for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from baraquant import W4A8, W4A16, W8A8, W8A16, QuantConfig, TensorConfig, ops, quantize_

K, N = 48, 20
SCHEMES: dict[str, QuantConfig] = {
    "W4A16": W4A16(16),
    "W4A16 whole": W4A16(K),
    "W4A16 asymmetric": W4A16(8, symmetric=False),
    "W4A16 max": W4A16(24, scale_rule="max"),
    "W4A16 channel": W4A16(None),
    "W4A8": W4A8(16, group_factors=False),
    "W4A8 channel": W4A8(None),
    "W8A16": W8A16(),
    "W8A8": W8A8(),
    "W8A8 asymmetric": W8A8(False),
    "two bits": QuantConfig(TensorConfig(2, "per_group", False, group_size=12)),
    "three bits": QuantConfig(TensorConfig(3), scale_rule="max"),
    "five bits asymmetric": QuantConfig(TensorConfig(5, "per_channel", False)),
    "per tensor": QuantConfig(TensorConfig(4, "per_tensor")),
    "bfloat16": W4A16(16, scale_dtype="bfloat16"),
    "float16": W4A16(16, False, "max", scale_dtype="float16"),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def correlated(
    count: int = 4, rows: int = 64, features: int = K, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Batches whose columns depend on each other, as those of real layers do."""
    made = generator(1)
    mix = torch.randn(features, features, generator=made, dtype=torch.float64)
    sizes = torch.logspace(0, -2, features, dtype=torch.float64)
    mix = sizes[:, None] * mix
    draws = [torch.randn(rows, features, generator=made, dtype=torch.float64) for _ in range(count)]
    return [(draw @ mix).to(dtype) for draw in draws]


def linear(features: int = K, outputs: int = N, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(features, outputs, dtype=dtype))


@torch.no_grad()
def error_of(model: nn.Module, exact: nn.Module, rows: Tensor) -> float:
    got, wanted = (one.eval()(rows).double() for one in (model, exact))
    return float((got - wanted).norm() / wanted.norm())


def grid_of(rows: Tensor, config: QuantConfig) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of each row, as plain quantization finds them."""
    how = TensorConfig(config.weight.bits, "per_channel", config.weight.symmetric)
    plain = QuantConfig(how, scale_rule=config.scale_rule, scale_dtype=config.scale_dtype)
    layer = nn.Linear(rows.shape[1], rows.shape[0], bias=False, dtype=rows.dtype)
    layer.weight.data.copy_(rows)
    model: Any = nn.Sequential(layer)
    quantize_(model, plain)
    scale, zero_point = model[0].weight_scale, model[0].weight_zero_point
    return scale, torch.zeros_like(scale, dtype=torch.int32) if zero_point is None else zero_point


def slow_gptq(
    weight: Tensor, inputs: Tensor, config: QuantConfig, damping: float, act_order: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The paper's steps: remove one column after the other from the inverse of the Hessian."""
    own, weight = config.weight, weight.clone()
    outputs, features = weight.shape
    size = own.group_size or features
    hessian = 2 * inputs.t() @ inputs
    hessian += damping * hessian.diagonal().mean() * torch.eye(features, dtype=torch.float64)
    inverse = torch.linalg.inv(hessian)
    order = list(range(features))
    if act_order:
        order.sort(key=lambda column: -float(hessian[column, column]))
    integers = torch.zeros(outputs, features, dtype=torch.int64)
    scales = torch.zeros(outputs, features // size, dtype=torch.float64)
    zeros = torch.zeros(outputs, features // size, dtype=torch.int64)
    for group in range(features // size):
        scales[:, group], zeros[:, group] = grid_of(weight.split(size, dim=1)[group], config)
    if own.granularity == "per_tensor":
        scale, zero = grid_of(weight.reshape(1, -1), config)
        scales[:], zeros[:] = scale, zero
    for column in order:
        group = column // size
        if not act_order and own.group_size is not None and column % size == 0:
            part = weight[:, column : column + size]
            scales[:, group], zeros[:, group] = grid_of(part, config)
        scale, zero = scales[:, group], zeros[:, group]
        integer = (weight[:, column] / scale).round() + zero
        integer = integer.clamp(own.quant_min, own.quant_max)
        integers[:, column] = integer.to(torch.int64)
        error = (weight[:, column] - (integer - zero) * scale) / inverse[column, column]
        weight = weight - error[:, None] * inverse[column]
        inverse = (
            inverse - torch.outer(inverse[:, column], inverse[column]) / (inverse[column, column])
        )
        inverse[column] = inverse[:, column] = 0
    return integers, scales, zeros


def as_multiplied(inputs: Tensor, config: QuantConfig) -> Tensor:
    if config.activation is None:
        return inputs
    return ops.dynamic_fake_quantize_per_token(inputs, symmetric=config.activation.symmetric)


def assert_same(layer: Any, wanted: tuple[Tensor, Tensor, Tensor]) -> None:
    integers, scales, zeros = wanted
    assert torch.equal(layer.qweight.to(torch.int64), integers)
    scale = layer.weight_scale.reshape(len(integers), -1)
    assert torch.allclose(scale, scales.to(scale), rtol=1e-9 if scale.dtype.itemsize == 8 else 1e-6)
    zero = getattr(layer, "weight_zero_point", None)
    got = torch.zeros_like(zeros) if zero is None else zero.reshape(zeros.shape).to(torch.int64)
    assert torch.equal(got, zeros)
