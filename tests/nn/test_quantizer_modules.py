# SPDX-License-Identifier: BSD-3-Clause
"""Quantizers of every kind live like any module: copied, stored, converted, scripted, compiled."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from baraquant import W8A16, ops, reference
from baraquant import nn as bnn
from baraquant.nn.shared.arguments import INTEGERS
from baraquant.nn.shared.range import rounded_scale
from baraquant.qat import prepare_
from tests.support import cases
from tests.support.cases import Granularity
from tests.support.schemes import described
from tests.workflow.test_scale_dtype import DTYPES, rounded

SHAPE = (3, 4, 10)
RANGE = {"quant_min": -8, "quant_max": 7}
LEARNED: dict[str, dict[str, Any]] = {
    "per_tensor": {},
    "per_channel": {"granularity": "per_channel", "axis": 0, "shape": (4,)},
    "last_channel": {"granularity": "per_channel", "axis": 1, "shape": (10,)},
    "per_group": {"granularity": "per_group", "group_size": 5, "shape": (4, 2)},
}


def example(seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(SHAPE, generator=cases.generator(seed))
    return (x + torch.arange(4.0)[:, None]).to(dtype)


def options_of(granularity: Granularity) -> dict[str, Any]:
    found: dict[str, Any] = {"granularity": granularity.kind, **RANGE}
    names = {"per_channel": ["axis"], "per_group": ["axis", "group_size"]}
    return found | {name: getattr(granularity, name) for name in names.get(granularity.kind, ())}


def fixed(granularity: Granularity, seed: int, **more: Any) -> bnn.FakeQuantize:
    shape = granularity.param_shape(SHAPE)
    scale, zero_point = cases.scales(shape, torch.float32), cases.zero_points(shape, (-8, 7))
    return bnn.FakeQuantize(scale * seed, zero_point, **options_of(granularity), **more)


def observed(granularity: str, seed: int, **more: Any) -> bnn.FakeQuantize:
    of_channels = {"axis": 1, "channels": 4} if granularity == "per_channel" else {}
    options = {"granularity": granularity, **of_channels, **RANGE, "symmetric": False, **more}
    module = bnn.FakeQuantize(mode="observed", **options)
    module(example(seed))
    module.disable_observer()
    return module


def learned(kind: str, symmetric: bool, seed: int, **more: Any) -> bnn.LearnedFakeQuantize:
    module = bnn.LearnedFakeQuantize(**LEARNED[kind], symmetric=symmetric, **RANGE, **more)
    module.initialize(example(seed)[0])
    return module


def four_bits(kind: str, symmetric: bool, seed: int) -> nn.Module:
    if kind == "learned":
        module = bnn.LearnedFakeQuantizeInt4(2, shape=(4, 5), symmetric=symmetric)
        module.initialize(example(seed)[0])
        return module
    names = ("scale", "group_factor", "group_zero_point")
    parts = ops.choose_int4_qparams(example(seed)[0], 2, symmetric=symmetric)
    given = dict(zip(names, parts, strict=True)) if kind == "given" else {}
    return bnn.FakeQuantizeInt4(2, symmetric=symmetric, **given)


# Of each kind a function of a seed: other seeds have other scales.
KINDS: dict[str, Callable[[int], nn.Module]] = {
    **{f"fixed {g}": lambda seed, g=g: fixed(g, seed) for g in cases.KINDS},
    **{
        f"dynamic {g} {symmetric}": lambda seed, g=g, symmetric=symmetric: bnn.FakeQuantize(
            mode="dynamic", symmetric=symmetric, **options_of(g)
        )
        for g in cases.KINDS for symmetric in (True, False)
    },
    "observed per_tensor": lambda seed: observed("per_tensor", seed),
    "observed per_channel": lambda seed: observed("per_channel", seed),
    **{
        f"learned {kind} {symmetric}": lambda seed, kind=kind, s=symmetric: learned(kind, s, seed)
        for kind in LEARNED for symmetric in (True, False)
    },
    "ternary per_tensor": lambda seed: bnn.FakeQuantizeTernary(),
    "ternary per_channel": lambda seed: bnn.FakeQuantizeTernary("per_channel", axis=0),
    "ternary per_group": lambda seed: bnn.FakeQuantizeTernary("per_group", group_size=5),
    **{
        f"int4 {kind} {symmetric}": lambda seed, k=kind, s=symmetric: four_bits(k, s, seed)
        for kind in ("dynamic", "given", "learned") for symmetric in (True, False)
    },
}  # fmt: skip
for dtype in ("bfloat16", "float16"):
    given: dict[str, Any] = {"scale_dtype": dtype}
    KINDS |= {
        f"fixed {dtype}": lambda seed, given=given: fixed(cases.PER_TENSOR, seed, **given),
        f"observed {dtype}": lambda seed, given=given: observed("per_channel", seed, **given),
        f"learned {dtype}": lambda seed, g=given: learned("per_channel", False, seed, **g),
        **{f"dynamic {g} {dtype}": lambda seed, given=given, g=g: bnn.FakeQuantize(mode="dynamic",
        symmetric=False, **options_of(g), **given) for g in (cases.PER_TOKEN, cases.per_channel(1),
        cases.per_group(5, -1))},
    }  # fmt: skip
EXHAUSTIVE = [pytest.mark.exhaustive]


def facets(kind: str) -> set[str]:
    """The short run holds each mode with each granularity, and both symmetries."""
    words = kind.split()
    return {" ".join(words[:2]), words[-1]}


def by_kind(test: Callable[..., None]) -> Any:
    kinds = [pytest.param(k, marks=EXHAUSTIVE if k.endswith("float16") else []) for k in KINDS]
    return pytest.mark.cover(kind=facets)(pytest.mark.parametrize("kind", kinds)(test))


SWITCH = {"scheme", "fake_quant_enabled"}  # in the state of every module


def input_of(kind: str, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    x = example(seed, dtype)
    return x[0] if kind.startswith(("learned", "int4", "ternary")) else x


def saved(save: Callable[..., None], what: Any) -> io.BytesIO:
    file = io.BytesIO()
    save(what, file)
    file.seek(0)
    return file


def copies(one: Any) -> tuple[Any, ...]:
    loaded = torch.load(saved(torch.save, one), weights_only=False)
    return copy.deepcopy(one), pickle.loads(pickle.dumps(one)), loaded


@by_kind
def test_copies_and_states(kind: str) -> None:
    module, other, x = KINDS[kind](1), KINDS[kind](2), input_of(kind)
    y, state = module(x), module.state_dict()
    assert torch.equal(other(x), y) == (state.keys() == SWITCH), "else there is nothing to store"
    for twin in copies(module):
        assert torch.equal(twin(x), y)
        for tensor in twin.state_dict().values():
            tensor.zero_()
        assert torch.equal(module(x), y), "apart"
    loaded = torch.load(saved(torch.save, state), weights_only=True)
    other.load_state_dict(loaded)
    empty = KINDS[kind](2).to("meta", torch.float16)
    assert empty(x.to("meta", torch.float16)).device.type == "meta"
    assigned, filled = copy.deepcopy(empty), empty.to_empty(device="cpu")
    assigned.load_state_dict(loaded, assign=True)
    filled.load_state_dict(loaded)
    for twin in (other, assigned, filled):
        assert torch.equal(twin(x), y)
        torch.testing.assert_close(twin.state_dict(), state, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        module.load_state_dict({**state, "more": torch.ones(1)})
    if state.keys() != SWITCH:
        name = "scale"
        with pytest.raises(RuntimeError, match=f"Missing key.*{name}"):
            module.load_state_dict({n: t for n, t in state.items() if n != name})
        with pytest.raises(RuntimeError, match=f"size mismatch for {name}"):
            module.load_state_dict({**state, name: torch.ones(7)})
        assert torch.equal(module(x), y)


@by_kind
def test_conversions_keep_the_scale_exact(kind: str) -> None:
    module = KINDS[kind](1)
    state = copy.deepcopy(module.state_dict())
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        outer = nn.Sequential(nn.Linear(10, 10), copy.deepcopy(module)).to(dtype)
        torch.testing.assert_close(outer[1].state_dict(), state, rtol=0, atol=0)
        y = outer(input_of(kind, dtype))
        y.sum().backward()
        assert y.dtype == dtype
    double = copy.deepcopy(module).double()
    assert double(input_of(kind, torch.float64)).dtype == torch.float64
    wide = {name: t.double() if t.is_floating_point() else t for name, t in state.items()}
    torch.testing.assert_close(dict(double.state_dict()), wide, rtol=0, atol=0)
    for convert in ("half", "bfloat16", "float"):
        back = getattr(copy.deepcopy(double), convert)()
        torch.testing.assert_close(back.state_dict(), state, rtol=0, atol=0)


@by_kind
def test_in_every_kind_of_graph(kind: str) -> None:
    """The same output and gradient; a calibrated scale stays where it is."""
    torch._dynamo.reset()
    module, x = KINDS[kind](1).eval(), input_of(kind).requires_grad_()
    y = module(x)
    (dx,) = torch.autograd.grad(y.sum(), x)
    script = torch.jit.script(copy.deepcopy(module))
    graphs = {
        "script": script,
        "loaded": torch.jit.load(saved(torch.jit.save, script)),
        "frozen": torch.jit.freeze(torch.jit.script(copy.deepcopy(module))),
        "compile": torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager"),
        "export": torch.export.export(module, (x.detach(),)).module(),
    }
    for name, graph in graphs.items():
        assert torch.equal(graph(x), y), name
        assert torch.equal(torch.autograd.grad(graph(x).sum(), x)[0], dx), name
    if not kind.startswith(("observed", "int4", "ternary")):  # whose ops have no rule for it
        batch = torch.stack([x.detach(), 2 * x.detach()])
        rounded = torch.stack([module.round(one) for one in batch])
        assert torch.equal(torch.vmap(module.round)(batch), rounded)


@by_kind
def test_rounding_can_be_switched(kind: str) -> None:
    torch._dynamo.reset()  # what other tests compiled counts too
    module, x = KINDS[kind](1).eval(), input_of(kind).requires_grad_()
    script = torch.jit.script(copy.deepcopy(module))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    y, names = module(x), sorted(module.state_dict())
    for _ in range(2):
        for one in (module, script):
            one.disable_fake_quant()
            assert torch.equal(one(x), x)
            assert torch.equal(torch.autograd.grad(one(x).sum(), x)[0], torch.ones_like(x))
        off = pickle.loads(pickle.dumps(module))
        assert torch.equal(compiled(x), x) and torch.equal(off(x), x)
        for one in (module, script, off):
            one.enable_fake_quant()
            assert torch.equal(one(x), y)
        assert torch.equal(compiled(x), y) and sorted(module.state_dict()) == names
    assert counter.frame_count <= 2, "at most one compilation for each value"


REPRS = {
    "fixed per_group": "FakeQuantize(per_group, group_size=8, axis=-1, quant_min=-8, quant_max=7,",
    "dynamic per_token False": "FakeQuantize(dynamic, per_token, quant_min=-8, quant_max=7, symme",
    "observed per_channel": "FakeQuantize(observed, per_channel, axis=1, quant_min=-8, quant_max=",
    "observed float16": "scale_dtype=float16",
    "learned per_group True": "LearnedFakeQuantize(per_group, group_size=5, axis=-1, quant_min=-8",
    "learned bfloat16": "scale_dtype=bfloat16",
    "int4 learned True": "LearnedFakeQuantizeInt4(group_size=2, symmetric=True, scale=[4, 5])",
}


@pytest.mark.parametrize("kind", REPRS)
def test_repr_says_what_differs(kind: str) -> None:
    make = next(make for name, make in KINDS.items() if name.startswith(kind))
    assert REPRS[kind] in repr(make(1))


# --- a fixed scale, and one that comes from each input ------------------------------------------

by_granularity = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)


def dynamic(granularity: Granularity, symmetric: bool = True) -> bnn.FakeQuantize:
    return bnn.FakeQuantize(mode="dynamic", symmetric=symmetric, **options_of(granularity))


def assert_rounds(module: bnn.FakeQuantize, x: Tensor, wanted: Tensor) -> None:
    """Its value and gradient are those of the constant scale."""
    y, dy = module(x), torch.randn(SHAPE, generator=cases.generator(2)).to(x)
    assert torch.equal(y, wanted) and not torch.equal(y, x)
    assert torch.equal(*(torch.autograd.grad(out, x, dy)[0] for out in (y, wanted)))


@by_granularity
@by_dtype
def test_fixed_scale(granularity: Granularity, dtype: torch.dtype, device: str) -> None:
    module = fixed(granularity, 1).to(device, cases.compute_dtype(dtype))
    x = example(dtype=dtype).to(device).requires_grad_()
    rounded = granularity.op("fake_quantize", reference)
    wanted = rounded(x, module.scale, module.zero_point, *granularity.args, -8, 7)
    assert_rounds(module, x, wanted)
    assert module.state_dict().keys() == {"scale", "zero_point", *SWITCH}
    assert not list(module.parameters())


@pytest.mark.parametrize("symmetric", [True, False])
@by_granularity
@by_dtype
def test_dynamic_scale(granularity: Granularity, dtype: Any, symmetric: bool, device: str) -> None:
    module = dynamic(granularity, symmetric).to(device, dtype)
    x, range_ = example(dtype=dtype).to(device).requires_grad_(), (*granularity.args, -8, 7)
    qparams = granularity.op("choose_qparams", ops)(x.detach(), *range_, symmetric=symmetric)
    assert_rounds(module, x, granularity.op("fake_quantize", ops)(x, *qparams, *range_))
    assert module.state_dict().keys() == SWITCH and not list(module.parameters())


def test_numbers() -> None:
    x = example()
    module = bnn.FakeQuantize(0.1, 3, quant_min=0, quant_max=15)
    assert module.scale.dtype == torch.float32 and module.zero_point.dtype == torch.int32
    assert torch.equal(module(x), reference.fake_quantize_per_tensor(x, 0.1, 3, 0, 15))
    assert torch.equal(bnn.FakeQuantize(0.1)(x), reference.fake_quantize_per_tensor(x, 0.1, 0))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_zero_points_of_any_integers(dtype: torch.dtype) -> None:
    """They become int32; one that is beyond becomes the nearest."""
    weight, scale = torch.ones(1, 2, dtype=torch.int8), torch.ones(1)
    for given in (3, *((2**40,) if dtype == torch.int64 else ())):
        point = torch.tensor([given], dtype=dtype)
        wanted = torch.tensor([min(given, 2**31 - 1)], dtype=torch.int32)
        layer = bnn.WeightOnlyLinear(weight, scale, weight_zero_point=point)
        for got in (bnn.FakeQuantize(scale, point).zero_point, layer.weight_zero_point):
            assert got.dtype == torch.int32 and torch.equal(got, wanted)


def test_two_levels_without_symmetry() -> None:
    module = bnn.FakeQuantize(mode="dynamic", symmetric=False, quant_min=0, quant_max=1)
    x = torch.tensor([0.0, 0.25, 0.75, 1.0])
    assert torch.equal(module(x), torch.tensor([0.0, 0.0, 1.0, 1.0]))


@by_granularity
def test_qparams_and_freeze(granularity: Granularity) -> None:
    module, x = fixed(granularity, 1), example()
    assert all(map(torch.equal, module.calculate_qparams(), (module.scale, module.zero_point)))
    frozen, y = module.freeze(), module(x)
    assert repr(frozen) == repr(module)
    module.scale.fill_(1.0)
    assert torch.equal(frozen(x), y) and not torch.equal(module(x), y)


# --- with ``scale_dtype`` -------------------------------------------------------------------------

by_scale_dtype = pytest.mark.parametrize("dtype", DTYPES)
GRANULARITIES: dict[str, dict[str, Any]] = {
    "per_tensor": {}, "per_channel": {"axis": 1}, "per_token": {}, "per_group": {"group_size": 4},
}  # fmt: skip
LIMITS = {"bfloat16": (2.0**-126, 3.3895313892515355e38), "float16": (2.0**-24, 65504.0)}


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@by_scale_dtype
def test_the_rounding(dtype: str) -> None:
    """Against NumPy: ties, neighbours of ties, subnormal and large numbers."""
    bits = torch.randint(0x00800000, 0x7F800000, (200000,), dtype=torch.int32)
    ties = (torch.arange(0x33000000, 0x7F000000, 0x1000, dtype=torch.int64)).to(torch.int32)
    around = torch.cat([ties - 1, ties, ties + 1])
    scale = torch.cat([bits, around]).view(torch.float32)
    least, most = LIMITS[dtype]
    wanted = rounded(scale, dtype).clamp_min(least)
    got = rounded_scale(scale, dtype)
    assert got.dtype == torch.float32 and torch.equal(got, wanted)
    assert bool(got.isinf().any()) and bool((got == least).any()) and bool((got == most).any())
    assert torch.equal(rounded_scale(scale.double(), dtype), wanted.double())
    special = torch.tensor([float("nan"), float("inf")])
    assert rounded_scale(special, dtype)[0].isnan() and rounded_scale(special, dtype)[1].isinf()
    # float64 is rounded once: through float32 this would be a tie.
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    above = torch.tensor(1 + step + 2.0**-40, dtype=torch.float64)
    assert rounded_scale(above, dtype).item() == 1 + 2 * step
    assert rounded_scale(scale, "float32") is scale


@by_scale_dtype
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (0, 8)], ids=str)
@pytest.mark.exhaustive
def test_a_rounded_dynamic_scale(granularity: str, symmetric: bool, dtype: str, shape: Any) -> None:
    how = {"granularity": granularity, **GRANULARITIES[granularity], "mode": "dynamic"}
    module = bnn.FakeQuantize(**how, symmetric=symmetric, scale_dtype=dtype)
    plain = bnn.FakeQuantize(**how, symmetric=symmetric)
    x = values(*shape).requires_grad_()
    integers, scale, zeros = module.quantize(x.detach())
    _, before, zeros_before = plain.quantize(x.detach())
    assert torch.equal(scale, rounded(before, dtype)) and scale.shape == before.shape
    assert zeros.shape == zeros_before.shape and zeros.dtype == torch.int32
    assert int((zeros - zeros_before).abs().max()) <= 1 if zeros.numel() else True
    fixed = bnn.FakeQuantize(scale, zeros, granularity, **GRANULARITIES[granularity])
    assert torch.equal(fixed.quantize(x.detach())[0], integers)
    got = module(x)
    assert torch.equal(got, fixed(x)) and torch.equal(module.round(x), got)
    gradient = torch.autograd.grad(got.sum(), x)[0]
    assert torch.equal(gradient, torch.autograd.grad(fixed(x).sum(), x)[0])
    if symmetric and x.numel():
        assert torch.equal(gradient, torch.ones_like(x))


@by_scale_dtype
def test_a_given_scale_and_a_state(dtype: str) -> None:
    scale = torch.tensor([0.1, 0.3])
    module = bnn.FakeQuantize(scale, None, "per_channel", axis=0, scale_dtype=dtype)
    assert torch.equal(module.scale, rounded(scale, dtype)) and scale[0] == 0.1 * torch.ones(())
    x = values(2, 4)
    assert torch.equal(module(x), ops.fake_quantize_per_channel(x, module.scale, None, 0))
    other = bnn.FakeQuantize(scale + 0.05, None, "per_channel", axis=0)
    for assign in (False, True):
        module.load_state_dict(other.state_dict(), assign=assign)
        assert torch.equal(module.scale, rounded(other.scale, dtype))
        assert torch.equal(other.scale, scale + 0.05), "the state itself is as it was"


class Together(nn.Module):
    """Quantizers of every kind beside each other, and two layers: TorchInductor runs once."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.kinds = [kind for kind in KINDS if kind.endswith(dtype)]
        self.quantizers = nn.ModuleList(KINDS[kind](1) for kind in self.kinds)
        for kind, module in zip(self.kinds, self.quantizers, strict=True):
            if kind.startswith("observed"):
                module.enable_observer()
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
        config = described("int4 asymmetric learned", scale_dtype=dtype)
        prepare_(self.layers, {"0": config, "1": W8A16(scale_dtype=dtype)})

    def forward(self, inputs: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        rounded = [module(x) for module, x in zip(self.quantizers, inputs, strict=True)]
        return rounded, self.layers[0].fake_quantized_weight(), self.layers(x)


@by_scale_dtype
@pytest.mark.inductor
@pytest.mark.exhaustive
def test_rounded_scales_compiled(dtype: str) -> None:
    """TorchInductor removes a cast to bfloat16 and back; the rounding has to survive that."""
    torch.compiler.reset()
    model = Together(dtype)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True)
    for step in (1, 2):
        found = []
        for one in (compiled, model):
            leaves = [(input_of(kind) * step).requires_grad_() for kind in model.kinds]
            rounded, weight, y = one(leaves, values(3, 8))
            sum(x.sum() for x in rounded).backward()
            found.append([*rounded, weight, *(leaf.grad for leaf in leaves)])
            found[-1] += [module.scale for module in one.quantizers if hasattr(module, "scale")]
            found[-1].append(y)
        (*got, y), (*wanted, plain) = found
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
        torch.testing.assert_close(y, plain, rtol=1e-6, atol=1e-6)
