# SPDX-License-Identifier: BSD-3-Clause
"""How a converted module is stored: its options, which are plain values, and its tensors.

All have the names of the constructor's arguments. So the constructor checks that they fit, on the
meta device, before any data is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..configs import integer_range
from ..nn import FakeQuantize, WeightOnlyInt4Linear
from ..nn.inference.weights import Int4Factors

_INPUT = "input_fake_quant"
_FLOATS = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16
)}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """A plain argument: how to read it from a module, what JSON may hold, and how to parse that."""

    read: Callable[[nn.Module], Any]
    is_valid: Callable[[Any], bool]
    expected: str
    parse: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Form:
    """How a class of modules is stored.

    Attributes:
        module: The class.
        options: The constructor's plain arguments.
        tensors: The constructor's tensors by their names in the state dict; True if required.
        takes_place: Whether the constructor takes all tensors as a mapping, and the float module
            that it replaces as ``like``, of which it keeps everything except the weights.
    """

    module: type[nn.Module]
    options: Mapping[str, Option]
    tensors: Mapping[str, bool]
    takes_place: bool = False

    def read(self, module: nn.Module) -> dict[str, Any]:
        """Return the options of a module as plain data.

        Raises:
            ValueError: A file cannot hold the value of an option.
        """
        values = {name: option.read(module) for name, option in self.options.items()}
        self._check_options(values)
        return values

    def _check_options(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if not self.options[name].is_valid(value):
                expected = self.options[name].expected
                raise ValueError(f"expected {name} to be {expected}, but got {value!r:.80}")

    def parse(self, options: Any) -> dict[str, Any]:
        """Return the constructor's arguments for options read from a file, checked.

        Raises:
            ValueError: An option is missing, unknown, or of another type.
        """
        if not isinstance(options, dict) or options.keys() != self.options.keys():
            got = sorted(options) if isinstance(options, dict) else options
            raise ValueError(f"expected the options {sorted(self.options)}, but got {got!r:.80}")
        self._check_options(options)
        return {name: self.options[name].parse(value) for name, value in options.items()}

    def build(
        self, options: dict[str, Any], tensors: dict[str, Tensor], like: nn.Module
    ) -> nn.Module:
        """Call the constructor.

        Args:
            options: The result of :meth:`parse`.
            like: The module that it replaces.
            tensors: The tensors by their names in the state dict. On the meta device everything is
                checked and nothing is computed.

        Raises:
            ValueError: A tensor is missing or unknown, or does not fit.
            TypeError: A tensor has another dtype.
        """
        for name, required in self.tensors.items():
            if required and name not in tensors:
                raise ValueError(f"expected a tensor {name}, but there is none")
        options, own = dict(options), dict(tensors)
        if self.takes_place:
            return self.module(own, like, **options)
        if options.get(_INPUT) is not None:
            parts = {name: own.pop(f"{_INPUT}.{name}", None) for name in ("scale", "zero_point")}
            options[_INPUT] = FakeQuantize(**parts, **options[_INPUT])
        unknown = own.keys() - self.tensors.keys()
        if unknown:
            raise ValueError(f"expected the tensors {sorted(self.tensors)}, but got {min(unknown)}")
        return self.module(**own, **options)

    def integers(self) -> list[str]:
        """Return the names of the tensors of weights."""
        return [name for name in self.tensors if name.endswith("qweight")]

    def check_names(self, module: nn.Module, sizes: Iterable[str] = ()) -> None:
        """Check that a module has the tensors and options of its form, and no other tensors.

        Args:
            module: A module of the form's class.
            sizes: Other attributes that it must have.

        Raises:
            ValueError: One is missing, or unknown.
        """
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
        """Check the values in a module's tensors.

        Raises:
            ValueError: A tensor is missing, an integer does not fit its width, or a scale is not
                finite and > 0.
        """
        own = module.state_dict()
        weight, input = integer_range(module.weight_bits), integer_range(getattr(module, "bits", 8))
        for name, required in self.tensors.items():
            tensor = own.get(name)
            if tensor is None and required:
                raise ValueError(
                    f"expected {type(module).__name__} to have a tensor {name}, but it has "
                    f"{', '.join(own) or 'none'}"
                )
            if tensor is None or name.endswith("bias"):
                continue
            if name == "group_factor":
                check_within(name, tensor, (1, 16))
            elif name == "group_zero_point":
                check_within(name, tensor, (0, 15))
            elif name.endswith(("qweight", "weight_zero_point")):
                check_within(name, tensor, weight)
            elif name == "packed" and isinstance(module, WeightOnlyInt4Linear):
                if module.weight_bits < 4:  # four bits hold no other numbers
                    check_within(name, module.qweight, weight)
            elif name.endswith("zero_point"):
                check_within(name, tensor, input)
            elif name.endswith(("scale", "smooth")):
                _check_positive(name, tensor)
        if isinstance(module, Int4Factors):
            module.check_products()
        rounder = getattr(module, _INPUT, None)
        if isinstance(rounder, FakeQuantize) and f"{_INPUT}.scale" in own:
            limits = rounder.quant_min, rounder.quant_max
            check_within(f"{_INPUT}.zero_point", rounder.zero_point, limits)
            _check_positive(f"{_INPUT}.scale", rounder.scale)


def check_within(name: str, tensor: Tensor, limits: tuple[int, int]) -> None:
    """Check that integers lie between two limits, which they may reach.

    Args:
        name: Their name, for the message.
        tensor: The integers.
        limits: The least and the largest that are allowed.

    Raises:
        ValueError: One lies outside.
    """
    if tensor.numel() == 0:
        return
    least, most = (int(end) for end in torch.aminmax(tensor))
    if least < limits[0] or most > limits[1]:
        raise ValueError(
            f"{name}: expected integers in [{limits[0]}, {limits[1]}], but got {least} to {most}"
        )


def _check_positive(name: str, tensor: Tensor) -> None:
    if not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
        raise ValueError(f"{name}: expected finite numbers > 0, but it holds others")


def attribute_option(name: str, is_valid: Callable[[Any], bool], expected: str) -> Option:
    """Return an option that is the attribute of the same name."""
    return Option(lambda module: getattr(module, name), is_valid, expected)


def is_int(value: Any) -> bool:
    """Return whether a value is an integer of 64 bits, and not a bool."""
    return type(value) is int and -(2**63) <= value < 2**63


def bool_option(name: str) -> Option:
    """Return an option that is a bool."""
    return attribute_option(name, lambda value: type(value) is bool, "true or false")


def int_option(name: str) -> Option:
    """Return an option that is an integer."""
    return attribute_option(name, is_int, "a whole number")


def maybe_int_option(name: str) -> Option:
    """Return an option that is an integer above 0, or None."""
    return Option(
        lambda module: getattr(module, name) or None,
        lambda value: value is None or is_int(value),
        "a whole number or null",
    )


def index_option(name: str) -> Option:
    """Return an option that is an integer, or None."""
    return attribute_option(name, lambda v: v is None or is_int(v), "a whole number or null")


def dtype_option(name: str) -> Option:
    """Return an option that is a floating dtype."""
    return Option(
        lambda module: str(getattr(module, name)).removeprefix("torch."),
        lambda value: isinstance(value, str) and value in _FLOATS,
        f"one of {', '.join(_FLOATS)}",
        lambda value: _FLOATS[value],
    )


def _read_rounder(module: nn.Module) -> dict[str, Any] | None:
    rounder = getattr(module, _INPUT)
    if not isinstance(rounder, FakeQuantize):
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
        "group_size": lambda entry: entry is None or is_int(entry),
        "axis": lambda entry: entry is None or is_int(entry),
        "quant_min": is_int,
        "quant_max": is_int,
        "symmetric": lambda entry: type(entry) is bool,
    }
    return (
        isinstance(value, dict)
        and value.keys() == types.keys()
        and all(is_valid(value[name]) for name, is_valid in types.items())
    )


def _is_tuple(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 3 and all(is_int(v) for v in value)


def sizes_option(name: str) -> Option:
    """Return an option of integers, such as a stride; a padding may be a string."""
    return Option(
        lambda module: v if isinstance(v := getattr(module, name), str) else list(v),
        lambda value: _is_tuple(value) or (name == "padding" and isinstance(value, str)),
        "one to three whole numbers",
        lambda value: value if isinstance(value, str) else tuple(value),
    )


def name_option(name: str) -> Option:
    """Return an option that is a name."""
    return attribute_option(name, lambda value: isinstance(value, str), "a name")


def maybe_name_option(name: str) -> Option:
    """Return an option that is a name, or None."""
    return attribute_option(name, lambda v: v is None or isinstance(v, str), "a name or null")


def plain_option(name: str) -> Option:
    """Return an option of a registered kind of layer: any plain value."""
    return Option(
        lambda module: _plain(getattr(module, name)),
        lambda value: (
            value is None
            or type(value) in (bool, str)
            or (type(value) is float and math.isfinite(value))
            or is_int(value)
            or (isinstance(value, list) and all(is_int(entry) for entry in value))
        ),
        "a plain value",
        lambda value: tuple(value) if isinstance(value, list) else value,
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def rounder_option(name: str) -> Option:
    """Return the option that says how an input is rounded."""
    return Option(_read_rounder, _is_rounder, "how the input is rounded, or null")


_KINDS: dict[str, Callable[[str], Option]] = {
    "bool": bool_option, "int": int_option, "maybe_int": maybe_int_option, "index": index_option,
    "name": name_option, "maybe_name": maybe_name_option, "dtype": dtype_option,
    "sizes": sizes_option, "rounder": rounder_option, "plain": plain_option,
}  # fmt: skip


def options(**kinds: str) -> dict[str, Option]:
    """Return options by their names, each of a kind: ``options(bits="int")``."""
    return {name: _KINDS[kind](name) for name, kind in kinds.items()}
