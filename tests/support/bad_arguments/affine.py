# SPDX-License-Identifier: BSD-3-Clause
"""Every op of the affine family with a call that is right, and the ways to get it wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.cases import INT64_MAX, INT64_MIN, PER_TENSOR, Granularity

Change = Callable[[dict[str, Any]], Any]
SHAPE = (4, 6, 8)
DEVICE = "device"  # the label of cases whose message names the device
RANGED = ("quantize", "fake_quantize", "quantize_backward", "fake_quantize_backward")
RANGED += ("fake_quantize_backward_qparams",)
VERBS = (*RANGED, "dequantize", "dequantize_backward")
KINDS = (PER_TENSOR, cases.per_channel(1), cases.PER_TOKEN, cases.per_group(4))


@dataclass(frozen=True)
class Op:
    """One schema: a verb, a granularity, and whether scale and zero point are numbers."""

    verb: str
    granularity: Granularity
    number: bool = False

    def __str__(self) -> str:
        return self.name + (".number" if self.number else "")

    @property
    def name(self) -> str:
        return self.granularity.op(self.verb).__name__

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right."""
        found: dict[str, Any] = {}
        if self.verb.find("_backward") > 0:
            found["grad"] = torch.ones(SHAPE, device=device)
        if self.verb != "dequantize_backward":
            found["input"] = torch.ones(SHAPE, device=device)
        params = self.granularity.param_shape(SHAPE)
        found["scale"] = 0.1 if self.number else torch.ones(params, device=device)
        if self.verb != "dequantize_backward":
            point = torch.zeros(params, dtype=torch.int32, device=device)
            found["zero_point"] = 0 if self.number else point
        if self.granularity.kind == "per_group":
            found["group_size"] = self.granularity.group_size
        if self.granularity.kind in ("per_channel", "per_group"):
            found["axis"] = self.granularity.axis
        if self.verb in RANGED:
            found |= {"quant_min": -8, "quant_max": 7}
        if self.verb in ("quantize", "dequantize", "dequantize_backward"):
            found["dtype"] = torch.int8 if self.verb == "quantize" else torch.float32
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


OPS = [Op(verb, granularity) for verb in VERBS for granularity in KINDS]
OPS += [Op(verb, PER_TENSOR, number=True) for verb in ("quantize", "fake_quantize", "dequantize")]


def not_plain(tensor: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Makers of tensors of other kinds, of the dtype and about the shape of `tensor`."""
    floating = tensor.to(torch.float32)
    matrix = tensor.reshape(-1, 1)

    def nested(layout: torch.layout) -> Tensor:
        return torch.nested.nested_tensor(
            [torch.ones(n, 3, dtype=tensor.dtype) for n in (2, 1)], layout=layout
        )

    made: dict[str, Callable[[], Tensor]] = {
        "nested": lambda: nested(torch.strided),
        "jagged": lambda: nested(torch.jagged),
        "quantized": lambda: torch.quantize_per_tensor(floating, 1.0, 0, torch.qint8),
        "coo": lambda: torch.sparse_coo_tensor(size=tensor.shape, dtype=tensor.dtype),
        "csr": lambda: matrix.to_sparse_csr(),
    }
    if tensor.dtype == torch.float32:
        made["mkldnn"] = lambda: matrix.to_mkldnn()
    return made


def always(op: Op) -> bool:
    return True


@dataclass(frozen=True)
class Bad:
    """One way to be wrong: which argument, how it is changed, what is then raised."""

    argument: str
    label: str
    change: Change
    error: type[Exception]
    words: str  # that the message must have besides the names of the op and of the argument
    when: Callable[[Op], bool] = always
    also: dict[str, Any] = field(default_factory=dict)  # other arguments, set beforehand

    def __str__(self) -> str:
        return f"{self.argument}-{self.label}"

    def applies(self, op: Op) -> bool:
        known = op.arguments("meta")
        if op.number and self.argument in ("scale", "zero_point") and "number" not in self.label:
            return False
        return self.argument in known and set(self.also) <= set(known) and self.when(op)

    def call(self, op: Op, device: str) -> tuple[str, str]:
        """The message and the pattern that it has to match."""
        arguments = op.arguments(device) | self.also
        arguments[self.argument] = self.change(arguments)
        with pytest.raises(self.error) as raised:
            op(arguments)
        assert type(raised.value) is self.error  # no subclass: a plain builtin exception
        pattern = rf"^baraquant::{op.name}(\.number)?: (?=.*\b{self.argument}\b).*{self.words}"
        return str(raised.value), pattern


# --- how an argument is changed, and to which ops that applies -----------------------------------


def constant(value: object) -> Change:
    return lambda arguments: value


def to_dtype(name: str, dtype: torch.dtype) -> Change:
    return lambda arguments: arguments[name].to(dtype)


def of_shape(name: str, shape: tuple[int, ...]) -> Change:
    return lambda arguments: arguments[name].new_ones(shape)


def elsewhere(name: str) -> Change:
    """The same argument on another device than the rest."""

    def change(arguments: dict[str, Any]) -> Tensor:
        here = arguments[name]
        return torch.ones_like(here, device="cpu" if here.device.type != "cpu" else "meta")

    return change


def sparse_coo(name: str) -> Change:
    def change(arguments: dict[str, Any]) -> Tensor:
        dense = arguments[name]
        return torch.sparse_coo_tensor(size=dense.shape, dtype=dense.dtype, device=dense.device)

    return change


def sparse_csr(name: str) -> Change:
    def change(arguments: dict[str, Any]) -> Tensor:
        rows, columns = torch.tensor([0, 1, 1]), torch.tensor([0])
        matrix = torch.sparse_csr_tensor(rows, columns, torch.ones(1), (2, 3))
        return matrix.to(arguments[name].device)

    return change


def quantized(arguments: dict[str, Any]) -> Tensor:
    return torch.quantize_per_tensor(torch.ones(SHAPE), 1.0, 0, torch.qint8)


def is_dequantize(op: Op) -> bool:
    return op.verb.startswith("dequantize")


def is_not_dequantize(op: Op) -> bool:
    return not is_dequantize(op)


def has_input(op: Op) -> bool:
    return op.verb != "dequantize_backward"


def takes_no_floating_zero_point(op: Op) -> bool:
    return op.verb in ("quantize", "dequantize", "quantize_backward")


# --- the cases -----------------------------------------------------------------------------------


def wrong_dtypes() -> Iterator[Bad]:
    never = [torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64]
    names = [(name, dtype) for name in ("input", "grad") for dtype in (*never, torch.float8_e4m3fn)]
    names += [("scale", dtype) for dtype in (torch.float16, torch.bfloat16, *never)]
    names += [("zero_point", torch.complex64)]
    for name, dtype in names:
        yield Bad(name, cases.name_of(dtype), to_dtype(name, dtype), TypeError, got(dtype))
    for name in ("input", "grad"):
        change, when = to_dtype(name, torch.int8), (lambda op: op.verb != "dequantize")
        yield Bad(name, "int8", change, TypeError, got(torch.int8), when)
    change, words = to_dtype("scale", torch.float64), "float32.* " + got(torch.float64)
    yield Bad("scale", "float64", change, TypeError, words, is_not_dequantize)
    for dtype in (torch.float32, torch.float64, torch.float16):
        change, words = to_dtype("zero_point", dtype), "integer.* " + got(dtype)
        when = takes_no_floating_zero_point
        yield Bad("zero_point", cases.name_of(dtype), change, TypeError, words, when)
    for dtype in (*never, torch.float8_e5m2, torch.qint8):
        yield Bad("dtype", cases.name_of(dtype), constant(dtype), TypeError, got(dtype))
    for dtype in cases.INTEGER_DTYPES:
        label, change = cases.name_of(dtype), constant(dtype)
        yield Bad("dtype", label, change, TypeError, got(dtype), is_dequantize)


def wrong_layouts_and_devices() -> Iterator[Bad]:
    for name in ("input", "grad", "scale", "zero_point"):
        yield Bad(name, "sparse_coo", sparse_coo(name), TypeError, "got .*[Ss]parse")
    for name in ("input", "grad"):
        yield Bad(name, "sparse_csr", sparse_csr(name), TypeError, "got .*[Ss]parse")
    for name in ("scale", "zero_point", "grad"):
        when = has_input if name == "grad" else always
        yield Bad(name, DEVICE, elsewhere(name), ValueError, "device.* got (cpu|meta)", when)


def wrong_shapes() -> Iterator[Bad]:
    wrong = {
        "per_tensor": ((2,), (1, 1), (0,)),
        "per_channel": ((5,), (7,), (6, 1), (), (8,), (1,)),
        "per_token": ((4, 6, 2), (4, 8), (6,), (4, 6, 1, 1), (24,), (1,), ()),
        "per_group": ((4, 6, 3), (4, 6, 1), (4, 6), (4, 6, 8), (48,), (), (4, 2, 6)),
    }
    for name in ("scale", "zero_point"):
        for kind, shape in [(k, shape) for k, shapes in wrong.items() for shape in shapes]:
            # A count or the list of sizes: both say what was given.
            words = rf"expected.* got .*({re.escape(str(list(shape)))}|{math.prod(shape)})"
            when = lambda op, kind=kind: op.granularity.kind == kind  # noqa: E731
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, when)
    for shape in ((1, 6, 8), (8, 6, 4), (192,)):  # broadcastable, as many elements, flat
        words = f"got .*{re.escape(str(list(shape)))}"
        yield Bad("grad", f"{shape}", of_shape("grad", shape), ValueError, words, has_input)


def wrong_ranges() -> Iterator[Bad]:
    def bad(low: int, high: int, when: Callable[[Op], bool] = always, **also: Any) -> Bad:
        words = rf"quant_max.* got .*{low}.*{high}"
        label = "_".join([f"{low}_to_{high}", *map(str, also.values())])
        change, also = constant(low), also | {"quant_max": high}
        return Bad("quant_min", label, change, ValueError, words, when, also)

    inverted = ((7, 7), (7, -8), (0, -1), (INT64_MAX, INT64_MIN))
    huge = ((INT64_MIN, 7), (-8, INT64_MAX), (INT64_MIN, INT64_MAX))
    yield from (bad(*ends) for ends in inverted + huge)
    too_wide = {torch.int8: ((-129, 0), (0, 128), (0, 255)), torch.uint8: ((-1, 9), (0, 256))}
    for dtype, limit in cases.INTEGER_LIMIT.items():
        too_wide[dtype] = ((-limit - 1, 0), (0, limit + 1))
    for dtype, ranges in too_wide.items():
        yield from (bad(*ends, dtype=dtype) for ends in ranges)
    for ends in too_wide[torch.float32]:
        yield bad(*ends, when=lambda op: op.verb.startswith("fake_quantize"))


def wrong_numbers() -> Iterator[Bad]:
    for axis in (3, -4, 2**31, INT64_MAX, INT64_MIN):
        yield Bad("axis", f"{axis}", constant(axis), IndexError, f"got {axis}")
    for size in (0, -1, -(2**31), INT64_MIN):
        yield Bad("group_size", f"{size}", constant(size), ValueError, f"got {size}")
    for scale in (math.nan, math.inf, -math.inf, 0.0, -0.0, -0.1):
        words = "got " + re.escape(f"{scale:g}")
        yield Bad("scale", f"number_{scale}", constant(scale), ValueError, words, takes_numbers)
    for point in (-9, 8, 2**31, INT64_MAX, INT64_MIN):
        words, change = f"got {point}", constant(point)
        when = lambda op: op.number and op.verb != "dequantize"  # noqa: E731
        yield Bad("zero_point", f"number_{point}", change, ValueError, words, when)


def takes_numbers(op: Op) -> bool:
    return op.number


def got(dtype: torch.dtype) -> str:
    return f"got .*(?i:{cases.name_of(dtype)})"


BAD = [*wrong_dtypes(), *wrong_layouts_and_devices(), *wrong_shapes(), *wrong_ranges()]
BAD += [*wrong_numbers()]
PAIRS = [(op, bad) for op in OPS for bad in BAD if bad.applies(op)]
