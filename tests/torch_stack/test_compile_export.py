# SPDX-License-Identifier: BSD-3-Clause
"""The ops under opcheck, torch.compile, compiled autograd and torch.export."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from tests.support import bad_arguments, cases
from tests.support.calls.affine import (
    ALL_CALLS,
    BACKWARD_CALLS,
    FORWARD_CALLS,
    KINDS,
    RANGE,
    Call,
    assert_equal,
    outputs,
    value_and_gradients,
)
from tests.support.calls.range import OBSERVE_CALLS

SHAPE = (3, 4, 20)
# Every size changes with every shape, the number of groups of 8 too, and none is 1, which PyTorch
# compiles on its own.
FIVE_SHAPES = [(3, 4, 20), (5, 6, 28), (2, 9, 33), (7, 3, 16), (4, 5, 100)]
by_call = pytest.mark.parametrize("call", ALL_CALLS, ids=str)
# The rows of a rotation are whole blocks, so their length is not free (see test_fused.py).
by_call_of_any_length = pytest.mark.parametrize(
    "call", [c for c in ALL_CALLS if getattr(c, "base", "") != "hadamard"], ids=str
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def strided(t: Tensor) -> Tensor:
    """The same values in another memory order, as a leaf of its own."""
    other = t.detach().movedim(-1, 0).contiguous().movedim(0, -1)
    return other.requires_grad_(t.requires_grad)


def overload(call: Call) -> torch._ops.OpOverload:
    packet = getattr(torch.ops.baraquant, call.function.__name__)
    if getattr(call, "residual", False):
        return packet.residual
    return packet.number if call.number else packet.default


# float32 everywhere; the other dtypes where the granularity cannot matter.
OPCHECKS = [
    pytest.param(call, dtype, id=f"{call}-{cases.name_of(dtype)}")
    for call in ALL_CALLS
    for dtype in cases.FLOAT_DTYPES
    if dtype == torch.float32 or call.granularity.kind == "per_channel"
]


@pytest.mark.parametrize(("call", "dtype"), OPCHECKS)
def test_opcheck(call: Call, dtype: torch.dtype, device: str) -> None:
    args, kwargs = call.arguments(*call.tensors(SHAPE, dtype, device))
    torch.library.opcheck(overload(call), args, kwargs)


@pytest.mark.exhaustive
@by_call
def test_opcheck_without_gradients_and_strided(call: Call, device: str) -> None:
    tensors = call.tensors(SHAPE, device=device)
    detached = [t.detach() for t in tensors]
    for first in (detached[0], strided(detached[0]), detached[0][:, ::2], detached[0][:0]):
        if first.shape != detached[0].shape:
            tensors = call.tensors(tuple(first.shape), device=device)
        args, kwargs = call.arguments(first, *(t.detach() for t in tensors[1:]))
        torch.library.opcheck(overload(call), args, kwargs)


MASK_BYTES = math.prod(SHAPE) // 8
# What each core op takes behind the arguments that all of them share.
CORE_OPS: list[tuple[str, Callable[[Tensor], tuple[Any, ...]], bool]] = [
    ("_quantize", lambda x: (torch.int8, None), False),
    ("_quantize", lambda x: (torch.float32, True), True),
    ("_fake_quantize", lambda x: (None, None), True),
    ("_fake_quantize", lambda x: (True, None), True),
    ("_fake_quantize", lambda x: (True, switch(x)), True),
    ("_dequantize", lambda x: (torch.float16,), True),
    ("_quantize_with_mask", lambda x: (torch.float32, [1, 0, 2]), False),
    ("_fake_quantize_with_mask", lambda x: ([], None), False),
    ("_fake_quantize_with_mask", lambda x: ([1, 0, 2], switch(x)), False),
    ("_input_gradient", lambda x: (torch.ones_like(x).requires_grad_(), True), True),
    ("_masked_gradient", lambda x: (full_mask(x), [], torch.float32, False), True),
    ("_masked_gradient", lambda x: (full_mask(x), [2, 0, 1], torch.float32, True), True),
    ("_qparams_gradient", lambda x: (torch.ones_like(x), True), False),
]


def switch(x: Tensor) -> Tensor:
    return torch.ones(1, dtype=torch.uint8, device=x.device)


def full_mask(x: Tensor) -> Tensor:
    return torch.full((MASK_BYTES,), 255, dtype=torch.uint8, device=x.device)


@pytest.mark.parametrize(
    ("name", "rest", "differentiable"), CORE_OPS, ids=[f"{i}{c[0]}" for i, c in enumerate(CORE_OPS)]
)
@pytest.mark.parametrize("granularity", KINDS, ids=str)
def test_opcheck_of_core_ops(
    name: str,
    rest: Callable[[Tensor], tuple[Any, ...]],
    differentiable: bool,
    granularity: cases.Granularity,
    device: str,
) -> None:
    x, scale, zero_point = Call("fake_quantize", granularity).tensors(SHAPE, device=device)
    x = x.detach().requires_grad_(differentiable)
    number = [kind.kind for kind in KINDS].index(granularity.kind)
    shared = (scale, zero_point, 1.0, 0, number, granularity.axis, granularity.group_size or 1)
    op = getattr(torch.ops.baraquant, name).default
    torch.library.opcheck(op, (x, *shared, *RANGE, *rest(x.detach())))


@by_call
def test_compile_static(call: Call, device: str) -> None:
    compiled = torch.compile(call.__call__, fullgraph=True, dynamic=False, backend="aot_eager")
    tensors = call.tensors(SHAPE, device=device)
    for first in (tensors[0], strided(tensors[0])):
        tensors = (first, *tensors[1:])
        assert_equal(value_and_gradients(compiled, tensors), value_and_gradients(call, tensors))


@by_call_of_any_length
@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "automatic"])
def test_compile_five_shapes(call: Call, dynamic: bool | None, device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call.__call__, fullgraph=True, dynamic=dynamic, backend=counter)
    for shape in FIVE_SHAPES:
        tensors = call.tensors(shape, device=device)
        assert_equal(value_and_gradients(compiled, tensors), value_and_gradients(call, tensors))
    assert counter.frame_count <= 2, f"{counter.frame_count - 1} recompilations over five shapes"


class Block(nn.Module):
    """Two layers with everything in between quantized, as a user would write it."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        self.first, self.second = nn.Linear(20, 20), nn.Linear(20, 20)

    def forward(self, x: Tensor, *qparams: Tensor) -> Tensor:
        return self.second(self.call(torch.relu(self.first(x)), *qparams).to(x.dtype))


def trained(block: nn.Module, function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """The loss of one step and the gradients of the weights."""
    block.zero_grad()
    loss = function(*tensors).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in block.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    "granularity", [pytest.param(KINDS[0], marks=pytest.mark.smoke), *KINDS[1:]], ids=str
)
def test_inductor(granularity: cases.Granularity, device: str) -> None:
    call = Call("fake_quantize", granularity)
    compiled = torch.compile(call.__call__, fullgraph=True)
    tensors = call.tensors(SHAPE, device=device)
    assert_equal(value_and_gradients(compiled, tensors), value_and_gradients(call, tensors))


@pytest.mark.parametrize(
    "call",
    [
        FORWARD_CALLS[0],
        *(pytest.param(call, marks=pytest.mark.exhaustive) for call in FORWARD_CALLS[1:]),
    ],
    ids=str,
)
def test_compiled_autograd(call: Call, device: str) -> None:
    torch.manual_seed(0)
    x, *qparams = call.tensors(SHAPE, device=device)
    block, x = Block(call).to(device), x.detach()
    expected = trained(block, block, x, *qparams)
    qparam_grads = [q.grad for q in qparams]
    for q in qparams:
        q.grad = None

    def compile_backward(graph: Any) -> Any:
        return torch.compile(graph, backend="aot_eager", fullgraph=True)

    with torch._dynamo.compiled_autograd._enable(compile_backward):
        actual = trained(block, block, x, *qparams)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] == 1
    actual += [q.grad for q in qparams if q.grad is not None]
    expected += [g for g in qparam_grads if g is not None]
    assert len(actual) > 1 and len(actual) == len(expected)
    assert all(map(torch.equal, actual, expected))


class AsModule(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(*tensors)


@by_call
def test_export(call: Call, device: str) -> None:
    tensors = tuple(t.detach() for t in call.tensors(SHAPE, device=device))
    exported = torch.export.export(AsModule(call), tensors)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for first in (tensors[0], strided(tensors[0]), tensors[0].expand(SHAPE)):
        arguments = (first, *tensors[1:])
        for program in (exported.module(), loaded):
            for a, e in zip(outputs(program(*arguments)), outputs(call(*arguments)), strict=True):
                assert torch.equal(a, e)


@by_call_of_any_length
def test_export_with_dynamic_sizes(call: Call, device: str) -> None:
    tensors = tuple(t.detach() for t in call.tensors(SHAPE, device=device))
    automatic = torch.export.Dim.AUTO
    dynamic = (tuple(dict.fromkeys(range(t.dim()), automatic) for t in tensors),)
    exported = torch.export.export(AsModule(call), tensors, dynamic_shapes=dynamic)
    for shape in FIVE_SHAPES:
        other = tuple(t.detach() for t in call.tensors(shape, device=device))
        for arguments in (other, (strided(other[0]), *other[1:])):
            results = outputs(exported.module()(*arguments))
            for a, e in zip(results, outputs(call(*arguments)), strict=True):
                assert torch.equal(a, e)


def test_channels_last_through_an_exported_network(device: str) -> None:
    """Exported for contiguous images, called with channels_last ones."""
    call = Call("fake_quantize", cases.per_channel(1))
    conv = nn.Conv2d(4, 4, 3).to(device).requires_grad_(False)
    scale, zero_point = (t.detach() for t in call.tensors((2, 4, 9, 9), device=device)[1:])

    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return call(conv(call(x, scale, zero_point)), scale, zero_point)

    x = torch.randn(2, 4, 9, 9, device=device)
    exported = torch.export.export(Network(), (x,)).module()
    for layout in (torch.contiguous_format, torch.channels_last):
        given = x.to(memory_format=layout)
        torch.testing.assert_close(exported(given), Network()(x))


def test_backward_calls_are_all_there() -> None:
    """The lists of calls cover every public op."""
    from tests.support.cases import OP_NAMES

    calls = (*ALL_CALLS, *OBSERVE_CALLS)
    # The others have tests of their own: tests/int8_mm/test_grouped.py, the test_stack.py of
    # scaled, int4 and weight_only, tests/int8_conv/test_torch_stack.py, and what comes later.
    here = [f"{bad_arguments.__name__}.{name}" for name in ("affine", "range", "fused", "int8_mm")]
    here.append(f"{bad_arguments.__name__}.int8_product")
    elsewhere = [module for module in bad_arguments.modules() if module.__name__ not in here]
    others = {op.name for module in elsewhere for op in module.OPS}
    assert {c.function.__name__ for c in calls} | others == set(OP_NAMES)
    assert len(BACKWARD_CALLS) == 16
