# SPDX-License-Identifier: BSD-3-Clause
"""``FloatValues``: the parameters of the float model, where a prepared model has others by now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...nn import QuantizesWeight
from ...nn.shared.quantizer import training_quantizers, without_rounding
from ..transaction import undo_by
from .batch_cache import BatchCache, Item


class FloatValues:
    """Lets a prepared model, or a part of it, compute what the float model does.

    Args:
        cache: Where the values are kept.
    """

    def __init__(self, cache: BatchCache) -> None:
        self._cache = cache
        self._items: dict[int, Item] = {}

    def keep(self, parameters: Iterable[nn.Parameter]) -> None:
        """Keep the values of parameters that are about to be changed, as those of the float model.

        An error puts back the values that they have now.
        """
        for parameter in parameters:
            item = self._cache.put(parameter, in_memory=False)
            self._items.setdefault(id(parameter), item)
            undo_by(self._restore, parameter, item)

    def keep_changed(self, model: nn.Module, before: Mapping[int, Item]) -> None:
        """Keep the values ``before``, by the ids of parameters, that preparation has changed.

        Those of rotated weights are rotated.
        """
        layers = {
            id(layer._parameters.get("weight")): layer
            for layer in model.modules()
            if isinstance(layer, QuantizesWeight)
        }
        for parameter in model.parameters():
            item = before.get(id(parameter))
            if item is None:
                continue
            value = self._cache.get(item)
            self._cache.drop(item)
            if id(parameter) in layers:
                value = layers[id(parameter)]._in_other_basis(value)
            if not torch.equal(value, parameter):
                self._items[id(parameter)] = self._cache.put(value, in_memory=False)

    @contextmanager
    def within(self, module: nn.Module) -> Iterator[None]:
        """Let a module compute in floating point, with the values of the float model."""
        own = [one for one in module.parameters() if id(one) in self._items]
        now = [self._cache.put(one, in_memory=False) for one in own]
        try:
            for parameter in own:
                self._restore(parameter, self._items[id(parameter)])
            with without_rounding(training_quantizers(module)):
                yield
        finally:
            for parameter, item in zip(own, now, strict=True):
                self._restore(parameter, item)
                self._cache.drop(item)

    def _restore(self, parameter: nn.Parameter, item: Item) -> None:
        write(parameter, self._cache.get(item))


def write(parameter: Tensor, values: Tensor) -> None:
    """Write to a parameter, and leave its version: an attribute may depend on it, and is kept."""
    parameter.data.copy_(values)
