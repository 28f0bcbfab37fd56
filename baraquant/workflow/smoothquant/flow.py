# SPDX-License-Identifier: BSD-3-Clause
"""Finds the norms and linear layers whose output only goes into given linear layers.

The layers that one of them feeds share the factors of their inputs, and it can absorb the division:
they are a group.

SmoothQuant divides the input of a linear layer. The division can be folded into the preceding
module if nothing else reads that module's output: no residual connection, no softmax, not the
caller. In between may be ops that a factor passes through: relu, the product with another tensor,
and attention, for its values. The names and the code of a model do not show this, so the tensors
are followed while the model runs on calibration data. ``TorchDispatchMode`` sees every op, also
those of compiled extensions and of TorchScript. A tensor is identified by its storage, which its
views share. If the storage of an output still exists when the model returns, something else holds
it. What calls that were not made could read is in ``readers.py``.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from typing_extensions import Self

from ...nn.shared.subclassed import MisfitError, tried
from ..calibration.observers import Through
from ..calibration.run import Run, Watcher, import_apart
from ..passes import Scaling
from ..transaction import keep_hooks, undone, unwritable, write
from .readers import Readers, Scope

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
    """A context that follows the outputs of ``producers`` while the model runs.

    Args:
        model: The model, which must be run by its own ``forward``.
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
            if len(fed) > 1:
                for path in fed:
                    if path is not None:
                        self._refuse(path, "what it feeds is fed by others too")
        result: dict[str, list[str]] = {}
        for consumer, fed in self._fed.items():
            for producer in fed:
                if producer is not None and producer not in self.refused | self.readable:
                    result.setdefault(producer, []).append(consumer)
        return result

    def __enter__(self) -> Self:
        import_apart("torch._dynamo")  # as a mode makes PyTorch do
        keep_hooks(self._model.modules())
        hooks = self._handles
        hooks.append(self._model.register_forward_pre_hook(self._begin, prepend=True))
        hooks.append(self._model.register_forward_hook(self._end))
        for path, (module, channels) in self._producers.items():
            hooks.append(module.register_forward_hook(_Produced(self, path, channels)))
        for path, module in self._consumers.items():
            hooks.append(module.register_forward_pre_hook(_Consumes(self, path), with_kwargs=True))
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

    def _check_readers(self, producer: str) -> None:
        """Remember if other calls may read an output that is consumed now."""
        reader = self._scopes[producer].other_reader() if producer in self._scopes else None
        if reader is not None:
            self.readable.setdefault(producer, reader)

    def feeds_readable(self) -> dict[str, str]:
        """Return the producer of each consumer that only other calls keep from absorbing it."""
        return {
            consumer: producer
            for consumer, fed in self._fed.items()
            for producer in fed
            if len(fed) == 1 and producer is not None
            if producer in self.readable and producer not in self.refused
        }

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

    def _consumed(self, module: nn.Module, args: Any, output: Any) -> None:
        self._within -= 1


class _Produced:
    """The hook of a producer: start to follow its output."""

    def __init__(self, flow: Flow, path: str, channels: int) -> None:
        self.flow, self.path, self.channels = flow, path, channels

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        flow = self.flow
        if not flow._running:
            flow._refuse(self.path, "it was called from outside of the model's forward")
        elif not _is_whole(output, self.channels) or flow._producer_of(output) is not None:
            flow._refuse(self.path, "its output is no dense tensor of its own")
        else:
            flow._follow(output, self.path)
            flow._scopes[self.path] = flow._readers.scope(sys._getframe(1), module)


class _Consumes:
    """The hook of a consumer: find the producer of its input."""

    def __init__(self, flow: Flow, path: str) -> None:
        self.flow, self.path = flow, path

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        flow = self.flow
        flow._within += 1
        value = args[0] if args else kwargs.get("input")
        producer = flow._producer_of(value)
        if producer is not None and not _has_rows(value, flow._producers[producer][1]):
            flow._refuse(producer, f"{self.path} reads its output in another shape")
        elif producer is not None:
            flow._check_readers(producer)
        flow._fed[self.path].add(producer)


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

    Args:
        run: The calibration.
        watchers: What sees the inputs of linear layers in this run, by the layer's path.
        fixed: Those of the layers whose weights must not change.
        description: The label of the progress bar.
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
    alone = [path for path in watchers if path not in known]
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


# ---- What can absorb a factor for each output channel into its parameters -----------------------

_NORMS = ("LayerNorm", "RMSNorm")


def producers(model: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """Return norms and linear layers by path, with their numbers of channels.

    Modules whose parameters cannot be written to for themselves alone, and modules whose hooks may
    change their output, are left out. A norm that is not a PyTorch class counts if its output is
    proportional to its weight in a trial.
    """
    owners, shared = parameter_owners(model), unwritable(model)
    found: dict[str, tuple[nn.Module, int]] = {}
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or path == "" or module._forward_hooks or module._forward_pre_hooks:
            continue
        if weight.numel() == 0:
            continue
        if parametrize.is_parametrized(module) or not weight.is_floating_point():
            continue
        own = {id(p) for p in module._parameters.values() if p is not None}
        if any(owners[each] > 1 or each in shared for each in own):
            continue
        is_linear = type(module) is nn.Linear
        is_norm = type(module).__name__.endswith(_NORMS) and weight.dim() == 1
        if is_linear or (is_norm and _follows_weight(module, len(weight))):
            found[path] = module, weight.shape[0]
    return found


def parameter_owners(model: nn.Module) -> Counter[int]:
    """Return how many modules have each parameter, by the parameter's id."""
    return Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def fold(producer: nn.Module, smooth: Tensor) -> None:
    """Divide each channel of the output of ``producer`` by its factor, in its parameters."""
    for parameter, quotient in divided(producer, smooth):
        write(parameter, quotient)


def can_fold(producer: nn.Module, smooth: Tensor) -> bool:
    """Return whether the divided parameters are finite in the dtype of the producer."""
    with torch.no_grad():
        return all(
            bool(quotient.to(parameter.dtype).isfinite().all())
            for parameter, quotient in divided(producer, smooth)
        )


def divided(producer: nn.Module, smooth: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with its quotient by the factors, in the dtype of the factors."""
    for name in ("weight", "bias"):
        parameter = getattr(producer, name, None)
        if parameter is not None:
            factors = smooth.to(parameter.device).view(-1, *[1] * (parameter.dim() - 1))
            yield parameter, parameter.detach().to(smooth.dtype) / factors


def _follows_weight(norm: nn.Module, channels: int) -> bool:
    """Return whether dividing the norm's parameters divides its output (not ``1 + weight``)."""
    if set(norm._parameters) - {"weight", "bias"} or norm._modules:
        return False
    weight = norm._parameters["weight"]
    trial = copy.deepcopy(norm).eval()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, channels, generator=generator).to(weight)
    factors = torch.tensor([0.5, 2.0, 4.0]).repeat(channels)[:channels].to(weight)
    try:
        with torch.no_grad():
            before = tried(trial, rows)
            fold(trial, factors)
            after = tried(trial, rows)
    except MisfitError:  # it is no norm as it is known here
        return False
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
        return False
    after = after * factors  # powers of two: no rounding
    return bool(torch.allclose(before, after, rtol=1e-3, atol=1e-6)) and bool(before.any())
