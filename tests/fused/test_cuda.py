# SPDX-License-Identifier: BSD-3-Clause
"""The fused family on a GPU: the CPU's bits for every team of threads, and rows of any length."""

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops
from tests.support import cases
from tests.support.bits import assert_all_same
from tests.support.calls.affine import outputs
from tests.support.calls.fused import FLOAT_CALLS, QUANTIZE_CALLS, FusedCall
from tests.support.family_cases.fused import LENGTHS, LONG_LENGTHS, LONGEST_LENGTHS
from tests.support.family_cases.on_cuda import Step, check_graph
from tests.support.marks import by_dtype

pytestmark = [pytest.mark.cuda, pytest.mark.exhaustive]
CALLS = (*FLOAT_CALLS, *QUANTIZE_CALLS)
by_call = pytest.mark.parametrize("call", CALLS, ids=str)
by_call_and_dtype = pytest.mark.parametrize(
    ("call", "dtype"),
    [(c, d) for c in CALLS for d in cases.FLOAT_DTYPES if c.takes_float64 or d != torch.float64],
    ids=str,
)


def check(call: FusedCall, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors = tuple(t.detach() for t in call.tensors(shape, dtype))
    there = tuple(t.cuda() for t in tensors)
    assert_all_same(call(*there), call(*tensors), f"{call} {shape} {dtype}")


@by_call_and_dtype
def test_every_length(call: FusedCall, dtype: torch.dtype) -> None:
    for length in (*LENGTHS, *LONG_LENGTHS, *LONGEST_LENGTHS):
        if call.base == "hadamard" and length % 4:
            continue
        for count in (1, 5) if length > 4096 else (1, 3, 300):
            check(call, (count, length), dtype)


@by_dtype
@pytest.mark.parametrize("block", [2**k for k in range(16)])
def test_every_block(block: int, dtype: torch.dtype) -> None:
    for blocks in (1, 2, 3, 5):
        x = torch.randn(3, blocks * block, generator=cases.generator(block)).to(dtype)
        for op in (ops.hadamard, ops.hadamard_quantize_per_token):
            assert_all_same(op(x.cuda(), block), op(x, block))


@by_call
def test_many_rows(call: FusedCall) -> None:
    check(call, (70_000, 64), torch.bfloat16)
    check(call, (2000, 4096), torch.bfloat16)


@by_call
def test_in_a_graph(call: FusedCall) -> None:
    """Captured without a synchronisation, and replayed with other data."""

    def make(seed: int) -> tuple[Tensor, ...]:
        tensors = call.tensors((8, 512), torch.bfloat16)
        return tuple(t.detach() * (1 + seed) for t in tensors)

    check_graph(Step(str(call), make, lambda *tensors: outputs(call(*tensors))), "cuda")


def test_one_kernel_for_rows_that_registers_hold() -> None:
    weight = torch.ones(40_000, device="cuda")
    for length, kernels in ((4096, 1), (32768, 1), (40_000, 2)):
        x = torch.zeros(4, length, device="cuda")
        plan = baraquant.plan(ops.rms_norm_quantize_per_token, x, weight[:length], 1e-5)
        assert len(plan) >= kernels
        assert (len(plan) == 1) == (kernels == 1)
