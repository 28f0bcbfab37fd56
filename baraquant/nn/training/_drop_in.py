# SPDX-License-Identifier: BSD-3-Clause
"""How a training layer is made from the PyTorch module that it is a subclass of."""

from typing import Any, TypeVar

from torch import nn
from typing_extensions import Self

from ...configs import Config
from ...schemes import W8A8
from .quantizers import QuantizesWeight

M = TypeVar("M", bound=nn.Module)


class DropIn(QuantizesWeight):
    """A mixin for a PyTorch module: its constructor takes PyTorch's arguments and ``config``."""

    def __init__(self, *args: Any, config: Config | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_config(W8A8() if config is None else config)

    @classmethod
    def from_float(cls, module: nn.Module, config: Config) -> Self:
        """Return a layer of the same kind as ``module`` that shares its parameters."""
        layer = _like(cls, module)
        layer._set_config(config)
        return layer

    def _set_config(self, config: Config) -> None:
        raise NotImplementedError


def _like(cls: type[M], module: nn.Module) -> M:
    """Return a module of a subclass that shares everything with ``module`` except its hooks."""
    new: M = object.__new__(cls)
    nn.Module.__init__(new)
    own = vars(new).keys()
    vars(new).update({name: value for name, value in vars(module).items() if name not in own})
    new._parameters.update(module._parameters)
    new.train(module.training)
    return new
