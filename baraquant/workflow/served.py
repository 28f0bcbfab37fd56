# SPDX-License-Identifier: BSD-3-Clause
"""Served layers: how one is made of a prepared layer, and how it is stored.

A served linear layer is chosen by what its weight is stored as, and by what becomes of its input;
the arguments of its constructor are those of the two.

What is stored of a layer are its options, which are plain values, and its tensors.
All have the names of the constructor's arguments. So the constructor checks that they fit, on the
meta device, before any data is read. ``layers.json`` has the table, out of which
scripts/layer_table.py writes the C++ side. For each class it says:

- ``options``: the kind of each (:data:`KINDS`), and its default, if there is one;
- ``tensors``: their names in the state dict, and whether each is required; with ``prefixes``, once
  behind each of them;
- ``sizes``: the attributes that must be equal in the module and in the float one it replaces;
- ``takes_place``: see :class:`Form`.

A class may name another one with the same entry. ``layers`` lists the classes that each kind of
float layer may become, ``registered`` what every layer of :func:`baraquant.register_layer` has, and
``rounder`` what is stored of a :class:`baraquant.nn.FakeQuantize` that rounds an input. ``limits``
are kinds of whole numbers, each with the least and the largest; ``maybe_`` before such a kind
allows null too. ``stored`` says of each tensor, by the first end that its name has, its dtype
(``scale``: float32, or float64 in a float64 layer; ``bias``: that of the layer or of its scales)
and its values (:meth:`Form.check_values`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .. import nn as bnn
from .._table import shown
from ..configs import integer_range
from ..nn import FakeQuantize
from ..nn.inference.weights import Int4Factors
from ..nn.shared.convolution import is_channels_last
from ..nn.training.freeze import check_scale, frozen
from ..nn.training.quantizers import Int4Integers, Integers, PackedIntegers

StoredWeight: TypeAlias = Integers | Int4Integers | PackedIntegers

# The linear layers, by the weight and the input.
_LINEAR: dict[tuple[type[StoredWeight], str], type[nn.Module]] = {
    (Integers, "dynamic"): bnn.QuantizedLinear,
    (Integers, "static"): bnn.StaticQuantizedLinear,
    (Integers, "floating"): bnn.WeightOnlyLinear,
    (PackedIntegers, "floating"): bnn.WeightOnlyInt4Linear,
    (Int4Integers, "dynamic"): bnn.QuantizedInt4Linear,
    (Int4Integers, "static"): bnn.StaticQuantizedInt4Linear,
}
LINEAR_LAYERS = tuple(_LINEAR.values())


def served_linear(
    prepared: Any, weight: StoredWeight, *, smooth: Tensor | None = None
) -> nn.Module:
    """Return the linear layer that serves a prepared one, of its quantized weight.

    The input is divided by ``smooth``, ``[in_features]``, before it becomes integers.

    Raises:
        ValueError: The range of the input is not known yet.
    """
    how = _input_of(prepared)
    packed = {} if isinstance(weight, Integers) else {"in_features": prepared.in_features}
    arguments = {
        **_weight_arguments(prepared, weight, floating=how == "floating"),
        **_input_arguments(prepared, weight, smooth),
        **packed,
        "dtype": prepared.float_weight().dtype,
        "transposed": prepared.transposed_groups > 0,
        "rotate": prepared.rotate or None,
    }
    return _LINEAR[type(weight), how](**arguments)


def _input_of(prepared: Any) -> str:
    """Return what becomes of the input: it stays floating, or gets a scale then or in advance."""
    if not prepared.is_integer:
        return "floating"
    return "static" if prepared.config.is_static else "dynamic"


def _weight_arguments(prepared: Any, weight: StoredWeight, *, floating: bool) -> dict[str, Any]:
    config = prepared.config.weight
    arguments = {
        "qweight" if isinstance(weight, Integers) else "packed": weight[0],
        "weight_scale": weight.scale,
        "bias": _own(prepared.bias_to_add()),
    }
    if isinstance(weight, Int4Integers):
        zero_point = None if config.symmetric else weight.group_zero_point
        arguments |= {"group_factor": weight.group_factor, "group_zero_point": zero_point}
        return {**arguments, "group_size": config.group_size}
    if floating:
        arguments |= {"weight_zero_point": weight.zero_point, "group_size": config.group_size}
    return {**arguments, "weight_bits": config.bits}


def _own(bias: Tensor | None) -> Tensor | None:
    """Return a copy of a bias that no optimizer changes."""
    return None if bias is None else bias.detach().clone()


def _input_arguments(prepared: Any, weight: StoredWeight, smooth: Tensor | None) -> dict[str, Any]:
    how, activation = _input_of(prepared), prepared.config.activation
    if how == "floating":
        assert smooth is None
        return {"input_fake_quant": prepared.frozen_input()}
    arguments: dict[str, Any] = {"bits": activation.bits}
    if how == "dynamic":
        granularity = str(activation.granularity)
        arguments |= {"symmetric": activation.symmetric, "granularity": granularity}
        return arguments if smooth is None else {**arguments, "smooth": smooth}
    rounder = prepared.frozen_input()
    scale = rounder.scale.to(weight.scale.dtype)
    zero_point = None if activation.symmetric else rounder.zero_point
    arguments |= {"act_scale": scale, "act_zero_point": zero_point}
    return (
        arguments if smooth is None else {**arguments, "smooth_scale": scale.reshape(()) * smooth}
    )


def served_conv(kind: Any, prepared: Any, weight: Integers) -> nn.Module:
    """Return the convolution of a class that serves a prepared one."""
    new: nn.Module = kind(
        **_weight_arguments(prepared, weight, floating=True),
        input_fake_quant=prepared.frozen_input(),
        **{name: getattr(prepared, name) for name in kind._options},
        dtype=prepared.float_weight().dtype,
    )
    # Where a prepared layer cuts its weight into groups or swaps channels, it makes a copy.
    is_whole = new.group_size is None and new.transposed_groups == 0
    new.channels_last = is_whole and is_channels_last(prepared.float_weight())
    return new


def served_embedding(prepared: Any, weight: Integers) -> nn.Module:
    """Return the embedding that serves a prepared one."""
    config = prepared.config.weight
    return bnn.QuantizedEmbedding(
        weight.qweight,
        weight.scale,
        weight_zero_point=weight.zero_point,
        group_size=config.group_size,
        dtype=prepared.float_weight().dtype,
        padding_idx=prepared.padding_idx,
        weight_bits=config.bits,
    )


def served_experts(prepared: bnn.FakeQuantizedExperts) -> bnn.QuantizedExperts:
    """Return the experts that serve prepared ones.

    Raises:
        ValueError: A scale is unknown, because training has seen no batch, or it is not finite.
    """
    config, tensors = prepared.config, dict[str, Tensor]()
    for name in prepared.form.weights:
        weight, scale, zero_point = prepared.quantized_weight(name)
        check_scale(name, scale)
        tensors |= {f"{name}_qweight": weight, f"{name}_scale": scale}
        if not config.weight.symmetric:
            tensors[f"{name}_zero_point"] = zero_point
        bias = _own(prepared.bias_to_add(name))
        if bias is not None:
            tensors[f"{name}_bias"] = bias
        rounder = f"{name}_input_fake_quant"
        fixed = frozen(prepared._modules[rounder])
        if fixed is not None and not fixed.is_dynamic:
            tensors |= {f"{rounder}.scale": fixed.scale, f"{rounder}.zero_point": fixed.zero_point}
    activation, inputs = config.activation, dict[str, Any]()
    if activation is not None:
        inputs = {
            "granularity": str(activation.granularity),
            "bits": activation.bits,
            "symmetric": activation.symmetric,
            "is_static": not activation.dynamic,
            "input_group_size": activation.group_size,
        }
    return bnn.QuantizedExperts(
        tensors,
        prepared,
        group_size=config.weight.group_size,
        weight_bits=config.weight.bits,
        dtype=prepared.float_weight(prepared.form.up).dtype,
        **inputs,
    )


# ---- How a served layer is stored ---------------------------------------------------------------

_INPUT = "input_fake_quant"
_FLOATS = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16
)}  # fmt: skip


TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("layers.json").read_text())


@dataclass(frozen=True)
class Kind:
    """A kind of plain arguments: what JSON may hold, how to write a value, and to read it."""

    is_valid: Callable[[Any], bool]
    expected: str
    plain: Callable[[Any], Any] = lambda value: value
    parse: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Form:
    """How a class of modules is stored.

    Attributes:
        module: The class.
        options: The constructor's plain arguments, which are attributes of the same names.
        tensors: The constructor's tensors by their names in the state dict; True if required.
        takes_place: Whether the constructor takes all tensors as a mapping, and the float module
            that it replaces as ``like``, of which it keeps everything except the weights.
        is_registered: Whether it is a class of a user, who chooses the dtypes of its tensors.
    """

    module: type[nn.Module]
    options: Mapping[str, Kind]
    tensors: Mapping[str, bool]
    takes_place: bool = False
    is_registered: bool = False

    def read(self, module: nn.Module) -> dict[str, Any]:
        """Return the options of a module as plain data; what a file cannot hold is a ValueError."""
        values = {name: kind.plain(getattr(module, name)) for name, kind in self.options.items()}
        self._check_options(values)
        return values

    def _check_options(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if not self.options[name].is_valid(value):
                expected = self.options[name].expected
                raise ValueError(f"expected {name} to be {expected}, but got {shown(value)}")

    def parse(self, options: Any) -> dict[str, Any]:
        """Return the constructor's arguments for options read from a file, checked."""
        if not isinstance(options, dict) or options.keys() != self.options.keys():
            got = sorted(options) if isinstance(options, dict) else options
            raise ValueError(f"expected the options {sorted(self.options)}, but got {shown(got)}")
        self._check_options(options)
        return {name: self.options[name].parse(value) for name, value in options.items()}

    def build(
        self, options: dict[str, Any], tensors: dict[str, Tensor], like: nn.Module
    ) -> nn.Module:
        """Call the constructor with the result of :meth:`parse` and the tensors by their names.

        On the meta device everything is checked and nothing is computed.

        Raises:
            ValueError: A tensor is missing or unknown, or does not fit.
            TypeError: A tensor has another dtype.
        """
        module = self._build(options, tensors, like)
        self.check_kinds(module)
        return module

    def _build(
        self, options: dict[str, Any], tensors: dict[str, Tensor], like: nn.Module
    ) -> nn.Module:
        for name, required in self.tensors.items():
            if required and name not in tensors:
                raise ValueError(f"expected a tensor {name}, but there is none")
        options, own = dict(options), dict(tensors)
        if self.takes_place:
            return self.module(own, like, **options)
        if options.get(_INPUT) is not None:
            names = TABLE["rounder"]["tensors"]
            parts = {name: own.pop(f"{_INPUT}.{name}", None) for name in names}
            options[_INPUT] = FakeQuantize(**parts, **options[_INPUT]).without_state()
        unknown = own.keys() - self.tensors.keys()
        if unknown:
            raise ValueError(f"expected the tensors {sorted(self.tensors)}, but got {min(unknown)}")
        return self.module(**own, **options)

    def check_kinds(self, module: nn.Module) -> None:
        """Check what a module's own constructor leaves open; the module may be on the meta device.

        These are the dtypes of the tensors, and that there is a scale for each feature, group or
        token of an input that is rounded.
        """
        if self.is_registered:
            return
        scale = torch.promote_types(module.dtype, torch.float32)
        known = {
            "int8": [torch.int8],
            "uint8": [torch.uint8],
            "integer": [torch.int32],  # constructors make it that
            "scale": [scale],
            "bias": [module.dtype, scale],
        }
        for name, tensor in self._own(module).items():
            rule = _rule_of(name)
            if rule is not None and tensor.dtype not in known[rule[0]]:
                words = " or ".join(dict.fromkeys(str(dtype) for dtype in known[rule[0]]))
                raise ValueError(f"expected {name} to be {words}, but got {tensor.dtype}")
        rounder = getattr(module, _INPUT, None)
        if not isinstance(rounder, FakeQuantize) or rounder.mode != "fixed":
            return
        features, size = getattr(module, "in_features", None), 1
        if rounder.granularity in ("per_channel", "per_group"):
            if features is None:
                raise ValueError(
                    f"expected {_INPUT} to have one scale in a {type(module).__name__}, but got "
                    f"{rounder.granularity}"
                )
            size = -(-features // (rounder.group_size or 1))
        shape = rounder.scale.shape
        if rounder.granularity != "per_tensor" and shape[-1:] != (size,):
            raise ValueError(
                f"expected {_INPUT}.scale to have {size} in its last dimension, but got "
                f"{list(shape)}"
            )

    def _own(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the tensors of a module without those that a subclass has besides."""
        tensors = module.state_dict().items()
        return {n: t for n, t in tensors if n in self.tensors or n.startswith(f"{_INPUT}.")}

    def check_names(self, module: nn.Module, sizes: Iterable[str] = ()) -> None:
        """Check that a module has its form's tensors, options and sizes, and no more tensors."""
        for name in (*self.options, *sizes):
            if not hasattr(module, name):
                raise ValueError(
                    f"expected {type(module).__name__} to have an attribute {name}, but it has none"
                )
        own = {name for name in module.state_dict() if not name.startswith(f"{_INPUT}.")}
        missing = [name for name, required in self.tensors.items() if required and name not in own]
        unknown = sorted(own - self.tensors.keys())
        if missing or unknown:
            raise ValueError(
                f"expected {type(module).__name__} to have the tensors {sorted(self.tensors)}, but "
                f"{f'{missing[0]} is missing' if missing else f'it has {unknown[0]}'}"
            )

    def check_values(self, module: nn.Module) -> None:
        """Check that no tensor is missing, integers fit their width, scales are finite and > 0."""
        self.check_kinds(module)
        own = self._own(module)
        limits = {
            "weight": integer_range(module.weight_bits),
            "input": integer_range(getattr(module, "bits", 8)),
            "factor": (1, 16),
            "four_bits": (0, 15),
        }
        for name, required in self.tensors.items():
            if required and own.get(name) is None:
                raise ValueError(
                    f"expected {type(module).__name__} to have a tensor {name}, but it has "
                    f"{', '.join(own) or 'none'}"
                )
        for name, tensor in own.items():
            values = (_rule_of(name) or ("", "any"))[1]
            if values == "positive":
                if not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
                    raise ValueError(f"{name}: expected finite numbers > 0, but it holds others")
            elif values == "levels":
                rounder = module.get_submodule(name.rpartition(".")[0])
                check_within(name, tensor, (rounder.quant_min, rounder.quant_max))
            elif values in limits:
                check_within(name, tensor, limits[values])
            elif values == "packed" and module.weight_bits < 4:  # four bits hold no others
                check_within(name, module.qweight, limits["weight"])
        if isinstance(module, Int4Factors):
            module.check_products()


def _rule_of(name: str) -> tuple[str, str] | None:
    """Return the dtype and the values of a tensor; None for one that the table does not know."""
    return next((rule for end, rule in TABLE["stored"].items() if name.endswith(end)), None)


def check_within(name: str, tensor: Tensor, limits: tuple[int, int]) -> None:
    """Check that integers lie between two limits, which they may reach."""
    if tensor.numel() == 0:
        return
    least, most = (int(end) for end in torch.aminmax(tensor))
    if least < limits[0] or most > limits[1]:
        raise ValueError(
            f"{name}: expected integers in [{limits[0]}, {limits[1]}], but got {least} to {most}"
        )


def _is_int(value: Any, least: int = -(2**63), most: int = 2**63 - 1) -> bool:
    """Whether a value is an integer within limits, and not a bool."""
    return type(value) is int and least <= value <= most


def _is_sizes(value: Any) -> bool:
    limits = TABLE["limits"]["count"]
    return (
        isinstance(value, list)
        and 1 <= len(value) <= 3
        and all(_is_int(size, *limits) for size in value)
    )


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or type(value) in (bool, str)
        or (type(value) is float and math.isfinite(value))
        or _is_int(value)
        or (isinstance(value, list) and all(map(_is_int, value)))
    )


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain_rounder(rounder: Any) -> dict[str, Any] | None:
    if not isinstance(rounder, FakeQuantize):
        return None
    values = {
        name: kind.plain(getattr(rounder, name))
        for name, kind in _kinds_of(TABLE["rounder"]).items()
    }
    has_axis = rounder.granularity in ("per_channel", "per_group")
    return values if has_axis else values | {"axis": None}


def _is_rounder(value: Any) -> bool:
    kinds = _kinds_of(TABLE["rounder"])
    return value is None or (
        isinstance(value, dict)
        and value.keys() == kinds.keys()
        and all(kind.is_valid(value[name]) for name, kind in kinds.items())
    )


def _whole(least: int, most: int) -> Kind:
    return Kind(lambda v: _is_int(v, least, most), f"a whole number in [{least}, {most}]")


def _maybe(kind: Kind) -> Kind:
    """Return a kind that may be null, and is null in a file where the module has 0."""
    return replace(
        kind,
        is_valid=lambda value: value is None or kind.is_valid(value),
        expected=f"{kind.expected} or null",
        plain=lambda value: value or None,
    )


_WHOLE = {name: _whole(*limits) for name, limits in TABLE["limits"].items()}
_SIZES = Kind(_is_sizes, "one to three whole numbers", _listed, _tupled)
KINDS = {
    "bool": Kind(lambda value: type(value) is bool, "true or false"),
    **_WHOLE,
    **{f"maybe_{name}": _maybe(kind) for name, kind in _WHOLE.items()},
    "index": Kind(lambda v: v is None or _is_int(v), "a whole number or null"),
    "name": Kind(lambda value: isinstance(value, str), "a name"),
    "maybe_name": Kind(lambda v: v is None or isinstance(v, str), "a name or null"),
    "mode": Kind(lambda value: value in ("fixed", "dynamic"), "fixed or dynamic"),
    "dtype": Kind(
        lambda value: isinstance(value, str) and value in _FLOATS,
        f"one of {', '.join(_FLOATS)}",
        lambda dtype: str(dtype).removeprefix("torch."),
        lambda name: _FLOATS[name],
    ),
    "sizes": _SIZES,  # such as a stride
    "padding": replace(_SIZES, is_valid=lambda value: isinstance(value, str) or _is_sizes(value)),
    "rounder": Kind(_is_rounder, "how the input is rounded, or null", _plain_rounder),
    "plain": Kind(_is_plain, "a plain value", _listed, _tupled),  # of a registered kind of layer
}


def _kinds_of(entry: Mapping[str, Any]) -> dict[str, Kind]:
    return {name: KINDS[kind] for name, (kind, *_) in entry["options"].items()}


def entry_of(name: str) -> dict[str, Any]:
    """Return the entry of a class in the table."""
    entry = TABLE["classes"][name]
    return entry_of(entry) if isinstance(entry, str) else dict(entry)


def form_of_table(module: type[nn.Module]) -> Form:
    """Return how a class of the table is stored."""
    entry = entry_of(module.__name__)
    tensors = {
        f"{prefix}{name}": required
        for prefix in entry.get("prefixes", [""])
        for name, required in entry["tensors"].items()
    }
    return Form(module, _kinds_of(entry), tensors, entry.get("takes_place", False))


def form_of_registered(
    module: type[nn.Module], options: Iterable[str], tensors: Mapping[str, bool] | None
) -> Form:
    """Return how a registered class is stored: by its own options, and those of every such layer.

    Without ``tensors`` it has those of every such layer.
    """
    entry = TABLE["registered"]
    own = {name: KINDS["rounder" if name == _INPUT else "plain"] for name in options}
    tensors = entry["tensors"] if tensors is None else tensors
    return Form(module, _kinds_of(entry) | own, tensors, is_registered=True)
