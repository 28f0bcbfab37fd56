# SPDX-License-Identifier: BSD-3-Clause
"""What the programs of random calls share: tensors, calls that may be wrong, a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor

import baraquant.ops
from tests.support import cases
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
    """An op and its arguments; the weight's memory order is its own."""

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


def judged(call: Call, allowed: set[type[Exception]], statistics: dict[str, int]) -> Any:
    """The result of a right call; None of a wrong one. All ways to call it do and say the same."""
    ops = torch.ops.baraquant
    got, error = outcome(call, "cpu", ops)
    on_meta, meta_error = outcome(call, "meta", ops)
    assert (type(error), str(error)) == (type(meta_error), str(meta_error)), "cpu and meta differ"
    got, function_error = outcome(call, "cpu", baraquant.ops)
    assert (type(error), str(error)) == (type(function_error), str(function_error))
    if allowed:
        statistics["wrong"] += 1
        assert error is not None, f"accepted, though it should raise one of {allowed}"
        assert type(error) in allowed, f"{type(error).__name__}: {error}; expected {allowed}"
        assert str(error).startswith(f"baraquant::{call.name}"), str(error)
        return None
    statistics["right"] += 1
    assert error is None, f"right, but {type(error).__name__}: {error}"
    for m, g in zip(outputs(on_meta), outputs(got), strict=True):
        assert (m.shape, m.dtype, m.stride()) == (g.shape, g.dtype, g.stride())
    return got


def judged_anywhere(call: Call, allowed: set[type[Exception]], statistics: dict[str, int]) -> Any:
    """As `judged`. A misplaced call is refused on both devices, with other words."""
    if not isinstance(call, Misplaced):
        return judged(call, allowed, statistics)
    statistics["wrong"] += 1
    ops, allowed = torch.ops.baraquant, allowed | {ValueError}
    for device, namespace in (("cpu", ops), ("meta", ops), ("cpu", baraquant.ops)):
        _, error = outcome(call, device, namespace)
        assert error is not None, f"accepted, though it should raise one of {allowed}"
        assert type(error) in allowed, f"{type(error).__name__}: {error}; expected {allowed}"
        assert str(error).startswith(f"baraquant::{call.name}"), str(error)
    return None


def run(check: Callable[[], None], statistics: dict[str, int], examples: int) -> None:
    """Run a property for so many examples, of which neither half may be empty."""
    phases = (Phase.generate, Phase.shrink)
    health = list(HealthCheck)
    settings.register_profile(
        "fuzz", max_examples=examples, derandomize=True, database=None, deadline=None,
        phases=phases, suppress_health_check=health, print_blob=False,
    )  # fmt: skip
    settings(settings.get_profile("fuzz"))(check)()
    assert min(statistics.values()) > examples / 20, statistics
    print(f"{examples} examples passed: {statistics}")
