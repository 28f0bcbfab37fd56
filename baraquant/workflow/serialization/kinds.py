# SPDX-License-Identifier: BSD-3-Clause
"""The modules that a file may hold: their options, their tensors, and whose place they take.

A module is its class, its options (plain values) and its tensors, all by the names of the
constructor's arguments. So the constructor is what checks that they fit, on the meta device, before
a byte of data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ... import nn as bnn

_INPUT = "input_fake_quant"
_FLOATS = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16
)}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """A plain argument: how it is read off a module, what JSON may hold, what becomes of that."""

    read: Callable[[nn.Module], Any]
    is_valid: Callable[[Any], bool]
    expected: str
    parse: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Kind:
    """How a class of modules is stored.

    Attributes:
        module: The class.
        replaces: The float module that has its place in the model.
        sizes: The attributes in which both agree.
        options: The constructor's plain arguments.
        tensors: The constructor's tensors by their names in the state dict; True: always there.
        younger: Those of the options that files of format 1 have not; None there.
    """

    module: type[nn.Module]
    replaces: type[nn.Module]
    sizes: tuple[str, ...]
    options: Mapping[str, Option]
    tensors: Mapping[str, bool]
    younger: frozenset[str] = frozenset()

    def read(self, module: nn.Module) -> dict[str, Any]:
        """Return the options of a module as plain data."""
        return {name: option.read(module) for name, option in self.options.items()}

    def parse(self, options: Any, version: int) -> dict[str, Any]:
        """Return the constructor's arguments for options read from a file, checked.

        Args:
            options: What the file has.
            version: Its format.

        Raises:
            ValueError: An option is missing, unknown, or of another type.
        """
        absent = self.younger if version == 1 else frozenset()
        known = self.options.keys() - absent
        if not isinstance(options, dict) or options.keys() != known:
            got = sorted(options) if isinstance(options, dict) else options
            raise ValueError(f"expected the options {sorted(known)}, but got {got!r:.80}")
        for name, value in options.items():
            if not self.options[name].is_valid(value):
                expected = self.options[name].expected
                raise ValueError(f"expected {name} to be {expected}, but got {value!r:.80}")
        parsed = {name: self.options[name].parse(value) for name, value in options.items()}
        return parsed | dict.fromkeys(absent)

    def build(self, options: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
        """Call the constructor.

        Args:
            options: What :meth:`parse` returned.
            tensors: By their names in the state dict; on the meta device, all is checked and
                nothing computed.

        Raises:
            ValueError: A tensor is missing or unknown, or something does not fit.
            TypeError: A tensor has another dtype.
        """
        for name, required in self.tensors.items():
            if required and name not in tensors:
                raise ValueError(f"expected a tensor {name}, but there is none")
        options, own = dict(options), dict(tensors)
        if options.get(_INPUT) is not None:
            parts = {name: own.pop(f"{_INPUT}.{name}", None) for name in ("scale", "zero_point")}
            options[_INPUT] = bnn.FakeQuantize(**parts, **options[_INPUT])
        unknown = own.keys() - self.tensors.keys()
        if unknown:
            raise ValueError(f"expected the tensors {sorted(self.tensors)}, but got {min(unknown)}")
        return self.module(**own, **options)


def check_values(module: nn.Module) -> None:
    """Check the numbers within a module's tensors.

    Raises:
        ValueError: An integer beyond its width, or a scale that is not finite and > 0.
    """
    half = 1 << (module.weight_bits - 1)
    input_half = 1 << (getattr(module, "bits", 8) - 1)
    limits = {
        "qweight": (-half, half - 1),
        "weight_zero_point": (-half, half - 1),
        "act_zero_point": (-input_half, input_half - 1),
    }
    rounder = getattr(module, _INPUT, None)
    if isinstance(rounder, bnn.FakeQuantize):
        limits[f"{_INPUT}.zero_point"] = (rounder.quant_min, rounder.quant_max)
    for name, tensor in module.state_dict().items():
        if tensor.numel() == 0:
            continue
        if name in limits:
            low, high = limits[name]
            least, most = (int(end) for end in torch.aminmax(tensor))
            if least < low or most > high:
                raise ValueError(
                    f"{name}: expected integers in [{low}, {high}], but got {least} to {most}"
                )
        elif name != "bias" and not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
            raise ValueError(f"{name}: expected finite numbers > 0, but it holds others")


def _attribute(name: str, is_valid: Callable[[Any], bool], expected: str) -> Option:
    return Option(lambda module: getattr(module, name), is_valid, expected)


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _bool(name: str) -> Option:
    return _attribute(name, lambda value: type(value) is bool, "true or false")


def _int(name: str) -> Option:
    return _attribute(name, _is_int, "a whole number")


def _maybe_int(name: str) -> Option:
    return Option(
        lambda module: getattr(module, name) or None,
        lambda value: value is None or _is_int(value),
        "a whole number or null",
    )


def _dtype(name: str) -> Option:
    return Option(
        lambda module: str(getattr(module, name)).removeprefix("torch."),
        lambda value: isinstance(value, str) and value in _FLOATS,
        f"one of {', '.join(_FLOATS)}",
        lambda value: _FLOATS[value],
    )


def _read_rounder(module: nn.Module) -> dict[str, Any] | None:
    rounder = getattr(module, _INPUT)
    if not isinstance(rounder, bnn.FakeQuantize):
        return None
    return {
        "mode": rounder.mode,
        "granularity": rounder.granularity,
        "group_size": rounder.group_size or None,
        "axis": rounder.axis if rounder.granularity in ("per_channel", "per_group") else None,
        "quant_min": rounder.quant_min,
        "quant_max": rounder.quant_max,
        "symmetric": rounder.symmetric,
    }


def _is_rounder(value: Any) -> bool:
    if value is None:
        return True
    types: dict[str, Callable[[Any], bool]] = {
        "mode": lambda entry: entry in ("fixed", "dynamic"),
        "granularity": lambda entry: isinstance(entry, str),
        "group_size": lambda entry: entry is None or _is_int(entry),
        "axis": lambda entry: entry is None or _is_int(entry),
        "quant_min": _is_int,
        "quant_max": _is_int,
        "symmetric": lambda entry: type(entry) is bool,
    }
    return (
        isinstance(value, dict)
        and value.keys() == types.keys()
        and all(is_valid(value[name]) for name, is_valid in types.items())
    )


def _is_tuple(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 2 and all(_is_int(v) for v in value)


def _tuple(name: str) -> Option:
    """Return an option of whole numbers, such as a stride; a padding may be a word."""
    return Option(
        lambda module: v if isinstance(v := getattr(module, name), str) else list(v),
        lambda value: _is_tuple(value) or (name == "padding" and isinstance(value, str)),
        "one or two whole numbers",
        lambda value: value if isinstance(value, str) else tuple(value),
    )


def _name(name: str) -> Option:
    return _attribute(name, lambda value: isinstance(value, str), "a name")


_ROUNDER = Option(_read_rounder, _is_rounder, "how the input is rounded, or null")
_CONV_SIZES = ("stride", "padding", "dilation", "groups", "padding_mode")


def _conv(module: type[nn.Module], replaces: type[nn.Module]) -> Kind:
    options = {
        "groups": _int("groups"),
        "padding_mode": _name("padding_mode"),
        "weight_bits": _int("weight_bits"),
        "dtype": _dtype("dtype"),
        _INPUT: _ROUNDER,
        **{name: _tuple(name) for name in ("stride", "padding", "dilation")},
    }
    sizes = ("in_channels", "out_channels", "kernel_size", *_CONV_SIZES)
    tensors = {**_LINEAR, "weight_zero_point": False}
    return Kind(module, replaces, sizes, options, tensors, _YOUNGER)


_YOUNGER = frozenset({"dtype"})
_LINEAR = {"qweight": True, "weight_scale": True, "bias": False}
_LINEAR_SIZES = ("in_features", "out_features")

KINDS = {
    kind.module.__name__: kind
    for kind in (
        Kind(
            bnn.QuantizedLinear,
            nn.Linear,
            _LINEAR_SIZES,
            {
                "symmetric": _bool("symmetric"),
                "bits": _int("bits"),
                "granularity": _name("granularity"),
                "weight_bits": _int("weight_bits"),
                "dtype": _dtype("dtype"),
            },
            {**_LINEAR, "smooth": False},
            _YOUNGER,
        ),
        Kind(
            bnn.StaticQuantizedLinear,
            nn.Linear,
            _LINEAR_SIZES,
            {
                "bits": _int("bits"),
                "weight_bits": _int("weight_bits"),
                "dtype": _dtype("dtype"),
            },
            {**_LINEAR, "act_scale": True, "act_zero_point": False, "smooth_scale": False},
            _YOUNGER,
        ),
        Kind(
            bnn.WeightOnlyLinear,
            nn.Linear,
            _LINEAR_SIZES,
            {
                "group_size": _maybe_int("group_size"),
                "weight_bits": _int("weight_bits"),
                "dtype": _dtype("dtype"),
                _INPUT: _ROUNDER,
            },
            {**_LINEAR, "weight_zero_point": False},
            _YOUNGER,
        ),
        Kind(
            bnn.QuantizedEmbedding,
            nn.Embedding,
            ("num_embeddings", "embedding_dim", "padding_idx"),
            {
                "group_size": _maybe_int("group_size"),
                "weight_bits": _int("weight_bits"),
                "padding_idx": Option(
                    lambda module: module.padding_idx,
                    lambda value: value is None or _is_int(value),
                    "a whole number or null",
                ),
                "dtype": _dtype("dtype"),
            },
            {"qweight": True, "weight_scale": True, "weight_zero_point": False},
        ),
        _conv(bnn.QuantizedConv1d, nn.Conv1d),
        _conv(bnn.QuantizedConv2d, nn.Conv2d),
    )
}
