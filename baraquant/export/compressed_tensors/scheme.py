# SPDX-License-Identifier: BSD-3-Clause
"""Schemes of the format compressed-tensors: how it names what a layer's integers are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..._table import shown
from .._layers import IntegerLayer

METHOD = "compressed-tensors"
INT, PACKED, MIXED = "int-quantized", "pack-quantized", "mixed-precision"
# The formats whose integers this package reads, and how they are stored.
FORMATS = {INT: INT, "naive-quantized": INT, PACKED: PACKED}

# Keys that do not change what the stored numbers mean.
_IRRELEVANT = {"observer", "observer_kwargs", "scale_dtype", "zp_dtype", "actorder"}
_STRATEGIES = ("tensor", "channel", "group", "token")
_PRESETS = {
    "W8A8": (8, None, True, 8),
    "INT8": (8, None, True, 8),
    "W8A16": (8, None, True, None),
    "W4A16": (4, 128, True, None),
    "W4A16_ASYM": (4, 128, False, None),
    "W4A8": (4, 128, True, 8),
}


@dataclass(frozen=True)
class TensorScheme:
    """How one tensor becomes integers, in the words of compressed-tensors.

    Attributes:
        bits: The width, 2 to 8.
        symmetric: Whether there is no zero point.
        strategy: ``tensor``, ``channel``, ``group`` or ``token``.
        group_size: The number of adjacent values that share a scale, for ``group``.
        dynamic: Whether the scale is computed from the values in each call.
    """

    bits: int
    symmetric: bool
    strategy: str
    group_size: int | None = None
    dynamic: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the object that stands in ``config.json``."""
        plain = asdict(self)
        return {"num_bits": plain.pop("bits"), "type": "int", **plain}


@dataclass(frozen=True)
class Scheme:
    """How a layer is quantized and stored.

    Attributes:
        weight: How its weight is.
        input: How its input is; None leaves it floating.
        format: ``int-quantized`` (int8) or ``pack-quantized`` (bits packed into int32).
    """

    weight: TensorScheme
    input: TensorScheme | None
    format: str

    def to_json(self, targets: list[str]) -> dict[str, Any]:
        """Return a group of ``config_groups`` for some targets."""
        return {
            "targets": targets,
            "format": self.format,
            "weights": self.weight.to_json(),
            "input_activations": None if self.input is None else self.input.to_json(),
            "output_activations": None,
        }

    def __str__(self) -> str:
        """Return a short form: ``int4 group(32) weights, int8 token inputs``."""
        text = f"{_words(self.weight)} weights"
        return text if self.input is None else f"{text}, {_words(self.input)} inputs"


def scheme_of(layer: IntegerLayer) -> Scheme:
    """Return the scheme of a quantized layer.

    A layer that multiplies integers is stored as eight bits whatever the width of its weight:
    narrower integers are small numbers of eight bits, for which every server has a kernel.
    """
    is_integer = layer.input is not None and layer.group_size is None and layer.zero_point is None
    bits, strategy = 8 if is_integer else layer.bits, "group" if layer.group_size else "channel"
    weight = TensorScheme(bits, layer.zero_point is None, strategy, layer.group_size)
    given = layer.input
    if given is None:
        return Scheme(weight, None, PACKED)
    strategy, is_dynamic = given.granularity.removeprefix("per_"), given.scale is None
    input = TensorScheme(given.bits, given.symmetric, strategy, given.group_size, is_dynamic)
    return Scheme(weight, input, INT)


def parse_scheme(name: str, group: Any, top_format: str | None) -> tuple[list[str], Scheme | None]:
    """Read a group of ``config_groups``: its targets, and its scheme; None: it is floating.

    The name is a preset such as ``W4A16`` where the group is a list of targets. ``top_format`` is
    the format that the configuration names for groups without their own.
    """
    if isinstance(group, list):
        return _texts(f"{name}", group), _preset(name)
    if not isinstance(group, dict):
        raise ValueError(f"{name}: expected an object, but got {_kind(group)}")
    targets = _texts(f"{name}.targets", group.get("targets"))
    if group.get("output_activations") is not None:
        raise ValueError(
            f"{name}: expected floating outputs, but output_activations quantizes them; baraquant "
            "has no such layer"
        )
    if group.get("weights") is None:
        if group.get("input_activations") is not None:
            raise ValueError(f"{name}: expected quantized weights, but only inputs are quantized")
        return targets, None
    own = group.get("format") or top_format
    if not isinstance(own, str) or own not in FORMATS:
        raise ValueError(
            f"{name}: expected a format of {', '.join(FORMATS)}, but got {shown(own)}, whose "
            "numbers baraquant has no layer for"
        )
    weight = _tensor(f"{name}.weights", group["weights"])
    if weight.dynamic or weight.strategy == "token":
        raise ValueError(f"{name}.weights: expected fixed scales, but they are dynamic")
    given = group.get("input_activations")
    input = None if given is None else _tensor(f"{name}.input_activations", given)
    known = ("tensor", "token", "group") if input is not None and input.dynamic else ("tensor",)
    if input is not None and input.strategy not in known:
        raise ValueError(
            f"{name}.input_activations: expected one static scale, or dynamic ones for tensors, "
            f"tokens or groups, but got {'dynamic' if input.dynamic else 'static'} scales for each "
            f"{input.strategy}"
        )
    return targets, Scheme(weight, input, FORMATS[own])


def _preset(name: str) -> Scheme:
    if name.upper() not in _PRESETS:
        raise ValueError(
            f"{name}: expected a preset of {', '.join(_PRESETS)}, or an object with weights and "
            "input_activations"
        )
    bits, group_size, symmetric, input_bits = _PRESETS[name.upper()]
    weight = TensorScheme(bits, symmetric, "group" if group_size else "channel", group_size)
    if input_bits is None:
        return Scheme(weight, None, PACKED)
    return Scheme(weight, TensorScheme(input_bits, True, "token", None, True), INT)


def _tensor(name: str, given: Any) -> TensorScheme:
    if not isinstance(given, dict):
        raise ValueError(f"{name}: expected an object, but got {_kind(given)}")
    known = {"num_bits", "type", "symmetric", "strategy", "group_size", "dynamic"}
    extra = {
        key for key in given.keys() - known - _IRRELEVANT if given[key] not in (None, False, {})
    }
    if extra:
        raise ValueError(f"{name}: expected no {min(extra)}, which baraquant has no layer for")
    if str(given.get("actorder")).lower() in ("group", "dynamic", "true"):
        raise ValueError(
            f"{name}: expected columns in their order, but actorder is {shown(given['actorder'])}; "
            "quantize again with actorder='weight'"
        )
    if str(given.get("type", "int")).lower() != "int":
        raise ValueError(
            f"{name}: expected integers, but type is {shown(given['type'])}; baraquant has no "
            "layer for 4-bit or 8-bit floats"
        )
    bits, symmetric = given.get("num_bits", 8), given.get("symmetric", True)
    dynamic, size = given.get("dynamic", False), given.get("group_size")
    if type(bits) is not int or not 2 <= bits <= 8:
        raise ValueError(f"{name}: expected num_bits to lie in [2, 8], but got {shown(bits)}")
    for key, value in (("symmetric", symmetric), ("dynamic", dynamic)):
        if type(value) is not bool:
            raise ValueError(f"{name}: expected {key} to be true or false, but got {shown(value)}")
    if size is not None and (type(size) is not int or size < -1 or size == 0):
        raise ValueError(f"{name}: expected group_size > 0, -1 or null, but got {shown(size)}")
    size = None if size == -1 else size
    strategy = given.get("strategy")
    if strategy is None:
        strategy = "group" if size else "channel" if given.get("group_size") == -1 else "tensor"
    if not isinstance(strategy, str) or strategy not in _STRATEGIES:
        raise ValueError(
            f"{name}: expected a strategy of {', '.join(_STRATEGIES)}, but got {shown(strategy)}"
        )
    if (strategy == "group") != (size is not None):
        raise ValueError(
            f"{name}: expected a group_size for the strategy group and for no other, but got "
            f"{size} for {strategy}"
        )
    return TensorScheme(bits, symmetric, strategy, size, dynamic)


def _texts(name: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise ValueError(f"{name}: expected a list of texts, but got {_kind(given)}")
    return given


def _kind(value: Any) -> str:
    return "nothing" if value is None else shown(value)


def _words(tensor: TensorScheme) -> str:
    group = f"({tensor.group_size})" if tensor.group_size else ""
    zero = "" if tensor.symmetric else " asymmetric"
    how = " dynamic" if tensor.dynamic else ""
    return f"int{tensor.bits} {tensor.strategy}{group}{zero}{how}"
