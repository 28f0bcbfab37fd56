# SPDX-License-Identifier: BSD-3-Clause
"""Makes functions with the signatures of the ops from rules.

An op's list of arguments stands once, in its schema. A rule that is no op of every granularity
takes one object, whose attributes are the arguments by their names, defaults included.
"""

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from baraquant import ops
from baraquant.granularity import GRANULARITIES

from .granularity import Grid, segments

R = TypeVar("R")


class Rule(torch.autograd.Function):  # type: ignore[misc]
    """Attaches a written-out gradient to a written-out value."""

    @staticmethod
    def forward(
        ctx: Any, value: Callable[[], Tensor], gradient: Callable[..., Any], *inputs: Any
    ) -> Tensor:
        ctx.gradient = gradient
        return value()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, None, *ctx.gradient(*grads, *ctx.needs_input_grad[2:])


def per_granularity(name: str, rule: Callable[..., R]) -> Callable[..., R]:
    """Return ``rule`` with the signature and the docstring of the op ``name``.

    The rule is given those arguments of the op that it names. In place of the axis and the group
    size it may name ``segments``, and with a given scale ``grid``.
    """
    granularity = next(one for one in GRANULARITIES if one in name)
    taken = inspect.signature(rule).parameters

    def call(a: SimpleNamespace) -> R:
        given = vars(a)
        like = given["input"] if "input" in given else given["grad"]
        geometry = {key: given[key] for key in ("axis", "group_size") if key in given}
        given["segments"] = segments(like.shape, granularity, **geometry, device=like.device)
        given["grid"] = Grid(**{key: given[key] for key in Grid._fields if key in given})
        return rule(**{key: given[key] for key in taken})

    return _public(getattr(ops.backward if "_backward" in name else ops, name), call)


def like_the_op(rule: Callable[[Any], R]) -> Callable[..., R]:
    """Give a rule the signature and the docstring of the op of its name."""
    return _public(getattr(ops, rule.__name__), rule)


def _public(op: Any, rule: Callable[[Any], R]) -> Callable[..., R]:
    signature = inspect.signature(op)

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return rule(SimpleNamespace(**bound.arguments))

    call.__module__ = "baraquant.reference"
    return call
