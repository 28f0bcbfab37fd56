# SPDX-License-Identifier: BSD-3-Clause
"""PEFT's LoRA layers over prepared and converted layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import layer as lora
from peft.tuners.tuners_utils import check_adapters_to_merge
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D
from typing_extensions import Self

from ..nn.shared.adapted import adapted_weight, norm_of
from ..nn.shared.precision import wide
from ..workflow.layers import is_converted, is_prepared
from ..workflow.transaction import in_one_transaction, keep
from ._checks import check_inside, check_layer
from ._floating import float_type, floating, is_quantized


class OverQuantized(nn.Module):  # type: ignore[misc]
    """What the LoRA layers share: the base is quantized, and only PEFT's own tensors train.

    Over a converted base it computes what PEFT computes. ``merge`` puts a float layer in the place
    of the base, and ``unmerge`` puts the base back, with its integers untouched.

    Over a prepared base the adapters are added to the weight before it is rounded
    (:class:`baraquant.nn.QuantizesWeight` asks for :meth:`adapted_weight`). ``merge`` gives the
    base that sum as its parameter, and ``unmerge`` gives it its own parameters back.
    """

    base_layer: nn.Module
    merged_adapters: list[str]
    in_features: int
    out_features: int
    _shown: tuple[nn.Module, ...] = ()  # the float layer that PEFT sees instead of the base
    # What waits while adapters are merged: the converted base, or the parameters of the prepared.
    _kept: tuple[nn.Module, ...] = ()
    _is_inside: bool = False  # the base is prepared, and asks for what is added to its weight
    _chosen: list[str] | None = None  # the adapters of one call; None: the active ones

    def get_base_layer(self) -> nn.Module:
        """Return the layer under the adapter."""
        base: nn.Module = super().get_base_layer()
        return self._shown[0] if self._shown else base

    @contextmanager
    def _shows_float(self) -> Iterator[None]:
        """Let PEFT see a float layer in the place of the base."""
        self._shown = (floating(self.get_base_layer()),)
        try:
            yield
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
        is_shown = is_prepared(base) or (is_converted(base) and self._needs_float)
        with self._shows_float() if is_shown else nullcontext():
            self._add(adapter_name, *args, config=config, **kwargs)
        self.take_base()
        if is_prepared(base) and adapter_name in self.lora_magnitude_vector:
            self._start_magnitude(adapter_name)

    _needs_float = False  # whether PEFT makes its matrices with the class of the base

    def _add(self, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        super().update_layer(adapter_name, *args, **kwargs)

    # ---- Adapters inside the rounding of a prepared base ----

    def take_base(self) -> None:
        """Take up the layer that is under the adapters now; the one before may have been another.

        Raises:
            ValueError: It is prepared, and an adapter cannot be a part of a weight.
        """
        base = self.get_base_layer()
        if is_prepared(base):
            for name in self.r:
                check_inside(type(base).__name__, base, self._about(name))
            keep(vars(self), vars(base))
            base.set_adapter(self)
            self._is_inside = True
        elif self._is_inside:  # it was converted, so that the integers hold what was added
            keep(vars(self), self.merged_adapters)
            self.merged_adapters += self._added()
            self._is_inside, self._kept = False, ()

    def _about(self, name: str) -> dict[str, Any]:
        variant = self.lora_variant.get(name)
        return {
            "dropout": getattr(self.lora_dropout[name], "p", 0.0),
            "variants": set() if variant is None else {type(variant).__name__},
            "bias": self.lora_bias.get(name, False),
        }

    def _added(self) -> list[str]:
        """Return the adapters that are added to the weight of a prepared base, in their order."""
        if self._chosen is not None:
            return self._chosen
        if self.disable_adapters or self.merged:
            return []
        return self._own(self.active_adapters)

    def _own(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.r]

    def is_trained(self) -> bool:
        """Whether an adapter that is added to the weight has a gradient."""
        for key in self.adapter_layer_names if self._added() else ():
            if any(parameter.requires_grad for parameter in getattr(self, key).parameters()):
                return True
        return False

    def adapted_weight(self, weight: Tensor) -> Tensor:
        """Return the stored weight of a prepared base with the adapters in it."""
        return self._with(weight, self._added(), weight)

    def adapted_bias(self, bias: Tensor) -> Tensor:
        """Return the bias of a prepared base with those of the adapters in it."""
        return self._with_bias(bias, self._added())

    def _with(self, weight: Tensor, names: list[str], unadapted: Tensor) -> Tensor:
        """Return a weight with adapters in it; ``unadapted`` has none, and they share its norm."""
        for name in names:
            delta = self._delta(name)
            dora: Any = None
            if name in self.lora_magnitude_vector:
                dora = self.lora_magnitude_vector[name].weight
            scaled = () if dora is None else (dora, unadapted, self._dims(weight))
            weight = adapted_weight(weight, delta, *scaled)
        return weight

    def _with_bias(self, bias: Tensor, names: list[str]) -> Tensor:
        for name in names:
            if self.lora_bias.get(name, False):
                bias = adapted_weight(bias, self.lora_B[name].bias * self.scaling[name])
        return bias

    def _delta(self, name: str) -> Tensor:
        """Return what an adapter adds, in the basis of the stored weight."""
        base: Any = super().get_base_layer()
        device = self.base_parameter().device.type
        is_cast = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
        # NB: merging runs without autocast, and has to give the same bits.
        with torch.autocast(device, enabled=False) if is_cast else nullcontext():
            delta: Tensor = base._in_other_basis(self.get_delta_weight(name))
        return delta

    def base_parameter(self) -> Tensor:
        """Return the weight of a prepared base, as it is stored."""
        weight: Tensor = super().get_base_layer().float_weight()
        return weight

    def _dims(self, weight: Tensor) -> tuple[int, ...]:
        """Return the dimensions whose norm DoRA replaces."""
        return (0,) if getattr(self, "fan_in_fan_out", False) else tuple(range(1, weight.dim()))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _start_magnitude(self, name: str) -> None:
        """Give DoRA the norms that the stored weight has with the adapter: it starts as it is."""
        magnitude = self.lora_magnitude_vector[name].weight
        if not magnitude.is_meta:
            total = wide(self.base_parameter()) + self._delta(name)
            magnitude.data = norm_of(total, self._dims(total)).reshape(magnitude.shape)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of the base, and of the adapters that are not a part of its weight."""
        if not self._is_inside:
            output: Tensor = super().forward(x, *args, **kwargs)
            return output
        self._check_forward_args(x, *args, **kwargs)
        names = kwargs.pop("adapter_names", None)
        for key in lora.VARIANT_KWARG_KEYS:  # no such variant is in a weight
            kwargs.pop(key, None)
        if self.disable_adapters and self.merged:
            self.unmerge()
        if names is None or self.disable_adapters:
            return self._base_output(x, *args, **kwargs)
        return self._mixed_output(x, names, *args, **kwargs)

    def _base_output(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of the base, whose backward pass makes the weight again.

        Autograd would keep the sum, or the rounded sum, of every layer until then.
        """
        keeps = (
            torch.is_grad_enabled()
            and bool(self._added())
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()
            and torch._C._autograd._saved_tensors_hooks_is_enabled()
        )
        call: Any = self.base_layer
        if keeps:
            names = self._added()
            call = partial(checkpoint, partial(self._output_with, names), use_reentrant=False)
        output: Tensor = call(x, *args, **kwargs)
        return output

    def _output_with(self, names: list[str], *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of the base with adapters, whichever are active now."""
        before, self._chosen = self._chosen, names
        try:
            output: Tensor = self.base_layer(*args, **kwargs)
        finally:
            self._chosen = before
        return output

    def _mixed_output(self, x: Tensor, names: list[str], *args: Any, **kwargs: Any) -> Tensor:
        """Return the outputs of a batch whose rows have adapters of their own."""
        order = {name: [row for row, own in enumerate(names) if own == name] for name in names}
        parts = []
        for name, rows in order.items():
            self._chosen = self._own([name])
            try:
                parts.append(self._base_output(x[rows], *args, **kwargs))
            finally:
                self._chosen = None
        back = torch.tensor([row for rows in order.values() for row in rows], device=x.device)
        return torch.cat(parts)[back.argsort()]

    # ---- Merging ----

    @in_one_transaction
    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add adapters to the weight.

        A converted base becomes a float layer with the dequantized weight plus the adapters. A
        prepared base gets the sum that it has been rounding, so that no output changes.

        Args:
            safe_merge: Whether to check first that the new weight is finite.
            adapter_names: The adapters; None: the active ones.
        """
        base = self.get_base_layer()
        keep(vars(self), self._modules, self.merged_adapters)
        if is_prepared(base):
            self._merge_inside(base, safe_merge, adapter_names)
            return
        if is_converted(base):
            self._check_unmerged(base, check_adapters_to_merge(self, adapter_names))
            if self.merged:
                return
            self._check_place(base)
            dtype = torch.promote_types(base.dtype, torch.float32)  # one rounding, at the end
            self._kept, self.base_layer = (base,), floating(base).to(dtype)
        super().merge(safe_merge, adapter_names)
        if self._kept and not self.merged_adapters:
            self.base_layer, self._kept = self._kept[0], ()
        elif is_converted(base):
            self.base_layer.to(base.dtype)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _merge_inside(self, base: Any, is_safe: bool, names: list[str] | None) -> None:
        names = self._own(check_adapters_to_merge(self, names))
        if not names:
            return
        own = base._parameters
        if own.get("weight") is None:
            raise NotImplementedError(
                f"baraquant.peft: expected a weight that is a parameter, but that of a "
                f"{type(base).__name__} is computed; baraquant.qat.convert_ takes it with its "
                "adapters as it is"
            )
        before = self._kept[0]._parameters if self._kept else dict(own)
        news = {"weight": self._with(own["weight"], names, before["weight"])}
        if own.get("bias") is not None:
            news["bias"] = self._with_bias(own["bias"], names)
        if is_safe and not all(bool(new.isfinite().all()) for new in news.values()):
            raise ValueError(
                f"baraquant.peft: NaNs detected in the merged weights: one of the adapters "
                f"{', '.join(names)} seems to be broken"
            )
        if not self._kept:
            waiting = nn.Module()
            waiting._parameters.update(before)
            self._kept = (waiting,)
        keep(own)
        for key, new in news.items():
            if new is not own[key]:
                own[key] = nn.Parameter(new, requires_grad=own[key].requires_grad)
        self.merged_adapters += names

    @in_one_transaction
    def unmerge(self) -> None:
        """Take the adapters out of the weight again; the base has its own tensors back."""
        base = self.get_base_layer()
        keep(vars(self), self._modules, self.merged_adapters)
        if is_converted(base) or (is_prepared(base) and not self._kept):
            self._check_unmerged(base, self.merged_adapters)
        if is_prepared(base) and self._kept:
            keep(base._parameters)
            base._parameters.update(self._kept[0]._parameters)
            self.merged_adapters.clear()
            self._kept = ()
            return
        super().unmerge()
        if self._kept:
            self.base_layer, self._kept = self._kept[0], ()

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> nn.Module:
        """Return the base alone, with the adapters in it if ``merge``; PEFT calls it."""
        if merge:
            self.merge(safe_merge, adapter_names)
        base = self.get_base_layer()
        if self._is_inside:
            keep(vars(self), vars(base))
            base.set_adapter(None)
            self._is_inside = False
        return base

    def _check_unmerged(self, base: nn.Module, names: list[str]) -> None:
        """Check that nothing was merged into a layer that then became a quantized one."""
        if self.merged_adapters and names:
            raise RuntimeError(
                f"baraquant.peft: expected a layer that was merged as it is, but this one was "
                f"merged and then became a {type(base).__name__}, whose weight holds the "
                "adapters; unmerge before you prepare or convert"
            )

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
        base = self.get_base_layer()
        is_conv1d = isinstance(base, Conv1D) or float_type(base) is Conv1D
        self.fan_in_fan_out = config.fan_in_fan_out = is_conv1d
        super()._add(adapter_name, *args, config=config, **kwargs)


class LoraEmbedding(OverQuantized, lora.Embedding):  # type: ignore[misc]
    """LoRA over a quantized embedding."""

    def _dims(self, weight: Tensor) -> tuple[int, ...]:
        return (0,)

    def _embed(self, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base = self.get_base_layer()
        if not is_converted(base):
            return super()._embed(input, weight, *args, **kwargs)
        return F.embedding(input, weight, padding_idx=base.padding_idx)


class _LoraConv(OverQuantized):
    """LoRA over a quantized convolution."""

    _needs_float = True


class LoraConv1d(_LoraConv, lora.Conv1d):  # type: ignore[misc]
    """LoRA over a quantized ``Conv1d``."""

    conv_fn = staticmethod(F.conv1d)  # PEFT sets it after the first adapter is there


class LoraConv2d(_LoraConv, lora.Conv2d):  # type: ignore[misc]
    """LoRA over a quantized ``Conv2d``."""

    conv_fn = staticmethod(F.conv2d)  # PEFT sets it after the first adapter is there


class LoraConv3d(_LoraConv, lora.Conv3d):  # type: ignore[misc]
    """LoRA over a quantized ``Conv3d``."""

    conv_fn = staticmethod(F.conv3d)  # PEFT sets it after the first adapter is there


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
