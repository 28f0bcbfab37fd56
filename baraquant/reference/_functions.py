# SPDX-License-Identifier: BSD-3-Clause
"""Makes functions with the signatures of the ops from rules for any segments."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from baraquant import ops
from baraquant.granularity import GRANULARITIES

from .granularity import segments

F = TypeVar("F", bound=Callable[..., Any])


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


def granularities(name: str, rule: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield ``rule`` for all four granularities, with the signature of the op ``name``."""
    for granularity in GRANULARITIES:
        yield function(name.format(granularity), granularity, rule)


def function(name: str, granularity: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``rule`` with the signature of the op ``name``.

    The op's axis and group size give the segments that the rule takes.
    """
    op = getattr(ops.backward if "_backward" in name else ops, name)
    signature = inspect.signature(op)

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        arguments.pop("save_mask", None)  # it decides what is kept in memory, and no result
        geometry = {k: arguments.pop(k) for k in ("axis", "group_size") if k in arguments}
        like = arguments["input"] if "input" in arguments else arguments["grad"]
        divided = segments(like.shape, granularity, **geometry, device=like.device)
        return rule(segments=divided, **arguments)

    call.__module__ = "baraquant.reference"
    return call


def like_the_op(rule: F) -> F:
    """Give a function the signature and the docstring of the op of the same name."""
    op = getattr(ops, rule.__name__)

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        return rule(*args, **kwargs)

    call.__module__ = "baraquant.reference"
    return cast(F, call)
