# SPDX-License-Identifier: BSD-3-Clause
"""What ``layer.weight`` returns if the layer computes with other numbers.

Many models read the weight of a child: its dtype, or its values for a product of their own. A
quantized layer returns the dequantized weight, and a prepared layer in evaluation the rounded one.
Both return a :class:`WeightView`: its dtype, shape and device cost nothing, and any other use
computes the values. Writing raises an error, because the write would be lost; but a product with a
number, by which RWKV rescales its layers, goes to the tensor behind: the parameter or the scale.
A graph would repeat it at each call, so while one is made every write is an error.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


class Shaped(NamedTuple):
    """What a :class:`WeightView` reads of a tensor, where there is no tensor of its shape."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device

    def stride(self) -> tuple[int, ...]:
        """Return the strides, as a tensor does."""
        return self.strides


class _Computed(Tensor):  # type: ignore[misc]
    """A tensor that stands for values, which it computes."""

    _compute: Callable[[], Tensor]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # This runs only if __torch_function__ is switched off.
        args, kwargs = tree_map_only(cls, lambda one: one._compute(), (args, kwargs or {}))
        return func(*args, **kwargs)


class WeightView(_Computed):
    """A weight to read: a tensor whose values are computed at each use.

    A view of it (an index, a transpose) is a WeightView too.

    Args:
        compute: Returns the values.
        like: A tensor with their shape, strides and device, or these alone.
        dtype: The dtype of the values.
        layer: The name of the layer, for messages.
        parameter: The parameter behind ``grad``, ``requires_grad`` and ``is_leaf``: reading them
            reads it, and setting the first two changes it. None: no gradient.
        scaled: The tensor to multiply in place if the view is: the parameter, or the integers'
            scale. None: there is none, so that this is an error too.
    """

    _layer: str
    _of: Tensor | None
    _scaled: Tensor | None
    # transformers gives no initial values to a tensor that has this attribute.
    _is_hf_initialized = True

    @staticmethod
    def __new__(
        cls,
        compute: Callable[[], Tensor],
        like: Tensor | Shaped,
        dtype: torch.dtype,
        layer: str,
        parameter: Tensor | None = None,
        scaled: Tensor | None = None,
    ) -> WeightView:
        """Make a tensor without values of its own."""
        view: WeightView = Tensor._make_wrapper_subclass(
            cls, like.shape, like.stride(), dtype=dtype, device=like.device, requires_grad=False
        )
        view._compute, view._layer, view._of, view._scaled = compute, layer, parameter, scaled
        return view

    def _constant(self) -> WeightView:
        compute = self._compute
        scaled = None if self._scaled is None else self._scaled.detach()
        return WeightView(lambda: compute().detach(), self, self.dtype, self._layer, None, scaled)

    def _multiplied(self, func: Any, number: Any) -> Tensor:
        """Multiply or divide the weight in place by a number."""
        if not 0 < float(number) < math.inf:
            raise RuntimeError(
                f"{self._layer}: expected weight to be multiplied or divided in place by a "
                f"positive number, but got {float(number)}"
            )
        func(self._scaled, number)
        return self if self._of is None else self._of

    def is_result_of(self, scaled: Tensor | None) -> bool:
        """Whether ``layer.weight *= 2`` sets the attribute to this, after the product."""
        mine = self._scaled
        return mine is not None and scaled is not None and mine.data_ptr() == scaled.data_ptr()

    def _part(self, part: Tensor) -> WeightView:
        of = None if self._of is None else part
        return WeightView(lambda: part, part, part.dtype, self._layer, of)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        view = args[0] if args and isinstance(args[0], cls) else None
        if func in _OF_PARAMETER and view is not None and view._of is not None:
            return func(view._of, *args[1:], **kwargs)
        if func in _SETTING and view is not None and view._of is not None and view._of.is_leaf:
            func(view._of, *args[1:], **kwargs)
            return view
        if func in _METADATA or func in _OF_PARAMETER:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if view is not None and view._scaled is not None and _multiplies(func, args, kwargs):
            return view._multiplied(func, args[1])
        is_set = func == Tensor.data.__set__ and isinstance(args[1], cls)
        if view is not None and is_set and args[1].is_result_of(view._scaled):
            return None
        _check_no_write(func, args, kwargs)
        if view is None:
            args, kwargs = tree_map_only(cls, lambda one: one._compute(), (args, kwargs))
            return func(*args, **kwargs)
        if func in _DETACHING:
            return view._constant()
        if func is Tensor.__deepcopy__:
            return view._compute().detach().clone()
        numbers = view._compute()
        if func is Tensor.__reduce_ex__:
            return func(numbers.detach().clone(), *args[1:])
        others, kwargs = tree_map_only(cls, lambda one: one._compute(), (args[1:], kwargs))
        result = func(numbers, *others, **kwargs)
        return tree_map_only(
            Tensor, lambda one: view._part(one) if _is_part(one, numbers) else one, result
        )


class CompiledWeight(Tensor):  # type: ignore[misc]
    """The values of a weight while Dynamo makes a graph, which would lose a write into them."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _WRITES and isinstance(args[0], cls):
            raise RuntimeError(_NO_WRITE_IN_GRAPH)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func in _DETACHING:
            return result.detach().as_subclass(cls)  # Dynamo wants one that is no graph's input
        return result.as_subclass(cls) if func in _VIEWS else result


class TracedWeight(_Computed):
    """The same while Python runs to make a graph: ``torch.jit.trace``, and export without Dynamo.

    It holds the values, so that the graph has no operation of this class.
    """

    @staticmethod
    def __new__(cls, values: Tensor) -> TracedWeight:
        """Make a tensor that holds the values."""
        with without_trace():
            weight: TracedWeight = Tensor._make_wrapper_subclass(
                cls, values.shape, dtype=values.dtype, device=values.device
            )
        weight._compute = lambda: values
        return weight

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _WRITES and isinstance(args[0], cls):
            raise RuntimeError(_NO_WRITE_IN_GRAPH)
        args, kwargs = tree_map_only(cls, lambda one: one._compute(), (args, kwargs or {}))
        result = func(*args, **kwargs)
        return cls(result) if func in _VIEWS else result


@contextmanager
def without_trace() -> Iterator[None]:
    """Keep what is computed out of a graph that ``torch.jit.trace`` makes."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def weight_to_read(
    layer: torch.nn.Module,
    compute: Callable[[], Tensor],
    like: Tensor | Shaped,
    dtype: torch.dtype,
    parameter: Tensor | None = None,
    scaled: Tensor | None = None,
) -> Tensor:
    """Return the value of ``layer.weight``: a view, or in a graph the numbers, to read only."""
    if torch.compiler.is_dynamo_compiling():
        return compute().as_subclass(CompiledWeight)
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return TracedWeight(compute())
    return WeightView(compute, like, dtype, type(layer).__name__, parameter, scaled)


def is_for_torchscript() -> bool:
    """Whether TorchScript reads the attribute of a module in order to script it.

    TorchScript takes the value that it reads for the parameter of that name.
    """
    if torch.compiler.is_compiling():
        return False
    return sys._getframe(2).f_globals.get("__name__") == "torch.jit._recursive"


def _is_part(result: Tensor, numbers: Tensor) -> bool:
    """Whether a result is a view of the numbers, so that writing into it would be lost."""
    if type(result) is not Tensor or result.layout != torch.strided or result.is_meta:
        return False
    if result is numbers:
        return True
    try:
        same: bool = result.untyped_storage().data_ptr() == numbers.untyped_storage().data_ptr()
        return result.numel() > 0 and same
    except NotImplementedError:  # within vmap a tensor has no storage of its own
        return False


def _check_no_write(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that a function writes into no view: the write would be lost."""
    written = [kwargs.get("out")]
    name = getattr(func, "__name__", "")
    if name in ("data_ptr", "__set__") or _is_write_name(name.split(".")[0]):
        named = (kwargs.get(name) for name in ("tensor", "input", "self"))
        written += [args[0] if args else None, *named]
    for view in tree_leaves(written):
        if isinstance(view, WeightView):
            if view._of is not None and _multiplies(func, args, kwargs):
                instead = (
                    "its scale is learned or observed, and would not follow, or a parametrization "
                    "computes it; change the float model before it is prepared, or switch that "
                    "off (RWKV: config.rescale_every = 0)"
                )
            elif view._of is None:
                instead = "it is computed from the integers in qweight"
            else:
                instead = (
                    "in evaluation it is the rounded weight; the parameter is in "
                    "named_parameters(), and is the weight itself in training mode, unless the "
                    "layer has rotate"
                )
            # Code that compares the places of two weights expects this error where there is none.
            error = NotImplementedError if name == "data_ptr" else RuntimeError
            raise error(
                f"{view._layer}: expected weight to be read only, but got a call of "
                f"{name or func}: {instead}"
            )


def _multiplies(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call multiplies or divides a view in place by a number."""
    if len(args) != 2 or kwargs:
        return False
    number = args[1]
    is_number = isinstance(number, (int, float)) or (
        isinstance(number, Tensor) and number.numel() == 1 and not number.requires_grad
    )
    return func in _PRODUCTS and is_number


def _is_write_name(name: str) -> bool:
    if name == "__setitem__" or name in _IN_PLACE:
        return True
    return name.endswith("_") and not name.endswith("__")


_IN_PLACE = {
    f"__i{name}__"
    for name in (
        "add", "sub", "mul", "matmul", "truediv", "floordiv", "div", "mod", "pow", "and", "or",
        "xor", "lshift", "rshift",
    )
}  # fmt: skip


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names if hasattr(Tensor, name)}


# The attributes that the view answers without computing the values.
_METADATA = {
    *_getters(
        "device", "dtype", "is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_mps", "is_nested",
        "is_quantized", "is_sparse", "is_sparse_csr", "is_xpu", "itemsize", "layout", "names",
        "nbytes", "ndim", "shape",
    ),
    Tensor.__hash__, Tensor.__len__, Tensor.dim, Tensor.element_size, Tensor.get_device,
    Tensor.is_complex, Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_signed,
    Tensor.ndimension, Tensor.nelement, Tensor.numel, Tensor.size, Tensor.stride,
}  # fmt: skip
_OF_PARAMETER = _getters("grad", "is_leaf", "requires_grad", "grad_fn", "output_nr")
_SETTING = {Tensor.requires_grad.__set__, Tensor.grad.__set__, Tensor.requires_grad_}
_PRODUCTS = {
    Tensor.mul_, Tensor.multiply_, Tensor.div_, Tensor.divide_, Tensor.true_divide_,
}  # fmt: skip
_DETACHING = {Tensor.data.__get__, Tensor.detach}
_NO_WRITE_IN_GRAPH = (
    "expected the weight of a layer to be read only while a graph is made (torch.compile, "
    "torch.export, torch.jit.trace): the layer would not follow; if the model rescales its weights "
    "in its first evaluation, as RWKV does, evaluate it once before"
)
# Sets, as Dynamo does not know the names of functions. It calls an operator by its function.
_WRITES = {
    getattr(place, name) for place in (Tensor, operator) for name in dir(place)
    if _is_write_name(name)
}  # fmt: skip
_VIEWS = {
    *_DETACHING, Tensor.T.__get__, Tensor.mT.__get__, Tensor.__getitem__, operator.getitem,
    Tensor.flatten, Tensor.narrow, Tensor.permute, Tensor.reshape, Tensor.select, Tensor.squeeze,
    Tensor.t, Tensor.transpose, Tensor.unsqueeze, Tensor.view,
}  # fmt: skip
