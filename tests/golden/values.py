# SPDX-License-Identifier: BSD-3-Clause
"""Inputs made by a formula: the same in every version of PyTorch and of NumPy, on every machine.

Nothing here takes numbers from a random generator, an `exp` or a sum. Every number is the hash of
its index, and what follows is exact or one correctly rounded step.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tests.support import cases
from tests.support.cases import Granularity

Shape = tuple[int, ...]
# Of inputs that many calls take one after the other; none of them changes what it takes.
shared = lru_cache(maxsize=128)


@dataclass(frozen=True)
class Case:
    """One call, or a few that belong together.

    Attributes:
        group: What shares one hash, e.g. `quantize per_token float32`.
        name: Which of the group it is.
        run: Makes the call on a device and returns its results in order.
        of_device: Why each device has a hash of its own; empty where the contract says that
            they agree.
        has_private: Whether the results of the private ops are hashed too.
    """

    group: str
    name: str
    run: Callable[[str], Iterable[Tensor]]
    of_device: str = ""
    has_private: bool = True


def words(count: int, seed: int) -> np.ndarray:
    """The first `count` numbers of SplitMix64 for a seed, as uint64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed) * np.uint64(0x5851F42D)
        z = z * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def integers(
    shape: Shape, low: int, high: int, seed: int, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Integers from `low` to `high`, both included."""
    found = words(math.prod(shape), seed) >> np.uint64(33)
    found = (found % np.uint64(high - low + 1)).astype(np.int64) + low
    return torch.from_numpy(found).reshape(shape).to(dtype)


def spread(shape: Shape, seed: int) -> Tensor:
    """float64 of both signs between -4 and 4, most of them small: a product of two uniforms."""
    count = math.prod(shape)
    first, second = (
        (words(count, 2 * seed + turn) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        for turn in (0, 1)
    )
    return torch.from_numpy((first * 8 - 4) * second).reshape(shape)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 as `dtype`; 16 bits by way of float32.

    So does PyTorch on an x86 and on a GPU, while on an ARM it rounds to float16 at once.
    """
    return (x.float() if dtype.itemsize == 2 else x).to(dtype)


def scales(shape: Shape, dtype: torch.dtype, seed: int) -> Tensor:
    """Positive scales around 1/16; a third of them are powers of two."""
    exponent = integers(shape, -7, -1, seed).double()
    mantissa = 1 + integers(shape, 0, 2**20, seed + 1).double() * 2.0**-20
    mantissa = torch.where(integers(shape, 0, 2, seed + 2) == 0, 1.0, mantissa)
    return torch.ldexp(mantissa, exponent).to(dtype)


def powers(shape: Shape, dtype: torch.dtype, seed: int) -> Tensor:
    """Powers of two from 1/8 to 1."""
    return torch.ldexp(torch.ones(shape).double(), integers(shape, -3, 0, seed).double()).to(dtype)


def bit_patterns(shape: Shape, dtype: torch.dtype, seed: int) -> Tensor:
    """Any bits read as `dtype`."""
    kind = {2: np.int16, 4: np.int32, 8: np.int64}[torch.finfo(dtype).bits // 8]
    raw = (words(math.prod(shape), seed) >> np.uint64(3)).astype(np.uint64).astype(kind)
    return torch.from_numpy(raw).view(dtype).reshape(shape)


@shared
def adversarial(full_scale: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Values on and beside ties, over the range, of any bits, and all special ones."""
    shape, scale = tuple(full_scale.shape), full_scale.double()
    on_tie = rounded(integers(shape, -600, 600, seed).double() / 2 * scale, dtype)
    toward = torch.where(integers(shape, 0, 1, seed + 1) == 0, math.inf, -math.inf).to(dtype)
    choices = (
        on_tie,
        torch.nextafter(on_tie, toward),
        rounded(spread(shape, seed + 2) * 60 * scale, dtype),
        bit_patterns(shape, dtype, seed + 3),
        special(shape, dtype, seed + 4),
    )
    pick, values = integers(shape, 0, 8, seed + 5), on_tie
    for index, other in enumerate(choices):
        values = torch.where(pick == index, other, values)
    return values


def special(shape: Shape, dtype: torch.dtype, seed: int) -> Tensor:
    """Zeros of both signs, subnormals, infinities, NaN, limits of integer dtypes."""
    found = cases.special_values(dtype)
    return found[integers(shape, 0, len(found) - 1, seed)]


@shared
def gradients(shape: Shape, dtype: torch.dtype, seed: int) -> Tensor:
    """Of which one in sixteen is a special value."""
    rare = integers(shape, 0, 15, seed) == 0
    return torch.where(
        rare, special(shape, dtype, seed + 1), rounded(spread(shape, seed + 2), dtype)
    )


def zero_points(shape: Shape, ends: tuple[int, int], seed: int) -> Tensor:
    """Of the range, at its ends, and some beyond it, which a tensor may hold."""
    low, high = ends
    found, pick = integers(shape, low, high, seed), integers(shape, 0, 11, seed + 1)
    for index, value in enumerate((low, high, low - 3, high + 1000)):
        found = torch.where(pick == index, value, found)
    return found.to(torch.int32)


@shared
def segments(shape: Shape, dtype: torch.dtype, kind: str, seed: int) -> Tensor:
    """What a range is taken from: `tame`, `ties`, `wild` or `poisoned`.

    `tame` is finite; the scale of `ties` is a power of two where a segment meets both ends; `wild`
    holds zeros, subnormals and the largest numbers; `poisoned` holds a NaN or an infinity here and
    there.
    """
    if kind == "ties":
        value = integers(shape, -254, 254, seed).double() / 2
        ends = integers(shape, 0, 3, seed + 1)
        value = torch.where(ends == 0, 127.0, torch.where(ends == 1, -128.0, value))
        return (value / 4).to(dtype)
    found = spread(shape, seed)
    if kind == "wild":
        info = torch.finfo(dtype)
        size = torch.tensor([0.0, info.smallest_normal / 8, info.max / 4.5, 1.0]).double()
        # One factor for each index of the first dimension, so that some segments hold one alone.
        count = shape[0] if shape else 1
        found = found * size[integers((count,), 0, 3, seed + 1)].reshape(
            [count if d == 0 else 1 for d in range(len(shape))]
        )
    found = rounded(found, dtype)
    if kind == "poisoned":
        bad = torch.tensor([math.nan, math.inf, -math.inf]).to(dtype)
        where = integers(shape, 0, 60, seed + 2) == 0
        found = torch.where(where, bad[integers(shape, 0, 2, seed + 3)], found)
    return found


@shared
def expanded_scale(granularity: Granularity, shape: Shape, dtype: torch.dtype, seed: int) -> Tensor:
    """The scales of `seed`, one for each element."""
    return cases.expand(scales(granularity.param_shape(shape), dtype, seed), granularity, shape)


GRANULARITIES = (
    *(cases.PER_TENSOR, cases.per_channel(0), cases.per_channel(1), cases.per_channel(-1)),
    *(cases.PER_TOKEN, cases.per_group(8), cases.per_group(3, 0), cases.per_group(10**6)),
)
LAYOUTS_SHAPE = (3, 5, 2, 19)
LAYOUTS = tuple(cases.LAYOUTS_4D)
# Long enough for the vectors of every kernel, empty ones, one element, no dimension.
SIZES: tuple[Shape, ...] = ((7, 37, 113), (2, 9001), (0, 4), (3, 0, 5), (17,), (1,), (1, 1), ())


def places(granularity: Granularity) -> list[tuple[Shape, str]]:
    """The shapes and layouts that a granularity is called with."""
    found = [(LAYOUTS_SHAPE, layout) for layout in LAYOUTS]
    for shape in SIZES:
        if granularity == cases.PER_TENSOR or (
            shape and (granularity.axis < len(shape) or granularity == cases.PER_TOKEN)
        ):
            found.append((shape, "contiguous"))
    found.append(((33, 65), "misaligned"))
    return found


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """The tensor in a layout; a copy, so that nothing that is cached is changed."""
    if layout == "contiguous":
        return tensor.contiguous().clone()
    return cases.LAYOUTS_4D[layout](tensor)
