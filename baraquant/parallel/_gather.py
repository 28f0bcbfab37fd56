# SPDX-License-Identifier: BSD-3-Clause
"""``fully_shard`` gathers integers: a process quantizes its rows of a weight before it sends them.

A row has its own scale, so the integers of a part are those of the whole. They are those of the
parameter as the optimizer holds it, whatever dtype a policy gives the other parameters. The
parameter is a :class:`ShardedWeight`; it tells ``fully_shard`` what to send
(``fsdp_pre_all_gather``) and what to make of what arrives (``fsdp_post_all_gather``): a
:class:`GatheredWeight`. Its layer, :class:`GathersIntegers`, quantizes the rows.

Note [What is kept for the backward pass]
``fully_shard`` gathers a weight for the forward pass and again for the backward pass, which needs
the same integers. So what a forward pass has sent is kept and is sent again, once, within the next
backward pass. It cannot be kept longer, since nothing tells whether the numbers have changed: the
version of a tensor does not follow what optimizers do to the parts of a DTensor, and a CUDA graph
of a forward pass has to quantize.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from .. import ops
from ..nn.shared.master import in_master
from ..nn.shared.straight_through import straight_through
from ..nn.training.int4 import FakeQuantizeInt4
from ..nn.training.linear import FakeQuantizedLinear
from ..workflow.view import FilterFn, check_is_module

_aten = torch.ops.aten
# The ops whose result is a part or a copy of the parameter, and goes on in its place.
_KEEPING = {
    _aten.empty_like.default, _aten.new_zeros.default, _aten.slice.Tensor, _aten.copy_.default,
    _aten.view.default, _aten.as_strided.default, _aten._to_copy.default, _aten.split.Tensor,
    _aten._pin_memory.default, _aten.clone.default, _aten.detach.default,
}  # fmt: skip


class ShardedWeight(Tensor):  # type: ignore[misc]
    """A floating weight, or some of its rows, that is gathered as integers."""

    _rows: Tensor
    _sent: tuple[Any, tuple[Tensor, ...]] | None  # with the stream that computed it

    @staticmethod
    def __new__(cls, rows: Tensor) -> ShardedWeight:
        weight: ShardedWeight = Tensor._make_wrapper_subclass(
            cls, rows.size(), strides=rows.stride(), storage_offset=rows.storage_offset(),
            dtype=rows.dtype, layout=rows.layout, device=rows.device,
            requires_grad=rows.requires_grad,
        )  # fmt: skip
        weight._rows, weight._sent = rows, None
        return weight

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Return the names of the inner tensors, and the rest."""
        return ["_rows"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, given: Any, size: Any, stride: Any) -> ShardedWeight:
        """Return the weight of inner tensors."""
        return ShardedWeight(inner["_rows"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to make it again: copies and files hold the numbers."""
        return ShardedWeight, (self._rows.detach(),)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        first = args[0] if args else None
        result = _call(func, args, kwargs, cls, lambda one: one._rows)
        if func not in _KEEPING or not isinstance(first, cls):
            return result
        if func is _aten.copy_.default:
            return first
        return _mapped(result, Tensor, cls)

    @property
    def fsdp_pre_all_gather(self) -> Any:
        """What ``fully_shard`` calls for what is sent.

        It asks for the signature each time, which takes longer than to quantize a small weight.
        """
        call = functools.partial(self._pre_all_gather)
        call.__signature__ = _SIGNATURE  # type: ignore[attr-defined]
        return call

    def _pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Return what is sent for these rows, and the layer with the number of all rows.

        They are sent as floating numbers where ``fully_shard`` takes one tensor of their shape
        only: to no other process, or padded, as the rows are no multiple of the processes.
        """
        rows, count = outer_size[0], mesh.size()
        if count == 1 or rows % count != 0:
            missing = -(-rows // count) - len(self._rows)
            floats = in_master(self._rows, module.master)
            return (F.pad(floats, (0, 0, 0, missing)) if missing else floats,), (module, rows)
        (stream, sent), self._sent = self._sent or (None, None), None
        is_backward = torch._C._current_graph_task_id() != -1
        now = _stream(self._rows.device)
        if sent is None or not is_backward or stream != now:
            sent = module.sent(in_master(self._rows, module.master))
            if module.training and not is_backward:
                self._sent = now, sent
        return sent, (module, rows)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> Any:
        """Return the whole weight, and the tensors that may be freed after its use."""
        layer, rows = metadata
        integers, scale = layer.arrived(all_gather_outputs, rows)
        if out is None:
            return GatheredWeight(integers, scale, param_dtype), (integers, scale)
        assert isinstance(out, GatheredWeight)
        for kept, new in ((out.integers, integers), (out.scale, scale)):
            if kept.data_ptr() != new.data_ptr():
                kept.data.copy_(new)  # as fully_shard does: what is kept stays valid
        return None


_SIGNATURE = inspect.signature(functools.partial(ShardedWeight._pre_all_gather, None))  # type: ignore[arg-type]


def _call(func: Any, args: Any, kwargs: Any, kind: type, stand_in: Callable[[Any], Tensor]) -> Any:
    """Call an op with a stand-in for each tensor of a kind."""
    given = {name: _mapped(value, kind, stand_in) for name, value in (kwargs or {}).items()}
    return func(*(_mapped(value, kind, stand_in) for value in args), **given)


def _mapped(value: Any, kind: type, stand_in: Callable[[Any], Tensor]) -> Any:
    """Return an argument or a result of an op, with a stand-in for each tensor of a kind.

    The op knows lists and tuples alone; a walk of PyTorch's pytrees takes longer than the op.
    """
    if isinstance(value, kind):
        return stand_in(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(one, kind, stand_in) for one in value])
    return value


def _stream(device: torch.device) -> Any:
    """Return the stream that computes on a device; None if it has no streams."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


class GatheredWeight(Tensor):  # type: ignore[misc]
    """A whole weight that arrived as integers. Its layer reads these; other code reads floats.

    The integers are int8 ``[out_features, in_features]``, the scale ``[out_features]``.
    """

    integers: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, integers: Tensor, scale: Tensor, dtype: torch.dtype) -> GatheredWeight:
        weight: GatheredWeight = Tensor._make_wrapper_subclass(
            cls, integers.size(), strides=integers.stride(), dtype=dtype, device=integers.device
        )
        weight.integers, weight.scale = integers, scale
        return weight

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        """Return the names of the inner tensors, and the rest."""
        return ["integers", "scale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(inner: Any, dtype: Any, size: Any, stride: Any) -> GatheredWeight:
        """Return the weight of inner tensors."""
        return GatheredWeight(inner["integers"], inner["scale"], dtype)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """Return the shape and dtype: a trace of a compiler prints tensors without numbers."""
        return f"GatheredWeight({list(self.shape)}, dtype={self.dtype})"

    def rounded(self) -> Tensor:
        """Return the floating numbers."""
        return ops.dequantize_per_channel(self.integers, self.scale, None, 0, dtype=self.dtype)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_view = func is _aten.as_strided.default and _is_whole(*args)
        if is_view or func is _aten.detach.default:  # fully_shard makes a parameter of such a view
            weight = args[0]
            return cls(weight.integers, weight.scale, weight.dtype)
        return _call(func, args, kwargs, cls, cls.rounded)


def _is_whole(weight: Tensor, size: Any, stride: Any, offset: int | None = None) -> bool:
    """Whether a view is of all of a tensor, in its own strides."""
    same = list(size) == list(weight.shape) and list(stride) == list(weight.stride())
    return same and not offset


class _StandIn(torch.autograd.Function):  # type: ignore[misc]
    """A tensor without numbers for a gathered weight: it has its shape and dtype, and its gradient.

    ``qat_linear``, which does not read the numbers of a weight whose integers it is given, is
    several times as quick with plain tensors.
    """

    @staticmethod
    def forward(ctx: Any, weight: GatheredWeight) -> Tensor:
        return weight.scale.new_empty((), dtype=weight.dtype).expand(weight.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


_NEEDS_FLOATS = (
    "quantize_all_gather: expected fake quantization to be on, as processes have the weight's "
    "integers only"
)
_WITHOUT = "use fully_shard without quantize_all_gather"


class GathersIntegers(FakeQuantizedLinear):
    """A prepared linear layer whose weight ``fully_shard`` gathers as integers."""

    _is_on_several_processes = True

    def sent(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return what stands for some rows of the weight, in the dtype of the master.

        int8 ``[rows, in_features]`` and a scale ``[rows]``. With factors, packed uint8
        ``[rows, in_features / 2]``, a scale, factors ``[rows, groups]`` and, if the weight is not
        symmetric, zero points.
        """
        quantizer = self.weight_fake_quant
        if isinstance(quantizer, FakeQuantizeInt4):
            parts: tuple[Tensor, ...] = quantizer.pack(rows)
            return parts[:3] if quantizer.symmetric else parts
        integers, scale, _ = quantizer.quantize(rows)
        return integers, scale

    def arrived(self, parts: tuple[Tensor, ...], rows: int) -> tuple[Tensor, Tensor]:
        """Return the integers int8 ``[out_features, in_features]`` and the scale of each row.

        ``parts`` are those of all ``rows``, or the floating weight with more rows below.
        """
        if len(parts) == 1:
            parts = self.sent(parts[0][:rows])
        if len(parts) == 2:
            return parts[0], parts[1]
        packed, scale, factor, *zeros = parts
        size, zero_point = self.weight_fake_quant.group_size, zeros[0] if zeros else None
        integers = ops.expand_int4(
            packed, factor, size, self.in_features, group_zero_point=zero_point
        )
        return integers, scale

    def _gathered(self) -> GatheredWeight | None:
        weight = self._parameters["weight"]
        return weight if isinstance(weight, GatheredWeight) else None

    def _is_on(self) -> bool:
        is_on = super()._is_on()
        if not is_on and self._gathered() is not None:
            raise RuntimeError(f"{_NEEDS_FLOATS}; call enable_fake_quant, or {_WITHOUT}")
        return is_on

    def _weight_and_integers(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        weight = self._gathered()
        if weight is None:
            return super()._weight_and_integers()
        return _StandIn.apply(weight), weight.integers, weight.scale

    def quantized_weight(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weight as it will be stored: int8, with its scale and its zero point."""
        weight = self._gathered()
        if weight is None:
            return super().quantized_weight()
        return weight.integers, weight.scale, torch.zeros_like(weight.scale, dtype=torch.int32)

    def _rounded_channels_first(self) -> Tensor:
        weight = self._gathered()
        if weight is None:
            return super()._rounded_channels_first()
        if self.is_teacher():
            raise RuntimeError(f"{_NEEDS_FLOATS}; to have a teacher, {_WITHOUT}")
        return straight_through(weight.rounded(), weight)


def quantize_all_gather(model: nn.Module, filter_fn: FilterFn | None = None) -> list[str]:
    """Let ``fully_shard`` gather the weights of a prepared model as integers, in place.

    Before each use of a layer, ``fully_shard`` sends the rows of its weight to all processes. The
    layer would round them to integers first thing, so they can be rounded before they are sent, as
    int8: a quarter of the bytes of float32, and half of those of bfloat16. Four bits with factors
    are sent packed, with the factor of each group: half a byte for a weight. No bit of the outputs,
    and none of the gradients, changes. A policy's ``param_dtype`` does not round them: they are the
    integers of the parameter as the optimizer holds it, or of that rounded to the ``master``. The
    parameters, their gradients and the optimizer's states stay floating, and so do the sums over
    the processes. A process quantizes its rows for each forward pass and keeps the integers for the
    backward pass, a byte for a weight that it holds.

    Call it after :func:`baraquant.qat.prepare_` and before ``fully_shard``. It takes linear layers
    that :class:`baraquant.nn.FakeQuantizedLinear` computes as a product of integers in training,
    with any ``backward``, if the scales of a row come from that row: ``W8A8``, ``W4A8`` and other
    schemes with dynamic scales per channel or groups with factors, and inputs per token. It leaves
    out learned scales, scales per tensor, and a layer that shares its weight with another one. A
    layer whose ``out_features`` is no multiple of the number of processes is sent as floating
    numbers, of the ``master`` where there is one, and rounded when it has arrived. The parameters
    become other objects, so make the optimizer afterwards.

    Args:
        model: A prepared model, before ``fully_shard``.
        filter_fn: ``filter_fn(module, path)`` says which of these layers to take; None: all.

    Returns:
        The paths of the layers whose weights are gathered as integers.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: It has no such layer, or a layer is sharded already.

    Example:
        >>> from baraquant import parallel
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> _ = baraquant.qat.prepare_(model, baraquant.W8A8())
        >>> parallel.quantize_all_gather(model)
        ['0']
    """
    check_is_module(model, "quantize_all_gather")
    holders: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    found = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if not isinstance(module, FakeQuantizedLinear) or not module.is_whole or weight is None:
            continue
        if isinstance(weight, DTensor):
            raise ValueError(
                f"quantize_all_gather: {name}: expected a plain weight, but it is sharded already; "
                "call quantize_all_gather before fully_shard and parallelize_module"
            )
        is_plain = type(module) is FakeQuantizedLinear and holders[id(weight)] == 1
        is_chosen = filter_fn is None or filter_fn(module, name)
        if is_plain and is_chosen and _scales_of_rows(module.weight_fake_quant):
            found[name] = module
    if not found:
        raise ValueError(
            "quantize_all_gather: expected a model with FakeQuantizedLinear layers of W8A8, W4A8, "
            "or another scheme with dynamic scales per channel (or groups with factors) and per "
            "token, but found none; call prepare_(model, W8A8()) first"
        )
    for module in found.values():
        weight = module._parameters["weight"]
        rows = ShardedWeight(weight.detach())
        module._parameters["weight"] = nn.Parameter(rows, weight.requires_grad)
        module.__class__ = GathersIntegers
    return list(found)


def _scales_of_rows(quantizer: Any) -> bool:
    """Whether the scales of each row come from that row alone, at each use."""
    is_dynamic: bool = quantizer.is_dynamic
    return is_dynamic and quantizer.granularity != "per_tensor"
