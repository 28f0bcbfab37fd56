# SPDX-License-Identifier: BSD-3-Clause
"""How a layer in training is made of one of PyTorch's modules, which it is a subclass of."""

from typing import Any, TypeVar

from torch import nn
from typing_extensions import Self

from ...configs import W8A8, Config
from ._quantizers import QuantizesWeight

M = TypeVar("M", bound=nn.Module)


class DropIn(QuantizesWeight):
    """A layer with PyTorch's arguments and ``config``. Mixed into one of PyTorch's modules."""

    def __init__(self, *args: Any, config: Config | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_config(W8A8() if config is None else config)

    @classmethod
    def from_float(cls, module: nn.Module, config: Config) -> Self:
        """Return a layer that shares the parameters of ``module``, of the kind it is one of."""
        layer = _like(cls, module)
        layer._set_config(config)
        return layer

    def _set_config(self, config: Config) -> None:
        raise NotImplementedError


def _like(cls: type[M], module: nn.Module) -> M:
    """Return a module of a subclass that shares everything with ``module`` but its hooks."""
    new: M = object.__new__(cls)
    nn.Module.__init__(new)
    own = vars(new).keys()
    vars(new).update({name: value for name, value in vars(module).items() if name not in own})
    new._parameters.update(module._parameters)
    new.train(module.training)
    return new
