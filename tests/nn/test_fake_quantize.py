# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.FakeQuantize` of a fixed scale: values, checks, and its life as a module."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baraquant import reference
from baraquant.nn import FakeQuantize, WeightOnlyLinear
from baraquant.nn.shared.arguments import INTEGERS
from tests.support import cases
from tests.support.cases import Granularity

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
SHAPE = (3, 4, 10)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)


def module_for(granularity: Granularity, dtype: torch.dtype = torch.float32) -> FakeQuantize:
    params = granularity.param_shape(SHAPE)
    kwargs: dict[str, Any] = {"quant_min": -8, "quant_max": 7}
    if granularity.kind in ("per_channel", "per_group"):
        kwargs["axis"] = granularity.axis
    if granularity.kind == "per_group":
        kwargs["group_size"] = granularity.group_size
    zero_point = cases.zero_points(params, (-8, 7))
    return FakeQuantize(cases.scales(params, dtype), zero_point, granularity.kind, **kwargs)


def expected(module: FakeQuantize, granularity: Granularity, x: Tensor) -> Tensor:
    op = granularity.op("fake_quantize", reference)
    return op(x, module.scale, module.zero_point, *granularity.args, -8, 7)


def example(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(SHAPE, generator=cases.generator(1)).to(device, dtype)


@by_kind
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_value_and_gradient(granularity: Granularity, dtype: torch.dtype, device: str) -> None:
    module = module_for(granularity, cases.compute_dtype(dtype)).to(device)
    x = example(dtype, device).requires_grad_()
    y = module(x)
    wanted = expected(module, granularity, x)
    assert torch.equal(y, wanted)
    dy = torch.ones_like(x)
    assert torch.equal(*(torch.autograd.grad(out, x, dy)[0] for out in (y, wanted)))


def test_numbers() -> None:
    x = example()
    module = FakeQuantize(0.1, 3, quant_min=0, quant_max=15)
    assert module.scale.dtype == torch.float32 and module.zero_point.dtype == torch.int32
    assert torch.equal(module(x), reference.fake_quantize_per_tensor(x, 0.1, 3, 0, 15))
    module = FakeQuantize(0.1)
    assert torch.equal(module(x), reference.fake_quantize_per_tensor(x, 0.1, 0))


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
def test_buffers_are_all_its_state(granularity: Granularity) -> None:
    module = module_for(granularity)
    assert sorted(module.state_dict()) == ["scale", "zero_point"]
    assert not list(module.parameters())


@by_kind
def test_conversions_keep_the_scale_exact(granularity: Granularity) -> None:
    module = module_for(granularity)
    scale = module.scale.clone()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        outer = nn.Sequential(nn.Linear(10, 10), copy.deepcopy(module)).to(dtype)
        assert outer[1].scale.dtype == torch.float32
        assert torch.equal(outer[1].scale, scale)
        assert torch.equal(outer[1].zero_point, module.zero_point)
        outer(example(dtype)).sum().backward()
    double = copy.deepcopy(module).double()
    assert torch.equal(double.scale, scale.double())
    assert double(example(torch.float64)).dtype == torch.float64
    for convert in ("half", "bfloat16", "float"):
        back = getattr(copy.deepcopy(double), convert)()
        assert back.scale.dtype == torch.float32 and torch.equal(back.scale, scale)


def test_conversion_to_a_device_and_dtype_at_once() -> None:
    module = module_for(cases.per_channel(1)).to("meta", torch.float16)
    assert module.scale.device.type == "meta" and module.scale.dtype == torch.float32
    assert module(example().to("meta", torch.float16)).device.type == "meta"
    filled = module.to_empty(device="cpu")
    filled.load_state_dict(module_for(cases.per_channel(1)).state_dict())
    assert torch.equal(filled(example()), module_for(cases.per_channel(1))(example()))


@by_kind
def test_copies_give_the_same_bits(granularity: Granularity) -> None:
    module, x = module_for(granularity), example()
    y = module(x)
    assert torch.equal(copy.deepcopy(module)(x), y)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), y)
    other = module_for(granularity)
    other.scale.fill_(1.0)
    assert not torch.equal(other(x), y)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), y)


def test_state_of_another_size_is_refused() -> None:
    module = module_for(cases.per_channel(1))
    other = FakeQuantize(torch.ones(5), None, "per_channel", axis=1)
    before = module.scale.clone()
    with pytest.raises(RuntimeError, match=r"size mismatch for scale.*\[5\].*\[4\]"):
        module.load_state_dict(other.state_dict())
    assert torch.equal(module.scale, before)
    with pytest.raises(RuntimeError, match=r"Missing key.*zero_point"):
        module.load_state_dict({"scale": before})


@by_kind
def test_script(granularity: Granularity) -> None:
    module, x = module_for(granularity), example().requires_grad_()
    scripted = torch.jit.script(module)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    y = module(x)
    for other in (scripted, torch.jit.load(file), torch.jit.freeze(scripted.eval())):
        assert torch.equal(other(x), y)
        assert torch.equal(*(torch.autograd.grad(o.sum(), x)[0] for o in (other(x), module(x))))


@by_kind
def test_compile_and_export(granularity: Granularity) -> None:
    torch._dynamo.reset()
    module, x = module_for(granularity), example()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), module(x))
    exported = torch.export.export(module, (x,))
    assert torch.equal(exported.module()(x), module(x))


@by_kind
def test_rounding_can_be_switched(granularity: Granularity) -> None:
    module, x = module_for(granularity), example().requires_grad_()
    scripted = torch.jit.script(copy.deepcopy(module))
    y = module(x)
    for one in (module, scripted):
        one.disable_fake_quant()
        assert torch.equal(one(x), x)
        assert torch.equal(torch.autograd.grad(one(x).sum(), x)[0], torch.ones_like(x))
        assert torch.equal(copy.deepcopy(one)(x), x)
        one.enable_fake_quant()
        assert torch.equal(one(x), y)
        assert sorted(one.state_dict()) == ["scale", "zero_point"]


@by_kind
def test_qparams_and_freeze(granularity: Granularity) -> None:
    module = module_for(granularity)
    scale, zero_point = module.calculate_qparams()
    assert torch.equal(scale, module.scale) and torch.equal(zero_point, module.zero_point)
    frozen = module.freeze()
    assert repr(frozen) == repr(module)
    module.scale.fill_(1.0)
    assert torch.equal(frozen(example()), module_for(granularity)(example()))


def test_a_fixed_scale_observes_nothing() -> None:
    module = FakeQuantize(0.5)
    for call in (module.enable_observer, module.disable_observer, module.reset_min_max_vals):
        with pytest.raises(RuntimeError, match=r"expected mode 'observed' .*, but got 'fixed'"):
            call()
    with pytest.raises(torch.jit.Error, match=r"expected mode 'observed' .*, but got 'fixed'"):
        torch.jit.script(module).enable_observer()


def test_repr_says_what_differs() -> None:
    assert repr(module_for(cases.per_group(5, 2))) == (
        "FakeQuantize(per_group, group_size=5, axis=2, quant_min=-8, quant_max=7, scale=[3, 4, 2])"
    )
    assert "axis" not in repr(FakeQuantize(0.5))


ONES = torch.ones(4)
WRONG: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (ValueError, "granularity to be one of per_tensor, .*'per_row'", (ONES, None, "per_row"), {}),
    (ValueError, "an axis for per_channel", (ONES, None, "per_channel"), {}),
    (ValueError, "no axis for per_tensor", (0.1,), {"axis": 0}),
    (ValueError, "no axis for per_token", (ONES, None, "per_token"), {"axis": 0}),
    (ValueError, "group_size > 0 for per_group, but got None", (ONES, None, "per_group"), {}),
    (ValueError, "but got 0", (ONES, None, "per_group"), {"group_size": 0}),
    (ValueError, "no group_size for per_tensor", (0.1,), {"group_size": 4}),
    (
        ValueError,
        "quant_min < quant_max, but got 7 and 7",
        (0.1,),
        {"quant_min": 7, "quant_max": 7},
    ),
    (ValueError, "scale to be a tensor for per_channel", (0.1, None, "per_channel"), {"axis": 0}),
    (ValueError, "finite and > 0, but got 0", (0,), {}),
    (ValueError, "finite and > 0, but got -0.1", (-0.1,), {}),
    (ValueError, "finite and > 0, but got nan", (float("nan"),), {}),
    (ValueError, "finite and > 0, but got inf", (float("inf"),), {}),
    (ValueError, r"\[\] or \[1\] for per_tensor, but got \[4\]", (ONES,), {}),
    (ValueError, r"one dimension .*\[4, 1\]", (ONES[:, None], None, "per_channel"), {"axis": 0}),
    (ValueError, r"lie in \[-128, 127\], but got 128", (0.1, 128), {}),
    (
        ValueError,
        r"shape of scale \(\[4\]\), but got \[3\]",
        (ONES, torch.zeros(3).int(), "per_token"),
        {},
    ),
    (TypeError, "float32 or float64, but got torch.float16", (ONES.half(), None, "per_token"), {}),
    (TypeError, "float32 or float64, but got torch.int64", (ONES.long(), None, "per_token"), {}),
    (TypeError, "integer, but got torch.float32", (ONES, ONES, "per_token"), {}),
    (TypeError, "integer, but got torch.bool", (ONES, ONES.bool(), "per_token"), {}),
]


@pytest.mark.parametrize(("error", "message", "args", "kwargs"), WRONG, ids=lambda v: str(v)[:30])
def test_wrong_arguments(
    error: type[Exception], message: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(error, match=f"FakeQuantize: expected .*{message}"):
        FakeQuantize(*args, **kwargs)


def test_input_of_another_compute_type_is_refused() -> None:
    with pytest.raises(TypeError, match="scale"):
        FakeQuantize(0.1)(example(torch.float64))
