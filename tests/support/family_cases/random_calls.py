# SPDX-License-Identifier: BSD-3-Clause
"""What the programs of random calls share: right calls, ways to change them, a verdict.

`python -m tests.affine.fuzz [calls]`. A call follows from its number alone. A right one comes from
`tests/support/calls` or from the cases of a family; then some of its arguments are replaced by
others of the same type. A family says what the contract says of the outcome. Each call either
breaks rules of the contract, and then raises the exception of one of them, or breaks none, and then
gives the oracle's bits and those of `baraquant.reference`. Never anything else, and the same on
Meta and through `baraquant.ops`. Run in a process of its own (`tests/ops/test_wrong_calls.py`), so
that a crash is a failure like any other.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

import baraquant.ops
from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import outputs
from tests.support.cases import INT64_MAX, INT64_MIN, Granularity, Shape
from tests.support.checks.int8_mm import summary
from tests.support.core_calls import bound

SHAPES = ((), (0,), (1,), (7,), (2, 3), (3, 0), (1, 1), (4, 1, 5), (2, 3, 4), (2, 1, 3, 2))
SHAPES_OF_ROWS = ((3,), (0, 5), (1, 17), (7, 33), (2, 3, 64), (1, 1, 1), (3, 1, 2, 5), (4, 100))
DTYPES = (
    *(*cases.QUANTIZED_DTYPES, torch.int16, torch.int32, torch.int64, torch.uint32),
    *(torch.bool, torch.complex64),
)
INTEGERS = (-1, 0, 1, 2, 3, -2, -3, 17, 128, 255, 2**31 - 1, 2**31, -(2**31), 2**62)
INTEGERS += (INT64_MAX, INT64_MIN)
FLOATS = (0.1, 0.5, 3.0, 1e-3, 0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1e-60, 1e39, 1e300)
WORDS = ("float", "int8_input", "int8", "nearest", "stochastic", "none", "tanh", "", "INT8", "ë")
# Their values may be any; those of others are bytes of a weight, sums of it, or switches.
POINTS = ("zero_point", "input_zero_point", "act_zero_point", "weight_zero_point")
Makers = Sequence[Callable[[Shape, torch.dtype, int], Tensor]]


def move(value: Any, device: str) -> Any:
    if device == "cpu" or not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def tensor(shape: Shape, dtype: torch.dtype, seed: int) -> Tensor:
    """Any values for an input; for a scale the ordinary and the special."""
    if dtype.is_complex or dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        low, high = max(info.min, -300), min(info.max, 300)
        return torch.randint(low, high + 1, shape, generator=cases.generator(seed)).to(dtype)
    return cases.gradients(shape, dtype, seed)


@dataclass
class Call:
    """An op and its arguments."""

    name: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.name}({summary(self.arguments)})"

    def __call__(self, device: str, namespace: object) -> Any:
        moved = {k: move(v, device) for k, v in self.arguments.items()}
        return self.function(namespace)(**moved)

    def function(self, namespace: object) -> Callable[..., Any]:
        if namespace is baraquant.ops:
            return cases.function_of(self.name)
        return getattr(namespace, self.name)

    @property
    def verb(self) -> str:
        """The name without the granularity."""
        stem, _, kind = self.name.partition("_per_")
        return stem + "".join(kind.partition("_backward")[1:])

    @property
    def granularity(self) -> Granularity:
        kind = "per_" + (self.name.partition("_per_")[2].partition("_")[0] or "tensor")
        axis = self.arguments.get("axis", None if kind == "per_tensor" else -1)
        if "_per_" not in self.name and axis is not None:
            kind = "per_channel"  # of an observer
        return Granularity(kind, -1 if axis is None else axis, self.arguments.get("group_size", 0))

    @property
    def all(self) -> dict[str, Any]:
        """The arguments, with the defaults that are not None."""
        dtypes = {1: torch.int8, 6: torch.float32}  # as schemas write them
        packet = getattr(torch.ops.baraquant, self.name)
        found = {}
        for argument in packet.default._schema.arguments:
            value = argument.default_value
            value = dtypes[value] if str(argument.real_type) == "ScalarType" and value else value
            if value is not None:
                found[argument.name] = value
        return found | {k: v for k, v in self.arguments.items() if v is not None}


@dataclass(repr=False)
class Misplaced(Call):
    """A call with one tensor on the other device."""

    stray: str

    def __call__(self, device: str, namespace: object) -> Any:
        others = {"cpu": "meta", "meta": "cpu"}
        moved = {
            k: move(v, others[device] if k == self.stray else device)
            for k, v in self.arguments.items()
        }
        return self.function(namespace)(**moved)


def one_in(rng: Random, count: int) -> bool:
    return rng.randrange(count) == 0


def choose(rng: Random, right: Any, wrong: Sequence[Any]) -> Any:
    """The right one fourteen times out of fifteen."""
    return rng.choice(wrong) if one_in(rng, 15) else right


# --- right calls, and how they are changed -------------------------------------------------------


def right_call(rng: Random, calls: Sequence[Any], shapes: Sequence[Shape]) -> Call:
    """One of `tests/support/calls`, with any granularity that its shape allows."""
    call, shape = rng.choice(calls), rng.choice(shapes)
    if "granularity" in {field.name for field in dataclasses.fields(call)} and not call.number:
        call = dataclasses.replace(call, granularity=rng.choice(cases.granularities(shape)))
    dtype = rng.choice(cases.FLOAT_DTYPES)
    if dtype == torch.float64 and not getattr(call, "takes_float64", True):
        dtype = torch.float32
    op, arguments = bound(call, call.tensors(shape, dtype))
    detached = {k: v.detach() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    return Call(op._schema.name.removeprefix("baraquant::"), detached)


def changed(
    rng: Random,
    call: Call,
    options: Mapping[tuple[str, ...], Sequence[tuple[Any, ...]]],
    makers: Makers = (tensor,),
    also: Callable[[Random, Call], None] | None = None,
    last: Callable[[Call], None] | None = None,
) -> Call:
    """The call with other values and layouts; then up to two arguments are wrong, maybe.

    Args:
        rng: What follows from the number of the call.
        call: A right one.
        options: What arguments are set to together, half of the time, where the op has them.
        makers: Of floating tensors.
        also: What else a family changes, first; `last`: after all others.
    """
    a, seed = call.arguments, rng.randrange(100)
    schema = {p.name: p for p in getattr(torch.ops.baraquant, call.name).default._schema.arguments}
    for name in [n for n in a if n in schema and schema[n].has_default_value()]:
        if one_in(rng, 5):
            del a[name]
    for names, values in options.items():
        if set(names) <= set(schema) and one_in(rng, 2):
            a.update(zip(names, rng.choice(values), strict=True))
    if also is not None:
        also(rng, call)
    for index, (name, value) in enumerate(list(a.items())):
        if isinstance(value, Tensor):
            a[name] = numbers(rng, name, value, seed + index, makers)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        name = rng.choice(sorted(a))
        a[name] = other(rng, a[name], seed)
    if last is not None:
        last(call)
    tensors = [name for name, value in a.items() if isinstance(value, Tensor)]
    if type(call) is not Call or len(tensors) < 2:
        return call
    return choose(rng, call, [Misplaced(call.name, a, name) for name in tensors])


def numbers(rng: Random, name: str, given: Tensor, seed: int, makers: Makers) -> Tensor:
    """Other numbers of the same dtype, half of the time; now and then in another layout."""
    made = given
    if given.is_floating_point() and one_in(rng, 2) and given.numel() < 10**5:
        make = rng.choice(makers) if given.dim() > 0 else tensor
        made = make(tuple(given.shape), given.dtype, seed)
    is_integer = not (given.is_floating_point() or given.dtype in (torch.bool, torch.complex64))
    if name in POINTS and is_integer and one_in(rng, 3):
        info = torch.iinfo(given.dtype)
        made = torch.full_like(given, rng.choice((info.min, info.max, 0, 1, 3, 127)))
    if made.dim() > 0 and max(made.shape) < 10**6 and one_in(rng, 10):
        flat = ["stepped", "expanded", "misaligned", "padded"]
        made = cases.LAYOUTS[rng.choice([*cases.LAYOUTS] if made.dim() > 1 else flat)](made)
    return made


def other(rng: Random, right: Any, seed: int) -> Any:
    """Something else of the same type: of a tensor most often another dtype, or one other size."""
    if isinstance(right, bool):
        return not right
    if isinstance(right, int):
        return rng.choice((*INTEGERS, min(right + 1, INT64_MAX), max(right - 1, INT64_MIN)))
    if isinstance(right, (float, str, torch.dtype)):
        by_type = {float: FLOATS, str: WORDS, torch.dtype: (*DTYPES, torch.float8_e4m3fn)}
        return rng.choice(by_type[type(right)])
    if isinstance(right, (tuple, list)):
        made = [*right, *right][: rng.randint(0, len(right) + 1)]
        if made and one_in(rng, 2):
            made[-1] = rng.choice((0, -1, 3, 2**31, 2**62, INT64_MIN))
        return made
    if not isinstance(right, Tensor) or max(right.shape, default=0) > 10**6:
        return right
    shape, dtype = tuple(right.shape), right.dtype
    if one_in(rng, 2):
        dtype = rng.choice(DTYPES)
        return right.to(dtype) if right.numel() < 10**5 else right
    near = [(), (1,), (1, *shape), (*shape, 1), shape[1:], rng.choice(SHAPES)]
    if shape:
        at = rng.randrange(len(shape))
        sizes = (max(shape[at] - 1, 0), shape[at] + 1, 0, 1)
        near += [(*shape[:at], size, *shape[at + 1 :]) for size in sizes]
    if right.dim() > 1 and one_in(rng, 2):
        return cases.LAYOUTS[rng.choice(("transposed", "stepped", "padded"))](right)
    shape = rng.choice(near)
    return tensor(shape, dtype, seed) if math.prod(shape) < 10**6 else right


def outcome(call: Call, device: str, namespace: object) -> tuple[Any, BaseException | None]:
    try:
        return call(device, namespace), None
    except Exception as error:
        return None, error


def assert_refused(call: Call, error: BaseException | None, allowed: set[type[Exception]]) -> None:
    assert error is not None, f"accepted, though it should raise one of {allowed}"
    assert type(error) in allowed, f"{type(error).__name__}: {error}; expected {allowed}"
    assert str(error).startswith(f"baraquant::{call.name}"), str(error)


def judged(call: Call, allowed: set[type[Exception]], statistics: dict[str, int]) -> Any:
    """The result of a right call; None of a wrong one. All ways to call it do and say the same.

    A misplaced call is refused on both devices, with other words.
    """
    statistics["wrong" if allowed or isinstance(call, Misplaced) else "right"] += 1
    tensors = {k: v for k, v in call.arguments.items() if isinstance(v, Tensor) and v.numel()}
    before = {k: v.clone() for k, v in tensors.items()}
    ways = [("cpu", torch.ops.baraquant), ("meta", torch.ops.baraquant), ("cpu", baraquant.ops)]
    (_, error), (on_meta, _), (got, _) = results = [outcome(call, *way) for way in ways]
    for name, value in before.items():
        assert_same_bits(call.arguments[name], value, f"{name} has changed")
    if isinstance(call, Misplaced):
        for _, one in results:
            assert_refused(call, one, allowed | {ValueError})
        return None
    for _, other in results:
        assert (type(error), str(error)) == (type(other), str(other)), "one says something else"
    if allowed:
        assert_refused(call, error, allowed)
        return None
    assert error is None, f"right, but {type(error).__name__}: {error}"
    for m, g in zip(outputs(on_meta), outputs(got), strict=True):
        assert (m.shape, m.dtype, m.stride()) == (g.shape, g.dtype, g.stride())
    check_reference(call, got)
    return got


def check_reference(call: Call, got: Any) -> None:
    """The bits of `baraquant.reference`.

    But for sums, whose order is its own, and given sums of a weight, which it does not read.
    """
    sizes = [size for t in call.arguments.values() if isinstance(t, Tensor) for size in t.shape]
    sizes.append(call.arguments.get("group_size") or 0)  # the reference fills up groups
    of_sums = ("backward_qparams", "weight_only_linear", "draw_random")
    if call.name.endswith(of_sums) or max(sizes) >= 2**30:
        return
    if call.arguments.get("weight_sum") is not None:
        return
    for result, right in zip(outputs(got), outputs(call("cpu", reference)), strict=True):
        # Of float64 the reference has no fma for numbers of every size.
        if result.dtype != torch.float64 or not call.name.endswith(("linear", "int8_conv")):
            assert_same_bits(result, right, "the reference")


def run(
    make: Callable[[Random], Any],
    broken_rules: Callable[[Any], set[type[Exception]]],
    check_values: Callable[[Any, Any], None],
    count: int,
    judge: Callable[..., Any] = judged,
) -> None:
    """Judge so many calls, or as many as the command line says; neither half may be empty.

    Args:
        make: A call.
        broken_rules: The exceptions that the contract allows for a call; none where it is right.
        check_values: Compares the result of a right call with the oracle.
        count: How many.
        judge: As `judged`.
    """
    torch.set_num_threads(1)
    statistics = {"right": 0, "wrong": 0}
    count = int(sys.argv[1]) if len(sys.argv) > 1 else count
    for number in range(count):
        call = make(Random(number))
        try:
            got = judge(call, broken_rules(call), statistics)
            if got is not None:
                check_values(call, got)
        except BaseException:
            print(f"call {number}: {call}")
            raise
    assert min(statistics.values()) > count / 20, statistics
    print(f"{count} calls passed: {statistics}")
