# SPDX-License-Identifier: BSD-3-Clause
"""What the calls of all families have in common: they are functions of tensors alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from baraquant import ops


class OpCall:
    """An op with its options. A family's class says which tensors and arguments the op takes."""

    verb: str
    number = False  # whether scale and zero point are numbers
    learned = False  # whether they require grad
    differentiable = False  # whether the first tensor can require grad

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
