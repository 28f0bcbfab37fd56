# SPDX-License-Identifier: BSD-3-Clause
"""PEFT's LoRA layers over prepared and converted layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import layer as lora
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D
from typing_extensions import Self

from ..nn.shared.rotation import rotate_of
from ..workflow.layers import is_converted, is_prepared
from ..workflow.transaction import in_one_transaction, keep, keep_values, undo_by
from ._checks import check_layer
from ._floating import float_type, floating, is_quantized


class OverQuantized(nn.Module):  # type: ignore[misc]
    """What the LoRA layers share: the base is quantized, and only PEFT's own tensors train.

    ``merge`` puts a float layer in the place of a converted base, and ``unmerge`` puts the base
    back, with its integers untouched. A prepared base keeps its place: its parameters change.
    """

    base_layer: nn.Module
    merged_adapters: list[str]
    in_features: int
    out_features: int
    _shown: tuple[nn.Module, ...] = ()  # the float layer that PEFT sees instead of the base
    _kept: tuple[nn.Module, ...] = ()  # the converted layer that a float one replaces while merged

    def get_base_layer(self) -> nn.Module:
        """Return the layer under the adapter."""
        base: nn.Module = super().get_base_layer()
        return self._shown[0] if self._shown else base

    @contextmanager
    def _shows_float(self) -> Iterator[None]:
        """Let PEFT see a float layer in the place of the base."""
        base = self.get_base_layer()
        self._shown = (floating(base),)
        try:
            yield
            if rotate_of(base) > 0:  # a copy was shown
                with torch.no_grad():
                    base.float_weight().copy_(base._in_other_basis(self._shown[0].weight))
        finally:
            self._shown = ()

    def _get_in_out_features(self, module: nn.Module) -> Any:
        if not is_quantized(module):
            return super()._get_in_out_features(module)
        _, names = _row_of(module)
        return tuple(getattr(module, name) for name in names)

    @property
    def weight(self) -> Tensor:
        """The floating weight of the base, not its integers."""
        weight: Tensor = self.get_base_layer().weight
        return weight

    def update_layer(self, adapter_name: str, *args: Any, config: Any, **kwargs: Any) -> None:
        """Add an adapter; PEFT calls it."""
        base = self.get_base_layer()
        if is_quantized(base):
            path = kwargs.get("target_name") or type(base).__name__
            check_layer(path, base, config, lora_class(base))
        self._add(adapter_name, *args, config=config, **kwargs)

    def _add(self, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        super().update_layer(adapter_name, *args, **kwargs)

    @in_one_transaction
    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add adapters to the weight.

        A converted base becomes a float layer with the dequantized weight plus the adapters.

        Args:
            safe_merge: Whether to check first that the new weight is finite.
            adapter_names: The adapters; None: the active ones.
        """
        base = self._keep_base()
        if is_prepared(base):
            with self._shows_float():
                super().merge(safe_merge, adapter_names)
            return
        if is_converted(base):
            self._check_place(base)
            wide = torch.promote_types(base.dtype, torch.float32)  # one rounding, at the end
            self._kept, self.base_layer = (base,), floating(base).to(wide)
        super().merge(safe_merge, adapter_names)
        if self._kept and not self.merged_adapters:
            self.base_layer, self._kept = self._kept[0], ()
        elif is_converted(base):
            self.base_layer.to(base.dtype)

    def _keep_base(self) -> nn.Module:
        """Return the layer under the adapter, after noting what merging changes."""
        base = self.get_base_layer()
        keep(vars(self), self._modules, self.merged_adapters)
        for parameter in base.parameters() if is_prepared(base) else ():
            keep_values(parameter)
            undo_by(setattr, parameter, "data", parameter.data)
        return base

    @in_one_transaction
    def unmerge(self) -> None:
        """Take the adapters out of the weight again; a converted base has its integers back."""
        base = self._keep_base()
        if is_converted(base) and self.merged_adapters:
            raise RuntimeError(
                f"baraquant.peft: expected a layer that was merged as it is, but this one was "
                f"merged and then became a {type(base).__name__}, whose integers hold the "
                "adapters; unmerge before you convert"
            )
        if is_prepared(base):
            with self._shows_float():
                super().unmerge()
            return
        super().unmerge()
        if self._kept:
            self.base_layer, self._kept = self._kept[0], ()

    def _check_place(self, base: nn.Module) -> None:
        if self.base_layer is not base:
            raise NotImplementedError(
                f"baraquant.peft: expected the quantized layer directly under its adapter, but got "
                f"a {type(self.base_layer).__name__} in between; remove that one before you merge"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for module in self._kept:
            module._apply(fn)
        return self


class LoraLinear(OverQuantized, lora.Linear):  # type: ignore[misc]
    """LoRA over a quantized linear layer, or over one that stands for transformers' ``Conv1D``."""

    def _add(self, adapter_name: str, *args: Any, config: Any, **kwargs: Any) -> None:
        # PEFT too sets this in the configuration, out of the class of the float layer.
        self.fan_in_fan_out = config.fan_in_fan_out = float_type(self.get_base_layer()) is Conv1D
        super()._add(adapter_name, *args, config=config, **kwargs)


class LoraEmbedding(OverQuantized, lora.Embedding):  # type: ignore[misc]
    """LoRA over a quantized embedding."""

    def _embed(self, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base = self.get_base_layer()
        if not is_converted(base):
            return super()._embed(input, weight, *args, **kwargs)
        return F.embedding(input, weight, padding_idx=base.padding_idx)


class _LoraConv(OverQuantized):
    """LoRA over a quantized convolution."""

    def _add(self, *args: Any, **kwargs: Any) -> None:
        # PEFT makes its convolutions with the class of the base.
        if not is_quantized(self.get_base_layer()):
            super()._add(*args, **kwargs)
            return
        with self._shows_float():
            super()._add(*args, **kwargs)


class LoraConv1d(_LoraConv, lora.Conv1d):  # type: ignore[misc]
    """LoRA over a quantized ``Conv1d``."""


class LoraConv2d(_LoraConv, lora.Conv2d):  # type: ignore[misc]
    """LoRA over a quantized ``Conv2d``."""


class LoraConv3d(_LoraConv, lora.Conv3d):  # type: ignore[misc]
    """LoRA over a quantized ``Conv3d``."""


# PEFT's float kinds, the LoRA layer of each, and the attributes that have its sizes; the table of
# layers says which of them a quantized layer replaces.
_FEATURES, _CHANNELS = ("in_features", "out_features"), ("in_channels", "out_channels")
_KINDS: dict[type[nn.Module], tuple[type[OverQuantized], tuple[str, str]]] = {
    nn.Linear: (LoraLinear, _FEATURES),
    Conv1D: (LoraLinear, _FEATURES),
    nn.Embedding: (LoraEmbedding, ("num_embeddings", "embedding_dim")),
    nn.Conv1d: (LoraConv1d, _CHANNELS),
    nn.Conv2d: (LoraConv2d, _CHANNELS),
    nn.Conv3d: (LoraConv3d, _CHANNELS),
}


def _row_of(module: nn.Module) -> tuple[Any, tuple[str, ...]]:
    kind = float_type(module) or nn.Module
    return next((row for known, row in _KINDS.items() if issubclass(kind, known)), (None, ()))


def lora_class(module: nn.Module) -> type[OverQuantized] | None:
    """Return the LoRA layer for a quantized layer; None if PEFT has none for its float kind."""
    found: type[OverQuantized] | None = _row_of(module)[0]
    return found


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a quantized linear layer."""
    return is_quantized(module) and lora_class(module) is LoraLinear
