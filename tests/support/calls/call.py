# SPDX-License-Identifier: BSD-3-Clause
"""What the calls of all families have in common: they are functions of tensors alone."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.cases import Shape

NAMES = ("verb", "name", "base")  # of the op
Tensors = tuple[Tensor, ...]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class OpCall:
    """An op with its options. A family's class says which tensors and arguments the op takes."""

    verb: str
    number = False  # whether scale and zero point are numbers
    learned = False  # whether they require grad
    differentiable = False  # whether the first tensor can require grad
    ranged = False  # whether the arguments end with a range, which may be left out
    input_alone = False  # whether vmap goes over the first tensor alone
    exact_gradients = True  # whether they have the same bits however they are batched
    FACETS: ClassVar[tuple[str, ...]] = ()  # of whose values the short run takes each
    OF: ClassVar[str] = ""  # whose facets these are, where others have such, too

    def __str__(self) -> str:
        """The verb, and the options that are not the usual ones."""
        words = [self.verb]
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in NAMES or value == field.default:
                continue
            if isinstance(value, bool):
                words.append(field.name if value else f"no_{field.name}")
            elif isinstance(value, (torch.dtype, cases.Granularity)):
                words.append(str(value).removeprefix("torch."))
            else:
                words.append(f"{field.name}_{value}")
        return "-".join(words)

    @property
    def facets(self) -> set[tuple[str, Any]] | None:
        return {(name + self.OF, getattr(self, name)) for name in self.FACETS} or None

    @property
    def function(self) -> Callable[..., Any]:
        """The function of `baraquant.ops`."""
        return getattr(ops, self.verb)

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        """The tensors for an input of `shape`, of which those that can require grad do."""
        raise NotImplementedError

    def tensors(
        self, shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> Tensors:
        """Those on a device."""
        made = [(t, t.requires_grad) for t in self.made(shape, dtype)]
        return tuple(t.requires_grad_(False).to(device).requires_grad_(grad) for t, grad in made)

    def arguments(self, *tensors: Tensor) -> Arguments:
        """The positional and keyword arguments of the op."""
        raise NotImplementedError

    def __call__(self, *tensors: Tensor) -> Any:
        args, kwargs = self.arguments(*tensors)
        return self.function(*args, **kwargs)
