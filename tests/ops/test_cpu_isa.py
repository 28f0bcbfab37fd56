# SPDX-License-Identifier: BSD-3-Clause
"""The CPU kernels give the same bits for every instruction set and any number of threads.

BARAQUANT_CPU_ISA chooses the instruction set once per process, so each one runs this module as a
program, which prints a digest of every result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.calls.affine import outputs
from tests.support.calls.fused import FLOAT_CALLS, QUANTIZE_CALLS
from tests.support.cases import Granularity
from tests.support.family_cases.range import MODES, characterful
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, missing, print_digests

SHAPE = (7, 37, 113)  # every vector loop has a tail
LONG = (3, 70_001)  # threads share a segment
GRANULARITIES = (*cases.KINDS, cases.per_channel(-1))
RANGE = (-100, 90)


def affine_results(dtype: torch.dtype, granularity: Granularity) -> Iterator[tuple[str, Tensor]]:
    """Every direction on data with all specials; contiguous and not."""
    params = granularity.param_shape(SHAPE)
    scale = cases.scales(params, cases.compute_dtype(dtype))
    if scale.numel() > 20:  # some segments with a scale that nobody should pass
        special = cases.special_scales(scale.dtype)
        scale.view(-1)[: min(len(special), scale.numel() // 2)] = special[: scale.numel() // 2]
    ordinary = cases.scales(params, scale.dtype)
    point = cases.zero_points(params, RANGE)
    x = cases.adversarial(cases.expand(ordinary, granularity, SHAPE), dtype)
    dy = cases.gradients(SHAPE, dtype)
    fine = torch.randn(SHAPE, generator=cases.generator(0)).to(dtype)
    learned = 3 * torch.randn(params, generator=cases.generator(1), dtype=scale.dtype)
    for layout in ("contiguous", "stepped"):
        a = (cases.LAYOUTS[layout](x), scale, point, *granularity.args)
        for output in cases.QUANTIZED_DTYPES:
            ends = (0, 100) if output == torch.uint8 else RANGE
            q = granularity.op("quantize")(*a, *ends, dtype=output)
            yield f"quantize to {output}", q
            y = granularity.op("dequantize")(q, *a[1:], dtype=dtype)
            yield f"dequantize {output}", y
        yield "fake_quantize", granularity.op("fake_quantize")(*a, *RANGE)
        for verb in ("fake_quantize_backward", "quantize_backward"):
            yield verb, granularity.op(verb)(dy, *a, *RANGE)
        yield "dequantize_backward", granularity.op("dequantize_backward")(dy, scale, *a[3:])
        op = granularity.op("fake_quantize_backward_qparams")
        for name, z in (("fixed", point), ("learned", learned)):
            found = op(fine, a[0], ordinary, z, *a[3:], *RANGE)
            yield from zip((f"{name} dx", f"{name} ds", f"{name} dz"), found, strict=True)
        for save_mask in (True, False):
            leaf = a[0].clone().requires_grad_()
            y = granularity.op("fake_quantize")(leaf, *a[1:], *RANGE, save_mask=save_mask)
            yield f"fake_quantize, save_mask={save_mask}", y
            yield f"dx, save_mask={save_mask}", torch.autograd.grad(y, leaf, dy)[0]


def range_results(dtype: torch.dtype, granularity: Granularity) -> Iterator[tuple[str, Tensor]]:
    """Scales from the data, in both modes; contiguous and not; many segments and long ones."""
    made = [(SHAPE, "contiguous"), (SHAPE, "stepped")]
    made += [(LONG, "contiguous")] if dtype in (torch.float32, torch.bfloat16) else []
    for shape, layout in made:
        for symmetric in MODES:
            base = characterful(shape, dtype, granularity, RANGE, symmetric, seed=3)
            x, mode = cases.LAYOUTS[layout](base), {"symmetric": symmetric}
            args = (x, *granularity.args, *RANGE)
            parts = ("scale", "zero point", "integers", "scale", "zero point")
            found = [*granularity.op("choose_qparams")(*args, **mode)]
            found += granularity.op("dynamic_range_quantize")(*args, **mode)
            yield from zip(parts, found, strict=True)
            leaf = x.clone().requires_grad_()
            y = granularity.op("dynamic_fake_quantize")(leaf, *args[1:], **mode)
            yield "dynamic_fake_quantize", y
            dy = cases.gradients(shape, dtype)
            yield "dx", torch.autograd.grad(y, leaf, dy)[0]
            yield from observer_results(x, dy, granularity, symmetric)


def observer_results(
    x: Tensor, dy: Tensor, granularity: Granularity, symmetric: bool
) -> Iterator[tuple[str, Tensor]]:
    """Of per tensor and per channel: a running range of three batches, its scale, output and dx."""
    if granularity.kind not in ("per_tensor", "per_channel"):
        return
    axis = None if granularity.kind == "per_tensor" else granularity.axis
    params = granularity.param_shape(tuple(x.shape))
    compute = cases.compute_dtype(x.dtype)
    low, high = (torch.full(params, v, dtype=compute) for v in (math.inf, -math.inf))
    scale, point = torch.ones(params, dtype=compute), torch.zeros(params, dtype=torch.int32)
    on = torch.ones(1, dtype=torch.bool)
    torch.ops.baraquant.observe_min_max_(x, low, high, axis)
    for factor, c in ((-0.5, 0.3), (2, None)):
        leaf = (x * factor).requires_grad_()
        state = (low, high, scale, point, on, on, axis, *RANGE)
        options = {"symmetric": symmetric, "averaging_constant": c}
        y = torch.ops.baraquant.observe_fake_quantize(leaf, *state, **options)
        yield "observe_fake_quantize", y
        yield "dx of it", torch.autograd.grad(y, leaf, dy)[0]
        names = ("min_val", "max_val", "scale", "zero_point")
        yield from zip(names, (t.clone() for t in state[:4]), strict=True)


def product_results(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Of the integer matrix product: few and many rows, odd sizes, more than one block of each."""
    compute = cases.compute_dtype(dtype)
    for m, n, k in ((1, 37, 131), (3, 150, 65), (5, 9, 4099), (37, 67, 257), (530, 5, 70)):
        random = cases.generator(m)
        weight = torch.randint(-128, 128, (n, k), generator=random, dtype=torch.int8)
        weight_scale, bias = torch.randn(2, n, generator=random, dtype=compute)
        scale = torch.randn(m, generator=random, dtype=compute)
        point = torch.randint(-128, 128, (m,), generator=random, dtype=torch.int32)
        for kind in (torch.int8, torch.uint8):
            info = torch.iinfo(kind)
            x = torch.randint(info.min, info.max + 1, (m, k), generator=random, dtype=kind)
            args = (x, weight, scale, weight_scale)
            linear = torch.ops.baraquant.int8_linear
            yield f"int8_linear {m}", linear(*args, dtype=dtype)
            options = {"input_zero_point": point + info.max - 127, "dtype": dtype}
            yield f"int8_linear with a zero point {m}", linear(*args, bias, **options)
        fine = torch.randn(m, k, generator=random).to(dtype)
        y = torch.ops.baraquant.quantized_linear(fine, weight, weight_scale, bias, symmetric=False)
        yield f"quantized_linear {m}", y


def fused_results(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Of norms, activations and rotations: short rows, rows with a tail, several slices of sums."""
    for call in (*FLOAT_CALLS, *QUANTIZE_CALLS):
        if dtype == torch.float64 and not call.takes_float64:
            continue
        for shape in ((40, 4), (5, 120), (3, 5004)):
            tensors = tuple(8 * t.detach() for t in call.tensors(shape, dtype))
            for part in outputs(call(*tensors)):
                yield f"{call} {shape}", part


def results() -> Iterator[tuple[str, Tensor]]:
    for dtype in cases.FLOAT_DTYPES:
        for granularity in GRANULARITIES:
            for made in (affine_results, range_results):
                for name, tensor in made(dtype, granularity):
                    yield f"{cases.name_of(dtype)} {granularity} {name}", tensor
        for name, tensor in (*product_results(dtype), *fused_results(dtype)):
            yield f"{cases.name_of(dtype)} {name}", tensor


@pytest.mark.process
@pytest.mark.parametrize("isa", ISAS)
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=1500)


@pytest.mark.process
@pytest.mark.parametrize("threads", (1, 3))
def test_same_bits_with_any_number_of_threads(threads: int, lines_of: Lines) -> None:
    assert lines_of(None, threads) == lines_of(None)


@pytest.mark.process
def test_the_machine_runs_its_best(lines_of: Lines) -> None:
    best = [isa for isa in ISAS if missing(isa) is None][-1]
    assert lines_of(None)[0] == best


if __name__ == "__main__":
    print_digests(results())
