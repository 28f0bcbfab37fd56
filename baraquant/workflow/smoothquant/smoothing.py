# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant: moves the outliers of a layer's input into its weight (Xiao et al., 2023).

``y = (x / s) (w s)^T`` for any ``s[k] > 0``. With
``s[k] = max|x[:, k]|^alpha / max|w[:, k]|^(1 - alpha)`` neither factor has channels that are much
larger than the others, and eight bits suffice for both. Of the calibration data only the minimum
and the maximum of each channel are kept.

Layers whose input comes from one producer and goes nowhere else are a group: they share their
factors, and the producer absorbs the division. No residual connection, no softmax and no caller may
read its output, but in between may be ops that a factor passes through: relu, the product with
another tensor, and attention, for its values. The names and the code of a model do not show this,
so the tensors are followed while the model runs on calibration data. ``TorchDispatchMode`` sees
every op, also those of compiled extensions and of TorchScript. A tensor is identified by its
storage, which its views share. If the storage of an output still exists when the model returns,
something else holds it.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from typing_extensions import Self

from ... import ops
from ...configs import QuantConfig
from ...nn import FakeQuantize, FakeQuantizedLinear
from ...nn.shared.range import power_to_one
from ...schemes import SmoothQuant
from ..calibration.observers import OBSERVERS, MinMaxObserver, OutputErrors, Through
from ..calibration.run import Run, Watcher, import_apart
from ..passes import Chosen, Scaling, fixed_input, leave_input, register_pass
from ..transaction import keep, undone
from .producers import Readers, ScalesInputs, Scope, producers

aten = torch.ops.aten

# The arguments that an op is proportional to, each by itself: f(x / s, ..) = f(x, ..) / s for every
# s > 0, so a division before the op is a division after it. A product lies between the layers of a
# gated MLP, down(silu(gate(x)) * up(x)).
_PROPORTIONAL = {
    aten.relu.default: (0,),
    aten.relu_.default: (0,),
    aten.leaky_relu.default: (0,),
    aten.leaky_relu_.default: (0,),
    aten.mul.Tensor: (0, 1),
    aten.mul_.Tensor: (0, 1),
    aten.mul.Scalar: (0,),
    aten.mul_.Scalar: (0,),
    aten.div.Tensor: (0,),
    aten.div_.Tensor: (0,),
    aten.div.Scalar: (0,),
    aten.div_.Scalar: (0,),
}
# Attention sums up values, [batch, heads, tokens, channels of a head]. Several outputs follow the
# first.
_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}
_VALUE = 2  # the place of the values among the arguments of attention
# Ops that are made of others. Inference mode hands them over whole.
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class Flow(TorchDispatchMode):  # type: ignore[misc]
    """A context that follows the outputs of ``producers`` while the model's own ``forward`` runs.

    Args:
        model: The model.
        producers: Modules that can absorb a factor for each output channel, by path, with the
            number of channels.
        consumers: The linear layers, by path. Their forward is that of ``nn.Linear``.
    """

    def __init__(
        self,
        model: nn.Module,
        producers: Mapping[str, tuple[nn.Module, int]],
        consumers: Mapping[str, nn.Module],
    ) -> None:
        super().__init__()
        self._model, self._producers, self._consumers = model, producers, consumers
        self._handles: list[Any] = []
        self._outputs: dict[int, tuple[str, StorageWeakRef]] = {}  # by the storage's address
        self._fed: dict[str, set[str | None]] = {path: set() for path in consumers}
        self._running = 0  # calls of the model
        self._within = 0  # calls of consumers
        self._watching = 0  # others' hooks, which may read what they like
        self._readers = Readers(model)
        self._scopes: dict[str, Scope] = {}  # where the last outputs of producers may be read
        self.refused: dict[str, str] = {}
        self.readable: dict[str, str] = {}  # what may read an output in calls that were not made

    def feeds(self) -> dict[str, list[str]]:
        """Return the consumers' paths for each producer that only feeds consumers."""
        for fed in self._fed.values():
            for path in fed if len(fed) > 1 else ():
                if path is not None:
                    self._refuse(path, "what it feeds is fed by others too")
        result: dict[str, list[str]] = {}
        for consumer, fed in self._fed.items():
            for producer in fed - self.refused.keys() - self.readable.keys() - {None}:
                result.setdefault(str(producer), []).append(consumer)
        return result

    def __enter__(self) -> Self:
        import_apart("torch._dynamo")  # as a mode makes PyTorch do
        for module in self._model.modules():
            own = {name: held for name, held in vars(module).items() if isinstance(held, dict)}
            keep(*(held for name, held in own.items() if name.startswith("_forward_")))
        hooks = self._handles
        hooks.append(self._model.register_forward_pre_hook(self._begin, prepend=True))
        hooks.append(self._model.register_forward_hook(self._end))
        for path, (module, channels) in self._producers.items():
            hooks.append(module.register_forward_hook(partial(self._produced, path, channels)))
        for path, module in self._consumers.items():
            consumes = partial(self._consumes, path)
            hooks.append(module.register_forward_pre_hook(consumes, with_kwargs=True))
            hooks.append(module.register_forward_hook(self._consumed, prepend=True))
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._outputs.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func.has_kernel_for_dispatch_key(_COMPOSITE):
            super().__enter__()
            try:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
            finally:
                super().__exit__(None, None, None)
        result = func(*args, **kwargs)
        if not (self._watching or self._within or func.is_view):
            self._follow_through(func, args, kwargs, result)
        return result

    def _follow_through(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        """Follow the result of an op instead of its argument, or refuse what the op reads.

        Of two outputs that are multiplied the last is followed, since one division is enough.
        """
        in_order = _has_rows
        places = _PROPORTIONAL.get(func, ())
        if func in _ATTENTION:
            result, places, in_order = result[0], (_VALUE,), _has_heads
        read = [p for v in tree_iter((args, kwargs)) if (p := self._producer_of(v)) is not None]
        kept = None
        for value in (args[place] for place in places if place < len(args)):
            producer = self._producer_of(value)
            if producer is not None and value.shape == result.shape:
                channels = self._producers[producer][1]
                if in_order(value, channels) and in_order(result, channels):
                    kept = producer
        for producer in read:
            if producer != kept or read.count(producer) > 1:
                self._refuse(producer, f"its output goes into {func} as well")
        if kept is not None and (self._producer_of(result) == kept or _fills_storage(result)):
            self._follow(result, kept)
        elif kept is not None:
            self._refuse(kept, f"{func} writes it into a part of another tensor")

    def _producer_of(self, value: Any) -> str | None:
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            return None
        known = self._outputs.get(value.untyped_storage()._cdata)
        return None if known is None else known[0]

    def _follow(self, output: Tensor, producer: str) -> None:
        # While the weak reference lives, no other storage gets this address.
        storage = output.untyped_storage()
        self._outputs[storage._cdata] = (producer, StorageWeakRef(storage))

    def _refuse(self, producer: str, reason: str) -> None:
        self.refused.setdefault(producer, reason)

    def feeds_readable(self) -> dict[str, str]:
        """Return the producer of each consumer that only other calls keep from absorbing it."""
        able = self.readable.keys() - self.refused.keys()
        alone = {consumer: fed for consumer, fed in self._fed.items() if len(fed) == 1}
        return {path: str(one) for path, fed in alone.items() for one in fed if one in able}

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._running += 1

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running -= 1
        if self._running == 0:
            for scope in self._scopes.values():
                scope.release()
            self._scopes.clear()
            for producer, storage in self._outputs.values():
                if not storage.expired():
                    self._refuse(producer, "its output is kept, or returned by the model")
            self._outputs.clear()

    def _produced(
        self, path: str, channels: int, module: nn.Module, args: Any, output: Any
    ) -> None:
        """Start to follow the output of a producer."""
        if not self._running:
            self._refuse(path, "it was called from outside of the model's forward")
        elif not _is_whole(output, channels) or self._producer_of(output) is not None:
            self._refuse(path, "its output is no dense tensor of its own")
        else:
            self._follow(output, path)
            self._scopes[path] = self._readers.scope(sys._getframe(1), module)

    def _consumes(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Find the producer of a consumer's input, and what else may read it in other calls."""
        self._within += 1
        value = args[0] if args else kwargs.get("input")
        producer = self._producer_of(value)
        self._fed[path].add(producer)
        if producer is None:
            return
        if not _has_rows(value, self._producers[producer][1]):
            self._refuse(producer, f"{path} reads its output in another shape")
        elif producer in self._scopes:
            reader = self._scopes[producer].other_reader()
            if reader is not None:
                self.readable.setdefault(producer, reader)

    def _consumed(self, module: nn.Module, args: Any, output: Any) -> None:
        self._within -= 1


def _has_rows(value: Tensor, channels: int) -> bool:
    """Return whether the last dimension of a view of ``[.., channels]`` is that, in order."""
    *outer, last = value.stride() or (0,)
    return (
        value.dim() > 0
        and value.shape[-1] == channels
        and (last == 1 or channels == 1)
        and value.storage_offset() % channels == 0
        and all(stride % channels == 0 for stride in outer)
    )


def _has_heads(value: Tensor, channels: int) -> bool:
    """Return whether a view of ``[.., channels]`` is ``[batch, heads, tokens, ..]``, in order."""
    if value.dim() != 4 or value.shape[1] * value.shape[3] != channels:
        return False
    batch, head, token, last = value.stride()
    return bool(
        last == 1
        and head == value.shape[3]
        and value.storage_offset() % channels == 0
        and batch % channels == 0
        and token % channels == 0
    )


def _is_whole(output: Any, channels: int) -> bool:
    return (
        isinstance(output, Tensor)
        and output.layout == torch.strided
        and output.dim() > 0
        and output.shape[-1] == channels
        and output.is_contiguous()
        and _fills_storage(output)
    )


def _fills_storage(output: Tensor) -> bool:
    return bool(output.untyped_storage().nbytes() == output.numel() * output.element_size())


def find_groups(
    run: Run, watchers: Mapping[str, Watcher], fixed: set[str], description: str
) -> tuple[list[Scaling], set[str]]:
    """Run the model once; return the groups, and the paths of layers that saw no input.

    Each layer that the data reaches and that is not fixed is in one group, which is not scaled yet.
    ``watchers`` see the inputs of linear layers in this run. The weights of the ``fixed`` ones must
    not change.
    """
    at = dict(run.model.named_modules(remove_duplicate=False))
    able = {
        path: at[path]
        for path in watchers
        if path not in fixed and not at[path]._forward_hooks and not at[path]._forward_pre_hooks
    }
    flow = Flow(run.model, producers(run.model), able)
    with undone(), flow:
        asides = {path: _Aside(flow, watcher) for path, watcher in watchers.items()}
        unreached = run(asides, description)
    groups = [Scaling(consumers, producer) for producer, consumers in flow.feeds().items()]
    known = {path for group in groups for path in group.layers} | fixed | unreached
    readable = flow.feeds_readable()
    alone = (path for path in watchers if path not in known)
    return groups + [Scaling([one], readable=readable.get(one)) for one in alone], unreached


class _Aside(Through):
    """A watcher whose ops do not count as the model's."""

    def __init__(self, flow: Flow, watcher: Watcher) -> None:
        super().__init__(watcher, lambda input: input)
        self._flow = flow

    def observe(self, input: Tensor) -> None:
        self._flow._watching += 1
        try:
            super().observe(input)
        finally:
            self._flow._watching -= 1


# ---- The factors ---------------------------------------------------------------------------------

# None means s = 1, the unchanged layer: a search is never worse than that.
ALPHAS: tuple[float | None, ...] = (None, *(round(0.05 * step, 2) for step in range(21)))

# The number of rows of each batch that the search uses, evenly spaced.
_ROWS = 128


class ChannelRange(MinMaxObserver):
    """The running minimum and maximum of each channel (the last dimension), ``[K]`` each.

    A batch is skipped where a channel of it holds a NaN or an infinity.
    """

    _axis = -1

    @property
    def absmax(self) -> Tensor:
        """The largest absolute value of each channel, ``[K]``."""
        assert self.min_val is not None and self.max_val is not None
        return torch.maximum(-self.min_val, self.max_val)


def smoothing(absmax: Tensor, weights: Sequence[Tensor], alpha: float | None) -> Tensor:
    """Return the factors ``s`` that divide the input and multiply the weights, ``[K]``.

    Args:
        absmax: The largest absolute value of each channel of the input, ``[K]``.
        weights: ``[N, K]`` each: all weights that are multiplied with this input.
        alpha: The share of the outliers that moves into the weights, in [0, 1]; None: ``s = 1``.

    A factor is 1 if the channel or its weights are all zero.
    """
    if alpha is None:
        return torch.ones_like(absmax)
    of_input = absmax.to(torch.float64)
    of_weight = torch.stack([w.detach().abs().amax(dim=0).to(of_input) for w in weights]).amax(0)
    factors = of_input.pow(alpha) / of_weight.pow(1 - alpha)
    is_zero = (of_input == 0) | (of_weight == 0)
    # Larger factors could take a float16 or bfloat16 weight out of its range.
    return factors.clamp(1e-5, 1e5).masked_fill(is_zero, 1.0).to(absmax.dtype)


class AlphaSearch(OutputErrors):
    """Adds up the squared error of one layer's output for each of :data:`ALPHAS`.

    Args:
        weight: The weight of the layer, ``[N, K]``.
        factors: The smoothing factors of each alpha, ``[A, K]``.
        channels: The range of the channels of static inputs; None: a scale for each token.
        symmetric: Whether the activations have no zero point.
        scale_dtype: The dtype that the scales of the weights are rounded to.
        magnitudes: About the largest magnitudes of the inputs and of the weights, ``[]`` each, of
            all layers whose errors are compared. They are multiplied where these are near 1, so
            that no product overflows or vanishes.
    """

    def __init__(
        self,
        weight: Tensor,
        factors: Tensor,
        channels: ChannelRange | None,
        symmetric: bool,
        scale_dtype: str,
        magnitudes: tuple[Tensor, Tensor],
    ) -> None:
        super().__init__(len(factors), weight.device)
        self._powers = [power_to_one(m.to(weight.device, factors.dtype)) for m in magnitudes]
        self.weight, self.factors, self.channels = weight.detach(), factors, channels
        self.symmetric = symmetric
        self._quantizer = FakeQuantize(
            granularity="per_channel", axis=0, mode="dynamic", scale_dtype=scale_dtype
        )

    def observe(self, input: Tensor) -> None:
        """Try each alpha on some rows of ``input``, ``[..., K]``, if the input is finite."""
        if input.numel() == 0:
            return
        is_finite = self.begin(input)
        rows = input.detach().reshape(-1, input.shape[-1])
        rows = rows[:: max(1, math.ceil(len(rows) / _ROWS))].to(self.factors.dtype)
        weight = self.weight.to(self.factors.dtype)
        wanted = self._product(rows, weight)
        for index, smooth in enumerate(self.factors):
            rounded = self._round(rows / smooth, smooth)
            got = self._product(rounded, self._quantizer.round(weight * smooth))
            self.add(index, got, wanted, is_finite)

    def _product(self, rows: Tensor, weight: Tensor) -> Tensor:
        of_rows, of_weight = self._powers
        return F.linear(rows * of_rows, weight * of_weight)

    def _round(self, smoothed: Tensor, smooth: Tensor) -> Tensor:
        if self.channels is None:
            return ops.dynamic_fake_quantize_per_token(smoothed, symmetric=self.symmetric)
        scale, zero_point = range_after(self.channels, smooth, self.symmetric)
        return ops.fake_quantize_per_tensor(smoothed, scale, zero_point)

    def unusable(self) -> Tensor | None:
        """Return whether no finite batch was seen, or an error is; None if nothing was seen."""
        none_finite = super().unusable()
        return None if none_finite is None else ~torch.isfinite(self.errors).all() | none_finite


def range_after(channels: ChannelRange, smooth: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point of all data after smoothing, ``[]`` each."""
    assert channels.min_val is not None and channels.max_val is not None
    ends = torch.stack([channels.min_val / smooth, channels.max_val / smooth])
    return ops.choose_qparams_per_tensor(ends, symmetric=symmetric)


def find_smoothings(
    config: SmoothQuant, run: Run, weights: Mapping[str, Tensor], fixed: set[str]
) -> dict[str, Scaling]:
    """Run the calibration, up to three times, and return what to do with each layer it reaches.

    ``weights``, ``[out_features, in_features]``, are those of the linear layers to quantize. Other
    modules share those of the ``fixed`` layers, which are not smoothed.
    """
    scheme = config.activation
    observer = scheme.observer if scheme.is_static else None
    runs = 1 + (config.alpha == "search") + (observer not in (None, "min_max"))
    if runs > 1:
        run.check_repeatable(f"{runs} times")
    smoother = _Smoother(scheme, run, weights)
    groups, unreached = find_groups(run, smoother.ranges, fixed, "input ranges")
    if config.alpha == "search":
        smoother.search(groups)
    else:
        for group in groups:
            group.alpha = float(config.alpha)
            group.smooth = smoothing(*smoother.of_group(group), group.alpha)
    found = {path: group for group in groups for path in group.layers}
    found |= {path: Scaling([path]) for path in fixed - unreached}
    if observer is None:
        return found
    qparams = smoother.static(found, observer)
    return {path: replace(one, qparams=qparams[path]) for path, one in found.items()}


class _Smoother:
    """The layers of one call of :func:`find_smoothings`, and the ranges of their inputs."""

    def __init__(self, scheme: QuantConfig, run: Run, weights: Mapping[str, Tensor]) -> None:
        assert scheme.activation is not None
        self._scheme, self._symmetric = scheme, scheme.activation.symmetric
        self._run, self._weights = run, weights
        self.ranges = {path: ChannelRange() for path in weights}

    def of_group(self, group: Scaling) -> tuple[Tensor, list[Tensor]]:
        """Return the largest magnitude of each channel of the input, and the weights."""
        absmax = torch.stack([self.ranges[path].absmax for path in group.layers]).amax(dim=0)
        return absmax, [self._weights[path] for path in group.layers]

    def search(self, groups: list[Scaling]) -> None:
        """Give each group the alpha with the minimum error of its layers' outputs."""
        searches: dict[str, AlphaSearch] = {}
        for group in groups:
            absmax, weights = self.of_group(group)
            factors = torch.stack([smoothing(absmax, weights, alpha) for alpha in ALPHAS])
            of_weights = torch.stack([w.detach().abs().amax().to(absmax) for w in weights])
            magnitudes = absmax.amax(), of_weights.amax()
            for path, weight in zip(group.layers, weights, strict=True):
                channels = self.ranges[path] if self._scheme.is_static else None
                how = channels, self._symmetric, self._scheme.scale_dtype, magnitudes
                searches[path] = AlphaSearch(weight, factors, *how)
        self._run(searches, "search for alpha")
        for group in groups:
            errors = torch.stack([searches[path].errors for path in group.layers]).sum(dim=0)
            best = int(errors.argmin())
            group.alpha = ALPHAS[best]
            group.smooth = None if group.alpha is None else searches[group.layers[0]].factors[best]

    def static(
        self, found: Mapping[str, Scaling], observer: str
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the scale and the zero point of each smoothed input."""
        smooths = {
            path: torch.ones_like(self.ranges[path].absmax) if one.smooth is None else one.smooth
            for path, one in found.items()
        }
        symmetric = self._symmetric
        if observer == "min_max":
            return {p: range_after(self.ranges[p], s, symmetric) for p, s in smooths.items()}
        observers = {path: OBSERVERS[observer]() for path in smooths}
        watchers = {p: Through(observers[p], partial(_smoothed, s)) for p, s in smooths.items()}
        self._run(watchers, "smoothed ranges")
        return {p: one.calculate_qparams(symmetric=symmetric) for p, one in observers.items()}


def _smoothed(smooth: Tensor, input: Tensor) -> Tensor:
    return input.detach().to(smooth.dtype) / smooth


class SmoothQuantPass(ScalesInputs):
    """Smooths the linear layers of :class:`baraquant.SmoothQuant`."""

    def takes(self, layer: Chosen) -> bool:
        """Whether a layer is linear. One whose weight is shared is not smoothed, but calibrated."""
        return isinstance(layer.prepared, FakeQuantizedLinear)

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        """Find the factors of each layer, and the scales of static inputs."""
        for config in dict.fromkeys(one.config for one in layers.values()):
            assert isinstance(config, SmoothQuant)
            own = {path: one for path, one in layers.items() if one.config == config}
            tied = {path for path, one in own.items() if one.shares_weight}
            weights = {path: one.prepared.rows_of_weight() for path, one in own.items()}
            found = find_smoothings(config, run, weights, tied)
            for path, one in own.items():
                if path in found:
                    qparams, activation = found[path].qparams, config.activation.activation
                    if qparams is not None and activation is not None:
                        one.prepared.input_fake_quant = fixed_input(qparams, activation, one)
                elif config.activation.is_static:
                    leave_input(path, one, run.where)
                else:
                    one.remark += "; not smoothed, as the calibration data does not reach it"
            self.scale(found, chosen, run.model)
        if not any(self._abouts.values()):
            warnings.warn(
                f"{run.where}: expected SmoothQuant to smooth a layer, but it smooths none: "
                "no linear layer is reached by the calibration data and gains from it",
                stacklevel=4,
            )


register_pass(SmoothQuant, SmoothQuantPass)
