# SPDX-License-Identifier: BSD-3-Clause
"""A NaN of any sign and payload, also one that an op makes itself, stays visible in its segment."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.marks import by_dtype

ROWS = 6  # every other row is poisoned
# Short rows, rows of whole packs, rows for a block, and rows that a GPU reads twice.
LENGTHS = (5, 32, 96, 1030, 4096, 40_000)
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def nans(dtype: torch.dtype) -> list[Tensor]:
    """Quiet and signalling ones of both signs and of several payloads."""
    infinity = torch.tensor(torch.inf, dtype=dtype).view(INTEGERS[dtype.itemsize]).item()
    lowest = torch.iinfo(INTEGERS[dtype.itemsize]).min
    top = 1 << (-infinity & infinity).bit_length() - 2  # the highest bit of the payload
    found = []
    for payload in (1, top, top | 1, 2 * top - 1):
        for bits in (infinity | payload, (infinity | payload) + lowest):
            found.append(torch.tensor(bits, dtype=INTEGERS[dtype.itemsize]).view(dtype))
    assert all(one.isnan() for one in found)
    return found


# What becomes NaN, [ROWS, ...], for rows with a NaN, and is finite for the others.
Visible = Callable[[Tensor], Tensor]


def ones(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-1], dtype=cases.compute_dtype(x.dtype), device=x.device)


def weight(x: Tensor) -> Tensor:
    return torch.ones(3, x.shape[-1], dtype=torch.int8, device=x.device)


def of_scale(function: Callable[[Tensor], tuple[Tensor, ...]], at: int = 1) -> Visible:
    return lambda x: function(x)[at].reshape(ROWS, -1)


OPS: dict[str, Visible] = {
    "choose_qparams": of_scale(ops.choose_qparams_per_token, 0),
    "choose_asymmetric": of_scale(lambda x: ops.choose_qparams_per_token(x, symmetric=False), 0),
    "choose_per_channel": of_scale(lambda x: ops.choose_qparams_per_channel(x, 0), 0),
    "choose_columns": of_scale(lambda x: ops.choose_qparams_per_channel(x.t().contiguous(), 1), 0),
    "dynamic_range_quantize": of_scale(ops.dynamic_range_quantize_per_token),
    "dynamic_range_asymmetric": of_scale(
        lambda x: ops.dynamic_range_quantize_per_token(
            x, 0, 255, symmetric=False, dtype=torch.uint8
        )
    ),
    "dynamic_fake_quantize": ops.dynamic_fake_quantize_per_token,
    "dynamic_fake_per_group": lambda x: ops.dynamic_fake_quantize_per_group(
        x, x.shape[-1], axis=-1
    ),
    "rms_norm": lambda x: ops.rms_norm(x, None, 1e-6),
    "layer_norm": lambda x: ops.layer_norm(x, None, None, 1e-6),
    "rms_norm_quantize": of_scale(lambda x: ops.rms_norm_quantize_per_token(x, None, 1e-6)),
    "layer_norm_quantize": of_scale(
        lambda x: ops.layer_norm_quantize_per_token(x, None, None, 1e-6)
    ),
    "hadamard_quantize": of_scale(lambda x: ops.hadamard_quantize_per_token(x, 1)),
    "scaled_quantize": of_scale(lambda x: ops.scaled_quantize_per_token(x, ones(x))),
    "scaled_transposed": of_scale(
        lambda x: ops.scaled_quantize_transposed(x.t().contiguous(), ones(x))
    ),
    "quantized_linear": lambda x: ops.quantized_linear(x, weight(x), ones(x)[:3]),
    "quantized_linear_asymmetric": lambda x: ops.quantized_linear(
        x, weight(x), ones(x)[:3], symmetric=False
    ),
}
NO_FLOAT64 = {
    "silu_mul": lambda x: ops.silu_mul(x, torch.ones_like(x)),
    "silu_mul_quantize": of_scale(lambda x: ops.silu_mul_quantize_per_token(x, torch.ones_like(x))),
    "gelu_quantize": of_scale(ops.gelu_quantize_per_token),
    "gelu_tanh": lambda x: ops.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", [*OPS, *NO_FLOAT64])
@by_dtype
def test_every_op(name: str, dtype: torch.dtype, device: str) -> None:
    """At the first, a middle and the last place of a row, for rows that different kernels take."""
    if name in NO_FLOAT64 and dtype == torch.float64:
        return
    visible = (OPS | NO_FLOAT64)[name]
    bad = nans(dtype)
    for i, length in enumerate(LENGTHS):
        for start in range(0, len(bad), ROWS // 2):
            x = torch.randn(ROWS, length, generator=cases.generator(i)).to(dtype)
            for row in range(0, ROWS, 2):
                place = (0, length // 2, length - 1)[(row // 2 + i) % 3]
                x[row, place] = bad[(start + row // 2) % len(bad)]
            found = visible(x.to(device)).isnan().cpu()
            assert found[0::2].any(-1).all(), f"{length}: a NaN vanished"
            assert not found[1::2].any(), f"{length}: a NaN spread"


@by_dtype
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_one_that_the_op_makes(transposed: bool, dtype: torch.dtype, device: str) -> None:
    """Infinity times zero, of all signs."""
    for length in LENGTHS:
        for number, zero in ((torch.inf, 0.0), (-torch.inf, 0.0), (torch.inf, -0.0)):
            x = torch.randn(ROWS, length, generator=cases.generator(length)).to(dtype).to(device)
            factor = torch.ones(length, dtype=cases.compute_dtype(dtype), device=device)
            x[2, length // 2], factor[length // 2] = number, zero
            if transposed:
                _, scale = ops.scaled_quantize_transposed(x.t().contiguous(), factor)
            else:
                _, scale = ops.scaled_quantize_per_token(x, factor)
            assert scale.reshape(-1).isnan().tolist() == [row == 2 for row in range(ROWS)]


@pytest.mark.parametrize("backward", ["int8_input", "int8"])
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=cases.name_of)
def test_gradients(backward: str, dtype: torch.dtype, device: str) -> None:
    """A NaN in the gradient of the output reaches that of the input, through integers too."""
    for bad in nans(dtype):
        made = (torch.randn(n, 64, generator=cases.generator(n)).to(dtype) for n in (ROWS, 48))
        x, w = (t.to(device).requires_grad_() for t in made)
        y = ops.qat_linear(x, w, backward=backward)
        grad = torch.ones_like(y)
        grad[2, 7] = bad.to(device)
        y.backward(grad)
        assert x.grad is not None and x.grad[2].isnan().all()
        assert x.grad[[0, 1, 3, 4, 5]].isfinite().all()
        assert w.grad is not None and w.grad[7].isnan().any()
