# SPDX-License-Identifier: BSD-3-Clause
"""How a call goes wrong, and every op of the affine family with a right call and the wrong ones."""

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.cases import INT64_MAX, INT64_MIN, PER_TENSOR, Granularity, Shape

RANGE = ("quant_min", "quant_max")
Error = type[Exception]
Change = Callable[[dict[str, Any]], Any]
Names = Iterable[str]
Dtypes = Iterable[torch.dtype]
Shapes = Iterable[Shape]
SHAPE = (4, 6, 8)
NEVER = (torch.int16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
VALUES = {"quant_min": -8, "quant_max": 7, "symmetric": True, "group_size": 4}
OF_INT32 = ("zero_point", "input_zero_point", "act_zero_point", "weight_zero_point", "weight_sum")


class PublicOp:
    """One way to call a schema; a family's `Op` says what that takes.

    Attributes:
        given: Of the arguments that any of the family's ops takes: a tuple is a tensor's shape,
            another object the value, None leaves it out.
    """

    name: str
    given: dict[str, Any]
    number = False  # whether scale and zero point are numbers
    residual = False  # whether there is one
    full = True  # whether optional tensors and lists are given

    def __str__(self) -> str:
        return self.name

    def dtype_of(self, name: str) -> torch.dtype:
        """That of a tensor."""
        return torch.int32 if name in OF_INT32 else torch.float32

    def arguments(self, device: str) -> dict[str, Any]:
        """A call that is right: ones, of what the schema names."""
        packet, given = getattr(torch.ops.baraquant, self.name), VALUES | self.given
        form = "number" if self.number else "residual" if self.residual else "default"
        found: dict[str, Any] = {}
        for argument in getattr(packet, form)._schema.arguments:
            name, kind = argument.name, str(argument.real_type)
            value = given.get(name)
            if value is None or (not self.full and kind.startswith(("Optional[Tensor", "List"))):
                continue
            if isinstance(value, tuple):
                value = torch.ones(value, dtype=self.dtype_of(name), device=device)
            found[name] = value
        return found

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return getattr(torch.ops.baraquant, self.name)(**arguments)


@dataclass(frozen=True)
class ProductOp(PublicOp):
    """One right call of a product.

    Attributes:
        output: The dtype of the result, and of a floating input.
        input: That of an input of integers.
        full: With all optional arguments.
    """

    name: str
    output: torch.dtype = torch.float32
    input: torch.dtype = torch.int8
    full: bool = True

    def __str__(self) -> str:
        flags = [flag for flag in ("full", "number") if getattr(self, flag)]
        return "-".join([self.name, cases.name_of(self.output), cases.name_of(self.input), *flags])

    @property
    def compute(self) -> torch.dtype:
        return cases.compute_dtype(self.output)

    @property
    def given(self) -> dict[str, Any]:
        return {"symmetric": not self.full, "dtype": self.output}

    def dtype_of(self, name: str) -> torch.dtype:
        if name == "input" and self.name.startswith(("int", "smoothquant", "rescale")):
            return self.input
        if name == "weight" and not self.name.startswith("qat"):
            return torch.int8
        if name.endswith("scale"):
            return self.compute
        return self.output if name in ("input", "weight", "bias") else torch.int32


@functools.cache
def names_of(op: PublicOp) -> frozenset[str]:
    """Of the arguments of a right call."""
    return frozenset(op.arguments("meta"))


When = Callable[[Any], bool]


def always(op: Any) -> bool:
    return True


def of(*names: str) -> When:
    """Whether an op is one of those."""
    return lambda op: op.name in names


def but(*names: str) -> When:
    """Whether it is another one."""
    return lambda op: op.name not in names


def having(**values: Any) -> When:
    """Whether a right call has those values of its attributes."""
    return lambda op: all(getattr(op, name) == value for name, value in values.items())


@dataclass(frozen=True)
class Bad:
    """One way to be wrong: which argument, how it is changed, what is then raised."""

    argument: str
    label: str
    change: Change
    error: Error
    words: str  # that the message must have besides the names of the op and of the argument
    when: When = always
    also: dict[str, Any] = field(default_factory=dict)  # other arguments, set beforehand

    def __str__(self) -> str:
        return f"{self.argument}-{self.label}"

    def applies(self, op: Any) -> bool:
        known = names_of(op)
        if op.number and self.argument in NUMBERS and "number" not in self.label:
            return False
        return self.argument in known and set(self.also) <= set(known) and self.when(op)

    def call(self, op: Any, device: str) -> tuple[str, str]:
        """The message and the pattern that it has to match."""
        arguments = op.arguments(device) | self.also
        arguments[self.argument] = self.change(arguments)
        with pytest.raises(self.error) as raised:
            op(arguments)
        assert type(raised.value) is self.error  # no subclass: a plain builtin exception
        pattern = rf"^baraquant::{op.name}(\.number)?: (?=.*\b{self.argument}\b).*{self.words}"
        return str(raised.value), pattern


Bads = Iterator[Bad]
NUMBERS = ("scale", "zero_point", "act_scale", "act_zero_point")

# --- how an argument is changed ------------------------------------------------------------------


def constant(value: object) -> Change:
    return lambda arguments: value


def to_dtype(name: str, dtype: torch.dtype) -> Change:
    return lambda arguments: arguments[name].to(dtype)


def of_shape(name: str, shape: Shape) -> Change:
    return lambda arguments: arguments[name].new_ones(shape)


def not_plain(tensor: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Makers of tensors of other kinds, of the dtype and about the shape of `tensor`.

    Off the CPU the sparse ones alone.
    """
    floating = tensor.to(torch.float32)
    matrix = tensor.reshape(-1, 1)

    def nested(layout: torch.layout) -> Tensor:
        return torch.nested.nested_tensor(
            [torch.ones(n, 3, dtype=tensor.dtype) for n in (2, 1)], layout=layout
        )

    ends, device = torch.tensor([0, 1, 1]), tensor.device
    made: dict[str, Callable[[], Tensor]] = {
        "coo": lambda: torch.sparse_coo_tensor(
            size=tensor.shape, dtype=tensor.dtype, device=device
        ),
        "csr": lambda: torch.sparse_csr_tensor(ends, ends[:1], torch.ones(1), (2, 3)).to(device),
    }
    if device.type != "cpu":
        return made
    made["nested"] = lambda: nested(torch.strided)
    made["jagged"] = lambda: nested(torch.jagged)
    made["quantized"] = lambda: torch.quantize_per_tensor(floating, 1.0, 0, torch.qint8)
    if tensor.dtype == torch.float32:
        made["mkldnn"] = lambda: matrix.to_mkldnn()
    return made


# --- what is wrong with it: one rule of several arguments and values -----------------------------


def got(dtype: torch.dtype) -> str:
    return f"got .*(?i:{cases.name_of(dtype)})"


def got_shape(shape: Shape) -> str:
    return rf"got .*{re.escape(str(list(shape)))}"


def wrong_dtypes(names: Names, wrong: Dtypes, words: str = "", when: When = always) -> Bads:
    """Tensors of dtypes that the op does not take there."""
    for dtype in wrong:
        for name in names:
            change, label = to_dtype(name, dtype), cases.name_of(dtype)
            yield Bad(name, label, change, TypeError, f"{words}.*{got(dtype)}", when)


def not_as(right: Callable[[Any], tuple[torch.dtype, ...]], dtype: torch.dtype) -> When:
    """Whether a dtype is none of those that an op takes."""
    return lambda op: dtype not in right(op)


def wrong_parameters(wrong: Dtypes, scales: Names, points: Names) -> Bads:
    """Scales, biases and zero points of a `ProductOp` in dtypes that are not theirs."""
    for dtype in wrong:
        when = not_as(lambda op: (op.compute,), dtype)
        yield from wrong_dtypes(scales, [dtype], "float(32|64)", when)
        when = not_as(lambda op: (op.compute, op.output), dtype)
        yield from wrong_dtypes(["bias"], [dtype], "float", when)
    floating = (*cases.FLOAT_DTYPES, torch.complex64, torch.bool)
    yield from wrong_dtypes(points, floating, "integer")


def wrong_outputs(wrong: Dtypes, words: str = "", when: When = always) -> Bads:
    """Values of the argument `dtype`."""
    for dtype in wrong:
        label, change = cases.name_of(dtype), constant(dtype)
        yield Bad("dtype", label, change, TypeError, f"{words}.*{got(dtype)}", when)


def wrong_strides(name: str, words: str, when: When = always, **more: Change) -> Bads:
    """Of a matrix, or several, that has to be contiguous."""
    changes: dict[str, Change] = {
        "transposed": lambda a: a[name].transpose(0, 1).contiguous().transpose(0, 1),
        "expanded": lambda a: a[name][:1].expand_as(a[name]),
    }
    for label, change in {**changes, **more}.items():
        yield Bad(name, label, change, ValueError, words, when)


def wrong_shapes(names: Names, wrong: Shapes, words: str = "expected", when: When = always) -> Bads:
    for name in names:
        for shape in wrong:
            pattern = f"{words}.* {got_shape(shape)}"
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, pattern, when)


def wrong_values(
    name: str, wrong: Iterable[Any], words: str = "", error: Error = ValueError, when: When = always
) -> Bads:
    """Numbers and words; the message says what was given."""
    for value in wrong:
        given = f"{value:g}"[:3] if isinstance(value, float) else f"{value}"
        pattern = f"{words}.*got '?{re.escape(given)}"
        yield Bad(name, f"number_{value}", constant(value), error, pattern, when)


def wrong_ranges(
    ranges: Shapes, words: str = "", when: When = always, names: Names = RANGE, **also: Any
) -> Bads:
    low, high = names
    for ends in ranges:
        label = "_".join([f"{ends[0]}_to_{ends[1]}", *map(str, also.values())])
        pattern = rf"{words or high}.* got .*{ends[0]}.*{ends[1]}"
        given = also | {high: ends[1]}
        yield Bad(low, label, constant(ends[0]), ValueError, pattern, when, given)


INVERTED = ((7, 7), (7, -8), (0, -1), (INT64_MAX, INT64_MIN))
HUGE = ((INT64_MIN, 7), (-8, INT64_MAX), (INT64_MIN, INT64_MAX))
ONE_STEP = ((0, 1), (-8, -7), (126, 127))  # no symmetric scale
TOO_WIDE = {torch.int8: ((-129, 0), (0, 128), (0, 255)), torch.uint8: ((-1, 9), (0, 256))}
for _dtype, _limit in cases.INTEGER_LIMIT.items():
    TOO_WIDE[_dtype] = ((-_limit - 1, 0), (0, _limit + 1))


def wrong_integer_ranges() -> Bads:
    """Those of an op whose integers are int8 or uint8."""
    yield from wrong_ranges(INVERTED + HUGE)
    for dtype in cases.INTEGER_DTYPES:
        yield from wrong_ranges(TOO_WIDE[dtype], dtype=dtype)
    yield from wrong_ranges(ONE_STEP, symmetric=True)


def wrong_granularities() -> Bads:
    axes = (3, -4, 2**31, INT64_MAX, INT64_MIN)
    yield from wrong_values("axis", axes, error=IndexError)
    yield from wrong_values("group_size", (0, -1, -(2**31), INT64_MIN))


def pairs(ops: Iterable[Any], bad: Iterable[Bad]) -> list[tuple[Any, Bad]]:
    """Each op with each of the cases that apply to it."""
    found = list(bad)
    return [(op, case) for op in ops for case in found if case.applies(op)]


# --- the affine family ---------------------------------------------------------------------------

RANGED = ("quantize", "fake_quantize", "quantize_backward", "fake_quantize_backward")
RANGED += ("fake_quantize_backward_qparams",)
VERBS = (*RANGED, "dequantize", "dequantize_backward")
KINDS = (PER_TENSOR, cases.per_channel(1), cases.PER_TOKEN, cases.per_group(4))


@dataclass(frozen=True)
class Op(PublicOp):
    """One schema: a verb, a granularity, and whether scale and zero point are numbers."""

    verb: str
    granularity: Granularity
    number: bool = False

    def __str__(self) -> str:
        return self.name + (".number" if self.number else "")

    @property
    def name(self) -> str:
        return self.granularity.op(self.verb).__name__

    @property
    def given(self) -> dict[str, Any]:
        dtype = torch.int8 if self.verb == "quantize" else torch.float32
        found = {"grad": SHAPE, "input": SHAPE, "axis": self.granularity.axis, "dtype": dtype}
        if self.number:
            return found | {"scale": 0.1, "zero_point": 0}
        return found | dict.fromkeys(NUMBERS, self.granularity.param_shape(SHAPE))


OPS = [Op(verb, granularity) for verb in VERBS for granularity in KINDS]
OPS += [Op(verb, PER_TENSOR, number=True) for verb in ("quantize", "fake_quantize", "dequantize")]


def is_dequantize(op: Op) -> bool:
    return op.verb.startswith("dequantize")


def of_kind(kind: str) -> When:
    return lambda op: op.granularity.kind == kind


def bad_dtypes() -> Bads:
    never = (torch.int32, *NEVER)
    yield from wrong_dtypes(("input", "grad"), never)
    yield from wrong_dtypes(
        ("input", "grad"), [torch.int8], when=lambda op: op.verb != "dequantize"
    )
    yield from wrong_dtypes(["scale"], (torch.float16, torch.bfloat16, *never[:5]))
    yield from wrong_dtypes(["scale"], [torch.float64], "float32", lambda op: not is_dequantize(op))
    yield from wrong_dtypes(["zero_point"], [torch.complex64])
    whole = ("quantize", "dequantize", "quantize_backward")  # no floating zero point
    floating = (torch.float32, torch.float64, torch.float16)
    yield from wrong_dtypes(["zero_point"], floating, "integer", lambda op: op.verb in whole)
    yield from wrong_outputs((*never[:5], torch.float8_e5m2, torch.qint8))
    yield from wrong_outputs(cases.INTEGER_DTYPES, when=is_dequantize)


def bad_shapes() -> Bads:
    wrong: dict[str, Shapes] = {
        "per_tensor": ((2,), (1, 1), (0,)),
        "per_channel": ((5,), (7,), (6, 1), (), (8,), (1,)),
        "per_token": ((4, 6, 2), (4, 8), (6,), (4, 6, 1, 1), (24,), (1,), ()),
        "per_group": ((4, 6, 3), (4, 6, 1), (4, 6), (4, 6, 8), (48,), (), (4, 2, 6)),
    }
    for name in ("scale", "zero_point"):
        for kind, shape in [(kind, shape) for kind, found in wrong.items() for shape in found]:
            # A count or the list of sizes: both say what was given.
            words = rf"expected.* ({got_shape(shape)}|got .*{math.prod(shape)})"
            yield Bad(name, f"{shape}", of_shape(name, shape), ValueError, words, of_kind(kind))
    # Broadcastable, as many elements, flat.
    when: When = lambda op: op.verb != "dequantize_backward"  # noqa: E731
    yield from wrong_shapes(["grad"], ((1, 6, 8), (8, 6, 4), (192,)), when=when)


def bad_numbers() -> Bads:
    for dtype, ranges in TOO_WIDE.items():
        yield from wrong_ranges(ranges, dtype=dtype)
    yield from wrong_ranges(INVERTED + HUGE)
    fake: When = lambda op: op.verb.startswith("fake_quantize")  # noqa: E731
    yield from wrong_ranges(TOO_WIDE[torch.float32], when=fake)
    yield from wrong_granularities()
    scales = (math.nan, math.inf, -math.inf, 0.0, -0.0, -0.1)
    yield from wrong_values("scale", scales, when=having(number=True))
    ranged: When = lambda op: op.number and op.verb != "dequantize"  # noqa: E731
    yield from wrong_values("zero_point", (-9, 8, 2**31, INT64_MAX, INT64_MIN), when=ranged)


BAD = [*bad_dtypes(), *bad_shapes(), *bad_numbers()]
PAIRS = pairs(OPS, BAD)
