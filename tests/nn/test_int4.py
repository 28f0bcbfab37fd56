# SPDX-License-Identifier: BSD-3-Clause
"""Layers whose weights have four bits and a whole factor for each group."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W4A8, PerGroup, QuantConfig, TensorConfig, ops
from baraquant.nn import (
    FakeQuantizedConv1D,
    FakeQuantizedLinear,
    FakeQuantizeInt4,
    QuantizedInt4Linear,
    QuantizedLinear,
    StaticQuantizedInt4Linear,
    StaticQuantizedLinear,
)
from tests.support import cases

N, K = 24, 96
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
by_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=cases.name_of)
by_scheme = pytest.mark.parametrize(
    ("size", "symmetric"), [*itertools.product((2, 32, 96), (True, False))], ids=str
)


def scheme(size: int = 32, symmetric: bool = True, **options: Any) -> QuantConfig:
    return W4A8(size, symmetric, group_factors=True, **options)


def static(size: int = 32, symmetric: bool = True) -> QuantConfig:
    weight = TensorConfig(4, PerGroup(size), symmetric, group_factors=True)
    return QuantConfig(weight, TensorConfig(8, "per_tensor", symmetric, dynamic=False), "min_max")


def layer_of(
    config: QuantConfig, dtype: torch.dtype = torch.float32, device: str = "cpu", **options: Any
) -> FakeQuantizedLinear:
    torch.manual_seed(3)
    return FakeQuantizedLinear(K, N, config=config, **options).to(device, dtype)


def inputs(dtype: torch.dtype, device: str = "cpu") -> Tensor:
    return torch.randn(3, 5, K, generator=cases.generator(4)).to(device, dtype)


def converted(layer: nn.Module) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(layer))
    baraquant.qat.convert_(model)
    return model[0]


# --- the quantizer -------------------------------------------------------------------------------


@by_dtype
@by_scheme
def test_the_quantizer_is_its_ops(
    size: int, symmetric: bool, dtype: torch.dtype, device: str
) -> None:
    weight = torch.randn(N, K, generator=cases.generator(2)).to(device, dtype).requires_grad_()
    quantizer = FakeQuantizeInt4(size, symmetric=symmetric)
    scale, factor, zeros = ops.choose_int4_qparams(weight.detach(), size, symmetric=symmetric)
    packed = ops.quantize_int4(weight.detach(), scale, factor, size, group_zero_point=zeros)
    w8 = ops.expand_int4(packed, factor, size, K, group_zero_point=zeros)
    for got, right in zip(quantizer.pack(weight), (packed, scale, factor, zeros), strict=True):
        assert torch.equal(got, right) and got.dtype == right.dtype
    integers, of_rows, none = quantizer.quantize(weight)
    assert torch.equal(integers, w8) and torch.equal(of_rows, scale)
    assert none.shape == (N,) and not none.any() and none.dtype == torch.int32
    rounded = quantizer(weight)
    assert torch.equal(rounded, ops.dequantize_per_channel(w8, scale, None, 0, dtype=dtype))
    dy = torch.randn_like(rounded)
    assert torch.equal(torch.autograd.grad(rounded, weight, dy)[0], dy)
    given = FakeQuantizeInt4(
        size, symmetric=symmetric, scale=scale, group_factor=factor, group_zero_point=zeros
    )
    assert torch.equal(given(weight), rounded) and not given.is_dynamic
    assert torch.equal(torch.jit.script(quantizer)(weight), rounded)
    quantizer.disable_fake_quant()
    assert quantizer(weight) is weight and torch.equal(quantizer.round(weight), rounded)


# --- training, evaluation, serving ---------------------------------------------------------------


@by_dtype
@by_scheme
@pytest.mark.parametrize("of_input", ("dynamic", "static"))
def test_one_product_in_all_three(
    size: int, symmetric: bool, dtype: torch.dtype, of_input: str, device: str
) -> None:
    config = scheme(size, symmetric) if of_input == "dynamic" else static(size, symmetric)
    layer, x = layer_of(config, dtype, device), inputs(dtype, device)
    trained = layer(x)
    layer.eval()
    evaluated, served = layer(x), converted(layer)
    kind = QuantizedInt4Linear if of_input == "dynamic" else StaticQuantizedInt4Linear
    assert type(served) is kind
    assert torch.equal(served(x), evaluated)
    if of_input == "dynamic":
        assert torch.equal(trained, evaluated)
    # ... which is that of the layer of int8 whose weight is the expanded one.
    w8, scale, _ = layer.quantized_weight()
    same: nn.Module
    if of_input == "dynamic":
        same = QuantizedLinear(w8, scale, layer.bias)
    else:
        zero_point = None if symmetric else served.act_zero_point
        same = StaticQuantizedLinear(
            w8, scale, served.act_scale, layer.bias, act_zero_point=zero_point
        )
    assert torch.equal(same(x), evaluated)
    assert torch.equal(served.weight + 0, layer.weight + 0)
    assert served.weight.shape == (N, K) and served.weight.dtype == dtype


@pytest.mark.parametrize("rotate", (None, 32))
def test_conv1d_and_rotations(rotate: int | None) -> None:
    torch.manual_seed(1)
    layer = FakeQuantizedConv1D(N, K, config=scheme(rotate=rotate)).eval()
    served, x = converted(layer), inputs(torch.float32)
    assert torch.equal(served(x), layer(x))
    assert served.weight.shape == (K, N) and (served.nx, served.nf) == (K, N)
    torch.testing.assert_close(served.weight + 0, layer.weight + 0)


# --- models --------------------------------------------------------------------------------------


def test_damaged_numbers_are_not_saved(tmp_path: Any) -> None:
    bytes_ = {
        "group_factor": (torch.tensor(17, dtype=torch.uint8), r"integers in \[1, 16\]"),
        "packed": (torch.tensor(255, dtype=torch.uint8), "reaches .* 240"),
    }
    for name, (value, words) in bytes_.items():
        model = nn.Sequential(converted(layer_of(scheme())))
        assert model[0].packed.nbytes == N * K // 2 and model[0].group_factor.nbytes == N * K // 32
        if name == "packed":
            model[0].group_zero_point = torch.zeros_like(model[0].group_factor)
            model[0].group_factor.fill_(16)
        getattr(model[0], name).fill_(value)
        with pytest.raises(ValueError, match=f"0: .*{name}.*{words}"):
            baraquant.save(model, tmp_path / "bad")


def test_the_search_is_the_best_of_all_factors() -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 64)
    model = nn.Sequential(nn.Linear(64, 8, bias=False))
    model[0].weight = nn.Parameter(weight.clone())
    for symmetric in (True, False):
        found = {}
        for rule in ("search", "max"):
            one = copy.deepcopy(model)
            baraquant.quantize_(one, scheme(32, symmetric, scale_rule=rule), progress=False)
            assert torch.equal(one[0].weight_scale, weight.abs().amax(1) / 112)
            found[rule] = (one[0].weight - weight).square().unflatten(1, (-1, 32)).sum(2)
        assert (found["search"] <= found["max"] * (1 + 1e-6)).all()
        assert found["search"].sum() < (0.9 if symmetric else 0.95) * found["max"].sum()
    scale = weight.abs().amax(1, keepdim=True) / 112
    best = torch.full((8, 2), torch.inf)
    for factor in range(1, 17):
        u = (weight / (scale * factor)).round().clamp(-8, 7)
        error = (u * factor * scale - weight).square().unflatten(1, (-1, 32)).sum(2)
        best = torch.minimum(best, error)
    one = copy.deepcopy(model)
    baraquant.quantize_(one, scheme(32), progress=False)
    got = (one[0].weight - weight).square().unflatten(1, (-1, 32)).sum(2)
    torch.testing.assert_close(got, best)
