# SPDX-License-Identifier: BSD-3-Clause
"""What the programs of random calls share: tensors, calls that may be wrong, a verdict.

`python -m tests.affine.fuzz [examples]`. Each call either breaks rules of the contract, and then
raises the exception of one of them, or breaks none, and then gives the oracle's bits and those of
`baraquant.reference`. Never anything else, and the same on Meta and through `baraquant.ops`. Run in
a process of its own (`test_errors.py`), so that a crash is a failure like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import baraquant.ops
from baraquant import reference
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import outputs


def move(value: Any, device: str) -> Any:
    if device == "cpu" or not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int, scale: float = 1.0) -> Tensor:
    """Any values for an input; for a scale the ordinary and the special."""
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        low, high = max(info.min, -300), min(info.max, 300)
        return torch.randint(low, high + 1, shape, generator=cases.generator(seed)).to(dtype)
    if dtype.is_complex:
        return torch.ones(shape, dtype=dtype)
    return scale * cases.gradients(shape, dtype, seed)


@dataclass
class Call:
    """An op and its arguments."""

    name: str
    arguments: dict[str, Any]

    def __call__(self, device: str, namespace: object) -> Tensor:
        return getattr(namespace, self.name)(
            **{k: move(v, device) for k, v in self.arguments.items()}
        )


@dataclass
class Misplaced(Call):
    """A call with one tensor on the other device."""

    stray: str

    def __call__(self, device: str, namespace: object) -> Any:
        others = {"cpu": "meta", "meta": "cpu"}
        moved = {
            k: move(v, others[device] if k == self.stray else device)
            for k, v in self.arguments.items()
        }
        return getattr(namespace, self.name)(**moved)


def choose(draw: st.DrawFn, right: Any, wrong: tuple[Any, ...]) -> Any:
    """The right one about fourteen times out of fifteen."""
    return draw(st.sampled_from(wrong)) if draw(st.integers(0, 14)) > 13 else right


@st.composite
def misplaced(draw: st.DrawFn, call: Call) -> Call:
    """The call itself, or now and then one with a tensor that lies elsewhere."""
    names = [name for name, value in call.arguments.items() if isinstance(value, Tensor)]
    strays = tuple(Misplaced(call.name, call.arguments, name) for name in names)
    return choose(draw, call, strays) if len(names) > 1 else call


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
        assert_same_bits(call.arguments[name], value, f"{name} has changed: {call}")
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
            assert_same_bits(result, right, f"the reference: {call}")


def run(
    calls: st.SearchStrategy[Any],
    broken_rules: Callable[[Any], set[type[Exception]]],
    check_values: Callable[[Any, Any], None],
    examples: int,
    judge: Callable[..., Any] = judged,
) -> None:
    """Judge so many calls, or as many as the command line says; neither half may be empty.

    Args:
        broken_rules: The exceptions that the contract allows for a call; none where it is right.
        check_values: Compares the result of a right call with the oracle.
    """
    torch.set_num_threads(1)
    statistics = {"right": 0, "wrong": 0}
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else examples

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, print_blob=False,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(calls)
    def check(call: Any) -> None:
        got = judge(call, broken_rules(call), statistics)
        if got is not None:
            check_values(call, got)

    check()
    assert min(statistics.values()) > examples / 20, statistics
    print(f"{examples} examples passed: {statistics}")
