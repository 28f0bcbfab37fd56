# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of every op: right ones, of which some arguments are then replaced.

The right ones are those of `tests/support/calls`; the core ops' are what those turn into, as
PyTorch's dispatcher shows it. So an op that gets a call there is tried here too. What a call is
follows from its number alone, so that one that fails can be made again.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.ops import hostile_values
from tests.support import cases
from tests.support.calls.affine import outputs
from tests.support.calls.every import EVERY_CALL
from tests.support.calls.range import OBSERVE_CALLS
from tests.support.cases import function_of
from tests.support.core_calls import Bound, Op, Recorder, bound

SHAPES = ((3, 4, 20), (2, 9), (1, 1), (5, 3), (2, 3, 4, 5), (17, 33), (3, 130), (0, 4), (4, 0))
# Several threads share these; the weight of qat_linear is square.
LARGE_SHAPES = ((70, 1025), (4097, 9), (300, 260))
CONTEXTS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
SPELLINGS = ("function", "function", "packet", "overload", "positions")


@dataclass
class Call:
    """One call: an overload, its arguments by name, and how it is made.

    Attributes:
        changed: The arguments that are not those of a right call.
        spelling: Of `SPELLINGS`; a core op has no function.
        context: A key of `CONTEXTS`, or "".
    """

    op: Op
    arguments: dict[str, Any]
    changed: list[str]
    spelling: str
    context: str = ""

    @property
    def name(self) -> str:
        return self.op._schema.name.removeprefix("baraquant::")

    @property
    def public(self) -> bool:
        return not self.name.startswith("_")

    @property
    def in_place(self) -> bool:
        return self.op._schema.is_mutable

    def __str__(self) -> str:
        said = (f"{'*' * (k in self.changed)}{k}={describe(v)}" for k, v in self.arguments.items())
        return f"{self.name}({', '.join(said)}) by {self.spelling} {self.context}"

    def __call__(self, arguments: dict[str, Any] | None = None) -> Any:
        """Make it, with its own arguments or others."""
        given = self.arguments if arguments is None else arguments
        function: Any = self.op.overloadpacket
        if self.public and self.spelling in ("function", "positions"):
            function = function_of(self.name)
        elif self.spelling == "overload":
            function = self.op
        args: list[Any] = []
        if self.spelling == "positions":
            given = dict(given)
            for parameter in self.op._schema.arguments:
                if parameter.kwarg_only or parameter.name not in given:
                    break
                args.append(given.pop(parameter.name))
        with CONTEXTS.get(self.context, contextlib.nullcontext)():
            return function(*args, **given)


def describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)[:60]
    dtype = str(value.dtype).removeprefix("torch.")
    words = [type(value).__name__] if type(value) is not Tensor else []
    words += [] if value.device.type == "cpu" else [value.device.type]
    words += ["grad"] if value.requires_grad else []
    if value.is_nested or value.layout != torch.strided:
        return " ".join([dtype, str(value.layout), *words])
    try:
        return " ".join([dtype, str(list(value.shape)), str(list(value.stride())), *words])
    except RuntimeError:  # of a parameter without a shape, or an opaque tensor without strides
        return " ".join([dtype, *words])


def schema_types(op: Op) -> dict[str, str]:
    return {a.name: str(a.real_type) for a in op._schema.arguments}


def right_call(rng: Random) -> Bound:
    """A public op and arguments that it takes."""
    call: Any = rng.choice((*EVERY_CALL, *OBSERVE_CALLS, *OBSERVE_CALLS))
    shape = rng.choice(SHAPES if rng.random() < 0.97 else LARGE_SHAPES)
    chooses = "granularity" in {field.name for field in dataclasses.fields(call)}
    if chooses and not call.number and rng.random() < 0.5:
        call = dataclasses.replace(call, granularity=rng.choice(cases.granularities(shape)))
    dtype = rng.choice(cases.FLOAT_DTYPES)
    if dtype == torch.float64 and not getattr(call, "takes_float64", True):
        dtype = torch.float32
    return bound(call, call.tensors(shape, dtype))


def core_call(rng: Random, op: Op, arguments: dict[str, Any]) -> Bound:
    """One of the core ops' calls that a right call, and its gradient, turn into."""
    with Recorder() as recorder:
        results = [t for t in outputs(op(**arguments)) if isinstance(t, Tensor) and t.requires_grad]
        leaves = [t for t in arguments.values() if isinstance(t, Tensor) and t.requires_grad]
        if results and leaves:
            torch.autograd.grad(
                results, leaves, [torch.ones_like(r) for r in results], allow_unused=True
            )
    return rng.choice(recorder.calls) if recorder.calls else (op, arguments)


def make_call(number: int) -> Call:
    """The call of this number."""
    rng = Random(number)
    torch.manual_seed(number)
    op, arguments = right_call(rng)
    if rng.random() < 0.35:
        op, arguments = core_call(rng, op, arguments)
    types = schema_types(op)
    changed: list[str] = []
    for _ in range(rng.choices((0, 1, 2, 3), (2, 5, 3, 1))[0]):
        name = rng.choice(list(types))
        arguments[name] = hostile_values.instead_of(rng, types[name], arguments.get(name))
        changed.append(name)
    spelling = rng.choice(SPELLINGS)
    if rng.random() < 0.02:
        arguments.pop(rng.choice(list(arguments)))
        changed.append("(one left out)")
    if rng.random() < 0.02:
        arguments[rng.choice(("bits", "axis", "dtype", "self"))] = rng.choice((1, None))
        changed.append("(one too many)")
    context = rng.choice(tuple(CONTEXTS)) if rng.random() < 0.15 else ""
    return Call(op, arguments, changed, spelling, context)
