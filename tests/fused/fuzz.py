# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the fused family, often wrong."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.affine.fuzz import EDGES, INPUT_DTYPES, OUTPUTS, SHAPES
from tests.int8_mm.fuzz import LEADS
from tests.range import fuzz as ranges
from tests.support import cases
from tests.support.bad_arguments.fused import OPS, ROWS, VECTORS, Op
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import outputs
from tests.support.calls.fused import NORMS, QUANTIZE
from tests.support.cases import INT64_MAX, INT64_MIN, PER_TOKEN
from tests.support.family_cases.fused import ACTIVATION_DTYPES, LENGTHS, rows
from tests.support.family_cases.random_calls import Call, choose, misplaced, run, tensor
from tests.support.family_cases.range import RANGES, characterful, finite_patterns
from tests.support.oracle import fused as oracle
from tests.support.oracle.range import Dynamic

LONG_LENGTHS = (2880, 4095, 4096, 4097, 9000, 2**15, 2**15 + 1)
BLOCKS = tuple(2**i for i in range(16))
BAD_BLOCKS = (0, -1, -2, -8, 3, 6, 7, 12, 2**15 - 1, 2**16, 2**31, 2**32, 2**62)
BAD_BLOCKS += (INT64_MAX, INT64_MIN)
EPS = (0, 0.0, -0.0, 1, 1e-5, 1e-3, 0.5, 1e-38, 1e-45, 1e-46, 5e-324, 1e30, 3e38, 1e39, 1e300)
BAD_EPS = (math.nan, math.inf, -math.inf, -1, -1e-5, -1e-46, -5e-324, -1e300)
APPROXIMATIONS = ("none", "tanh")
BAD_APPROXIMATIONS = ("", "erf", "Tanh", "tanh ", "tan", "none\0", "ë")


def cancelling(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Rows of numbers of every size that come with both signs: each order gives another sum."""
    x = rows(shape, torch.float64, seed, "plain")
    power = 0.8 * torch.rand(shape, generator=cases.generator(seed), dtype=torch.float64) - 0.4
    x = x * torch.finfo(dtype).max ** power
    return (x - x.flip(-1)).to(dtype)


MAKERS = {
    "special": tensor,
    "cancelling": cancelling,
    "rows": rows,
    "plain rows": lambda shape, dtype, seed: rows(shape, dtype, seed, "plain"),
    "rows of a character": lambda shape, dtype, seed: characterful(
        shape, dtype, PER_TOKEN, seed=seed
    ),
    "finite bits": lambda shape, dtype, seed: finite_patterns(
        dtype, math.prod(shape), seed
    ).reshape(shape),
    "largest": lambda shape, dtype, seed: (
        rows(shape, dtype, seed, "plain").sign() * torch.finfo(dtype).max
    ),
}
LAYOUTS_OF_VECTORS = ("contiguous", "misaligned", "stepped", "padded", "expanded")


def dtypes_of(base: str) -> tuple[torch.dtype, ...]:
    return ACTIVATION_DTYPES if base in ("silu_mul", "gelu") else cases.FLOAT_DTYPES


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Most arguments are right, and each is wrong now and then."""
    op, seed = draw(st.sampled_from(OPS)), draw(st.integers(0, 99))
    lead = draw(st.sampled_from((*LEADS, (3, 0))))
    block = draw(st.sampled_from((*BLOCKS[:6], *BLOCKS)))
    if op.base == "hadamard":
        length = block * draw(st.sampled_from((0, 1, 1, 2, 3, 5) if block <= 64 else (0, 1)))
    else:
        # Of long rows only the norms have another rule: in which order they are summed.
        often = op.base in NORMS and draw(st.integers(0, 7)) == 0
        length = draw(st.sampled_from(LONG_LENGTHS if often else (0, 4, 5, 24, *LENGTHS)))
    if length > 1000:
        lead = draw(st.sampled_from(LEADS[:4]))
    shape = (*lead, length)
    dtype = draw(st.sampled_from(dtypes_of(op.base)))
    arguments: dict[str, Any] = {}
    for name, value in op.arguments("cpu").items():
        if isinstance(value, Tensor):
            vector = name in VECTORS
            right = draw(st.sampled_from(oracle.weight_dtypes(dtype))) if vector else dtype
            made = draw(tensors(shape[-1:] if vector else shape, right, seed + len(arguments)))
            arguments[name] = made if not vector or draw(st.integers(0, 3)) else None
    return draw(misplaced(Call(op.name, arguments | draw(options(op, block)))))


@st.composite
def options(draw: st.DrawFn, op: Op, block: int) -> dict[str, Any]:
    """All but the tensors; sometimes without those that have defaults."""
    found: dict[str, Any] = {}
    names = op.arguments("cpu")
    if "eps" in names:
        found["eps"] = choose(draw, draw(st.sampled_from(EPS)), BAD_EPS)
    if "block" in names:
        found["block"] = choose(draw, block, (*BLOCKS, *BAD_BLOCKS))
    if "approximate" in names and draw(st.booleans()):
        right = draw(st.sampled_from(APPROXIMATIONS))
        found["approximate"] = choose(draw, right, BAD_APPROXIMATIONS)
    if not op.quantize:
        return found
    if draw(st.booleans()):
        found["symmetric"] = draw(st.booleans())
    dtype = torch.int8
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(cases.INTEGER_DTYPES))
        found["dtype"] = choose(draw, dtype, OUTPUTS)
    if dtype != torch.int8 or draw(st.booleans()):
        ends = draw(st.sampled_from([r for r in RANGES if cases.fits(r, dtype)]))
        for name, end in zip(("quant_min", "quant_max"), ends, strict=True):
            found[name] = choose(draw, end, EDGES)
    return found


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Of any layout; of a wrong shape that often is near to the right one."""
    near = [shape[1:], (1, *shape), (*shape, 1), (math.prod(shape),), draw(st.sampled_from(SHAPES))]
    if shape:
        near += [(*shape[:-1], 1), (*shape[:-1], shape[-1] + 1)]
    dtype = choose(draw, dtype, (torch.float64, *INPUT_DTYPES))
    return draw(numbers(choose(draw, shape, tuple(near)), dtype, seed))


@st.composite
def numbers(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Ordinary and hard ones, of any layout."""
    make = MAKERS[draw(st.sampled_from([*MAKERS]))]
    made = (make if dtype.is_floating_point and shape else tensor)(shape, dtype, seed)
    layouts = [["contiguous"], LAYOUTS_OF_VECTORS, [*cases.LAYOUTS]][min(made.dim(), 2)]
    return cases.LAYOUTS[draw(st.sampled_from(layouts))](made)


# --- what the contract says of a call ------------------------------------------------------------


def base_of(call: Call) -> str:
    """The float op's name."""
    return call.name.removesuffix(QUANTIZE)


def scheme_of(call: Call) -> dict[str, Any]:
    """That of the quantization, with its defaults."""
    scheme = {"quant_min": -128, "quant_max": 127, "symmetric": True, "dtype": torch.int8}
    return {name: call.arguments.get(name, default) for name, default in scheme.items()}


def broken_rules(call: Call) -> set[type[Exception]]:
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
        quantization = ranges.Call(call.name, PER_TOKEN, scheme_of(call))
        found |= ranges.wrong_range(quantization, first.dtype)
    return found


def has_wrong_numbers(call: Call) -> bool:
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


def check_values(call: Call, got: Any) -> None:
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
    for actual, wanted in zip(outputs(got), results, strict=True):
        assert_same_bits(actual, wanted, str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 2000)
