# SPDX-License-Identifier: BSD-3-Clause
"""``_round_master``: PyTorch's casts there and back, which no compiler removes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_same_bits

round_master = torch.ops.baraquant._round_master
by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
by_master = pytest.mark.parametrize(
    "master", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"]
)


def numbers(dtype: torch.dtype, device: str = "cpu") -> Tensor:
    x = torch.randn(6, 10, generator=cases.generator(0))
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 65519.9, 65520.0, 3.39e38]
    x[0, : len(special)] = torch.tensor(special)
    x[1] *= 1e-7  # float16's subnormals
    x[2, 0] = 1 + 2.0**-8  # a tie of bfloat16
    return x.to(device, dtype)


@by_master
@by_dtype
def test_values_and_gradients(dtype: torch.dtype, master: torch.dtype, device: str) -> None:
    for x in (numbers(dtype, device), numbers(dtype, device).T, numbers(dtype, device)[:, ::2]):
        leaf = x.detach().requires_grad_()
        y = round_master(leaf, master == torch.bfloat16)
        assert y.dtype == dtype and y.data_ptr() != x.data_ptr()
        assert_same_bits(y.detach(), x.to(master).to(dtype))
        dy = torch.ones_like(y) * 3
        (dx,) = torch.autograd.grad(y, leaf, dy)
        assert torch.equal(dx, dy)
        assert round_master(x.to("meta"), True).shape == x.shape


@by_master
def test_tools(master: torch.dtype) -> None:
    x = numbers(torch.float32)[1:].requires_grad_()
    arguments = (x, master == torch.bfloat16)
    torch.library.opcheck(round_master.default, arguments)
    with torch.autocast("cpu", torch.bfloat16):
        assert round_master(*arguments).dtype == torch.float32
    (dx,) = torch.autograd.grad(round_master(*arguments).square().sum(), x, create_graph=True)
    assert torch.autograd.grad(dx.sum(), x)[0].eq(2).all(), "it is differentiated again"


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="baraquant::_round_master: expected input to be float32"):
        round_master(torch.ones(3, dtype=torch.int8), True)
