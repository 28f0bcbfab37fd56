# SPDX-License-Identifier: BSD-3-Clause
"""Any leading shape and strides of the input, any alignment, and any strides of what is small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.int8_mm import INT8_CALLS, QAT_CALLS, SERVED_CALLS, Int8Call
from tests.support.checks.int8_mm import OPS, moved
from tests.support.family_cases.int8_mm import Case
from tests.support.family_cases.layouts import AnyLayout
from tests.support.oracle import int8_mm as int8_oracle

SHAPE = (4, 6, 5, 37)
by_op = pytest.mark.parametrize("name", OPS)


def arguments_of(
    name: str, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float32, n: int = 19
) -> dict[str, Any]:
    """A call with everything that the op takes."""
    case = Case(shape[:-1], n, shape[-1], torch.uint8, dtype, "token", "token", bias="output",
                weight_sum=True, static=name == "smoothquant_linear")  # fmt: skip
    if name == "smoothquant_linear":
        case = Case(**case.__dict__ | {"scale": "one", "zero_point": "one"})
    found = case.arguments()
    if name in ("int8_linear", "smoothquant_linear"):
        return found
    gen = cases.generator(5)
    x = torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)
    if name == "qat_linear":
        weight = torch.randn(n, shape[-1], generator=gen, dtype=torch.float64).to(dtype)
        return {"input": x, "weight": weight, "bias": found["bias"], "symmetric": False}
    given = {"input": x}
    given |= {name: found[name] for name in ("weight", "weight_scale", "bias", "weight_sum")}
    if name == "quantized_linear":
        return given | {"symmetric": False}
    scale = torch.tensor(0.02, dtype=found["weight_scale"].dtype)
    smooth = 0.5 + torch.rand(shape[-1], generator=gen, dtype=torch.float64)
    smooth_scale = scale * smooth.to(scale.dtype)
    point = torch.tensor([-7], dtype=torch.int32)
    return given | {"act_scale": scale, "act_zero_point": point, "smooth_scale": smooth_scale}


class TestAnyLayout(AnyLayout):
    CALLS = (*QAT_CALLS[:3], *SERVED_CALLS, *INT8_CALLS)
    MATRICES = ((70, 130), (257, 65), (1, 1030), (3, 2049))
    test_gradients_of_another_layout = None  # sums: test_gradients.py::test_layouts

    def large(self, tensors: Sequence[Tensor]) -> list[int]:
        return [0]

    def is_dense(self, call: Int8Call, tensors: tuple[Tensor, ...], index: int) -> bool:
        return call.names[index] == "weight" and not call.trained


@by_op
@pytest.mark.parametrize("start", (1, 2, 3, 4, 5, 8, 12, 15))
def test_every_misalignment(name: str, start: int, device: str) -> None:
    """Input, weight and all vectors begin at any byte of a 16-byte line; around them lies NaN."""
    for shape, n in (((1, 16), 16), ((3, 33), 7), ((17, 64), 65), ((2, 1, 129), 2)):
        arguments = arguments_of(name, shape, n=n)
        expected = getattr(int8_oracle, name)(**arguments)

        def shifted(t: Tensor) -> Tensor:
            around = float("nan") if t.is_floating_point() else 77
            wide = torch.full((t.numel() + 32,), around, dtype=t.dtype, device=device)
            inner = wide[start : start + t.numel()].view(t.shape)
            return inner.copy_(t)

        given = {k: shifted(v) if isinstance(v, Tensor) else v for k, v in arguments.items()}
        got = getattr(torch.ops.baraquant, name)(**given)
        assert_same_bits(got, expected, f"{name} {shape} {start}")


def test_strides_of_a_single_row_or_column_say_nothing(device: str) -> None:
    """So such a weight is contiguous, however it came about."""
    for n, k in ((1, 7), (7, 1), (1, 1), (0, 5), (5, 0)):
        given = moved(Case((3,), n, k).arguments(), device)
        expected = torch.ops.baraquant.int8_linear(**given)
        weight = given["weight"].new_zeros(3 * n, k)[::3].copy_(given["weight"])
        if n == 7:
            weight = given["weight"].t().contiguous().t()
        if n == 5:
            weight = given["weight"].new_zeros(k, n).t()
        given["weight"] = weight
        assert torch.equal(torch.ops.baraquant.int8_linear(**given), expected)
