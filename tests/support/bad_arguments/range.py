# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the range family with a call that is right, and the ways to get it wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments.affine import (
    DEVICE,
    SHAPE,
    Bad,
    constant,
    elsewhere,
    got,
    of_shape,
    sparse_coo,
    sparse_csr,
    to_dtype,
)
from tests.support.cases import INT64_MAX, INT64_MIN, PER_TENSOR, Granularity, per_channel

DATA = ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")
OBSERVERS = ("observe_min_max_", "observe_fake_quantize")
KINDS = (PER_TENSOR, per_channel(1), cases.PER_TOKEN, cases.per_group(4))
RANGES_IN_PLACE = ("min_val", "max_val", "scale")
WRITTEN = (*RANGES_IN_PLACE, "zero_point")
FLAGS = ("observer_enabled", "fake_quant_enabled")
COUNTER = "skipped_batches"


@dataclass(frozen=True)
class Op:
    """One schema: a verb and a granularity, which an observer takes as its axis or None."""

    verb: str
    granularity: Granularity
    number = False  # no overload takes numbers for scale and zero point

    def __str__(self) -> str:
        return self.name if self.verb in DATA else f"{self.verb}-{self.granularity}"

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.granularity.kind}" if self.verb in DATA else self.verb

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""
        found: dict[str, Any] = {"input": torch.ones(SHAPE, device=device)}
        if self.verb in OBSERVERS:
            found |= self.observer_arguments(device)
        if self.granularity.kind == "per_group":
            found["group_size"] = self.granularity.group_size
        if self.granularity.kind in ("per_channel", "per_group"):
            found["axis"] = self.granularity.axis
        if self.verb != "observe_min_max_":
            found |= {"quant_min": -8, "quant_max": 7, "symmetric": True}
        if self.verb == "dynamic_range_quantize":
            found["dtype"] = torch.int8
        return found

    def observer_arguments(self, device: str) -> dict[str, Any]:
        params = self.granularity.param_shape(SHAPE)
        names = RANGES_IN_PLACE[:2] if self.verb == "observe_min_max_" else RANGES_IN_PLACE
        found: dict[str, Any] = {name: torch.ones(params, device=device) for name in names}
        if self.verb == "observe_fake_quantize":
            found["zero_point"] = torch.zeros(params, dtype=torch.int32, device=device)
            found |= {f: torch.ones(1, dtype=torch.uint8, device=device) for f in FLAGS}
        found[COUNTER] = torch.zeros(1, dtype=torch.int64, device=device)
        return found | {"averaging_constant": 0.1}

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op(verb, granularity) for verb in DATA for granularity in KINDS]
OPS += [Op(verb, granularity) for verb in OBSERVERS for granularity in KINDS[:2]]


# --- the cases -----------------------------------------------------------------------------------


def wrong_dtypes() -> Iterator[Bad]:
    never = [torch.int16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
    for dtype in (*never, torch.int8, torch.uint8, torch.int32):
        name = cases.name_of(dtype)
        yield Bad("input", name, to_dtype("input", dtype), TypeError, got(dtype))
    for argument in RANGES_IN_PLACE:
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.complex64):
            change = to_dtype(argument, dtype)
            words = "float32.* " + got(dtype)
            yield Bad(argument, cases.name_of(dtype), change, TypeError, words)
    for dtype in (torch.int64, torch.int8, torch.uint8, torch.float32, torch.bool):
        change = to_dtype("zero_point", dtype)
        yield Bad("zero_point", cases.name_of(dtype), change, TypeError, "int32.* " + got(dtype))
    for argument in FLAGS:
        for dtype in (torch.int8, torch.int32, torch.int64, torch.float32, torch.complex64):
            change, name = to_dtype(argument, dtype), cases.name_of(dtype)
            yield Bad(argument, name, change, TypeError, "uint8.*bool.* " + got(dtype))
    for dtype in (torch.int32, torch.uint8, torch.float32, torch.bool):
        change = to_dtype(COUNTER, dtype)
        yield Bad(COUNTER, cases.name_of(dtype), change, TypeError, "int64.* " + got(dtype))
    floating = (*cases.FLOAT_DTYPES, torch.float8_e5m2)
    for dtype in (*floating, torch.int16, torch.int32, torch.int64, torch.bool, torch.qint8):
        words = "int8 or .*uint8.* " + got(dtype)
        yield Bad("dtype", cases.name_of(dtype), constant(dtype), TypeError, words)


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in ("input", *WRITTEN, *FLAGS, COUNTER):
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
        if name != "input":
            yield Bad(name, DEVICE, elsewhere(name), ValueError, "got (cpu|meta)")
    yield Bad("input", "sparse_csr", sparse_csr("input"), TypeError, "got .*[Ss]parse")


def wrong_shapes() -> Iterator[Bad]:
    wrong = {
        "per_tensor": ((2,), (1, 1), (0,)),
        "per_channel": ((5,), (7,), (6, 1), (), (8,), (1,), (1, 6), (4, 6, 8)),
    }
    for name in WRITTEN:
        for kind, shape in [(k, shape) for k, shapes in wrong.items() for shape in shapes]:
            words = rf"expected.* got .*({re.escape(str(list(shape)))}|{math.prod(shape)})"
            when = lambda op, kind=kind: op.granularity.kind == kind  # noqa: E731
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, when)
    for name in (*FLAGS, COUNTER):
        for shape in ((0,), (2,), (1, 2)):
            words = rf"1 element.* got .*({re.escape(str(list(shape)))}|{math.prod(shape)})"
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words)


def wrong_tensors_in_place() -> Iterator[Bad]:
    """What is written must be contiguous, no variable of autograd, and a tensor of its own."""
    for name in WRITTEN:
        change = lambda a, name=name: a[name].new_ones(12)[::2]  # noqa: E731
        per_channel_only = lambda op: op.granularity.kind == "per_channel"  # noqa: E731
        yield Bad(name, "stepped", change, ValueError, "contiguous.* got .*2", per_channel_only)
        expanded = lambda a, name=name: a[name].new_ones(1).expand(6)  # noqa: E731
        yield Bad(name, "expanded", expanded, ValueError, "contiguous.* got .*0", per_channel_only)
    for name in RANGES_IN_PLACE:
        change = lambda a, name=name: a[name].requires_grad_()  # noqa: E731
        yield Bad(name, "requires_grad", change, ValueError, "grad")
        for other in RANGES_IN_PLACE:
            if other != name:
                change = lambda a, other=other: a[other]  # noqa: E731
                yield Bad(name, f"is_{other}", change, ValueError, "two|another|different|itself",
                          lambda op, other=other: other in op.arguments("meta"))  # fmt: skip


def wrong_ranges() -> Iterator[Bad]:
    def bad(low: int, high: int, when: Callable[[Op], bool] | None = None, **also: Any) -> Bad:
        words = rf"quant_max.* got .*{low}.*{high}"
        label = "_".join([f"{low}_to_{high}", *map(str, also.values())])
        change, also = constant(low), also | {"quant_max": high}
        when = when or (lambda op: True)
        return Bad("quant_min", label, change, ValueError, words, when, also)

    inverted = ((7, 7), (7, -8), (0, -1), (INT64_MAX, INT64_MIN))
    huge = ((INT64_MIN, 7), (-8, INT64_MAX), (INT64_MIN, INT64_MAX))
    yield from (bad(*ends) for ends in inverted + huge)
    too_wide = {torch.int8: ((-129, 0), (0, 128), (0, 255)), torch.uint8: ((-1, 9), (0, 256))}
    for dtype, ranges in too_wide.items():
        yield from (bad(*ends, dtype=dtype) for ends in ranges)
    limit = cases.INTEGER_LIMIT[torch.float32]
    for ends in ((-limit - 1, 0), (0, limit + 1)):
        yield bad(*ends, when=lambda op: op.verb != "dynamic_range_quantize")
    for ends in ((0, 1), (-8, -7), (126, 127)):  # one step: no symmetric scale
        yield bad(*ends, symmetric=True)


def wrong_numbers() -> Iterator[Bad]:
    for axis in (3, -4, 2**31, INT64_MAX, INT64_MIN):
        yield Bad("axis", f"{axis}", constant(axis), IndexError, f"got {axis}")
    for size in (0, -1, -(2**31), INT64_MIN):
        yield Bad("group_size", f"{size}", constant(size), ValueError, f"got {size}")
    for c in (math.nan, math.inf, -math.inf, 0.0, -0.0, -0.1, 1.0000001, 2.0, -1e-300):
        words = "got " + re.escape(f"{c:g}")[:3]
        yield Bad("averaging_constant", f"{c}", constant(c), ValueError, words)


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes(), *wrong_ranges()]
BAD += [*wrong_tensors_in_place(), *wrong_numbers()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
