# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers against whole numbers: options, sizes, layouts, tools."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from baraquant import ops, reference
from tests.support import cases
from tests.support.bad_arguments.int8_conv import Op
from tests.support.bits import assert_same_bits
from tests.support.calls.int8_conv import CONV_CALLS
from tests.support.checks.int8_mm import moved
from tests.support.family_cases.int8_conv import FORMATS, Case, options
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED
from tests.support.family_cases.torch_tools import Tools
from tests.support.oracle import int8_conv as oracle

OPTIONS = options()
by_part = pytest.mark.parametrize(
    "part", [0, *(pytest.param(p, marks=pytest.mark.exhaustive) for p in range(1, 6))]
)


def check_strides(x: Tensor, weight: Tensor, got: Tensor) -> None:
    """`channels_last` if a copy of the input is, else contiguous; either where it is both."""
    last = FORMATS.get(x.dim()) if x.dim() == weight.dim() else None
    copy = torch.empty_like(x, device="meta")
    is_last = last is not None and copy.is_contiguous(memory_format=last)
    right = got.is_contiguous() and (not is_last or copy.is_contiguous())
    right |= is_last and got.is_contiguous(memory_format=last)
    assert right, f"strides {got.stride()} for an input of {x.stride()}"


def check(case: Case, device: str, seed: int = 0) -> Tensor:
    arguments = case.arguments(seed)
    wanted = oracle.int8_conv(**arguments)
    given = moved(arguments, device)
    got = torch.ops.baraquant.int8_conv(**given)
    assert_same_bits(got.cpu(), wanted, f"{case}")
    assert got.dtype == case.dtype
    check_strides(given["input"], given["weight"], got)
    on_meta = torch.ops.baraquant.int8_conv(**moved(arguments, "meta"))
    assert on_meta.shape == got.shape and on_meta.stride() == got.stride()
    assert on_meta.dtype == got.dtype
    return got


@by_part
def test_every_option(part: int, device: str) -> None:
    """Against whole numbers in Python, and the reference."""
    assert len(OPTIONS) > 200
    for seed, case in enumerate(OPTIONS[part::6]):
        got = check(case, device, seed)
        if seed % 4 == 0:
            wanted = reference.int8_conv(**case.arguments(seed))
            assert_same_bits(got.cpu(), wanted, f"{case}")
            assert got.is_contiguous() == wanted.is_contiguous()


@by_part
def test_the_copy_of_patches_has_the_same_bits(part: int) -> None:
    """What CUDA does, on the CPU."""
    torch.ops.baraquant._force_patches(True)
    try:
        for seed, case in enumerate(OPTIONS[part::6]):
            check(case, "cpu", seed)
    finally:
        torch.ops.baraquant._force_patches(False)


def test_different_numbers_for_each_dimension(device: str) -> None:
    case = Case(5, 7, 1, (9, 8), (3, 2), stride=(2, 1), padding=(0, 3), dilation=(1, 2), shift=True)
    check(case, device)
    check(dataclasses.replace(case, channels=12, outputs=24, groups=12), device)
    case = Case(4, 6, 2, (5, 6, 7), (2, 1, 3), (1, 3, 2), (1, 0, 2), (2, 1, 1), bias="output")
    check(case, device)


@pytest.mark.parametrize("values", ("lowest", "highest"))
@pytest.mark.parametrize("dtype", (torch.int8, torch.uint8), ids=cases.name_of)
def test_the_largest_sums(values: str, dtype: torch.dtype, device: str) -> None:
    for case in (
        Case(65536 // 9, 3, 1, (3, 3), (3, 3), input=dtype, values=values, images=1),
        Case(6, 6, 6, (40, 41), (33, 35), input=dtype, values=values, images=1),
    ):
        check(case, device)


@pytest.mark.parametrize("size", (1, 16, 17, 63, 64, 65, 129))
def test_sizes_around_those_of_vectors(size: int, device: str) -> None:
    """Widths, channels in and channels out, also for the transposes."""
    check(Case(size, 3, 1, (2, 5), (1, 1), dtype=torch.float32), device)
    check(Case(3, size, 1, (2, 5), (1, 1), dtype=torch.float16), device)
    check(Case(20, 33, 1, (2, size), (1, 1), dtype=torch.bfloat16), device)
    check(Case(20, 20, 20, (2, size), (1, 1), dtype=torch.float32), device)
    check(Case(size, size, size, (3, 5), (1, 1), images=1) if size > 1 else Case(), device)


@pytest.mark.parametrize("channels", (31, 32, 47, 64))
@pytest.mark.parametrize("kernel", ((3, 3), (1, 2), (4, 4), (5, 5), (2, 2, 3), (3,)))
def test_layouts_of_the_weight(channels: int, kernel: tuple[int, ...], device: str) -> None:
    """With channels first, in memory that ends with it, and last: of few patches and of many."""
    for n, size in enumerate((max(kernel), max(kernel) + 9)):
        case = Case(
            2 * channels, 100, 2, (size,) * len(kernel), kernel, images=1,
            dtype=torch.float32, input=(torch.int8, torch.uint8)[n], shift=channels % 2 == 0,
        )  # fmt: skip
        got = check(case, device)
        arguments = moved(case.arguments(), device)
        last = arguments["weight"].movedim(1, -1).contiguous().movedim(-1, 1)
        assert_same_bits(ops.int8_conv(**{**arguments, "weight": last}), got)


def test_a_zero_point_that_the_input_holds_is_the_padding(device: str) -> None:
    """As numbers (q - z) * s, padded with 0."""
    case = Case(6, 8, 2, (7, 9), (3, 3), padding=(2,), shift=True, input=torch.uint8)
    a = moved(case.arguments(3), device)
    x = (a["input"].double() - a["input_zero_point"]).cpu()
    sums = F.conv2d(x, a["weight"].double().cpu(), padding=2, groups=2)
    one, ones = torch.ones((), dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    got = ops.int8_conv(**a | {"input_scale": one.to(device), "weight_scale": ones.to(device)})
    assert torch.equal(got.cpu(), sums)


@pytest.mark.parametrize("batched", (True, False))
def test_the_gradient_of_the_bias(batched: bool, device: str) -> None:
    """The sum over all but its channel."""
    case = Case(6, 4, 2, bias="output", images=2 if batched else None)
    a = moved(case.arguments(), device)
    assert not ops.int8_conv(**a).requires_grad
    y = ops.int8_conv(**a | {"bias": a["bias"].requires_grad_()})
    dy = torch.randn(y.shape, generator=cases.generator(1)).double().to(device)
    (got,) = torch.autograd.grad(y, a["bias"], dy)
    torch.testing.assert_close(got, dy.movedim(-3, 0).flatten(1).sum(1))


# --- wrong sizes; ops/test_wrong_calls.py has what one argument does -----------------------------


def test_numbers_of_groups(any_device: str) -> None:
    """Those that the outputs allow, but not the input; a number that no integer counts."""
    for groups in (1, 4):
        with pytest.raises(ValueError, match=r"^baraquant::int8_conv: .*channels"):
            Op()(Op().arguments(any_device) | {"groups": groups})
    one = torch.ones((), device=any_device)
    x = torch.zeros(1, 0, 4, dtype=torch.int8, device=any_device)
    for of_group in (2, 4):  # of no weight: any number of groups divides its outputs
        weight = torch.zeros(0, of_group, 2, dtype=torch.int8, device=any_device)
        words = rf"^baraquant::int8_conv: .*got {of_group} \* {2**62}"
        with pytest.raises(ValueError, match=words):
            ops.int8_conv(x, weight, one, one.expand(0), groups=2**62)


def test_depth_beyond_the_exact_range(any_device: str) -> None:
    def of_depth(depth: int, integers: torch.dtype = torch.int8, **options: Any) -> Tensor:
        x = torch.zeros(1, depth // 2, 2, dtype=integers, device=any_device)
        w = torch.zeros(2, depth // 2, 2, dtype=torch.int8, device=any_device)
        one = torch.ones((), device=any_device)
        return ops.int8_conv(x, w, one, one.expand(2), **options)

    shifted = {"input_zero_point": torch.zeros((), dtype=torch.int32, device=any_device)}
    for limit, given in ((DEEPEST, {}), (DEEPEST_SHIFTED, shifted)):
        even = limit - limit % 2
        assert of_depth(even, **given).shape == (1, 2, 1)
        words = rf"^baraquant::int8_conv: .*weight\[0\].* at most {limit}"
        with pytest.raises(ValueError, match=words):
            of_depth(even + 2, **given)
    with pytest.raises(ValueError, match=f"at most {DEEPEST_SHIFTED} elements .for uint8"):
        of_depth(DEEPEST_SHIFTED + 2, torch.uint8)


def test_sizes_that_memory_cannot_hold() -> None:
    """A padded image of more bytes than an int64 counts is an error, not a crash."""
    x, one = torch.zeros(1, 2, 1, 1, 1, dtype=torch.int8), torch.ones(1)
    most = 2**31 - 1
    with pytest.raises(RuntimeError):
        ops.int8_conv(x, x, one, one, padding=most, stride=most)


# --- in PyTorch ----------------------------------------------------------------------------------


class TestTools(Tools):
    CALLS, BATCHED, ANY_ROWS = CONV_CALLS, ("input",), False


def test_exported_with_any_number_and_size_of_images() -> None:
    w, scale = torch.ones(4, 3, 3, 3, dtype=torch.int8), torch.full((4,), 0.5)

    class Module(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return ops.int8_conv(q, w, scale[0], scale, stride=2, padding=1)

    dims = {n: torch.export.Dim(f"d{n}", min=3, max=100) for n in (0, 2, 3)}
    q = torch.ones(4, 3, 8, 9, dtype=torch.int8)
    exported = torch.export.export(Module(), (q,), dynamic_shapes={"q": dims}).module()
    for shape in ((4, 3, 8, 9), (5, 3, 12, 31), (3, 3, 3, 4)):
        q = torch.randint(-128, 128, shape).to(torch.int8)
        assert_same_bits(exported(q), Module()(q))
