# SPDX-License-Identifier: BSD-3-Clause
"""The range family in PyTorch, beyond what it shares with the affine one: core ops, compilers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn

import toolchain
from baraquant import nn as bnn
from baraquant import ops
from tests.support import cases
from tests.support.aot_inductor import skip_where_it_crashes
from tests.support.calls.affine import assert_equal, value_and_gradients
from tests.support.calls.range import (
    FAKE_CALLS,
    OBSERVE_CALLS,
    RANGE,
    ObserveCall,
    RangeCall,
    skewed,
)

SHAPE = (3, 4, 20)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_fake_call = pytest.mark.parametrize("call", FAKE_CALLS, ids=str)


@pytest.fixture
def compiler() -> Iterator[None]:
    """A fresh one, and for AOTInductor's packages, which load torch, one that can link them."""
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.cxx": (None, toolchain.program_compiler())}):
        yield


# --- core ops ------------------------------------------------------------------------------------

# Behind the arguments that all of them share; whether the input may require grad.
CORE_OPS: list[tuple[str, tuple[Any, ...], bool]] = [
    ("_choose_qparams", (), False),
    ("_dynamic_quantize", (torch.int8,), False),
    ("_dynamic_fake_quantize", (), True),
    ("_dynamic_fake_quantize_with_mask", (), False),
]


@pytest.mark.parametrize(("name", "rest", "differentiable"), CORE_OPS, ids=[c[0] for c in CORE_OPS])
@pytest.mark.parametrize("symmetric", [True, False])
@by_kind
def test_opcheck_of_core_ops(
    name: str,
    rest: tuple[Any, ...],
    differentiable: bool,
    symmetric: bool,
    granularity: cases.Granularity,
    device: str,
) -> None:
    number = [kind.kind for kind in cases.KINDS].index(granularity.kind)
    shared = (number, granularity.axis, granularity.group_size or 1, *RANGE, symmetric)
    x = skewed(SHAPE).float().to(device)
    for given in (x, x.permute(1, 2, 0), x[:, ::2]):
        leaf = given.detach().requires_grad_(differentiable)
        op = getattr(torch.ops.baraquant, name).default
        torch.library.opcheck(op, (leaf, *shared, *rest))


@pytest.mark.parametrize("call", OBSERVE_CALLS, ids=str)
@pytest.mark.parametrize("counted", [False, True])
def test_opcheck_of_observing_core_ops(call: ObserveCall, counted: bool, device: str) -> None:
    x, *state = call.tensors(SHAPE, device=device)
    x = x.detach()
    counter = torch.tensor(0, device=device) if counted else None
    if counted:
        x[0, 1, 2] = math.nan
    if call.differentiable:
        args = (x, *state[:5], call.axis, call.average, *RANGE, call.symmetric, counter)
        torch.library.opcheck(torch.ops.baraquant._observe_qparams_.default, args)
    else:
        args = (x, *state, call.axis, call.average, counter)
        torch.library.opcheck(torch.ops.baraquant._observe_min_max_.default, args)


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [c for c in FAKE_CALLS if not c.symmetric], ids=str)
def test_an_end_is_clipped(call: RangeCall, device: str) -> None:
    """Else the tests of asymmetric gradients could not tell a mask from the identity."""
    (x,) = call.tensors(SHAPE, device=device)
    y = call(x)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert set(dx.unique().tolist()) == {0.0, 1.0}


@by_fake_call
def test_bytes_kept_for_backward(call: RangeCall, device: str) -> None:
    """Nothing for a symmetric scale, one bit per element for an asymmetric one."""
    kept: list[int] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t.nbytes)
        return t

    (x,) = call.tensors((16, 4, 32), device=device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call(x * 1)  # an activation; the product keeps nothing
    assert sum(kept) == (0 if call.symmetric else x.numel() // 8)


def test_symmetric_backward_is_the_incoming_tensor(device: str) -> None:
    x = torch.randn(SHAPE, device=device, requires_grad=True)
    dy = torch.randn(SHAPE, device=device)
    (dx,) = torch.autograd.grad(ops.dynamic_fake_quantize_per_token(x), x, dy)
    assert dx.data_ptr() == dy.data_ptr()


# --- vmap ----------------------------------------------------------------------------------------


@by_kind
@pytest.mark.parametrize("sample", [(0, 5, 6), (4, 0, 6), (4, 5, 0)], ids=str)
def test_vmap_of_empty_samples(
    sample: tuple[int, ...], granularity: cases.Granularity, device: str
) -> None:
    def quantize(x: Tensor) -> tuple[Tensor, ...]:
        return granularity.op("dynamic_range_quantize", ops)(x, *granularity.args)

    x = torch.empty(3, *sample, device=device)
    expected = [torch.stack(parts) for parts in zip(*map(quantize, x), strict=True)]
    for actual, wanted in zip(torch.vmap(quantize)(x), expected, strict=True):
        assert actual.dtype == wanted.dtype and torch.equal(actual, wanted)


def test_vmap_refuses_an_axis_that_only_the_batch_has(device: str) -> None:
    x = torch.randn(3, 4, 5, device=device)
    for axis in (2, -3):
        with pytest.raises(IndexError, match=r"\[-2, 1\].* got " + str(axis)):
            torch.vmap(lambda x, axis=axis: ops.choose_qparams_per_channel(x, axis))(x)
    with pytest.raises(IndexError, match="0 dimensions"):
        torch.vmap(ops.dynamic_fake_quantize_per_token)(x[0, 0])


# --- compilers -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiler")
@by_fake_call
def test_inductor(call: RangeCall, device: str) -> None:
    compiled = torch.compile(call.__call__, fullgraph=True)
    tensors = call.tensors(SHAPE, device=device)
    assert_equal(value_and_gradients(compiled, tensors), value_and_gradients(call, tensors))


class Network(nn.Module):
    """Each op of the family once, with other work in between."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 16)
        self.observer = bnn.FakeQuantize(
            mode="observed", symmetric=False, quant_min=0, quant_max=255
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.observer(x)
        q, scale, zero_point = ops.dynamic_range_quantize_per_token(x, symmetric=False)
        x = ops.dequantize_per_token(q, scale, zero_point)
        weight = ops.dynamic_fake_quantize_per_group(self.linear.weight, 8, -1, -8, 7)
        s, z = ops.choose_qparams_per_channel(weight, 0)
        weight = ops.fake_quantize_per_channel(weight, s, z, 0)
        return nn.functional.linear(x, weight, self.linear.bias), q, scale, zero_point


def network(device: str) -> Network:
    torch.manual_seed(0)
    return Network().to(device).requires_grad_(False)


def observed(module: nn.Module) -> list[Tensor]:
    """The state of the network's observer, by name: programs order their buffers as they like."""
    named = {name.split(".")[-1].split("observer_")[-1]: b for name, b in module.named_buffers()}
    return [named[name] for name in ("min_val", "max_val", "scale", "zero_point")]


def assert_like_eager(run: Callable[[Tensor], Any], eager: nn.Module, device: str) -> None:
    """Several batches of several sizes, the range growing."""
    for rows in (6, 2, 37):
        x = torch.randn(rows, 32, device=device) * rows
        (y, *rest), (expected, *expected_rest) = run(x), eager(x)
        torch.testing.assert_close(y, expected)
        assert all(map(torch.equal, rest, expected_rest))


@pytest.mark.inductor
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_network_compiles(backend: str, device: str) -> None:
    eager = network(device)
    module = copy.deepcopy(eager)
    run = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    assert_like_eager(run, eager, device)
    assert all(map(torch.equal, observed(module), observed(eager)))


def test_network_exports(device: str) -> None:
    """The buffers that the observer changes are the program's own."""
    eager = network(device)
    rows = torch.export.Dim("rows", min=2, max=4096)
    exported = torch.export.export(
        copy.deepcopy(eager), (torch.randn(6, 32, device=device),), dynamic_shapes=({0: rows},)
    )
    program = exported.module()
    assert_like_eager(program, eager, device)
    assert all(map(torch.equal, observed(program), observed(eager)))
    assert observed(eager)[0].item() < -37, "it has observed"


@pytest.mark.inductor
@pytest.mark.usefixtures("compiler")
@pytest.mark.xfail(
    torch.__version__.startswith("2.11."),
    reason="AOTInductor of torch 2.11 hands a dtype argument to a custom op as another dtype",
    raises=RuntimeError,
    strict=True,
)
def test_package(tmp_path: Path, device: str) -> None:
    """AOTInductor: compiled once for any number of rows, and observing without Python."""
    skip_where_it_crashes(device)
    eager = network(device)
    rows = torch.export.Dim("rows", min=2, max=4096)
    exported = torch.export.export(
        copy.deepcopy(eager), (torch.randn(6, 32, device=device),), dynamic_shapes=({0: rows},)
    )
    package = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(tmp_path / "network.pt2")
    )
    assert_like_eager(torch._inductor.aoti_load_package(package), eager, device)
