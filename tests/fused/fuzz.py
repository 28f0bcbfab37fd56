# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the fused family, often wrong."""

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.range import fuzz as ranges
from tests.support import cases
from tests.support.bad_arguments.fused import ROWS, VECTORS
from tests.support.bits import assert_all_same
from tests.support.calls.affine import outputs
from tests.support.calls.fused import FLOAT_CALLS, NORMS, QUANTIZE, QUANTIZE_CALLS
from tests.support.cases import PER_TOKEN
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.fused import ACTIVATION_DTYPES, LENGTHS, rows
from tests.support.family_cases.range import RANGES, characterful, finite_patterns
from tests.support.oracle import fused as oracle
from tests.support.oracle.range import Dynamic

LONG_LENGTHS = (2880, 4095, 4096, 4097, 9000, 2**15, 2**15 + 1)
SHAPES = (
    *(*calls.SHAPES_OF_ROWS, (0,), (2, 0), (3, 0, 4)),
    *((2, length) for length in LENGTHS),
    *((3, length) for length in LONG_LENGTHS),
)
BLOCKS = tuple(2**i for i in range(16))
EPS = (0, 0.0, -0.0, 1, 1e-5, 1e-3, 0.5, 1e-38, 1e-45, 1e-46, 5e-324, 1e30, 3e38, 1e39, 1e300)
BAD_EPS = (-1, -1e-5, -1e-46, -5e-324, -1e300)
APPROXIMATIONS = ("none", "tanh")
OPTIONS = {
    ("eps",): [(eps,) for eps in (*EPS, *EPS, *calls.FLOATS, *BAD_EPS)],
    ("block",): [(block,) for block in (*BLOCKS[:5], *BLOCKS)],
    ("approximate",): [(text,) for text in (*APPROXIMATIONS, *APPROXIMATIONS, "Tanh", "none\0")],
    ("symmetric",): ((True,), (False,)),
    ("quant_min", "quant_max", "dtype"): [
        (*ends, dtype) for ends in RANGES for dtype in cases.INTEGER_DTYPES
    ],
}


def cancelling(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Rows of numbers of every size that come with both signs: each order gives another sum."""
    x = rows(shape, torch.float64, seed, "plain")
    power = 0.8 * torch.rand(shape, generator=cases.generator(seed), dtype=torch.float64) - 0.4
    x = x * torch.finfo(dtype).max ** power
    return (x - x.flip(-1)).to(dtype)


MAKERS = (
    calls.tensor,
    cancelling,
    rows,
    lambda shape, dtype, seed: rows(shape, dtype, seed, "plain"),
    lambda shape, dtype, seed: characterful(shape, dtype, PER_TOKEN, seed=seed),
    lambda shape, dtype, seed: finite_patterns(dtype, math.prod(shape), seed).reshape(shape),
    lambda shape, dtype, seed: rows(shape, dtype, seed, "plain").sign() * torch.finfo(dtype).max,
)


def dtypes_of(base: str) -> tuple[torch.dtype, ...]:
    return ACTIVATION_DTYPES if base in ("silu_mul", "gelu") else cases.FLOAT_DTYPES


# --- what the contract says of a call ------------------------------------------------------------


def base_of(call: calls.Call) -> str:
    """The float op's name."""
    return call.name.removesuffix(QUANTIZE)


def scheme_of(call: calls.Call) -> dict[str, Any]:
    """That of the quantization, with its defaults."""
    scheme = {"quant_min": -128, "quant_max": 127, "symmetric": True, "dtype": torch.int8}
    return {name: call.arguments.get(name, default) for name, default in scheme.items()}


def broken_rules(call: calls.Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, found = call.arguments, set[type[Exception]]()
    first = next(iter(a.values()))
    if first.dtype not in dtypes_of(base_of(call)):
        found.add(TypeError)
    if first.dim() == 0 or has_wrong_numbers(call):
        found.add(ValueError)
    for name, value in a.items():
        vector = name in VECTORS
        if value is None or not (vector or name in ROWS):
            continue
        if value.dtype not in (oracle.weight_dtypes(first.dtype) if vector else (first.dtype,)):
            found.add(TypeError)
        if value.shape != (first.shape[-1:] if vector else first.shape):
            found.add(ValueError)
    if call.name != base_of(call):
        quantization = calls.Call(call.name, scheme_of(call))
        found |= ranges.wrong_range(quantization, first.dtype)
    return found


def has_wrong_numbers(call: calls.Call) -> bool:
    """An eps that is negative, or not finite in C; a block that does not fit."""
    a = call.arguments
    compute = cases.compute_dtype(next(iter(a.values())).dtype)
    eps = torch.tensor(a.get("eps", 0.0), dtype=torch.float64).to(compute).item()
    if (
        not 0 <= a.get("eps", 0) < math.inf
        or eps == math.inf
        or a.get("approximate", "none") not in APPROXIMATIONS
    ):
        return True
    block, length = a.get("block", 1), next(iter(a.values())).shape[-1:].numel()
    return block not in BLOCKS or length % block != 0


def check_values(call: calls.Call, got: Any) -> None:
    """The oracle's results; an activation has only the reference, which is compared for all ops."""
    assert all(result.is_contiguous() for result in outputs(got))
    a, base = call.arguments, base_of(call)
    sums = (oracle.added(a["input"], a["residual"]),) if "residual" in a else ()
    if base in NORMS:
        x = sums[0] if sums else a["input"]
        y = oracle.norm(x, a["weight"], a.get("bias"), a["eps"], base == "layer_norm")
    elif base == "hadamard":
        y = oracle.hadamard(a["input"], a["block"]) if a["input"].numel() else a["input"]
    else:
        return
    results: tuple[Any, ...] = (y, *sums)
    if call.name != base:
        scheme = scheme_of(call)
        dtype = scheme.pop("dtype")
        rule = Dynamic(y, PER_TOKEN, **scheme)
        results = (rule.quantize(dtype), rule.scale, rule.zero_point, *sums)
    assert_all_same(got, results)


def make(rng: Random) -> calls.Call:
    right = calls.right_call(rng, (*FLOAT_CALLS, *QUANTIZE_CALLS), SHAPES)
    return calls.changed(rng, right, OPTIONS, MAKERS)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 2000)
