# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the integer matrix family: integers of a character, scales, every option, any size.

Nothing here knows what an op computes (that is `tests/support/oracle`) or needs pytest.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support import cases

# The kernels for every GPU.
GENERIC = ("generic_128x256x64", "generic_128x128x64", "generic_64x128x128", "generic_64x64x256")
GENERIC += ("generic_32x64x256", "generic_16x32x256")
DEEPEST, DEEPEST_SHIFTED = 131071, 65536  # the largest K: int8 without a zero point, any other
POINT_DTYPES = (torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16)
# The arguments that are ranges of integers.
INPUT_RANGE, WEIGHT_RANGE = ("quant_min", "quant_max"), ("weight_quant_min", "weight_quant_max")
# Of two to eight bits, and of as many steps on both sides of 0. Where there is a zero point, any.
SYMMETRIC_RANGES = tuple((low, m) for m in (1, 3, 7, 15, 31, 63, 127) for low in (-m - 1, -m))
OTHER_RANGES = ((0, 15), (-16, -1), (-8, 3), (0, 1), (-128, -127), (5, 6), (-100, 27), (0, 127))
VALUES = ("random", "lowest", "highest", "alternating", "opposite", "high", "zeros", "sparse")

# --- integers ------------------------------------------------------------------------------------


def integers(shape: tuple[int, ...], dtype: torch.dtype, values: str, seed: int = 0) -> Tensor:
    """Integers of one character over the whole range of `dtype`.

    `opposite` begins with the other end than `alternating`; `high` is near one end with odd
    products, so that sums grow beyond 24 bits; `sparse` is zero but for one in sixteen.
    """
    info, gen = torch.iinfo(dtype), cases.generator(seed)
    low, high = info.min, info.max
    if values in ("alternating", "opposite"):
        ends = torch.tensor([low, high] if values == "alternating" else [high, low])
        flat = ends[torch.arange(math.prod(shape)) % 2]
        return flat.reshape(shape).to(dtype)
    if values in ("lowest", "highest", "zeros"):
        return torch.full(shape, {"lowest": low, "highest": high, "zeros": 0}[values], dtype=dtype)
    if values == "high":
        return (high - 2 * torch.randint(0, 12, shape, generator=gen)).to(dtype)
    made = torch.randint(low, high + 1, shape, generator=gen)
    if values == "sparse":
        made *= torch.rand(shape, generator=gen) < 1 / 16
    return made.to(dtype)


# --- calls of int8_linear and smoothquant_linear -------------------------------------------------

# Of the activation's scale and zero point: [], [1], input.shape[:-1], with a last 1, and numbers.
SHAPED = ("one", "one_1", "token", "token_1")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "input_dtype": cases.INTEGER_DTYPES,
    "dtype": cases.FLOAT_DTYPES,
    "scale": (*SHAPED, "number"),
    "zero_point": (None, *SHAPED, "number"),
    "point_dtype": POINT_DTYPES,
    "bias": (None, "compute", "output"),
    "weight_sum": (False, True),
    "values": VALUES,
}


@dataclass(frozen=True)
class Case:
    """One call of `int8_linear`, or of `smoothquant_linear` where `static`.

    Attributes:
        lead: The input's shape without K.
        bias: Its dtype: that of the scales, or that of the output; None for none.
        weight_sum: Whether the sums over the weight are given.
    """

    lead: tuple[int, ...]
    n: int
    k: int
    input_dtype: torch.dtype = torch.int8
    dtype: torch.dtype = torch.float32
    scale: str = "one"
    zero_point: str | None = None
    point_dtype: torch.dtype = torch.int32
    bias: str | None = None
    weight_sum: bool = False
    values: str = "random"
    static: bool = False
    seed: int = 0

    def __str__(self) -> str:
        size = "x".join(map(str, (*self.lead, f"n{self.n}", f"k{self.k}")))
        dtypes = f"{cases.name_of(self.input_dtype)}_to_{cases.name_of(self.dtype)}"
        return f"{self.op}-{size}-{dtypes}-{self.scale}-{self.zero_point}-{self.bias}-{self.values}"

    @property
    def op(self) -> str:
        return "smoothquant_linear" if self.static else "int8_linear"

    @property
    def rows(self) -> int:
        return math.prod(self.lead)

    @property
    def compute(self) -> torch.dtype:
        return cases.compute_dtype(self.dtype)

    def of_rows(self, kind: str) -> tuple[int, ...]:
        return {"one": (), "one_1": (1,), "token": self.lead, "token_1": (*self.lead, 1)}[kind]

    def arguments(self) -> dict[str, Any]:
        """All arguments by name, on the CPU."""
        seed = 7 * self.seed
        first, second = "input_scale", "input_zero_point"
        if self.static:
            first, second = "act_scale", "act_zero_point"
        found: dict[str, Any] = {
            "input": integers((*self.lead, self.k), self.input_dtype, self.values, seed),
            "weight": integers((self.n, self.k), torch.int8, self.values, seed + 1),
            "weight_scale": cases.scales((self.n,), self.compute, seed + 2),
            "dtype": self.dtype,
        }
        if self.scale == "number":
            found[first] = 0.0371
        else:
            found[first] = cases.scales(self.of_rows(self.scale), self.compute, seed + 3)
        if self.zero_point == "number":
            found[second] = 3
        elif self.zero_point is not None:
            found[second] = self.zero_points(seed + 4)
        if self.bias is not None:
            found["bias"] = self.bias_values(seed + 5)
        if self.weight_sum:
            found["weight_sum"] = found["weight"].sum(1, dtype=torch.int32)
        return found

    def zero_points(self, seed: int) -> Tensor:
        """Of the input's range, as far as their dtype holds it."""
        assert self.zero_point is not None
        ends, own = torch.iinfo(self.input_dtype), torch.iinfo(self.point_dtype)
        low, high = max(ends.min, own.min), min(ends.max, own.max)
        shape = self.of_rows(self.zero_point)
        made = torch.randint(low, high + 1, shape, generator=cases.generator(seed))
        return made.to(self.point_dtype)

    def bias_values(self, seed: int) -> Tensor:
        """As large as the product itself, so that it neither vanishes nor hides it."""
        size = 2.0**-6 * 5000 * math.sqrt(max(self.k, 1)) * 2.0**-4
        made = torch.randn(self.n, generator=cases.generator(seed), dtype=torch.float64) * size
        return made.to(self.dtype if self.bias == "output" else self.compute)


def random_case(seed: int) -> Case:
    """Odd sizes, primes, powers of two and their neighbours; every option as often as any other."""
    gen = cases.generator(1000 + seed)

    def pick(options: tuple[Any, ...]) -> Any:
        return options[int(torch.randint(len(options), (), generator=gen))]

    static = pick((False, False, True))
    chosen = {name: pick(options) for name, options in OPTIONS.items()}
    scale, point = chosen["scale"], chosen["zero_point"]
    if static:  # one scale; it and the zero point are both numbers or both tensors
        scale = {"token": "one", "token_1": "number"}.get(scale, scale)
        point = pick(("number", None) if scale == "number" else (None, *SHAPED))
    else:
        scale = "token" if scale == "number" else scale
        point = "token" if point == "number" else point
    chosen |= {"scale": scale, "zero_point": point}
    chosen["values"] = pick((*VALUES, "random", "random", "random"))
    sizes = [pick(SIZES) for _ in range(3)]
    while math.prod(sizes) > 4e6 or sizes[0] * sizes[1] > 40_000:
        sizes[sizes.index(max(sizes))] = max(sizes) // 3 | 1
    rows, n, k = sizes
    lead: tuple[int, ...] = (rows,)
    if rows % 3 == 0 and rows:
        lead = pick(((rows,), (3, rows // 3), (1, rows, 1), (rows // 3, 1, 3)))
    elif rows == 1:
        lead = pick(((), (1,), (1, 1)))
    elif rows == 0:
        lead = pick(((0,), (3, 0), (0, 2)))
    return Case(lead, n, k, **chosen, static=static, seed=seed)


SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 32, 33, 37, 47, 63, 64, 65, 67, 96)
SIZES += (97, 127, 128, 129, 131, 191, 211, 255, 256, 257, 307, 509, 512, 521, 769, 1009, 1024)
SIZES += (1025, 2053, 4099)
# Different in every size, as two calls of a kind would say little more than one.
RANDOM_CASES = list({(c.rows, c.n, c.k): c for c in map(random_case, range(300))}.values())

# --- sizes at the edges of every tile ------------------------------------------------------------

EDGES = (0, 1, 2, 3, 17, 31, 64, 129, 1025)


def edge_cases() -> list[Case]:
    """Every triple of the edges but the few large ones; the options take turns."""
    found = []
    triples = [t for t in itertools.product(EDGES, EDGES, EDGES) if math.prod(t) <= 3e5]
    for seed, (rows, n, k) in enumerate(triples):
        turn = {name: values[seed % len(values)] for name, values in OPTIONS.items()}
        turn |= {"scale": SHAPED[seed % 4], "zero_point": (None, *SHAPED)[seed % 5]}
        found.append(Case((rows,), n, k, **turn | {"values": "random"}, seed=seed))
    return found


# Beyond each block of csrc/int8_mm/cpu/blocked.h: of 512 rows that are packed together, of 256 rows
# for a thread, of 128 columns, of 2048 bytes of the depth.
BEYOND_BLOCKS = (
    *((517, 9, 33), (1024, 1, 7), (512, 21, 40), (769, 21, 40), (1283, 21, 40)),
    *((3, 385, 65), (30, 135, 64)),
    *((rows, 5, 3 * 2048 + 77) for rows in (1, 4, 5, 13, 37)),
)


def one_by_one() -> list[Case]:
    """Every height, width and depth of a few tiles, for few rows of the input and for many."""
    sizes = [(rows, 37, 67) for rows in range(1, 61)]
    sizes += [(rows, n, 131) for rows in (3, 35) for n in range(1, 71)]
    sizes += [(rows, 35, k) for rows in (1, 4, 35) for k in range(141)]
    sizes += BEYOND_BLOCKS
    return [
        Case((rows,), n, k, cases.INTEGER_DTYPES[seed % 2], seed=seed)
        for seed, (rows, n, k) in enumerate(sizes)
    ]


# --- ranges --------------------------------------------------------------------------------------


def ranges_for(symmetric: bool) -> list[dict[str, int]]:
    """The ranges of both operands; each range of the input beside another one of the weight."""
    of_input = SYMMETRIC_RANGES if symmetric else SYMMETRIC_RANGES + OTHER_RANGES
    found = []
    for turn, ends in enumerate(of_input):
        of_weight = SYMMETRIC_RANGES[(3 * turn + 2) % len(SYMMETRIC_RANGES)]
        found.append(dict(zip(INPUT_RANGE + WEIGHT_RANGE, ends + of_weight, strict=True)))
    return found


def of_input(ranges: dict[str, int]) -> dict[str, int]:
    """What quantized_linear takes of them."""
    return {name: ranges[name] for name in INPUT_RANGE}


def clipped(tokens: int = 6, depth: int = 32) -> Tensor:
    """Tokens of which an asymmetric scale clips the largest elements.

    From -63.75 to 63.75 the scale is 0.5, and both ends are ties that round up: a step too many.
    """
    x = torch.randn(tokens, depth, generator=cases.generator(0), dtype=torch.float64)
    x = (30 * x).clamp(-63, 63)
    x[:, 0], x[:, 1], x[:, 5] = -63.75, 63.75, 63.75
    return x
