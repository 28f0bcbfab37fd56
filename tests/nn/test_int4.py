# SPDX-License-Identifier: BSD-3-Clause
"""Layers whose weights have four bits and a whole factor for each group."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
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


@pytest.mark.parametrize("backward", ("float", "int8_input", "int8"))
def test_gradients(backward: str, device: str) -> None:
    """Those of qat_linear with the same integers."""
    layer = layer_of(scheme(backward=backward), device=device)
    x = inputs(torch.float32, device).requires_grad_()
    y = layer(x)
    dy = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)
    w8, scale, _ = layer.quantized_weight()
    again = ops.qat_linear(
        x, layer.weight, layer.bias, backward=backward, qweight=w8, weight_scale=scale
    )
    for got, right in zip(
        found, torch.autograd.grad(again, (x, layer.weight, layer.bias), dy), strict=True
    ):
        assert torch.equal(got, right) and got.any()


def test_a_served_layer_passes_the_gradient_on(device: str) -> None:
    layer = layer_of(scheme(), device=device).eval()
    served, found = converted(layer), []
    for one in (layer, served):
        x = inputs(torch.float32, device).requires_grad_()
        one(x).square().sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("rotate", (None, 32))
def test_conv1d_and_rotations(rotate: int | None) -> None:
    torch.manual_seed(1)
    layer = FakeQuantizedConv1D(N, K, config=scheme(rotate=rotate)).eval()
    served, x = converted(layer), inputs(torch.float32)
    assert torch.equal(served(x), layer(x))
    assert served.weight.shape == (K, N) and (served.nx, served.nf) == (K, N)
    torch.testing.assert_close(served.weight + 0, layer.weight + 0)


# --- models --------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Layers of several kinds, one weight twice, and sizes that no group divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, K)
        self.first = nn.Linear(K, K)
        self.second = nn.Linear(K, K, bias=False)
        self.second.weight = self.first.weight
        self.odd = nn.Linear(K, 33)
        self.last = nn.Linear(33, 4)
        self.conv = nn.Conv1d(K, 32, 3, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = self.second(self.first(x).relu())
        return self.last(self.odd(x).relu()).sum(1) + self.conv(x.mT).sum((1, 2))[:, None]


def models() -> Iterator[tuple[str, nn.Module]]:
    torch.manual_seed(5)
    made = Mixed().eval()
    x = torch.randint(0, 50, (2, 7), generator=cases.generator(1))
    for name, config in (("factors", scheme()), ("asymmetric", scheme(symmetric=False))):
        model = copy.deepcopy(made)
        report = baraquant.quantize_(model, config, progress=False)
        assert report.changed["first"] == report.changed["second"] == "QuantizedInt4Linear"
        assert report.changed["embedding"] == "QuantizedEmbedding"
        assert "group_size to divide in_features (33)" in report.left_out["last"]
        assert model.first.packed is model.second.packed
        error = (model(x) - made(x)).norm() / made(x).norm()
        assert error < 0.3
        yield name, model


def test_models_are_saved_in_half_a_byte_for_a_weight(tmp_path: Any) -> None:
    x = torch.randint(0, 50, (2, 7), generator=cases.generator(1))
    for name, model in models():
        baraquant.save(model, tmp_path / name)
        loaded = baraquant.load_(Mixed, tmp_path / name)
        assert torch.equal(loaded(x), model(x))
        assert loaded.first.packed is loaded.second.packed
        state = model.state_dict()
        assert state["first.packed"].nbytes == K * K // 2
        assert state["first.group_factor"].nbytes == K * K // 32
        again = copy.deepcopy(loaded)
        again.load_state_dict(state)
        assert torch.equal(again(x), model(x))


def test_damaged_files_are_refused(tmp_path: Any) -> None:
    _, model = next(models())
    cases_ = {
        "group_factor": (torch.tensor(17, dtype=torch.uint8), r"integers in \[1, 16\]"),
        "packed": (torch.tensor(255, dtype=torch.uint8), "reaches .* 240"),
    }
    for name, (value, words) in cases_.items():
        damaged = copy.deepcopy(model)
        if name == "packed":
            damaged.first.group_zero_point = torch.zeros_like(damaged.first.group_factor)
            damaged.first.group_factor.fill_(16)
        getattr(damaged.first, name).fill_(value)
        with pytest.raises(ValueError, match=f"first: .*{name}.*{words}"):
            baraquant.save(damaged, tmp_path / "bad")


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


def test_an_input_without_data_stays_floating() -> None:
    """Its weight is then the int8 that the factors give."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(K, K), "unused": nn.Linear(K, K)})
    baraquant.qat.prepare_(model, static())
    model["used"](inputs(torch.float32))
    wanted = model["unused"].eval().weight + 0
    report = baraquant.qat.convert_(model)
    assert report.changed["unused"].startswith("WeightOnlyLinear")
    assert torch.equal(model["unused"].weight + 0, wanted)
