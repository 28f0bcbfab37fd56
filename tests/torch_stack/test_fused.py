# SPDX-License-Identifier: BSD-3-Clause
"""The fused family in PyTorch, beyond what all share: core ops, norms with a residual, models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant  # noqa: F401  (loads the ops)
from baraquant import ops
from tests.support.calls.affine import assert_equal, outputs, value_and_gradients
from tests.support.calls.fused import FLOAT_CALLS, QUANTIZE_CALLS, RESIDUAL_CALLS, FusedCall

SHAPE = (3, 4, 20)
QUANTIZE = (True, -8, 7, torch.int8)
NORM_REST = (1e-3, True)


@pytest.fixture
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def core_calls(x: Tensor, w: Tensor) -> dict[str, tuple[Any, ...]]:
    return {
        "_norm": (x, w, w, *NORM_REST),
        "_norm_residual": (x, x, w, None, *NORM_REST),
        "_norm_quantize": (x, None, w, *NORM_REST, *QUANTIZE),
        "_norm_residual_quantize": (x, x, w, w, *NORM_REST, *QUANTIZE),
        "_activation": (x, x, 0),
        "_activation_quantize": (x, None, 2, *QUANTIZE),
        "_hadamard": (x, 4),
        "_hadamard_quantize": (x, 4, *QUANTIZE),
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", core_calls(torch.ones(1), torch.ones(1)))
def test_opcheck_of_core_ops(name: str, device: str) -> None:
    x, w = torch.randn(SHAPE, device=device), torch.randn(20, device=device)
    for given in (x, x.permute(1, 0, 2), torch.cat([x, x], -1)[..., :20]):
        op = getattr(torch.ops.baraquant, name).default
        leaf = given.detach().requires_grad_("quantize" not in name)
        torch.library.opcheck(op, core_calls(leaf, w)[name])


@pytest.mark.inductor
@pytest.mark.parametrize("call", RESIDUAL_CALLS, ids=str)
def test_compiled_with_a_residual(call: FusedCall, compiler: None, device: str) -> None:
    """The sum goes on as the residual of the next layer, and both have a gradient."""
    tensors = call.tensors(SHAPE, device=device)
    compiled = torch.compile(call.__call__, fullgraph=True, dynamic=True)
    for actual, expected in zip(
        value_and_gradients(compiled, tensors), value_and_gradients(call, tensors), strict=True
    ):
        torch.testing.assert_close(actual, expected)
    assert_equal(outputs(compiled(*tensors)), outputs(call(*tensors)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", (*FLOAT_CALLS, *QUANTIZE_CALLS), ids=str)
def test_exported(call: FusedCall, device: str) -> None:
    """With a symbolic number of rows."""

    class Model(nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return call(*tensors)

    tensors = tuple(t.detach() for t in call.tensors((6, 20), device=device))
    rows = torch.export.Dim("rows", min=2, max=100)
    shapes = (tuple({0: rows} if t.dim() == 2 else None for t in tensors),)
    program = torch.export.export(Model(), tensors, dynamic_shapes=shapes)
    names = {str(node.target) for node in program.graph.nodes}
    assert any("baraquant" in name for name in names)
    more = tuple(torch.cat([t, t]) if t.dim() == 2 else t for t in tensors)
    assert_equal(outputs(program.module()(*more)), outputs(call(*more)))


@pytest.mark.exhaustive
def test_vmap_of_weights_of_their_own(device: str) -> None:
    """Those of an ensemble: each sample has the result that it would have alone."""
    x = torch.randn(3, 4, 20, device=device)
    weights = torch.randn(3, 20, device=device)
    for shared in (False, True):
        given, dim = (x[0], None) if shared else (x, 0)
        found = torch.vmap(lambda a, w: ops.rms_norm(a, w, 1e-3), (dim, 0))(given, weights)
        for i in range(3):
            assert torch.equal(found[i], ops.rms_norm(x[0 if shared else i], weights[i], 1e-3))
    with pytest.raises(ValueError, match="1 dimension"):
        torch.vmap(lambda a: ops.gelu(a))(x[0, 0])


def test_scripted(device: str) -> None:
    """TorchScript picks the overload by the residual."""

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.baraquant.rms_norm(x, w, 1e-3)

    def summed(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.baraquant.rms_norm(x, w, 1e-3, residual=r)

    x, w = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    assert torch.equal(torch.jit.script(plain)(x, w), ops.rms_norm(x, w, 1e-3))
    found = torch.jit.script(summed)(x, w, x)
    assert_equal(found, ops.rms_norm(x, w, 1e-3, residual=x))
