# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the range family with a call that is right, and the ways to get it wrong."""

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from tests.support import cases
from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import KINDS, NEVER, SHAPE, Bad, PublicOp
from tests.support.cases import Granularity

DATA = ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")
OBSERVERS = ("observe_min_max_", "observe_fake_quantize")
RANGES_IN_PLACE = ("min_val", "max_val", "scale")
WRITTEN = (*RANGES_IN_PLACE, "zero_point")
FLAGS = ("observer_enabled", "fake_quant_enabled")
COUNTER = "skipped_batches"


@dataclass(frozen=True)
class Op(PublicOp):
    """One schema: a verb and a granularity, which an observer takes as its axis or None."""

    verb: str
    granularity: Granularity

    def __str__(self) -> str:
        return self.name if self.verb in DATA else f"{self.verb}-{self.granularity}"

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.granularity.kind}" if self.verb in DATA else self.verb

    @property
    def given(self) -> dict[str, Any]:
        found = {"input": SHAPE, "dtype": torch.int8, "averaging_constant": 0.1}
        if self.granularity.kind != "per_tensor":
            found["axis"] = self.granularity.axis
        found |= dict.fromkeys(WRITTEN, self.granularity.param_shape(SHAPE))
        return found | dict.fromkeys((*FLAGS, COUNTER), (1,))

    def dtype_of(self, name: str) -> torch.dtype:
        other = {**dict.fromkeys(FLAGS, torch.uint8), COUNTER: torch.int64}
        return other.get(name) or super().dtype_of(name)


OPS = [Op(verb, granularity) for verb in DATA for granularity in KINDS]
OPS += [Op(verb, granularity) for verb in OBSERVERS for granularity in KINDS[:2]]


def bad_tensors() -> wrong.Bads:
    yield from wrong.wrong_dtypes(["input"], (*NEVER, torch.int8, torch.uint8, torch.int32))
    other = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.complex64)
    yield from wrong.wrong_dtypes(RANGES_IN_PLACE, other, "float32")
    other = (torch.int64, torch.int8, torch.uint8, torch.float32, torch.bool)
    yield from wrong.wrong_dtypes(["zero_point"], other, "int32")
    other = (torch.int8, torch.int32, torch.int64, torch.float32, torch.complex64)
    yield from wrong.wrong_dtypes(FLAGS, other, "uint8.*bool")
    other = (torch.int32, torch.uint8, torch.float32, torch.bool)
    yield from wrong.wrong_dtypes([COUNTER], other, "int64")
    not_integers = (*cases.FLOAT_DTYPES, torch.float8_e5m2, *NEVER[:3], torch.int32, torch.qint8)
    yield from wrong.wrong_outputs(not_integers, "int8 or .*uint8")
    shapes: dict[str, wrong.Shapes] = {
        "per_tensor": ((2,), (1, 1), (0,)),
        "per_channel": ((5,), (7,), (6, 1), (), (8,), (1,), (1, 6), (4, 6, 8)),
    }
    for names, when, found, words in (
        *((WRITTEN, wrong.of_kind(kind), found, "expected") for kind, found in shapes.items()),
        ((*FLAGS, COUNTER), wrong.always, ((0,), (2,), (1, 2)), "1 element"),
    ):
        for name in names:
            for shape in found:
                pattern = rf"{words}.* ({wrong.got_shape(shape)}|got .*{math.prod(shape)})"
                change = wrong.of_shape(name, shape)
                yield Bad(name, f"{shape}", change, ValueError, pattern, when)


def bad_tensors_in_place() -> wrong.Bads:
    """What is written must be contiguous, no variable of autograd, and a tensor of its own."""
    for name in WRITTEN:
        for label, change, words in (
            ("stepped", lambda a, name=name: a[name].new_ones(12)[::2], "contiguous.* got .*2"),
            ("expanded", lambda a, name=name: a[name][:1].expand(6), "contiguous.* got .*0"),
        ):
            yield Bad(name, label, change, ValueError, words, wrong.of_kind("per_channel"))
    for name in RANGES_IN_PLACE:
        change = lambda a, name=name: a[name].requires_grad_()  # noqa: E731
        yield Bad(name, "requires_grad", change, ValueError, "grad")
        for other in (one for one in RANGES_IN_PLACE if one != name):
            change = lambda a, other=other: a[other]  # noqa: E731
            when = lambda op, other=other: other in wrong.names_of(op)  # noqa: E731
            words = "two|another|different|itself"
            yield Bad(name, f"is_{other}", change, ValueError, words, when)


def bad_numbers() -> wrong.Bads:
    yield from wrong.wrong_integer_ranges()
    no_integers: wrong.When = lambda op: op.verb != "dynamic_range_quantize"  # noqa: E731
    yield from wrong.wrong_ranges(wrong.TOO_WIDE[torch.float32], when=no_integers)
    yield from wrong.wrong_granularities()
    for c in (math.nan, math.inf, -math.inf, 0.0, -0.0, -0.1, 1.0000001, 2.0, -1e-300):
        words = "got " + re.escape(f"{c:g}")[:3]
        yield Bad("averaging_constant", f"{c}", wrong.constant(c), ValueError, words)


BAD = [*bad_tensors(), *bad_tensors_in_place(), *bad_numbers()]
PAIRS = wrong.pairs(OPS, BAD)
