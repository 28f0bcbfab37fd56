# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.FakeQuantize` with mode "dynamic": the scale comes from each input."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from baraquant import ops
from baraquant.nn import FakeQuantize
from tests.support import cases
from tests.support.cases import Granularity

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
SHAPE = (3, 4, 10)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def module_for(granularity: Granularity, symmetric: bool = True) -> FakeQuantize:
    kwargs: dict[str, Any] = {"mode": "dynamic", "symmetric": symmetric}
    if granularity.kind in ("per_channel", "per_group"):
        kwargs["axis"] = granularity.axis
    if granularity.kind == "per_group":
        kwargs["group_size"] = granularity.group_size
    return FakeQuantize(granularity=granularity.kind, quant_min=-8, quant_max=7, **kwargs)


def example(dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 1) -> Tensor:
    x = torch.randn(SHAPE, generator=cases.generator(seed))
    return (x + torch.arange(4.0)[:, None]).to(device, dtype)


def expected(granularity: Granularity, symmetric: bool, x: Tensor) -> Tensor:
    """Rounded with scale and zero point as constants; its gradient is the straight-through one."""
    range_ = (*granularity.args, -8, 7)
    qparams = granularity.op("choose_qparams", ops)(x.detach(), *range_, symmetric=symmetric)
    return granularity.op("fake_quantize", ops)(x, *qparams, *range_)


@by_symmetry
@by_kind
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_value_and_gradient(
    granularity: Granularity, dtype: torch.dtype, symmetric: bool, device: str
) -> None:
    module = module_for(granularity, symmetric).to(device, dtype)
    x = example(dtype, device).requires_grad_()
    y, wanted = module(x), expected(granularity, symmetric, x)
    assert torch.equal(y, wanted)
    assert not torch.equal(y, x)
    dy = torch.randn(SHAPE, generator=cases.generator(2)).to(device, dtype)
    assert torch.equal(*(torch.autograd.grad(out, x, dy)[0] for out in (y, wanted)))


@by_kind
def test_each_input_has_its_own_scale(granularity: Granularity) -> None:
    module, x = module_for(granularity), example()
    y = module(x)
    module(100 * x)
    assert torch.equal(module(x), y)
    assert torch.equal(module(1024 * x), 1024 * y)  # a power of two only shifts the exponents


@by_kind
def test_it_has_no_state(granularity: Granularity) -> None:
    module = module_for(granularity)
    assert not module.state_dict() and not list(module.buffers()) and not list(module.parameters())
    module.load_state_dict({})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*scale"):
        module.load_state_dict({"scale": torch.tensor(1.0)})


@by_symmetry
@by_kind
def test_copies_give_the_same_bits(granularity: Granularity, symmetric: bool) -> None:
    module, x = module_for(granularity, symmetric), example()
    y = module(x)
    assert torch.equal(copy.deepcopy(module)(x), y)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), y)


@by_symmetry
@by_kind
def test_script(granularity: Granularity, symmetric: bool) -> None:
    module, x = module_for(granularity, symmetric), example().requires_grad_()
    scripted = torch.jit.script(module)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    y = module(x)
    loaded = torch.jit.load(file)
    for other in (scripted, loaded, torch.jit.freeze(scripted.eval())):
        assert torch.equal(other(x), y)
        assert torch.equal(*(torch.autograd.grad(o.sum(), x)[0] for o in (other(x), module(x))))
    loaded.disable_fake_quant()
    assert torch.equal(loaded(x), x)


@by_symmetry
@by_kind
def test_compile_and_export(granularity: Granularity, symmetric: bool) -> None:
    torch._dynamo.reset()
    module, x = module_for(granularity, symmetric), example()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), module(x))
    exported = torch.export.export(module, (x,))
    assert torch.equal(exported.module()(x), module(x))


@by_kind
def test_rounding_can_be_switched(granularity: Granularity) -> None:
    torch._dynamo.reset()  # what other tests compiled counts too
    module, x = module_for(granularity), example()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    y = module(x)
    for _ in range(3):
        module.disable_fake_quant()
        assert torch.equal(module(x), x) and torch.equal(compiled(x), x)
        off = pickle.loads(pickle.dumps(module))
        assert torch.equal(off(x), x)
        off.enable_fake_quant()
        assert torch.equal(off(x), y)
        module.enable_fake_quant()
        assert torch.equal(module(x), y) and torch.equal(compiled(x), y)
    assert counter.frame_count <= 2, "at most one compilation for each value"


def test_conversions_leave_nothing_to_convert() -> None:
    module = module_for(cases.PER_TOKEN)
    for dtype in cases.FLOAT_DTYPES:
        assert module.to(dtype)(example(dtype)).dtype == dtype
    assert module.to("meta")(example().to("meta")).device.type == "meta"


def test_what_a_dynamic_scale_lacks_is_refused() -> None:
    module = module_for(cases.PER_TENSOR)
    for call in (
        module.enable_observer,
        module.disable_observer,
        module.reset_min_max_vals,
        module.calculate_qparams,
        module.sync_qparams,
        module.freeze,
    ):
        with pytest.raises(
            RuntimeError, match=r"FakeQuantize: expected mode .*, but got 'dynamic'"
        ):
            call()


def test_repr_says_what_differs() -> None:
    assert repr(module_for(cases.per_group(5, 2), symmetric=False)) == (
        "FakeQuantize(dynamic, per_group, group_size=5, axis=2, quant_min=-8, quant_max=7, "
        "symmetric=False)"
    )


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("no scale for mode 'dynamic', but got 0.1", {"scale": 0.1}),
    ("no zero_point for mode 'dynamic', but got 3", {"zero_point": 3}),
    ("no save_mask for mode 'dynamic', but got False", {"save_mask": False}),
    ("no averaging_constant for mode 'dynamic', but got 0.5", {"averaging_constant": 0.5}),
    ("no channels for mode 'dynamic', but got 4", {"channels": 4}),
    ("an axis for per_channel, but got None", {"granularity": "per_channel"}),
    ("a group_size > 0 for per_group", {"granularity": "per_group"}),
    ("no axis for per_token, but got 0", {"granularity": "per_token", "axis": 0}),
    ("quant_min < quant_max, but got 0 and 0", {"quant_min": 0, "quant_max": 0}),
    ("quant_max - quant_min >= 2 .* but got -1 and 0", {"quant_min": -1, "quant_max": 0}),
]


@pytest.mark.parametrize(("message", "kwargs"), WRONG, ids=lambda v: str(v)[:30])
def test_wrong_arguments(message: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"FakeQuantize: expected {message}"):
        FakeQuantize(**{"mode": "dynamic", **kwargs})


def test_two_levels_without_symmetry() -> None:
    module = FakeQuantize(mode="dynamic", symmetric=False, quant_min=0, quant_max=1)
    x = torch.tensor([0.0, 0.25, 0.75, 1.0])
    assert torch.equal(module(x), torch.tensor([0.0, 0.0, 1.0, 1.0]))


def test_input_of_no_floating_type_is_refused() -> None:
    with pytest.raises(TypeError, match="input"):
        FakeQuantize(mode="dynamic")(torch.arange(4))
