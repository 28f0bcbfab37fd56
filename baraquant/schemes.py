# SPDX-License-Identifier: BSD-3-Clause
"""The common schemes, SmoothQuant, AWQ and GPTQ.

:func:`baraquant.quantize_` takes all of them, and :func:`baraquant.qat.prepare_` all but
:class:`SmoothQuant`. Both take a dictionary from layers to schemes too. Nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ._fields import check_bool, check_bools, check_int, check_type
from .configs import Config, QuantConfig, TensorConfig


def W8A8(  # noqa: N802 - named as a scheme is
    symmetric: bool = True,
    *,
    scale_dtype: str = "float32",
    backward: str = "float",
    rounding: str = "nearest",
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return int8 weights with a scale per channel, and int8 inputs with a dynamic scale per token.

    Args:
        symmetric: True for inputs without a zero point; False adds one.
        scale_dtype: As in :class:`QuantConfig`.
        backward: As in :class:`QuantConfig`: ``int8`` for gradients from products of integers.
        rounding: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of inputs.
        master: As in :class:`QuantConfig`.
    """
    check_bool("W8A8", "symmetric", symmetric)
    activation = TensorConfig(8, "per_token", symmetric)
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    return QuantConfig(TensorConfig(8), activation, backward=backward, rounding=rounding, **shared)


def W8A8Static(  # noqa: N802
    observer: str = "min_max",
    symmetric: bool = True,
    *,
    scale_dtype: str = "float32",
    conv_inputs: bool | None = None,
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return int8 weights with a scale per channel, and int8 inputs with one scale for each layer.

    Args:
        observer: How to find the range of an input, as in :class:`QuantConfig`.
        symmetric: True for inputs without a zero point; False adds one.
        scale_dtype: As in :class:`QuantConfig`.
        conv_inputs: As in :class:`QuantConfig`: True for int8 convolutions.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of inputs.
        master: As in :class:`QuantConfig`.
    """
    check_bool("W8A8Static", "symmetric", symmetric)
    activation = TensorConfig(8, "per_tensor", symmetric, dynamic=False)
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    return QuantConfig(TensorConfig(8), activation, observer, conv_inputs=conv_inputs, **shared)


def W8A16(  # noqa: N802
    *, scale_dtype: str = "float32", rotate: int | None = None, master: str | None = None
) -> QuantConfig:
    """Return int8 weights with a scale per channel, and floating inputs.

    Args:
        scale_dtype: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of weights.
        master: As in :class:`QuantConfig`.
    """
    return QuantConfig(TensorConfig(8), scale_dtype=scale_dtype, rotate=rotate, master=master)


def W4A16(  # noqa: N802
    group_size: int | None = 128,
    symmetric: bool = True,
    scale_rule: str = "search",
    *,
    learned: bool = False,
    scale_dtype: str = "float32",
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return 4-bit weights with a scale for each group of inputs, and floating inputs.

    Args:
        group_size: The number of adjacent inputs that share a scale. None: one scale per channel.
        symmetric: True for weights without a zero point; False adds one.
        scale_rule: As in :class:`QuantConfig`.
        learned: Whether training learns the scales and zero points, which start from those of
            ``scale_rule``; :func:`baraquant.quantize_`, which trains nothing, keeps these.
        scale_dtype: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of weights.
        master: As in :class:`QuantConfig`.
    """
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    return _weight_only(4, group_size, symmetric, learned, scale_rule=scale_rule, **shared)


def W3A16(  # noqa: N802
    group_size: int | None = 128,
    symmetric: bool = True,
    scale_rule: str = "search",
    *,
    learned: bool = False,
    scale_dtype: str = "float32",
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return 3-bit weights with a scale for each group of inputs, and floating inputs.

    A weight takes 3 bits in a file, and 4 in memory
    (:class:`baraquant.nn.WeightOnlyInt4Linear`). The float32 scale of a group of 128 adds a
    quarter. Normal weights have a relative error of 20 %, where 4 bits have 10 %; groups of 64,
    which add half a bit, have 19 %. :class:`GPTQ` makes the error of the outputs smaller.

    Args:
        group_size: The number of adjacent inputs that share a scale. None: one scale per channel.
        symmetric: True for weights without a zero point; False adds one.
        scale_rule: As in :class:`QuantConfig`.
        learned: As in :func:`W4A16`.
        scale_dtype: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of weights.
        master: As in :class:`QuantConfig`.
    """
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    return _weight_only(3, group_size, symmetric, learned, scale_rule=scale_rule, **shared)


def W2A16(  # noqa: N802
    group_size: int | None = 64,
    symmetric: bool = False,
    scale_rule: str = "search",
    *,
    learned: bool = False,
    scale_dtype: str = "float32",
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return 2-bit weights with a scale for each group of inputs, and floating inputs.

    A weight takes 2 bits in a file, and 4 in memory
    (:class:`baraquant.nn.WeightOnlyInt4Linear`). The float32 scale and the int32 zero point of a
    group of 64 add one. Normal weights have a relative error of 36 % then, and in groups of 128,
    which add half a bit, 37 %. Without zero points it is 37 % in groups of 32, which also add one.
    Use :class:`GPTQ`, :func:`baraquant.reconstruct_` or training.

    Args:
        group_size: The number of adjacent inputs that share a scale. None: one scale per channel.
        symmetric: True for weights without a zero point; False adds one, which is the default
            because the four integers are -2 to 1 without one. Where training starts from
            :class:`GPTQ`, True is worth a try: a small language model then lost less.
        scale_rule: As in :class:`QuantConfig`.
        learned: As in :func:`W4A16`.
        scale_dtype: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of weights.
        master: As in :class:`QuantConfig`.
    """
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    return _weight_only(2, group_size, symmetric, learned, scale_rule=scale_rule, **shared)


def W4A8(  # noqa: N802
    group_size: int | None = 128,
    symmetric: bool = True,
    scale_rule: str = "search",
    *,
    group_factors: bool | None = None,
    learned: bool = False,
    scale_dtype: str = "float32",
    backward: str = "float",
    rounding: str = "nearest",
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return 4-bit weights with a scale for each group, and int8 inputs with a scale per token.

    Linear layers compute integer products, but in floating point with groups that have no factors.

    Args:
        group_size: The number of adjacent inputs that share a scale. None: one scale per channel.
        symmetric: True for weights without a zero point; False adds one.
        scale_rule: As in :class:`QuantConfig`.
        group_factors: Whether groups have whole factors, as in :class:`TensorConfig`, and linear
            layers half a byte for a weight (:class:`baraquant.nn.QuantizedInt4Linear`). None: if
            there are groups, and ``scale_dtype`` is ``float32``. False: floating scales.
        learned: Whether training learns the scales and factors, which start from those of
            ``scale_rule``; :func:`baraquant.quantize_`, which trains nothing, keeps these.
        scale_dtype: As in :class:`QuantConfig`.
        backward: As in :class:`QuantConfig`; anything but ``float`` needs integer products.
        rounding: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of inputs.
        master: As in :class:`QuantConfig`.
    """
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    shared |= {"scale_rule": scale_rule, "backward": backward, "rounding": rounding}
    return _int8_inputs(4, group_size, symmetric, group_factors, learned, **shared)


def W3A8(  # noqa: N802
    group_size: int | None = 128,
    symmetric: bool = True,
    scale_rule: str = "search",
    *,
    group_factors: bool | None = None,
    learned: bool = False,
    scale_dtype: str = "float32",
    backward: str = "float",
    rounding: str = "nearest",
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return 3-bit weights with a scale for each group, and int8 inputs with a scale per token.

    As :func:`W4A8`, whose layers it has: a weight takes 4 bits in memory, and with factors in a
    file too.

    Args:
        group_size: The number of adjacent inputs that share a scale. None: one scale per channel.
        symmetric: True for weights without a zero point; False adds one.
        scale_rule: As in :class:`QuantConfig`.
        group_factors: Whether groups have whole factors, as in :class:`TensorConfig`, and linear
            layers half a byte for a weight (:class:`baraquant.nn.QuantizedInt4Linear`). None: if
            there are groups, and ``scale_dtype`` is ``float32``. False: floating scales.
        learned: Whether training learns the scales and factors, which start from those of
            ``scale_rule``; :func:`baraquant.quantize_`, which trains nothing, keeps these.
        scale_dtype: As in :class:`QuantConfig`.
        backward: As in :class:`QuantConfig`; anything but ``float`` needs integer products.
        rounding: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of inputs.
        master: As in :class:`QuantConfig`.
    """
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    shared |= {"scale_rule": scale_rule, "backward": backward, "rounding": rounding}
    return _int8_inputs(3, group_size, symmetric, group_factors, learned, **shared)


def W2A8(  # noqa: N802
    group_size: int | None = 64,
    symmetric: bool = False,
    scale_rule: str = "search",
    *,
    group_factors: bool | None = None,
    learned: bool = False,
    scale_dtype: str = "float32",
    backward: str = "float",
    rounding: str = "nearest",
    rotate: int | None = None,
    master: str | None = None,
) -> QuantConfig:
    """Return 2-bit weights with a scale for each group, and int8 inputs with a scale per token.

    As :func:`W4A8`, whose layers it has: a weight takes 4 bits in memory, and with factors in a
    file too.

    Args:
        group_size: The number of adjacent inputs that share a scale. None: one scale per channel.
        symmetric: As in :func:`W2A16`.
        scale_rule: As in :class:`QuantConfig`.
        group_factors: Whether groups have whole factors, as in :class:`TensorConfig`, and linear
            layers half a byte for a weight (:class:`baraquant.nn.QuantizedInt4Linear`). None: if
            there are groups, and ``scale_dtype`` is ``float32``. False: floating scales.
        learned: Whether training learns the scales and factors, which start from those of
            ``scale_rule``; :func:`baraquant.quantize_`, which trains nothing, keeps these.
        scale_dtype: As in :class:`QuantConfig`.
        backward: As in :class:`QuantConfig`; anything but ``float`` needs integer products.
        rounding: As in :class:`QuantConfig`.
        rotate: As in :class:`QuantConfig`: 256 spreads the outliers of inputs.
        master: As in :class:`QuantConfig`.
    """
    shared: Any = {"scale_dtype": scale_dtype, "rotate": rotate, "master": master}
    shared |= {"scale_rule": scale_rule, "backward": backward, "rounding": rounding}
    return _int8_inputs(2, group_size, symmetric, group_factors, learned, **shared)


def _weight_only(
    bits: int, group_size: int | None, symmetric: bool, learned: bool, **shared: Any
) -> QuantConfig:
    weight = _few_bits(f"W{bits}A16", bits, group_size, symmetric, learned=learned)
    return QuantConfig(weight, **shared)


def _int8_inputs(
    bits: int,
    group_size: int | None,
    symmetric: bool,
    group_factors: bool | None,
    learned: bool,
    **shared: Any,
) -> QuantConfig:
    name, has_groups = f"W{bits}A8", group_size is not None
    if group_factors is None:
        group_factors = has_groups and shared["scale_dtype"] == "float32"
    if group_factors and not has_groups:
        raise ValueError(f"{name}: expected a group_size with group_factors=True, but got None")
    more = {"learned": learned, "group_factors": group_factors}
    weight = _few_bits(name, bits, group_size, symmetric, **more)
    return QuantConfig(weight, TensorConfig(8, "per_token"), **shared)


def _few_bits(
    name: str, bits: int, group_size: int | None, symmetric: bool, **more: Any
) -> TensorConfig:
    check_bool(name, "symmetric", symmetric)
    granularity = "per_channel" if group_size is None else "per_group"
    return TensorConfig(bits, granularity, symmetric, group_size=group_size, **more)


class Algorithm(Config):
    """The base of schemes that :func:`baraquant.quantize_` carries out with a pass of their own.

    A subclass is a frozen dataclass with a ``scheme`` of its own, which names it in dictionaries.
    :func:`baraquant.register_pass` says which pass carries it out.
    :func:`baraquant.qat.prepare_` starts the training at what the pass finds, in learned scales,
    unless :meth:`why_not_trained` returns a reason.

    Attributes:
        config: How its layers are quantized, after the pass has changed their weights.
    """

    config: QuantConfig

    # Words for errors: what it needs beside one layer, and what to do after the layers have been
    # measured without it.
    _reach: ClassVar[str] = "it works on a whole model"
    _then: ClassVar[str] = "choose, and use {name} with the choice"

    @property
    def quantized(self) -> QuantConfig:
        """How its layers are quantized; a subclass may say another than ``config``."""
        return self.config

    def why_not_trained(self) -> str | None:
        """Return why training cannot start from what the pass finds; None if it can."""
        return None

    def why_not_alone(self) -> str:
        """Return why a layer cannot be measured with it alone, and what to do instead."""
        then = self._then.format(name=type(self).__name__)
        return f"{self._reach}: measure {self.quantized} instead, {then}"


@dataclass(frozen=True)
class SmoothQuant(Algorithm):
    """W8A8 after the activations' outliers have moved into the weights (Xiao et al. 2023).

    Attributes:
        alpha: The share of the outliers that moves, in [0, 1]. ``"search"`` tries several values
            and takes, for each layer, the one with the minimum output error.
        activation: How the smoothed layers are quantized: :func:`W8A8` or :func:`W8A8Static`.
    """

    scheme: ClassVar[str] = "smoothquant"
    _reach: ClassVar[str] = (
        "its smoothing needs a calibration of its own and changes the layers before"
    )
    _then: ClassVar[str] = "or use {name} for the whole model"

    alpha: float | str = 0.5
    activation: QuantConfig = field(default_factory=W8A8)

    def __post_init__(self) -> None:
        """Check every field."""
        is_right = isinstance(self.alpha, (int, float, str)) and not isinstance(self.alpha, bool)
        check_type("SmoothQuant", "alpha", self.alpha, is_right, "a number or 'search'")
        is_number = not isinstance(self.alpha, str) and math.isfinite(self.alpha)
        if self.alpha != "search" and not (is_number and 0.0 <= float(self.alpha) <= 1.0):
            raise ValueError(
                "SmoothQuant: expected alpha to lie in [0, 1] or to be 'search', "
                f"but got {self.alpha!r}"
            )
        is_right, wanted = isinstance(self.activation, QuantConfig), "W8A8(...) or W8A8Static(...)"
        check_type("SmoothQuant", "activation", self.activation, is_right, wanted)
        if self.activation.rotate is not None:
            raise ValueError(
                f"SmoothQuant: expected activation without rotate, but got rotate="
                f"{self.activation.rotate}: both are for the outliers of inputs, and a rotation "
                "mixes the channels that a smoothing scales; use one of the two"
            )
        symmetric = self.activation.activation is None or self.activation.activation.symmetric
        plain = replace(self.activation, scale_dtype="float32", conv_inputs=None, master=None)
        if plain not in (W8A8(symmetric), W8A8Static(plain.observer, symmetric)):
            raise ValueError(
                f"SmoothQuant: expected activation to be {wanted}, but got {self.activation}"
            )

    def why_not_trained(self) -> str:
        """Return why training cannot start from what the pass finds."""
        return (
            "SmoothQuant: expected a scheme that training can follow, but a smoothed layer may "
            "divide its input; use baraquant.quantize_, or train with W8A8() or W8A8Static()"
        )

    @property
    def quantized(self) -> QuantConfig:
        """How the smoothed layers are quantized: ``activation``."""
        return self.activation

    def __str__(self) -> str:
        """Return a short description."""
        return f"SmoothQuant(alpha={self.alpha}, {self.activation})"


@dataclass(frozen=True)
class AWQ(Algorithm):
    """Weights scaled so that those of large inputs keep more precision (Lin et al. 2024, "AWQ").

    The layers are those of ``config``, and as fast. Before they are quantized, the weights of each
    input channel are multiplied by ``s = mean|x|^alpha / sqrt(max * min)``, with the maximum and
    the minimum of ``mean|x|^alpha`` over the channels. The division of the input by ``s`` is folded
    into the preceding LayerNorm, RMSNorm or Linear, if nothing else reads that module's output, as
    for :class:`SmoothQuant`. Layers that read the same output share ``s``. ``alpha`` is the one
    with the minimum squared error of their outputs, for inputs from the float model: 0, which
    scales nothing, if no other is better than ``config`` alone.

    With :func:`baraquant.qat.prepare_` training starts at the scaled weights and their integers,
    with learned scales.

    Layers that are not linear, whose division nothing can absorb, that share their weight or that
    the data does not reach are quantized by ``config`` alone; the report says so. The model runs
    once to find what can be folded, and once for each set of layers whose ``X^T X``,
    ``[in_features, in_features]`` each in float32 (float64 for float64 layers), fit into 1 GiB. So
    the data has to be a list, a DataLoader or a function. Memory does not grow with it.

    Attributes:
        config: How the layers are quantized: floating inputs, a scale per channel or group and no
            rotation, such as :func:`W4A16`. Each alpha is tried with its ``scale_rule``: ``search``
            weighs the error of a weight by the mean square of its input; ``max`` is quicker.
        steps: The number of steps of ``alpha`` from 0 to 1; the largest of layers that share ``s``.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 32))
        >>> _ = nn.init.uniform_(model[0].weight, 0, 20)
        >>> batches, scheme = [torch.randn(64, 64)], baraquant.AWQ(baraquant.W4A16(32))
        >>> report = baraquant.quantize_(model, scheme, calibration=batches)
        >>> report.changed["1"].startswith("WeightOnlyInt4Linear, AWQ, alpha 0.")
        True
    """

    scheme: ClassVar[str] = "awq"
    _reach: ClassVar[str] = "its scaling changes the layers before"

    config: QuantConfig
    steps: int = 20

    def __post_init__(self) -> None:
        """Check every field."""
        _check_config("AWQ", self.config)
        if self.config.activation is not None:
            raise ValueError(
                f"AWQ: expected config to have floating inputs, as W4A16() has, but got "
                f"{self.config}; for quantized inputs use SmoothQuant()"
            )
        if self.config.rotate is not None:
            raise ValueError(
                f"AWQ: expected config without rotate, but got rotate={self.config.rotate}: a "
                "rotation mixes the channels that AWQ scales; use one of the two"
            )
        if self.config.weight.granularity == "per_tensor":
            raise ValueError(
                "AWQ: expected weights with a scale per_channel or per_group, but got per_tensor: "
                "one scale cannot follow the outputs that are divided for the layers after them"
            )
        check_int(self, "steps")
        if self.steps < 1:
            raise ValueError(f"AWQ: expected steps >= 1, but got {self.steps}")

    def __str__(self) -> str:
        """Return a short description."""
        return f"AWQ({self.config}, steps={self.steps})"


@dataclass(frozen=True)
class GPTQ(Algorithm):
    """Weights rounded so that their errors cancel on typical inputs (Frantar et al. 2023, "GPTQ").

    The layers are those of ``config``, and as fast. Only their integers and scales are others:
    where rounding to nearest takes the closest integer for each value, GPTQ corrects the rest of a
    row for the error of each value that it has rounded. Calibration gives the Hessian of the error,
    which is ``X^T X`` of a layer's inputs. The fewer the bits, the more it gains.

    With :func:`baraquant.qat.prepare_` training starts at these integers, with learned scales.

    GPTQ rounds linear layers, also those in attentions and recurrent layers, and transformers'
    ``Conv1D``. Other layers (convolutions, embeddings, experts), layers that share their weight
    with another module and layers that the calibration data does not reach are quantized by
    ``config`` alone, to nearest. The report says so.

    The inputs of a layer come from the model with all earlier layers of GPTQ quantized, and all
    other layers floating. The Hessian is that of the input as the layer will multiply it:
    rotated if ``config`` has ``rotate``, and rounded if it quantizes inputs. The model runs once
    for the order of the layers, and once for each set of layers that read the same tensor (in a
    decoder: query, key and value; output; gate and up; down). So the data has to be a list, a
    DataLoader or a function, and the time grows with the square of the depth. The memory does not
    grow with the data: only the Hessians of one set are held, ``[in_features, in_features]`` each
    in float32 (float64 for float64 layers).

    Attributes:
        config: How the layers are quantized: any scheme, such as :func:`W4A16` or :func:`W4A8`. Its
            ``scale_rule`` and ``scale_dtype`` hold here too. Scales per channel come from the
            weight. Those of a group come from its corrected values, when its turn comes.
        damping: What is added to the Hessian's diagonal, as a share of its mean. If the Hessian
            cannot be inverted with it, larger ones are tried, and a warning has the one that was
            used. Inputs that are always 0 do not count; their weights are rounded to nearest.
        act_order: Whether to round the columns of the largest inputs first. The stored weight keeps
            its order: a group is still a run of neighbours, and its scale then comes from the
            weight, because its columns have no common turn.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        >>> batches = [torch.randn(16, 64) for _ in range(4)]
        >>> scheme = baraquant.GPTQ(baraquant.W4A16(32))
        >>> baraquant.quantize_(model, scheme, calibration=batches).changed["0"]
        'WeightOnlyInt4Linear, GPTQ'
    """

    scheme: ClassVar[str] = "gptq"
    _reach: ClassVar[str] = "its rounding follows the layers before, which no measurement knows yet"

    config: QuantConfig
    damping: float = 0.01
    act_order: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        _check_config("GPTQ", self.config)
        is_right = isinstance(self.damping, (int, float)) and not isinstance(self.damping, bool)
        check_type("GPTQ", "damping", self.damping, is_right, "a number")
        if not 0.0 <= self.damping <= 1.0:  # a NaN is not in the range either
            raise ValueError(f"GPTQ: expected damping to lie in [0, 1], but got {self.damping!r}")
        check_bools(self, "act_order")

    def __str__(self) -> str:
        """Return a short description."""
        order = ", act_order" if self.act_order else ""
        return f"GPTQ({self.config}, damping={self.damping}{order})"


def scheme_of(config: Config) -> QuantConfig:
    """Return how layers are quantized, whatever an algorithm changes before."""
    scheme: Any = config.quantized if isinstance(config, Algorithm) else config
    _check_config(type(config).__name__, scheme)
    quantized: QuantConfig = scheme
    return quantized


def quant_config(config: Any) -> QuantConfig:
    """Return a configuration that layers can be prepared with; raise an error for other values."""
    if isinstance(config, QuantConfig):
        return config
    if isinstance(config, Algorithm):
        name = type(config).__name__
        raise ValueError(
            f"{name}: expected a QuantConfig for a layer alone, but {name} is for a whole model; "
            f"use baraquant.quantize_ or baraquant.qat.prepare_, or here {config.quantized}"
        )
    raise TypeError(f"expected config to be a QuantConfig, but got {what_it_is(config)}")


_SCHEMES = (W8A8, W8A8Static, W8A16, W4A16, W3A16, W2A16, W4A8, W3A8, W2A8)


def what_it_is(config: Any) -> str:
    """Return words for an error message about a value that is not a configuration."""
    if config in _SCHEMES:
        return f"the function {config.__name__}; write {config.__name__}()"
    if not isinstance(config, type):
        return type(config).__name__
    if not issubclass(config, Config):
        return f"the class {config.__name__}"
    arguments = "" if config is SmoothQuant else "..."
    return f"the class {config.__name__}; write {config.__name__}({arguments})"


def _check_config(name: str, config: Any) -> None:
    if not isinstance(config, QuantConfig):
        both = (
            f"; a layer takes one algorithm: use {config.quantized} here, and "
            f"{type(config).__name__} for other layers"
            if isinstance(config, Algorithm)
            else ""
        )
        raise TypeError(
            f"{name}: expected config to be a QuantConfig, for example W4A16(), but got "
            f"{what_it_is(config)}{both}"
        )
