# SPDX-License-Identifier: BSD-3-Clause
"""Inputs whose segments each have a character: what a scale from the data is tested with.

`cases.adversarial` puts a NaN into nearly every segment, which hides all else from a maximum.
"""

import math

import numpy as np
import torch
from torch import Tensor

from tests.support import cases
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, Shape, per_channel, per_group
from tests.support.oracle import affine as oracle

Ends = tuple[int, int]

# Odd ends, ends of one sign (where halves round towards minus infinity), the narrowest two.
RANGES = (*cases.RANGES, (3, 200), (-100, -3), (-8, -4), (-128, -125), (-1, 1), (0, 1))
MODES = (True, False)  # symmetric, asymmetric
LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
LENGTHS += (255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097)
LONG_LENGTHS = (14336, 65536, 70001)
# Of a matrix: rows, columns, everything, groups that end inside a row.
MATRIX = (PER_TOKEN, per_channel(0), per_channel(1), PER_TENSOR, per_group(32), per_group(5, 0))

CLEAN = ("normal", "ties", "positive", "negative", "huge", "subnormal", "tiny", "zeros", "lonely")
CLEAN += ("wild",)
POISONED = ("nan", "negative_nan", "inf", "minus_inf", "both_inf", "nan_and_inf")
CHARACTERS = CLEAN + POISONED


def modes_of(quant_range: Ends) -> tuple[bool, ...]:
    """A range of one step has no symmetric scale."""
    return MODES if quant_range[1] - quant_range[0] >= 2 else (False,)


def finite_patterns(dtype: torch.dtype, count: int, seed: int) -> Tensor:
    """Random bits that are finite: every exponent equally often."""
    values = cases.bit_patterns(dtype, count, seed)
    return torch.where(values.isfinite(), values, torch.ones((), dtype=dtype))


def _of_character(
    name: str, count: int, dtype: torch.dtype, ends: Ends, symmetric: bool, seed: int
) -> Tensor:
    """`count` values of one character, its outstanding elements not yet among them."""
    gen, info = cases.generator(seed), torch.finfo(dtype)
    spread = torch.randn(count, generator=gen, dtype=torch.float64)
    if name in ("zeros", "lonely"):
        return torch.where(spread < 0, -0.0, 0.0).to(dtype)
    if name == "wild":
        return finite_patterns(dtype, count, seed)
    if name == "ties":
        low, high = tie_ends(ends, symmetric)
        return (torch.randint(2 * low, 2 * high + 1, (count,), generator=gen) / 2).to(dtype)
    if name == "subnormal":
        return (spread.clamp(-3, 3) / 3.1 * info.smallest_normal).to(dtype)
    factor = {"huge": info.max / 4.5, "tiny": info.smallest_normal * 40}.get(name, 3.0)
    values = (spread.clamp(-4.4, 4.4) * factor).to(dtype)
    sign = {"positive": 1, "negative": -1}.get(name)
    return values if sign is None else sign * (values.abs() + 2)


def tie_ends(ends: Ends, symmetric: bool) -> Ends:
    """Data with these ends has the scale 1, and so exact ties."""
    if symmetric:
        limit = ends[1] - (ends[0] + ends[1] + 1) // 2
        return -limit, limit
    below = (ends[1] - ends[0]) // 3
    return -below, ends[1] - ends[0] - below


def _outstanding(name: str, dtype: torch.dtype, ends: Ends, symmetric: bool) -> tuple[float, ...]:
    """Up to two values of which each segment of that character has one at a random place."""
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps
    return {
        "ties": tie_ends(ends, symmetric),
        "huge": (info.max, -info.max),
        "subnormal": (subnormal, -3 * subnormal),
        "lonely": (-1.75,),
        "nan": (math.nan,),
        "inf": (math.inf,),
        "minus_inf": (-math.inf,),
        "both_inf": (-math.inf, math.inf),
        "nan_and_inf": (math.inf, math.nan),
    }.get(name, ())


def negative_nan(dtype: torch.dtype) -> Tensor:
    """A quiet NaN whose sign bit is set and whose payload is not empty."""
    width = torch.finfo(dtype).bits
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    return torch.tensor(-5, dtype=integer).view(dtype)


def characterful(
    shape: Shape,
    dtype: torch.dtype,
    granularity: Granularity,
    ends: Ends = (-128, 127),
    symmetric: bool = True,
    seed: int = 0,
    characters: tuple[str, ...] = CHARACTERS,
) -> Tensor:
    """Each segment has one of the characters; all occur where there are as many segments."""
    params = granularity.param_shape(shape)
    segments = math.prod(params)
    # The number of each element's segment, in the order of the scale's entries.
    segment = oracle.expand(np.arange(segments).reshape(params), granularity, shape).reshape(-1)
    count = len(segment)
    x = torch.zeros(count, dtype=dtype)
    rng = np.random.default_rng(seed)
    turn = ((np.arange(segments) + seed) % len(characters)).astype(np.int8)
    turn_of_element = turn[segment]
    # The last of each segment in a random order, and the first: two random places.
    order = rng.permutation(count)
    places = np.full((2, segments), -1)
    for place, path in zip(places, (order, order[::-1]), strict=True):
        place[segment[path]] = path
    for index, name in enumerate(characters):
        where = np.flatnonzero(turn_of_element == index)
        if len(where) == 0:
            continue
        values = _of_character(name, len(where), dtype, ends, symmetric, seed + index)
        x[torch.from_numpy(where)] = values
        few = torch.tensor(_outstanding(name, dtype, ends, symmetric), dtype=torch.float64)
        outstanding = list(few.to(dtype))
        if name == "negative_nan":
            outstanding = [negative_nan(dtype)]
        for value, place in zip(outstanding, places, strict=False):
            x[torch.from_numpy(place[(turn == index) & (place >= 0)])] = value
    return x.reshape(shape)
