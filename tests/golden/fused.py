# SPDX-License-Identifier: BSD-3-Clause
"""The fused family: norms, activations and a rotation, as numbers and as integers."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tests.golden import values
from tests.golden.values import Case
from tests.support.cases import name_of

ops = torch.ops.baraquant
# Rows and their length: whole packs and rests of them, more than the lanes of a sum, none, one.
SIZES = ((64, 256), (9, 67), (3, 4097), (2, 9000), (1, 1), (0, 8), (5, 1))
KINDS = ("tame", "wild", "poisoned")
LAYOUTS = ("contiguous", "misaligned", "transposed", "stepped", "expanded")
FORMS = ({}, {"symmetric": False}, {"quant_min": -8, "quant_max": 7})
UNSIGNED = {"symmetric": False, "quant_min": 0, "quant_max": 255, "dtype": torch.uint8}


def inputs(size: tuple[int, int], layout: str, dtype: torch.dtype, device: str) -> Iterator[Tensor]:
    for seed, kind in enumerate(KINDS):
        yield values.lay_out(values.segments(size, dtype, kind, 10 * seed).to(device), layout)


def norms(size: tuple[int, int], layout: str, dtype: torch.dtype, device: str) -> Iterator[Tensor]:
    """Both norms, with a residual and without, and what they are quantized to."""
    weight, bias = (
        values.rounded(values.spread((size[1],), seed), dtype).to(device) for seed in (2, 3)
    )
    other = values.segments(size, dtype, "tame", 7).to(device)
    for x in inputs(size, layout, dtype, device):
        for name, args in (("rms_norm", (weight, 1e-6)), ("layer_norm", (weight, bias, 1e-5))):
            norm, quantize = getattr(ops, name), getattr(ops, f"{name}_quantize_per_token")
            yield from (norm(x, *args), *norm(x, *args, residual=other))
            for form in (*FORMS, UNSIGNED):
                yield from quantize(x, *args, **form)
            yield from quantize(x, *args, residual=other)


def activations(
    size: tuple[int, int], layout: str, dtype: torch.dtype, device: str
) -> Iterator[Tensor]:
    """A gate, and both forms of GELU."""
    up = values.segments(size, dtype, "tame", 7).to(device)
    for x in inputs(size, layout, dtype, device):
        yield ops.silu_mul(x, up)
        for form in (*FORMS, UNSIGNED):
            yield from ops.silu_mul_quantize_per_token(x, up, **form)
        for approximate in ("none", "tanh"):
            yield ops.gelu(x, approximate=approximate)
            yield from ops.gelu_quantize_per_token(x, approximate=approximate)


def rotations(
    size: tuple[int, int], layout: str, dtype: torch.dtype, device: str
) -> Iterator[Tensor]:
    """Blocks of every size that divides a row."""
    for x in inputs(size, layout, dtype, device):
        for block in (1, 2, 32, size[1] & -size[1]):
            if size[1] % block == 0:
                yield ops.hadamard(x, block)
                for form in (*FORMS, UNSIGNED):
                    yield from ops.hadamard_quantize_per_token(x, block, **form)


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every call with inputs of a dtype; activations have no float64."""
    kinds = {"norms": norms, "rotations": rotations}
    if dtype != torch.float64:
        kinds["activations"] = activations
    for title, function in kinds.items():
        for size in SIZES:
            for layout in LAYOUTS:
                run = partial(function, size, layout, dtype)
                yield Case(f"{title} {name_of(dtype)}", f"{list(size)} {layout}", run)
