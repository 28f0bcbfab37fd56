# SPDX-License-Identifier: BSD-3-Clause
"""What the calls of all families have in common: they are functions of tensors alone."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases

NAMES = ("verb", "name", "base")  # of the op


class OpCall:
    """An op with its options. A family's class says which tensors and arguments the op takes."""

    verb: str
    number = False  # whether scale and zero point are numbers
    learned = False  # whether they require grad
    differentiable = False  # whether the first tensor can require grad

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
    def function(self) -> Callable[..., Any]:
        """The function of `baraquant.ops`."""
        function: Callable[..., Any] = getattr(ops, self.verb)
        return function

    def arguments(self, *tensors: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of the op."""
        raise NotImplementedError

    def __call__(self, *tensors: Tensor) -> Any:
        args, kwargs = self.arguments(*tensors)
        return self.function(*args, **kwargs)
