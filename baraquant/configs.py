# SPDX-License-Identifier: BSD-3-Clause
"""Configurations: what is quantized, and how. Frozen, comparable, and plain dictionaries on demand.

:class:`W8A8`, :class:`W8A8Static` and :class:`SmoothQuant` are whole schemes, for
:func:`baraquant.quantize_` and (but for the last) :func:`baraquant.qat.prepare_`.
:class:`QuantConfig` puts one together from a :class:`TensorConfig` for the weights and one for the
activations, of 2 to 8 bits each. Nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

VERSION = 1  # of the dictionaries

GRANULARITIES = ("per_tensor", "per_channel", "per_token", "per_group")
OBSERVERS = ("min_max", "moving_average", "percentile", "mse")
TRAINING_OBSERVERS = ("min_max", "moving_average")

C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """What all configurations share: a name, and the way to a dictionary and back."""

    scheme: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data (JSON can hold it), with the scheme and a version."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain = {k: v.to_dict() if isinstance(v, Config) else v for k, v in values.items()}
        return {"scheme": self.scheme, "version": VERSION, **plain}

    @classmethod
    def from_dict(cls: type[C], data: dict[str, Any]) -> C:
        """Return the configuration that :meth:`to_dict` wrote; on ``Config`` itself, of any scheme.

        Raises:
            ValueError: Another scheme, a newer version, a missing or unknown field, or a value that
                the configuration refuses.
            TypeError: Something of another type, such as a list for the dictionary.
        """
        if not isinstance(data, dict):
            raise TypeError(f"{cls.__name__}: expected a dict, but got {type(data).__name__}")
        version, scheme = data.get("version"), data.get("scheme")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise ValueError(
                f"{cls.__name__}: expected version to be at most {VERSION}, but got {version!r}; "
                "a newer baraquant may have written it"
            )
        kind = _kinds().get(scheme) if isinstance(scheme, str) else None
        if kind is None or not issubclass(kind, cls):
            known = cls.scheme or ", ".join(_kinds())
            raise ValueError(f"{cls.__name__}: expected scheme {known}, but got {scheme!r}")
        names = {entry.name for entry in fields(kind)}
        given = data.keys() - {"scheme", "version"}
        if given != names:
            raise ValueError(
                f"{kind.__name__}: expected the fields {_listed(names)}, but got {_listed(given)}"
            )
        values = {
            name: Config.from_dict(data[name]) if isinstance(data[name], dict) else data[name]
            for name in names
        }
        return kind(**values)


@dataclass(frozen=True)
class TensorConfig(Config):
    """How one tensor, a weight or an activation, becomes integers.

    Attributes:
        bits: Width of the integers, 2 to 8. They are signed: 4 bits are [-8, 7].
        granularity: What shares a scale. Of a weight: ``per_tensor``, ``per_channel`` (an output
            channel, or an embedding's row) or ``per_group``. Of an activation: ``per_tensor``,
            ``per_token`` or ``per_group``.
        symmetric: True puts zero in the middle; False adds a zero point.
        dynamic: True takes the scale from the values of the moment; False keeps one that training
            observes or learns. None: True unless ``learned``.
        learned: Whether the scale (and the zero point, where there is one) is a parameter that is
            trained (LSQ, LSQ+).
        group_size: Neighbours that share a scale, for ``per_group``.

    Example:
        >>> baraquant.TensorConfig(bits=4, granularity="per_group", group_size=32).quant_max
        7
    """

    scheme: ClassVar[str] = "fake_quant"

    bits: int = 8
    granularity: str = "per_channel"
    symmetric: bool = True
    dynamic: bool | None = None
    learned: bool = False
    group_size: int | None = None

    def __post_init__(self) -> None:
        """Check every field, and settle ``dynamic``."""
        _check_int(self, "bits")
        _check_bools(self, "symmetric", "learned")
        if not 2 <= self.bits <= 8:
            raise ValueError(f"TensorConfig: expected bits to lie in [2, 8], but got {self.bits}")
        _check_choice(self, "granularity", GRANULARITIES)
        if self.dynamic is None:
            object.__setattr__(self, "dynamic", not self.learned)
        _check_bools(self, "dynamic")
        if self.learned and self.dynamic:
            raise ValueError(
                "TensorConfig: expected dynamic=False (or none given) for a learned scale: "
                "a dynamic one comes from the values"
            )
        if self.granularity == "per_token" and not self.dynamic:
            raise ValueError(
                "TensorConfig: expected dynamic=True for per_token: the tokens to come are not "
                "known"
            )
        if self.granularity == "per_group":
            _check_int(self, "group_size")
            if self.group_size is not None and self.group_size <= 0:
                raise ValueError(
                    f"TensorConfig: expected group_size > 0, but got {self.group_size}"
                )
        elif self.group_size is not None:
            raise ValueError(
                f"TensorConfig: expected no group_size for {self.granularity}, "
                f"but got {self.group_size}"
            )

    @property
    def quant_min(self) -> int:
        """The smallest integer."""
        return -(1 << (self.bits - 1))

    @property
    def quant_max(self) -> int:
        """The largest integer."""
        return (1 << (self.bits - 1)) - 1

    def __str__(self) -> str:
        """Say it in a few words: ``int4 per_group(32) symmetric dynamic``."""
        group = "" if self.group_size is None else f"({self.group_size})"
        how = "learned" if self.learned else "dynamic" if self.dynamic else "static"
        zero = "symmetric" if self.symmetric else "asymmetric"
        return f"int{self.bits} {self.granularity}{group} {zero} {how}"


@dataclass(frozen=True)
class QuantConfig(Config):
    """Any combination for quantization-aware training.

    Attributes:
        weight: How weights are quantized.
        activation: How the inputs of layers are quantized; None leaves them floating.
        observer: What a static ``activation`` follows: ``moving_average`` (by 1 % of the way to
            each batch) or ``min_max`` (ever seen).

    Example:
        >>> int4 = baraquant.TensorConfig(bits=4)
        >>> int8 = baraquant.TensorConfig(bits=8, granularity="per_token")
        >>> config = baraquant.QuantConfig(weight=int4, activation=int8)
        >>> baraquant.QuantConfig.from_dict(config.to_dict()) == config
        True
    """

    scheme: ClassVar[str] = "qat"

    weight: TensorConfig
    activation: TensorConfig | None = None
    observer: str = "moving_average"

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("weight", "activation"):
            value = getattr(self, name)
            if not isinstance(value, TensorConfig) and not (name == "activation" and value is None):
                raise TypeError(
                    f"QuantConfig: expected {name} to be a TensorConfig, "
                    f"but got {type(value).__name__}"
                )
        _check_choice(self, "observer", TRAINING_OBSERVERS)
        if self.weight.granularity == "per_token":
            raise ValueError(
                "QuantConfig: expected weight.granularity to be per_tensor, per_channel or "
                "per_group, but got 'per_token'"
            )
        activation = self.activation
        if activation is None:
            return
        if activation.granularity == "per_channel":
            raise ValueError(
                "QuantConfig: expected activation.granularity to be per_tensor, per_token or "
                "per_group, but got 'per_channel'"
            )
        if activation.granularity == "per_group" and not activation.dynamic:
            raise ValueError(
                "QuantConfig: expected a dynamic activation for per_group: a static one has one "
                "scale (per_tensor)"
            )


@dataclass(frozen=True)
class W8A8(Config):
    """int8 weights, a scale per channel; int8 activations, a scale per token and of the moment.

    Attributes:
        symmetric: Whether the activations' integers have zero in the middle; else a zero point.
    """

    scheme: ClassVar[str] = "w8a8"

    symmetric: bool = True

    def __post_init__(self) -> None:
        """Check every field."""
        _check_bools(self, "symmetric")


@dataclass(frozen=True)
class W8A8Static(Config):
    """int8 weights, a scale per channel; int8 activations, one scale per layer from calibration.

    Attributes:
        observer: What calibration makes of the values it sees: ``min_max``, ``moving_average``,
            ``percentile`` or ``mse``. Training follows one of the first two.
        symmetric: Whether the activations' integers have zero in the middle; else a zero point.
    """

    scheme: ClassVar[str] = "w8a8_static"

    observer: str = "min_max"
    symmetric: bool = True

    def __post_init__(self) -> None:
        """Check every field."""
        _check_choice(self, "observer", OBSERVERS)
        _check_bools(self, "symmetric")


@dataclass(frozen=True)
class SmoothQuant(Config):
    """W8A8 after the activations' outliers have moved into the weights (Xiao et al. 2023).

    Attributes:
        alpha: How much moves, in [0, 1]; ``"search"`` tries several and takes, for each layer, the
            one with the least output error.
        activation: How the smoothed activations are quantized.
    """

    scheme: ClassVar[str] = "smoothquant"

    alpha: float | str = 0.5
    activation: W8A8 | W8A8Static = field(default_factory=W8A8)

    def __post_init__(self) -> None:
        """Check every field."""
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float, str)):
            raise TypeError(
                "SmoothQuant: expected alpha to be a number or 'search', "
                f"but got {type(self.alpha).__name__}"
            )
        is_search = self.alpha == "search"
        is_number = not isinstance(self.alpha, str) and math.isfinite(self.alpha)
        if not is_search and not (is_number and 0.0 <= float(self.alpha) <= 1.0):
            raise ValueError(
                "SmoothQuant: expected alpha to lie in [0, 1] or to be 'search', "
                f"but got {self.alpha!r}"
            )
        if not isinstance(self.activation, (W8A8, W8A8Static)):
            raise TypeError(
                "SmoothQuant: expected activation to be W8A8 or W8A8Static, "
                f"but got {type(self.activation).__name__}"
            )


def qat_config(config: Config) -> QuantConfig:
    """Return the :class:`QuantConfig` that trains for a scheme.

    Raises:
        TypeError: Not a configuration.
        ValueError: A scheme that training cannot follow: :class:`SmoothQuant`, or an observer that
            only calibration has.
    """
    weight = TensorConfig(bits=8, granularity="per_channel")
    if isinstance(config, QuantConfig):
        return config
    if isinstance(config, W8A8):
        return QuantConfig(weight, TensorConfig(8, "per_token", config.symmetric))
    if isinstance(config, W8A8Static):
        if config.observer not in TRAINING_OBSERVERS:
            raise ValueError(
                f"W8A8Static: expected observer to be {' or '.join(TRAINING_OBSERVERS)} for "
                f"training, but got {config.observer!r}; calibrate with baraquant.quantize_ for it"
            )
        activation = TensorConfig(8, "per_tensor", config.symmetric, dynamic=False)
        return QuantConfig(weight, activation, config.observer)
    if isinstance(config, SmoothQuant):
        raise ValueError(
            "SmoothQuant: expected a scheme that training can follow; SmoothQuant needs "
            "calibration: use baraquant.quantize_, or train with W8A8 or W8A8Static"
        )
    raise TypeError(
        f"expected config to be a QuantConfig, W8A8 or W8A8Static, but got {what_it_is(config)}"
    )


def what_it_is(config: Any) -> str:
    """Say for a message what was given in the place of a configuration."""
    if not isinstance(config, type):
        return type(config).__name__
    if not issubclass(config, Config):
        return f"the class {config.__name__}"
    arguments = "..." if config is QuantConfig else ""
    return f"the class {config.__name__}; write {config.__name__}({arguments})"


def _kinds() -> dict[str, type[Config]]:
    kinds: list[type[Config]] = [TensorConfig, QuantConfig, W8A8, W8A8Static, SmoothQuant]
    return {kind.scheme: kind for kind in kinds}


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "none"


def _check_int(config: Config, name: str) -> None:
    value = getattr(config, name)
    if type(value) is not int:
        raise TypeError(
            f"{type(config).__name__}: expected {name} to be an int, but got {type(value).__name__}"
        )


def _check_bools(config: Config, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if type(value) is not bool:
            raise TypeError(
                f"{type(config).__name__}: expected {name} to be a bool, "
                f"but got {type(value).__name__}"
            )


def _check_choice(config: Config, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if not isinstance(value, str):
        raise TypeError(
            f"{type(config).__name__}: expected {name} to be a str, but got {type(value).__name__}"
        )
    if value not in choices:
        raise ValueError(
            f"{type(config).__name__}: expected {name} to be one of {', '.join(choices)}, "
            f"but got {value!r}"
        )
