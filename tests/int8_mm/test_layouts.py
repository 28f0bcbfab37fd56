# SPDX-License-Identifier: BSD-3-Clause
"""Any leading shape and strides of the input, any alignment, and any strides of what is small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401  (loads the ops)
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.checks.int8_mm import OPS, call, check, moved
from tests.support.family_cases.int8_mm import Case, integers
from tests.support.oracle import int8_mm as int8_oracle

SHAPE = (4, 6, 5, 37)
by_op = pytest.mark.parametrize("name", OPS)
by_layout = pytest.mark.parametrize("layout", cases.LAYOUTS_4D)


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


@by_layout
@by_op
def test_every_layout(name: str, layout: str, device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        arguments = arguments_of(name, dtype=dtype)
        if layout == "expanded":  # which keeps the first slice only
            arguments["input"] = arguments["input"][:1].expand(SHAPE).contiguous()
        check(name, arguments, device, layout, cases.LAYOUTS_4D[layout])


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


@by_op
def test_vectors_of_any_strides(name: str, device: str) -> None:
    """Scales, zero points, bias and sums that are slices, expanded or reversed in memory."""
    arguments = arguments_of(name, (2, 3, 17))
    expected = getattr(int8_oracle, name)(**arguments)
    given = moved(arguments, device)
    for key, value in given.items():
        if isinstance(value, Tensor) and value.dim() > 0 and key not in ("input", "weight"):
            wide = value.new_zeros(*value.shape, 3)
            wide[..., 1] = value
            given[key] = wide[..., 1]
            assert value.numel() == 1 or not given[key].is_contiguous()
    got = getattr(torch.ops.baraquant, name)(**given)
    assert_same_bits(got, expected, name)


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


def test_weight_of_qat_linear_has_any_strides(device: str) -> None:
    """It is quantized anyway; and so nothing has to be made dense for it."""
    for shape, n in (((5, 37), 19), ((3, 128), 64), ((2, 3, 1025), 7)):
        arguments = arguments_of("qat_linear", shape, n=n)
        expected = int8_oracle.qat_linear(**arguments)
        for layout in ("transposed", "stepped", "padded", "misaligned"):
            given = moved(arguments, device)
            given["weight"] = cases.LAYOUTS[layout](given["weight"])
            assert_same_bits(torch.ops.baraquant.qat_linear(**given), expected, layout)


@pytest.mark.parametrize("name", OPS)
def test_meta_agrees(name: str, device: str) -> None:
    """Shapes, strides and dtypes, for sizes 0 and 1 too; nothing is read."""
    shapes = (SHAPE, (7,), (1, 1), (0, 4), (4, 0), (3, 0, 5), (2, 1, 1, 3), (1, 5, 0))
    for shape in shapes:
        for dtype in cases.FLOAT_DTYPES:
            for n in (0, 1, 6):
                arguments = arguments_of(name, shape, dtype, n)
                here, meta = call(name, arguments, device), call(name, arguments, "meta")
                assert meta.device.type == "meta"
                expected = (here.shape, here.stride(), here.dtype)
                assert (meta.shape, meta.stride(), meta.dtype) == expected


@by_op
def test_the_output_is_a_tensor_of_its_own(name: str, device: str) -> None:
    """Also where there is nothing to multiply, and for what was made dense."""
    for shape in ((3, 5), (3, 0)):
        given = moved(arguments_of(name, shape, n=5), device)
        before = {k: v.clone() for k, v in given.items() if isinstance(v, Tensor)}
        y = getattr(torch.ops.baraquant, name)(**given)
        assert not y._is_view()
        y.fill_(3)
        for key, value in before.items():
            assert torch.equal(given[key], value), key


def test_an_input_with_a_lazy_negation(device: str) -> None:
    """The imaginary part of a lazy conjugate has its sign in a flag, not in memory."""
    x = torch.complex(torch.ones(3, 40), torch.randn(3, 40, generator=cases.generator(0)))
    arguments = arguments_of("quantized_linear", (3, 40))
    expected = int8_oracle.quantized_linear(**arguments | {"input": -x.imag})
    given = moved(arguments, device) | {"input": x.to(device).conj().imag}
    assert given["input"].is_neg()
    assert_same_bits(torch.ops.baraquant.quantized_linear(**given), expected)
    weight = integers((19, 40), torch.int8, "random").float()
    given = {"input": given["input"], "weight": weight.to(device)}
    expected = int8_oracle.qat_linear(-x.imag, weight)
    assert_same_bits(torch.ops.baraquant.qat_linear(**given), expected)


@pytest.mark.parametrize("layout", ("transposed", "stepped", "padded", "expanded"))
@by_op
def test_matrices(name: str, layout: str, device: str) -> None:
    """Large enough for every kind of copy and of tile."""
    for seed, shape in enumerate(((70, 130), (257, 65), (1, 1030), (3, 2049))):
        arguments = arguments_of(name, shape, cases.FLOAT_DTYPES[seed], n=33)
        if layout == "expanded":
            arguments["input"] = arguments["input"][:1].expand(shape).contiguous()
        check(name, arguments, device, layout, cases.LAYOUTS[layout])
