# SPDX-License-Identifier: BSD-3-Clause
"""``fully_shard`` gathers integers: a process quantizes its rows of a weight before it sends them.

A row has its own scale, so the integers of a part are those of the whole. They are those of the
parameter as the optimizer holds it, whatever dtype a policy gives the other parameters. The
parameter is a :class:`ShardedWeight`; it tells ``fully_shard`` what to send
(``fsdp_pre_all_gather``) and what to make of what arrives (``fsdp_post_all_gather``): a
:class:`GatheredWeight`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from .. import ops
from ..nn.shared.master import round_master
from ..nn.training.linear import FakeQuantizedLinear
from ..workflow.view import FilterFn, check_is_module
from ._linear import Grid, lowered, product_of_parts

_aten = torch.ops.aten
# The ops whose result is a part or a copy of the parameter, and goes on in its place.
_KEEPING = {
    _aten.empty_like.default, _aten.new_zeros.default, _aten.slice.Tensor, _aten.copy_.default,
    _aten.view.default, _aten.as_strided.default, _aten._to_copy.default, _aten.split.Tensor,
    _aten._pin_memory.default, _aten.clone.default, _aten.detach.default,
}  # fmt: skip


class ShardedWeight(Tensor):  # type: ignore[misc]
    """A floating weight, or some of its rows, that is gathered as integers.

    The numbers are rounded to ``master`` first, as in ``QuantConfig``; it is empty for nothing.
    """

    _rows: Tensor
    _how: tuple[int, int, str]

    @staticmethod
    def __new__(cls, rows: Tensor, quant_min: int, quant_max: int, master: str) -> ShardedWeight:
        weight: ShardedWeight = Tensor._make_wrapper_subclass(
            cls, rows.size(), strides=rows.stride(), storage_offset=rows.storage_offset(),
            dtype=rows.dtype, layout=rows.layout, device=rows.device,
            requires_grad=rows.requires_grad,
        )  # fmt: skip
        weight._rows, weight._how = rows, (quant_min, quant_max, master)
        return weight

    def __tensor_flatten__(self) -> tuple[list[str], tuple[int, int, str]]:
        """Return the names of the inner tensors, and the rest."""
        return ["_rows"], self._how

    @staticmethod
    def __tensor_unflatten__(inner: Any, given: Any, size: Any, stride: Any) -> ShardedWeight:
        """Return the weight of inner tensors."""
        return ShardedWeight(inner["_rows"], *given)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to make it again: copies and files hold the numbers."""
        return ShardedWeight, (self._rows.detach(), *self._how)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        first = args[0] if args else None
        args, kwargs = tree_map_only(cls, lambda one: one._rows, (args, kwargs or {}))
        result = func(*args, **kwargs)
        if func not in _KEEPING or not isinstance(first, cls):
            return result
        if func is _aten.copy_.default:
            return first
        return tree_map_only(Tensor, lambda one: cls(one, *first._how), result)

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Return what is sent: the integers of these rows, and their scales."""
        if outer_size[0] % mesh.size() != 0:
            raise ValueError(
                "quantize_all_gather: expected out_features to be a multiple of the "
                f"{mesh.size()} processes, but got {outer_size[0]}; leave that layer out "
                "with filter_fn"
            )
        if mesh.size() == 1:
            return (self._rows,), None  # nothing is sent, and fully_shard takes one tensor only
        return self._integers(self._rows), None

    def _integers(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        low, high, master = self._how
        rows = round_master(rows, master)
        integers, scale, _ = ops.dynamic_range_quantize_per_channel(rows, 0, low, high)
        return integers, scale

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> Any:
        """Return the whole weight, and the tensors that may be freed after its use."""
        if len(all_gather_outputs) == 1:
            integers, scale = self._integers(all_gather_outputs[0])
            if out is not None:
                assert isinstance(out, GatheredWeight)
                # As fully_shard does: what is kept for the backward pass stays valid.
                out.integers.data.copy_(integers)
                out.scale.data.copy_(scale)
        else:
            integers, scale = all_gather_outputs
        if out is not None:
            return None  # it holds the same memory
        return GatheredWeight(integers, scale, param_dtype), (integers, scale)


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
        args, kwargs = tree_map_only(cls, cls.rounded, (args, kwargs or {}))
        return func(*args, **kwargs)


def _is_whole(weight: Tensor, size: Any, stride: Any, offset: int | None = None) -> bool:
    """Whether a view is of all of a tensor, in its own strides."""
    same = list(size) == list(weight.shape) and list(stride) == list(weight.stride())
    return same and not offset


class GathersIntegers(FakeQuantizedLinear):
    """A prepared linear layer whose weight ``fully_shard`` gathers as integers."""

    _is_on_several_processes = True

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]``."""
        weight = self._parameters["weight"]
        if not isinstance(weight, GatheredWeight):
            return super().forward(input)
        if self.training and not self._is_on():
            raise RuntimeError(
                "quantize_all_gather: expected fake quantization to be on, as processes have the "
                "weight's integers only; call enable_fake_quant, or use fully_shard without "
                "quantize_all_gather"
            )
        low, high, symmetric = self.quant_min, self.quant_max, self.symmetric
        if self.rotate > 0:
            input = ops.hadamard(input, self.rotate)
        if self.training:
            input = lowered(input)  # as qat_linear
        qinput, scale, zero_point = ops.dynamic_range_quantize_per_token(
            input.detach(), low, high, symmetric=symmetric
        )
        zero = None if symmetric else zero_point
        grid = Grid("per_token", scale, zero, low, high, scale, clips=not symmetric)
        bias, of_weight = self.bias_to_add(), (weight.integers, weight.scale)
        return product_of_parts(input, weight, bias, grid, *of_weight, None, input.dtype, qinput)

    def quantized_weight(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weight as it will be stored: int8, with its scale and its zero point."""
        weight = self._parameters["weight"]
        if not isinstance(weight, GatheredWeight):
            return super().quantized_weight()
        zero_point = torch.zeros_like(weight.scale, dtype=torch.int32)
        return weight.integers, weight.scale, zero_point

    def _rounded_channels_first(self) -> Tensor:
        weight = self._parameters["weight"]
        if isinstance(weight, GatheredWeight):
            return weight.rounded()
        return super()._rounded_channels_first()


def quantize_all_gather(model: nn.Module, filter_fn: FilterFn | None = None) -> list[str]:
    """Let ``fully_shard`` gather the weights of a prepared model as int8, in place.

    Before each use of a layer, ``fully_shard`` sends the rows of its weight to all processes. The
    layer would round them to integers first thing, so they can be rounded before they are sent: a
    quarter of the bytes of float32, and half of those of bfloat16. No bit of the outputs, and none
    of the gradients, changes. A policy's ``param_dtype`` does not round them: they are the integers
    of the parameter as the optimizer holds it, or of that rounded to the ``master``. The
    parameters, their gradients and the optimizer's states stay floating, and so do the sums over
    the processes.

    Call it after :func:`baraquant.qat.prepare_` and before ``fully_shard``. It takes linear layers
    of ``W8A8`` and of other schemes that :class:`baraquant.nn.FakeQuantizedLinear` computes as a
    product of integers in training. It leaves out a layer that shares its weight with another one.
    The parameters become other objects, so make the optimizer afterwards.

    Args:
        model: A prepared model, before ``fully_shard``.
        filter_fn: ``filter_fn(module, path)`` says which of these layers to take; None: all. A
            layer whose ``out_features`` is no multiple of the number of processes has to be left
            out.

    Returns:
        The paths of the layers whose weights are gathered as integers.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: It has no such layer, or a layer is sharded already.
        NotImplementedError: A layer's gradients come from integers (``backward``).

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
        is_plain = is_plain and not module.gives_integers
        if not is_plain or not (filter_fn is None or filter_fn(module, name)):
            continue
        if module.backward != "float":
            raise NotImplementedError(
                f'quantize_all_gather: {name}: expected backward="float", but got '
                f'"{module.backward}"; prepare with that, or leave the layer out with filter_fn'
            )
        found[name] = module
    if not found:
        raise ValueError(
            "quantize_all_gather: expected a model with FakeQuantizedLinear layers of W8A8, or of "
            "another scheme with dynamic scales per channel and per token, but found none; call "
            "prepare_(model, W8A8()) first"
        )
    for module in found.values():
        weight = module._parameters["weight"]
        rows = ShardedWeight(
            weight.detach(), module.weight_quant_min, module.weight_quant_max, module.master
        )
        module._parameters["weight"] = nn.Parameter(rows, weight.requires_grad)
        module.__class__ = GathersIntegers
    return list(found)
