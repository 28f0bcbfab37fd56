# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the grouped ops of the integer matrix family, and the op for one weight beside them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.checks.int8_mm import moved
from tests.support.family_cases.int8_mm import integers

# Rows of each group, and behind the last one.
SIZES: dict[str, tuple[tuple[int, ...], int]] = {
    "one": ((5,), 0),
    "one_of_many_rows": ((300,), 3),
    "uneven": ((3, 0, 70, 1, 130, 17), 0),
    "empty_at_the_ends": ((0, 0, 33, 0, 65, 0), 9),
    "all_to_one": ((0, 200, 0, 0), 0),
    "all_to_none": ((0, 0, 0), 12),
    "no_rows": ((0, 0), 0),
    "many": (tuple(i * 7 % 5 for i in range(70)), 2),
}


def ends(sizes: tuple[int, ...]) -> Tensor:
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


@dataclass(frozen=True)
class Grouped:
    """One call of int8_grouped_linear.

    Attributes:
        sizes: A name of `SIZES`.
        scale, zero_point: "one", "token" or "token_1"; a zero point may be None.
        bias: Its dtype: "compute" or "output", or None.
    """

    sizes: str
    n: int = 24
    k: int = 33
    input_dtype: torch.dtype = torch.int8
    dtype: torch.dtype = torch.float32
    scale: str = "token"
    zero_point: str | None = None
    bias: str | None = "compute"
    weight_sum: bool = False
    values: str = "random"
    seed: int = 0

    def __str__(self) -> str:
        dtypes = f"{cases.name_of(self.input_dtype)}_to_{cases.name_of(self.dtype)}"
        point = f"{self.scale}-{self.zero_point}-{self.bias}"
        return f"{self.sizes}-{self.n}x{self.k}-{dtypes}-{point}"

    @property
    def groups(self) -> int:
        return len(SIZES[self.sizes][0])

    @property
    def rows(self) -> int:
        sizes, behind = SIZES[self.sizes]
        return sum(sizes) + behind

    def of_rows(self, kind: str) -> tuple[int, ...]:
        return {"one": (), "token": (self.rows,), "token_1": (self.rows, 1)}[kind]

    def arguments(self) -> dict[str, Any]:
        """All arguments by name, on the CPU."""
        seed, compute = 9 * self.seed, cases.compute_dtype(self.dtype)
        outputs = (self.groups, self.n)
        found: dict[str, Any] = {
            "input": integers((self.rows, self.k), self.input_dtype, self.values, seed),
            "weight": integers((*outputs, self.k), torch.int8, self.values, seed + 1),
            "offsets": ends(SIZES[self.sizes][0]),
            "input_scale": cases.scales(self.of_rows(self.scale), compute, seed + 2),
            "weight_scale": cases.scales(outputs, compute, seed + 3),
            "dtype": self.dtype,
        }
        gen = cases.generator(seed + 4)
        if self.zero_point is not None:
            shape = self.of_rows(self.zero_point)
            found["input_zero_point"] = torch.randint(0, 128, shape, generator=gen)
        if self.bias is not None:
            bias = 1000 * torch.randn(outputs, generator=gen, dtype=torch.float64)
            found["bias"] = bias.to(self.dtype if self.bias == "output" else compute)
        if self.weight_sum:
            found["weight_sum"] = found["weight"].sum(2, dtype=torch.int32)
        return found


def some_cases() -> Iterator[Grouped]:
    """Each kind of groups; the options take turns."""
    shapes = ((24, 33), (7, 64), (129, 16), (64, 1), (40, 272), (1, 0))
    for seed in range(3 * len(SIZES)):
        n, k = shapes[seed % len(shapes)]
        yield Grouped(
            list(SIZES)[seed % len(SIZES)],
            *(n, k, cases.INTEGER_DTYPES[seed // 2 % 2], cases.FLOAT_DTYPES[seed % 4]),
            scale=("token", "one", "token_1")[seed % 3],
            zero_point=(None, "token", "one", "token_1")[seed // 3 % 4],
            bias=(None, "compute", "output")[seed // 2 % 3],
            weight_sum=seed % 5 == 0,
            values="random" if seed % 3 else "high",
            seed=seed,
        )


def floating(
    sizes: str, dtype: torch.dtype, n: int = 24, k: int = 40, seed: int = 0
) -> dict[str, Any]:
    """Arguments of qat_grouped_linear."""
    counts, behind = SIZES[sizes]
    gen = cases.generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    return {
        "input": normal(sum(counts) + behind, k) + 0.5,
        "weight": normal(len(counts), n, k),
        "offsets": ends(counts),
        "bias": normal(len(counts), n),
    }


def integer_weight(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with the weight's integers."""
    groups, n, k = arguments["weight"].shape
    rows = arguments["weight"].reshape(groups * n, k)
    q, s, _ = ops.dynamic_range_quantize_per_channel(rows, 0)
    return arguments | {"weight": q.view(groups, n, k), "weight_scale": s.view(groups, n)}


CASES = list(some_cases())
PER_GROUP = ("weight", "weight_scale", "bias", "weight_sum")
PER_ROW = ("input", "input_scale", "input_zero_point")


def one_weight(name: str, arguments: dict[str, Any], device: str = "cpu") -> Tensor:
    """The op for one weight, called for each group; zeros behind the last."""
    given = moved(arguments, device)
    rows, begin, results = given["input"].shape[0], 0, []
    for group, end in enumerate(given.pop("offsets").tolist()):
        own = dict(given)
        for key in PER_GROUP:
            if own.get(key) is not None:
                own[key] = own[key][group]
        for key in PER_ROW:
            if own.get(key) is not None and own[key].shape not in ((), (1,)):
                own[key] = own[key][begin:end]
        if own["input"].shape[0] > 0:
            results.append(getattr(torch.ops.baraquant, name.replace("_grouped", ""))(**own))
        begin = end
    n, like = given["weight"].shape[1], given["input"]
    dtype = given.get("dtype") or like.dtype
    results.append(torch.zeros(rows - begin, n, dtype=dtype, device=like.device))
    return torch.cat(results)
