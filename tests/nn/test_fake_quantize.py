# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.FakeQuantize` with a fixed scale, and with one that comes from each input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from baraquant.nn import FakeQuantize, WeightOnlyLinear
from baraquant.nn.shared.arguments import INTEGERS
from tests.nn.test_quantizer_modules import SHAPE, fixed, options_of
from tests.support import cases
from tests.support.cases import Granularity

by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)


def dynamic(granularity: Granularity, symmetric: bool = True) -> FakeQuantize:
    return FakeQuantize(mode="dynamic", symmetric=symmetric, **options_of(granularity))


def example(dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 1) -> Tensor:
    x = torch.randn(SHAPE, generator=cases.generator(seed))
    return (x + torch.arange(4.0)[:, None]).to(device, dtype)


def assert_rounds(module: FakeQuantize, x: Tensor, wanted: Tensor) -> None:
    """Its value and gradient are those of the constant scale."""
    y, dy = module(x), torch.randn(SHAPE, generator=cases.generator(2)).to(x)
    assert torch.equal(y, wanted) and not torch.equal(y, x)
    assert torch.equal(*(torch.autograd.grad(out, x, dy)[0] for out in (y, wanted)))


@by_kind
@by_dtype
def test_a_fixed_scale(granularity: Granularity, dtype: torch.dtype, device: str) -> None:
    module = fixed(granularity, 1).to(device, cases.compute_dtype(dtype))
    x = example(dtype, device).requires_grad_()
    rounded = granularity.op("fake_quantize", reference)
    wanted = rounded(x, module.scale, module.zero_point, *granularity.args, -8, 7)
    assert_rounds(module, x, wanted)
    assert sorted(module.state_dict()) == ["scale", "zero_point"] and not list(module.parameters())


@by_symmetry
@by_kind
@by_dtype
def test_a_dynamic_scale(
    granularity: Granularity, dtype: torch.dtype, symmetric: bool, device: str
) -> None:
    module = dynamic(granularity, symmetric).to(device, dtype)
    x, range_ = example(dtype, device).requires_grad_(), (*granularity.args, -8, 7)
    qparams = granularity.op("choose_qparams", ops)(x.detach(), *range_, symmetric=symmetric)
    assert_rounds(module, x, granularity.op("fake_quantize", ops)(x, *qparams, *range_))
    assert not module.state_dict() and not list(module.parameters())


def test_numbers() -> None:
    x = example()
    module = FakeQuantize(0.1, 3, quant_min=0, quant_max=15)
    assert module.scale.dtype == torch.float32 and module.zero_point.dtype == torch.int32
    assert torch.equal(module(x), reference.fake_quantize_per_tensor(x, 0.1, 3, 0, 15))
    assert torch.equal(FakeQuantize(0.1)(x), reference.fake_quantize_per_tensor(x, 0.1, 0))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_zero_points_of_any_integers(dtype: torch.dtype) -> None:
    """They become int32; one that is beyond becomes the nearest."""
    weight, scale = torch.ones(1, 2, dtype=torch.int8), torch.ones(1)
    for given in (3, *((2**40,) if dtype == torch.int64 else ())):
        point = torch.tensor([given], dtype=dtype)
        wanted = torch.tensor([min(given, 2**31 - 1)], dtype=torch.int32)
        layer = WeightOnlyLinear(weight, scale, weight_zero_point=point)
        for got in (FakeQuantize(scale, point).zero_point, layer.weight_zero_point):
            assert got.dtype == torch.int32 and torch.equal(got, wanted)


@by_kind
def test_each_input_has_its_own_scale(granularity: Granularity) -> None:
    module, x = dynamic(granularity), example()
    y = module(x)
    module(100 * x)
    assert torch.equal(module(x), y)
    assert torch.equal(module(1024 * x), 1024 * y)  # a power of two only shifts the exponents


def test_two_levels_without_symmetry() -> None:
    module = FakeQuantize(mode="dynamic", symmetric=False, quant_min=0, quant_max=1)
    x = torch.tensor([0.0, 0.25, 0.75, 1.0])
    assert torch.equal(module(x), torch.tensor([0.0, 0.0, 1.0, 1.0]))


@by_kind
def test_qparams_and_freeze(granularity: Granularity) -> None:
    module, x = fixed(granularity, 1), example()
    for got, kept in zip(module.calculate_qparams(), module.state_dict().values(), strict=True):
        assert torch.equal(got, kept)
    frozen, y = module.freeze(), module(x)
    assert repr(frozen) == repr(module)
    module.scale.fill_(1.0)
    assert torch.equal(frozen(x), y) and not torch.equal(module(x), y)
