# SPDX-License-Identifier: BSD-3-Clause
"""The ops under opcheck, torch.compile, compiled autograd and torch.export."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from tests.nn.test_quantizer_modules import saved
from tests.support import bad_arguments, cases
from tests.support.calls import affine
from tests.support.calls.affine import ALL_CALLS, KINDS, assert_equal, outputs, value_and_gradients
from tests.support.calls.fused import RESIDUAL_CALLS
from tests.support.calls.range import FAKE_CALLS, OBSERVE_CALLS
from tests.support.core_calls import AsModule, Recorder, bound, opcheck

SHAPE = (3, 4, 20)
# Every size changes with every shape, the number of groups of 8 too, and none is 1, which PyTorch
# compiles on its own.
FIVE_SHAPES = [(3, 4, 20), (5, 6, 28), (2, 9, 33), (7, 3, 16), (4, 5, 100)]
CALLS: tuple[Any, ...] = (*ALL_CALLS, *OBSERVE_CALLS)
by_call = pytest.mark.parametrize("call", CALLS, ids=str)


def turn(index: int) -> bool:
    """Every other time, in another order for each verb, which has four granularities."""
    return bool((index + index // len(KINDS)) % 2)


def is_rotation(call: Any) -> bool:
    """Its rows are whole blocks, so their length is not free."""
    return getattr(call, "base", "") == "hadamard"


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def strided(t: Tensor) -> Tensor:
    """The same values in another memory order, as a leaf of its own."""
    other = t.detach().movedim(-1, 0).contiguous().movedim(0, -1)
    return other.requires_grad_(t.requires_grad)


def dtypes_of(call: Any) -> list[torch.dtype]:
    takes_all = getattr(call, "takes_float64", True)
    return [dtype for dtype in cases.FLOAT_DTYPES if takes_all or dtype != torch.float64]


@by_call
def test_opcheck(call: Any, device: str) -> None:
    """In each dtype; of the graphs, which `test_compile` has in float32, in another for each."""
    dtypes = dtypes_of(call)
    for dtype in dtypes:
        graph = dtype == dtypes[sum(map(ord, str(call))) % len(dtypes)]
        opcheck(*bound(call, call.tensors(SHAPE, dtype, device)), graph)


@pytest.mark.exhaustive
@by_call
def test_opcheck_without_gradients_and_strided(call: Any, device: str) -> None:
    for layout in (lambda t: t, strided, lambda t: t[:, ::2], lambda t: t[:0]):
        first = layout(call.tensors(SHAPE, device=device)[0].detach())
        _, *rest = (t.detach() for t in call.tensors(tuple(first.shape), device=device))
        opcheck(*bound(call, (first, *rest)), graph=False)  # `test_export` makes one


CHECKED: set[str] = set()


def is_new(op: torch._ops.OpOverload, arguments: dict[str, Any], strides: bool) -> bool:
    """Whether no core op was checked that differs in values alone, or in strides, of tensors."""
    described = {
        name: (v.dtype, v.shape, v.device, v.stride() if strides else "any")
        if isinstance(v, Tensor)
        else v
        for name, v in arguments.items()
    }
    before = len(CHECKED)
    CHECKED.add(f"{op} {described}")
    return len(CHECKED) > before


@pytest.mark.cover(call=lambda call: {call.function.__name__.partition("_per_")[0]})
@by_call
def test_opcheck_of_core_ops(call: Any, device: str) -> None:
    """Those that a call and its gradient turn into: of a leaf, and of an activation of other
    strides, of which a mask is kept.
    """

    def of_activation(x: Tensor, *rest: Tensor) -> Any:
        return call(x * 1 if x.is_floating_point() else x, *rest)

    x, *rest = call.tensors(SHAPE, device=device)
    with Recorder() as recorder:
        value_and_gradients(call, (x, *rest))
        value_and_gradients(of_activation, (strided(x), *rest))
    assert recorder.calls
    for op, recorded in recorder.calls:
        arguments = {k: v.detach() if isinstance(v, Tensor) else v for k, v in recorded.items()}
        if not is_new(op, arguments, strides=True):
            continue
        graph = is_new(op, arguments, strides=False)
        learning = dict(arguments)
        first = next(name for name, value in arguments.items() if isinstance(value, Tensor))
        if not op._schema.is_mutable and arguments[first].is_floating_point():
            learning[first] = arguments[first].detach().requires_grad_()
        # The gradients of scales cannot be differentiated again, and say so.
        if is_differentiable(op, learning) and "_qparams_gradient" not in str(op):
            opcheck(op, learning, graph)
            graph = False
        opcheck(op, arguments, graph)


def is_differentiable(op: torch._ops.OpOverload, arguments: dict[str, Any]) -> bool:
    """Whether what an op returns requires grad; what refuses to is not."""
    try:
        results = outputs(op(**arguments))
    except (RuntimeError, NotImplementedError):
        return False
    return any(isinstance(t, Tensor) and t.requires_grad for t in results)


# The first graph is static and the second for any shape; or the only one is for any, or static.
COMPILED = [(call, (None, True, False)[i % 3]) for i, call in enumerate(CALLS)]


@pytest.mark.parametrize(("call", "dynamic"), COMPILED, ids=str)
def test_compile(call: Any, dynamic: bool | None, device: str) -> None:
    """Five shapes without recompilation; or one, also of other strides."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call.__call__, fullgraph=True, dynamic=dynamic, backend=counter)
    is_static = dynamic is False
    for shape in FIVE_SHAPES[: 1 if is_static or is_rotation(call) else 5]:
        first, *rest = call.tensors(shape, device=device)
        for x in (first, strided(first)) if is_static else (first,):
            actual, expected = (value_and_gradients(run, (x, *rest)) for run in (compiled, call))
            assert_equal(actual, expected)
    assert counter.frame_count <= 2, f"{counter.frame_count - 1} recompilations"


FAKE = (*(affine.Call("fake_quantize", granularity) for granularity in KINDS), *FAKE_CALLS)


@pytest.mark.parametrize(
    "call", [pytest.param(FAKE[0], marks=pytest.mark.smoke), *FAKE[1:]], ids=str
)
def test_inductor(call: Any, device: str) -> None:
    compiled = torch.compile(call.__call__, fullgraph=True)
    tensors = call.tensors(SHAPE, device=device)
    assert_equal(value_and_gradients(compiled, tensors), value_and_gradients(call, tensors))


@pytest.mark.inductor
@pytest.mark.parametrize("call", RESIDUAL_CALLS, ids=str)
def test_inductor_with_a_residual(call: Any, device: str) -> None:
    """The sum goes on as the residual of the next layer, and both have a gradient."""
    tensors = call.tensors(SHAPE, device=device)
    compiled = torch.compile(call.__call__, fullgraph=True, dynamic=True)
    found, wanted = (value_and_gradients(run, tensors) for run in (compiled, call))
    torch.testing.assert_close(found, wanted)
    assert_equal(outputs(compiled(*tensors)), outputs(call(*tensors)))


LEARNED = [call for call in (*affine.FORWARD_CALLS, *OBSERVE_CALLS) if call.differentiable]
BY_TURNS = [LEARNED[i] for i in range(len(LEARNED)) if not turn(i)]
OTHERS = [pytest.param(call, marks=pytest.mark.exhaustive) for call in BY_TURNS[1:]]


@pytest.mark.parametrize("call", [BY_TURNS[0], *OTHERS], ids=str)
def test_compiled_autograd(call: Any, device: str) -> None:
    tensors = call.tensors(SHAPE, device=device)
    expected = value_and_gradients(call, tensors)

    def compile_backward(graph: Any) -> Any:
        return torch.compile(graph, backend="aot_eager", fullgraph=True)

    with torch._dynamo.compiled_autograd._enable(compile_backward):
        actual = value_and_gradients(call, tensors)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] == 1
    assert_equal(actual, expected)


@pytest.mark.parametrize(
    ("call", "any_size"),
    [(call, turn(i)) for i, call in enumerate(CALLS)],
    ids=lambda given: {False: "one size", True: "any size"}.get(given, str(given)),
)
def test_export(call: Any, any_size: bool, device: str) -> None:
    """As it is, and saved and loaded; in other strides, too."""
    tensors = tuple(t.detach() for t in call.tensors(SHAPE, device=device))
    automatic, fixed = torch.export.Dim.AUTO, int(is_rotation(call))
    dynamic = (tuple(dict.fromkeys(range(t.dim() - fixed), automatic) for t in tensors),)
    shapes = {"dynamic_shapes": dynamic} if any_size else {}
    exported = torch.export.export(AsModule(call), tensors, **shapes)
    loaded = torch.export.load(saved(torch.export.save, exported))
    for program in (exported.module(), loaded.module()):
        for shape in FIVE_SHAPES[: 5 if any_size else 1]:
            given = (*shape[:-1], SHAPE[-1]) if is_rotation(call) else shape
            x, *rest = (t.detach() for t in call.tensors(given, device=device))
            for first in (x, strided(x), x[:1].expand(x.shape)):
                results = outputs(program(first, *rest)), outputs(call(first, *rest))
                assert all(map(torch.equal, *results))


def test_backward_calls_are_all_there() -> None:
    """The lists of calls cover every public op."""
    # The others have tests of their own: tests/int8_mm/test_grouped.py, the `Tools` of scaled,
    # int4, int8_conv and weight_only, and what comes later.
    here = ("affine", "range", "fused", "int8_mm", "int8_product")
    paths = [f"{bad_arguments.__name__}.{name}" for name in here]
    elsewhere = [module for module in bad_arguments.modules() if module.__name__ not in paths]
    others = {op.name for module in elsewhere for op in module.OPS}
    assert {c.function.__name__ for c in CALLS} | others == set(cases.OP_NAMES)
    assert len(affine.BACKWARD_CALLS) == 16
