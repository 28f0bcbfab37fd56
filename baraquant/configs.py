# SPDX-License-Identifier: BSD-3-Clause
"""Configurations: what is quantized, and how. They are immutable, comparable and serializable.

A :class:`QuantConfig` consists of a :class:`TensorConfig` for the weights and one for the
activations, each with 2 to 8 bits. ``schemes.py`` defines the common schemes. Nothing here needs
torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from ._fields import check_bools, check_choice, check_int, check_rotation, check_type
from ._table import one_line, shown, some
from .granularity import GRANULARITIES, Granularity, PerGroup

VERSION = 1  # of the dictionaries
_DEEPEST = 8  # configurations within configurations

C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """The base of all configurations: a name, and the conversion to a dictionary and back."""

    scheme: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Config]]] = {}  # by the scheme that a dictionary names

    def __init_subclass__(cls) -> None:
        if "scheme" in vars(cls):
            Config.kinds[cls.scheme] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data (JSON can hold it), with the scheme and a version."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain = {k: v.to_dict() if isinstance(v, Config) else v for k, v in values.items()}
        return {"scheme": self.scheme, "version": VERSION, **plain}

    @classmethod
    def from_dict(cls: type[C], data: dict[str, Any]) -> C:
        """Return the configuration that :meth:`to_dict` wrote; ``Config`` itself takes any.

        Raises:
            ValueError: The scheme or the version is another one, a field is missing or unknown, or
                a value is invalid.
            TypeError: A value has another type, for example a list instead of the dictionary.
        """
        return cls._read(data, _DEEPEST)

    @classmethod
    def _read(cls: type[C], data: Any, depth: int) -> C:
        if not isinstance(data, dict):
            raise TypeError(f"{cls.__name__}: expected a dict, but got {type(data).__name__}")
        if depth == 0:
            raise ValueError(f"{cls.__name__}: expected at most {_DEEPEST} levels of dictionaries")
        version, scheme = data.get("version"), data.get("scheme")
        if type(version) is not int or version != VERSION:
            raise ValueError(
                f"{cls.__name__}: expected version {VERSION}, but got {shown(version)}; a newer "
                "baraquant may have written it"
            )
        kind = cls.kinds.get(scheme) if isinstance(scheme, str) else None
        if kind is None or not issubclass(kind, cls):
            known = cls.scheme or ", ".join(cls.kinds)
            raise ValueError(f"{cls.__name__}: expected scheme {known}, but got {shown(scheme)}")
        names = {entry.name for entry in fields(kind)}
        given = data.keys() - {"scheme", "version"}
        if given != names:
            raise ValueError(
                f"{kind.__name__}: expected the fields {_listed(names)}, but got {_listed(given)}"
            )
        values = {
            name: Config._read(data[name], depth - 1)
            if isinstance(data[name], dict)
            else data[name]
            for name in names
        }
        try:
            return kind(**values)
        except (TypeError, ValueError) as error:  # a value in it may be of any length
            raise type(error)(one_line(str(error))) from None


def _listed(names: Any) -> str:
    return one_line(some(sorted(map(str, names)), 20), 400) or "none"


OBSERVERS = ("min_max", "moving_average", "percentile", "mse")
# The observers that training can update with each batch.
TRAINING_OBSERVERS = ("min_max", "moving_average")
SCALE_RULES = ("search", "lattice", "max")
SCALE_DTYPES = ("float32", "bfloat16", "float16")
MASTERS = ("bfloat16", "float16")
BACKWARDS = ("float", "int8_input", "int8")
ROUNDINGS = ("nearest", "stochastic")
_CHOICES = {
    "observer": OBSERVERS,
    "scale_rule": SCALE_RULES,
    "scale_dtype": SCALE_DTYPES,
    "backward": BACKWARDS,
    "rounding": ROUNDINGS,
    "master": MASTERS,
}


def integer_range(bits: int) -> tuple[int, int]:
    """Return the smallest and the largest signed integer of a width."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


@dataclass(frozen=True)
class TensorConfig(Config):
    """How one tensor, a weight or an activation, becomes integers.

    Attributes:
        bits: The width of the integers, 2 to 8. They are signed: 4 bits are [-8, 7].
        granularity: Which values share a scale. For a weight: ``PerTensor()``, ``PerChannel()`` (an
            output channel, or a row of an embedding) or ``PerGroup(size)``. For an activation:
            ``PerTensor()``, ``PerToken()`` or ``PerGroup(size)``. Their names (``"per_tensor"``)
            are accepted too, and the attribute holds the name.
        symmetric: True for no zero point: 0 is in the middle of the range. False adds a zero point.
        dynamic: True computes the scale from the values in each call. False keeps a scale that
            training or calibration observes, or that training learns. None: True unless
            ``learned``.
        learned: Whether the scale, and the zero point if there is one, is a trained parameter (LSQ,
            LSQ+). That of a weight starts as :func:`baraquant.quantize_` finds it.
        group_size: The number of adjacent values that share a scale, for ``"per_group"``.
        group_factors: For weights of linear layers with 2 to 4 bits in groups. True makes the scale
            of a group a whole number from 1 to 16 times one scale of the channel, so that a product
            with integers is one exact sum over all groups: :class:`baraquant.nn.FakeQuantizeInt4`,
            or :class:`baraquant.nn.LearnedFakeQuantizeInt4` with ``learned``. Other kinds of layers
            keep a floating scale for each group.
        ternary: For weights with 2 bits. True makes their integers -1, 0 and 1, and the scale the
            mean of the absolute values that share it (BitNet b1.58):
            :class:`baraquant.nn.FakeQuantizeTernary`.

    Example:
        >>> config = baraquant.TensorConfig(bits=4, granularity=baraquant.PerGroup(32))
        >>> config.granularity, config.group_size, config.quant_max
        ('per_group', 32, 7)
    """

    scheme: ClassVar[str] = "tensor"

    bits: int = 8
    granularity: str | Granularity = "per_channel"
    symmetric: bool = True
    dynamic: bool | None = None
    learned: bool = False
    group_size: int | None = None
    group_factors: bool = False
    ternary: bool = False

    def __post_init__(self) -> None:
        """Check every field, and settle ``dynamic`` and the name of the granularity."""
        self._take_granularity()
        check_int(self, "bits")
        check_bools(self, "symmetric", "learned")
        if not 2 <= self.bits <= 8:
            raise ValueError(f"TensorConfig: expected bits to lie in [2, 8], but got {self.bits}")
        check_choice(self, "granularity", GRANULARITIES)
        if self.dynamic is None:
            object.__setattr__(self, "dynamic", not self.learned)
        check_bools(self, "dynamic")
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
            check_int(self, "group_size")
            if self.group_size is not None and self.group_size <= 0:
                raise ValueError(
                    f"TensorConfig: expected group_size > 0, but got {self.group_size}"
                )
        elif self.group_size is not None:
            raise ValueError(
                f"TensorConfig: expected no group_size for {self.granularity}, "
                f"but got {self.group_size}"
            )
        check_bools(self, "group_factors", "ternary")
        is_even = self.group_size is not None and self.group_size % 2 == 0
        is_known = self.dynamic or self.learned
        if self.group_factors and not (self.bits <= 4 and is_even and is_known):
            raise ValueError(
                "TensorConfig: expected 2 to 4 bits, granularity=PerGroup of an even size, and "
                f"dynamic=True or learned=True with group_factors=True, but got {self}"
            )
        is_plain = self.bits == 2 and self.symmetric and self.dynamic and not self.group_factors
        if self.ternary and not is_plain:
            raise ValueError(
                "TensorConfig: expected 2 bits, symmetric=True, dynamic=True and "
                f"group_factors=False with ternary=True, but got {self}"
            )

    def _take_granularity(self) -> None:
        given = self.granularity
        if isinstance(given, type) and issubclass(given, Granularity):
            raise TypeError(
                f"TensorConfig: expected granularity to be an instance, but got the class "
                f"{given.__name__}; write {given.__name__}({'32' if given is PerGroup else ''})"
            )
        if not isinstance(given, Granularity):
            return
        if self.group_size is not None:
            raise ValueError(
                f"TensorConfig: expected no group_size beside {given!r}, but got {self.group_size}"
            )
        object.__setattr__(self, "granularity", given.name)
        if isinstance(given, PerGroup):
            object.__setattr__(self, "group_size", given.group_size)

    @property
    def quant_min(self) -> int:
        """The smallest integer."""
        return -1 if self.ternary else integer_range(self.bits)[0]

    @property
    def quant_max(self) -> int:
        """The largest integer."""
        return integer_range(self.bits)[1]

    @property
    def gives_integers(self) -> bool:
        """Whether the integers of products in training come from the weight's fake quantizer."""
        return self.group_factors or (self.ternary and self.group_size is None)

    def __str__(self) -> str:
        """Return a short description: ``int4 per_group(32) symmetric dynamic``."""
        group = "" if self.group_size is None else f"({self.group_size})"
        how = "learned" if self.learned else "dynamic" if self.dynamic else "static"
        zero = "symmetric" if self.symmetric else "asymmetric"
        more = " factors" if self.group_factors else " ternary" if self.ternary else ""
        return f"int{self.bits} {self.granularity}{group} {zero} {how}{more}"


@dataclass(frozen=True)
class QuantConfig(Config):
    """A scheme: how the weights and the inputs of layers become integers.

    Attributes:
        weight: How weights are quantized.
        activation: How the inputs of layers are quantized; None leaves them floating.
        observer: How to find the range of a static ``activation``: ``min_max`` (the minimum and the
            maximum of all data), ``moving_average`` (in which each batch counts 1 %),
            ``percentile`` (without the most extreme 0.01 % of the values) or ``mse`` (the range
            with the minimum squared error). Training updates the first two with each batch. The
            other two come from the calibration data of :func:`baraquant.qat.prepare_`, and do not
            change.
        scale_rule: How to find a scale of weights that is not trained, and the scale, the zero
            point and the factors that ``learned`` ones start from: a model that is prepared and
            converted at once has the integers and scales of :func:`baraquant.quantize_`.
            ``search`` looks first whether the weight is
            integers times scales already, as after quantization-aware training elsewhere, and takes
            scales that give the weight's own bits; a few scales decide whether all are tried. Below
            eight bits it otherwise tries 26 scales, from the one for the largest absolute value
            down to half of it (with two or three bits 41, down to a fifth), or all factors, and
            takes the one with the minimum squared error.
            ``lattice`` does the same, but tries every scale. ``max`` takes the scale for the
            largest absolute value. Weights that are ``ternary`` have a rule of their own.
        scale_dtype: The dtype in which a server will hold the scales of weights: ``float32``,
            ``bfloat16`` or ``float16``. Every scale of a weight is rounded to it, to the nearest
            number and of two to the even one, before the weight is quantized: in training, in
            evaluation and by :func:`baraquant.quantize_`, whose search compares rounded scales.
            The integers and the zero points are those of the rounded scale. The stored scales are
            float32 (float64 for float64 weights) and hold numbers that the dtype has. A scale
            below the dtype's range becomes its smallest positive number (float16: 2**-24, with
            fewer bits below 2**-14). One above it (float16: 65504) becomes infinite, and
            conversion raises an error. Scales of inputs are not rounded.
        conv_inputs: Whether the inputs of convolutions are rounded. True: by
            :func:`baraquant.qat.prepare_` and by :func:`baraquant.quantize_`; the activation has
            to be ``per_tensor``, static or dynamic, because a convolution has no tokens. False: by
            neither. None: ``prepare_`` rounds them if the activation is ``per_tensor``, and
            ``quantize_`` leaves them floating.
        backward: How linear layers compute their gradients in training, as in
            :func:`baraquant.ops.qat_linear`. ``float``: by floating products. ``int8_input``: the
            gradient of the input by a product of integers. ``int8``: that of the weight too. The
            last two need a product of integers in training: a symmetric dynamic weight
            ``per_channel``, one with ``group_factors`` or one that is ``ternary``, a dynamic
            activation ``per_token`` and ``scale_dtype="float32"``, as in ``W8A8(backward="int8")``.
            Layers without one (convolutions, embeddings, recurrent cells, experts) keep ``float``,
            and their part of the report names no ``backward``.
        rounding: How ``int8_input`` and ``int8`` round gradients to integers: to the ``nearest``,
            or ``stochastic``, which is right on average and draws from PyTorch's generator.
        rotate: The number of neighbours that :func:`baraquant.ops.hadamard` rotates in the input of
            a linear layer before it is quantized, a power of two in [2, 32768]; the weight is
            rotated to match. None: no rotation. An outlier is spread over its block, so that the
            scale of the other values gets smaller. A layer takes the largest power of two that
            divides its ``in_features`` and is at most ``rotate``. Layers that have none, that
            share their weight with another module, or of other kinds (convolutions, embeddings,
            recurrent layers, experts) are not rotated, and their part of the report names no
            ``rotate``.
        master: The dtype that parameters are rounded to before anything else, ``bfloat16`` or
            ``float16``; None: none. What is quantized is always the parameter as the optimizer
            holds it. With a master it is that parameter rounded to this dtype, in training, in
            evaluation, by conversion and by :func:`baraquant.quantize_`; the bias of the layer and
            its learned scales are rounded too. The gradient goes straight through, and the
            parameter keeps its dtype. Choose it where a wrapper computes with rounded copies of the
            parameters, such as ``fully_shard`` with
            ``MixedPrecisionPolicy(param_dtype=torch.bfloat16)``: the layer then trains on the
            numbers that are served. Autocast needs none.

    Example:
        >>> int4 = baraquant.TensorConfig(bits=4)
        >>> int8 = baraquant.TensorConfig(bits=8, granularity=baraquant.PerToken())
        >>> config = baraquant.QuantConfig(weight=int4, activation=int8)
        >>> baraquant.QuantConfig.from_dict(config.to_dict()) == config
        True
    """

    scheme: ClassVar[str] = "quant"

    weight: TensorConfig
    activation: TensorConfig | None = None
    observer: str = "moving_average"
    scale_rule: str = "search"
    scale_dtype: str = "float32"
    conv_inputs: bool | None = None
    backward: str = "float"
    rounding: str = "nearest"
    rotate: int | None = None
    master: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("weight",) if self.activation is None else ("weight", "activation"):
            value = getattr(self, name)
            is_right = isinstance(value, TensorConfig)
            check_type("QuantConfig", name, value, is_right, "a TensorConfig")
        for name, choices in _CHOICES.items():
            if name != "master" or self.master is not None:
                check_choice(self, name, choices)
        if self.conv_inputs is not None:
            check_bools(self, "conv_inputs")
        if self.weight.granularity == "per_token":
            raise ValueError(
                "QuantConfig: expected weight.granularity to be per_tensor, per_channel or "
                "per_group, but got 'per_token'"
            )
        self._check_activation()
        if self.weight.group_factors:
            self._check_group_factors()
        self._check_backward()
        check_rotation(self, self.rotate)

    def _check_backward(self) -> None:
        if self.backward == "float" and self.rounding != "nearest":
            raise ValueError(
                "QuantConfig: expected rounding='nearest' with backward='float', which rounds "
                f"no gradient to integers, but got {self.rounding!r}; choose "
                "backward='int8_input' or 'int8'"
            )
        if self.backward != "float" and not self.trains_on_integers:
            raise ValueError(
                f"QuantConfig: expected backward='float' for layers that train on floating "
                f"products, but got {self.backward!r} with {self._scheme_str}; use "
                f"W8A8(backward={self.backward!r}) or W4A8(None, backward={self.backward!r})"
            )

    def _check_group_factors(self) -> None:
        activation = self.activation
        if activation is None or activation.granularity not in ("per_token", "per_tensor"):
            raise ValueError(
                "QuantConfig: expected a per_token or per_tensor activation with group_factors, "
                "which make a product of integers exact, but got "
                f"{activation or 'floating inputs'}; use W4A8()"
            )
        if self.scale_dtype != "float32":
            raise ValueError(
                "QuantConfig: expected scale_dtype='float32' with group_factors, but got "
                f"{self.scale_dtype!r}; use W{self.weight.bits}A8(group_factors=False)"
            )

    def _check_activation(self) -> None:
        activation = self.activation
        got = None if activation is None else activation.granularity
        if self.conv_inputs and got not in ("per_tensor", "per_channel"):
            raise ValueError(
                f"QuantConfig: expected a per_tensor activation with conv_inputs=True, but got "
                f"{got!r}; the input of a convolution has one scale: use "
                "W8A8Static(conv_inputs=True), or another configuration for the convolutions"
            )
        if activation is None:
            return
        if activation.ternary:
            raise ValueError(
                f"QuantConfig: expected ternary=True for the weight alone, but got {activation}"
            )
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

    @property
    def is_static(self) -> bool:
        """Whether the range of the inputs is fixed in advance: observed, calibrated or learned."""
        return self.activation is not None and not self.activation.dynamic

    @property
    def trains_on_integers(self) -> bool:
        """Whether :func:`baraquant.ops.qat_linear` computes a linear layer in training."""
        activation, weight = self.activation, self.weight
        return (
            activation is not None
            and (weight.gives_integers or weight == TensorConfig(weight.bits))
            and self.scale_dtype == "float32"
            and activation == TensorConfig(activation.bits, "per_token", activation.symmetric)
        )

    @property
    def searches_scales(self) -> bool:
        """Whether :func:`baraquant.quantize_` searches for the scales of weights."""
        return self.fits_scales and self.weight.bits < 8

    @property
    def fits_scales(self) -> bool:
        """Whether it looks for scales other than those of the largest absolute values."""
        return self.scale_rule != "max" and not self.weight.ternary

    @property
    def weight_str(self) -> str:
        """How weights are quantized, with what is not the default of their scales and master."""
        dtype = "" if self.scale_dtype == "float32" else f" scale_dtype={self.scale_dtype}"
        master = "" if self.master is None else f" master={self.master}"
        return f"{self.weight}{dtype}{master}"

    def with_floating_input(self) -> QuantConfig:
        """Return the same configuration of the weights, but with floating inputs."""
        plain = self.with_float_backward().with_float_scales()
        return replace(plain, activation=None, conv_inputs=None)

    def with_float_backward(self) -> QuantConfig:
        """Return the same configuration, but with floating products in the backward pass."""
        return replace(self, backward="float", rounding="nearest")

    def with_float_scales(self) -> QuantConfig:
        """Return the same configuration, but with a floating scale for each group."""
        if not self.weight.group_factors:
            return self
        plain = self.with_float_backward()
        return replace(plain, weight=replace(self.weight, group_factors=False))

    def with_learned_scales(self) -> QuantConfig:
        """Return the same configuration, but with learned scales of the weights.

        Raises:
            ValueError: Scales of these weights, or with this ``backward``, cannot be learned.
        """
        if self.weight.ternary:
            raise ValueError(
                "expected weights whose scales can be learned, but those of ternary weights come "
                "from the weight of each step; use TensorConfig(2, learned=True)"
            )
        if self.backward != "float" and not self.weight.group_factors:
            raise ValueError(
                f"expected backward='float', but got {self.backward!r}: learned scales train on "
                "floating products, unless they are factors of groups, as in "
                f"W4A8(32, backward={self.backward!r})"
            )
        return replace(self, weight=replace(self.weight, learned=True, dynamic=False))

    def with_rotation(self, features: int) -> QuantConfig:
        """Return the configuration of a layer with so many inputs; 0: of one that is not rotated.

        Its ``rotate`` is the block that the layer uses.
        """
        power = features & -features  # the largest power of two that divides it
        block = min(power, self.rotate or 0)
        return replace(self, rotate=block if block > 1 else None)

    @property
    def _scheme_str(self) -> str:
        return f"weight={self.weight_str}, input={self.activation or 'float'}"

    def __str__(self) -> str:
        """Return a short form: ``weight=int8 per_channel symmetric dynamic, input=float``.

        What is not the default is added: ``, backward=int8 stochastic, rotate=256``.
        """
        rotate = "" if self.rotate is None else f", rotate={self.rotate}"
        if self.backward == "float":
            return f"{self._scheme_str}{rotate}"
        return f"{self._scheme_str}, backward={self.backward} {self.rounding}{rotate}"
