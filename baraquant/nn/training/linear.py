# SPDX-License-Identifier: BSD-3-Clause
"""``FakeQuantizedLinear``: a linear layer in quantization-aware training."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ... import ops
from ...configs import Config, QuantConfig, TensorConfig
from ...ops.limits import MAX_FEATURES, MAX_SHIFTED_FEATURES
from ...schemes import W8A8, quant_config
from ..shared.product import fixing_bias, is_exported, linear, matching_bias
from ..shared.rotation import MARK, other_mark, turned
from ..shared.straight_through import (
    linear_through,
    makes_graph,
    straight_through,
    without_gradient,
)
from .quantizers import QuantizesWeight, check_groups


class FakeQuantizedLinear(QuantizesWeight, nn.Linear):  # type: ignore[misc]
    """A linear layer for quantization-aware training; ``weight`` and ``bias`` stay floating.

    In evaluation it gives the same bits as the layer that :func:`baraquant.qat.convert_` makes of
    it. In training:

    * If weights are symmetric per channel, ``ternary``, or in groups with ``group_factors``, inputs
      are per token, both are dynamic with 2 to 8 bits (W8A8, W4A8; factors may be learned), and
      ``scale_dtype`` is float32, it computes the integer product itself:
      :func:`baraquant.ops.qat_linear`.
    * Otherwise it computes ``linear(input_fake_quant(x), weight_fake_quant(weight), bias)``, where
      both are a :class:`FakeQuantize` or a :class:`LearnedFakeQuantize`. An integer product may
      differ in the last bit; only evaluation computes it.

    With ``rotate`` in the configuration the parameter is the rotated weight, and the layer rotates
    its input by :func:`baraquant.ops.hadamard` first. Reading ``weight`` gives the weight of the
    floating layer, also in training; its ``grad`` is that of the parameter. The state dict has a
    buffer ``rotation`` as well, so that no floating weight is loaded by mistake.

    The gradient goes straight through the rounding, in evaluation too. Where the layer computes
    :func:`baraquant.ops.qat_linear`, ``backward`` and ``rounding`` of the configuration say how the
    gradient is computed. The switches of :mod:`baraquant.nn`, such as :func:`disable_fake_quant`,
    act only in training; with one of them the products are floating, those of the gradient too.
    Within :func:`baraquant.qat.teacher` nothing is rounded, in evaluation either.

    Args:
        in_features: Size of each input.
        out_features: Size of each output.
        bias: Whether the layer has a bias.
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: The configuration does not fit: the group size does not divide ``in_features``,
            or ``in_features`` is larger than an int32 sum allows.
        TypeError: ``config`` is not a configuration.

    Example:
        >>> layer = baraquant.nn.FakeQuantizedLinear(4, 3, config=baraquant.W8A8())
        >>> layer(torch.ones(2, 4)).shape
        torch.Size([2, 3])
    """

    __constants__ = (
        *QuantizesWeight.__constants__,
        *("in_features", "out_features", "is_integer", "is_whole", "gives_integers"),
        *("group_size", "symmetric", "quant_min", "quant_max", "weight_quant_min"),
        *("weight_quant_max", "backward", "rounding", "rotate"),
    )
    _transposed_groups = 0
    bias: Tensor | None
    is_integer: bool  # deployed as a product of integers
    is_whole: bool  # one op does it all, in training as well
    gives_integers: bool  # the quantizer of the weight, whose numbers qat_linear is given
    group_size: int  # of floating scales of the weight; 0: a scale for each channel
    symmetric: bool  # the input's integers
    quant_min: int  # of the input; 0 where it stays floating
    quant_max: int
    weight_quant_min: int
    weight_quant_max: int
    backward: str  # as in qat_linear
    rounding: str
    rotate: int  # the block that is rotated; 0 if nothing is
    # Whether the parameter is still the weight of the floating layer, and `float_weight` rotates
    # it: prepare_ rotates it in place after the last decision, and quantize_ never does.
    _awaits_rotation: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        config: Config | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self._set_config(W8A8() if config is None else config)
        self.rotate_weight_()

    @classmethod
    def from_float(cls, linear: nn.Module, config: Config) -> Self:
        """Return a layer that shares the parameters of ``linear``.

        With ``rotate`` the weight is rotated in place, so ``linear`` is of no use any more.
        """
        layer = cls.sharing(linear, config)
        layer.rotate_weight_()
        return layer

    @classmethod
    def sharing(cls, linear: nn.Module, config: Config, *, is_rotated: bool = False) -> Self:
        """Return a layer that shares the parameters of ``linear`` and leaves them as they are.

        If the weight is not rotated already, call :meth:`rotate_weight_` or
        :meth:`with_rotated_weight` before the layer is used.
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._take_sizes(linear.weight)
        layer.weight = linear.weight
        layer.register_parameter("bias", linear.bias)
        layer._set_config(config, is_rotated)
        layer.train(linear.training)
        return layer

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _take_sizes(self, weight: Tensor) -> None:
        self.out_features, self.in_features = weight.shape

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def rotate_weight_(self) -> None:
        """Rotate the weight in place if that is still to be done."""
        if self._awaits_rotation:
            with torch.no_grad():
                self._parameters["weight"].copy_(self._own_weight())
            self._awaits_rotation = False

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def with_rotated_weight(self) -> Self:
        """Return a layer that shares all with this one, but has a rotated weight of its own."""
        layer = copy.copy(self)
        layer.__dict__["_parameters"] = dict(self._parameters)
        layer.__dict__["_modules"] = dict(self._modules)
        if self._awaits_rotation:
            rotated = self._own_weight().detach()
            layer._parameters["weight"] = nn.Parameter(rotated, requires_grad=False)
            layer._awaits_rotation = False
        return layer

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _own_weight(self) -> Tensor:
        if getattr(self, "rotate", 0) > 0 and self._parameters.get("weight") is None:
            raise RuntimeError(
                f"{type(self).__name__}: expected the rotated weight to be a parameter, but a "
                "parametrization or a hook is to compute it; prepare this layer without rotate"
            )
        weight = super()._own_weight()
        return self._in_other_basis(weight) if self._awaits_rotation else weight

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _in_other_basis(self, weight: Tensor) -> Tensor:
        return turned(weight, self.rotate, self.transposed_groups > 0) if self.rotate else weight

    def _set_config(self, config: Config, is_rotated: bool = False) -> None:
        qat = quant_config(config).with_rotation(self.in_features)
        check_config(qat, self.in_features)
        self.rotate = qat.rotate or 0
        self.transposed_groups = self._transposed_groups
        self._awaits_rotation = self.rotate > 0 and not is_rotated
        if self.rotate > 0:
            mark = torch.tensor(self.rotate, device=self._parameters["weight"].device)
            self.register_buffer(MARK, mark)
        self.set_quantizers(qat, qat.activation, transposed_groups=self._transposed_groups)
        self.is_integer = is_integer_product(qat)
        self.is_whole = qat.trains_on_integers
        self.gives_integers = qat.weight.gives_integers
        self.group_size = 0 if self.gives_integers else qat.weight.group_size or 0
        self.symmetric = qat.activation is None or qat.activation.symmetric
        self.quant_min, self.quant_max = 0, 0
        if qat.activation is not None:
            self.quant_min, self.quant_max = qat.activation.quant_min, qat.activation.quant_max
        self.weight_quant_min, self.weight_quant_max = qat.weight.quant_min, qat.weight.quant_max
        self.backward, self.rounding = qat.backward, qat.rounding

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def with_floating_input(self) -> Self:
        """Return a layer that shares all with this one, but leaves its input floating."""
        layer: Self = super().with_floating_input()
        layer.is_integer = layer.is_whole = False
        if self.config.weight.group_factors:  # what is multiplied has a scale for each channel
            layer.config = replace(layer.config, weight=TensorConfig(8))
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]``."""
        if self.rotate > 0:
            input = ops.hadamard(input, self.rotate)
        if self.is_teacher():
            return self._float_output(input)
        if self.is_whole:  # noqa: SIM102 - alone: TorchScript leaves out what a constant guards
            if self._is_on() if self.training else not (self._is_autocast(input) or is_exported()):
                return self._whole(input)
        if self.training:
            return self._float_output(input)
        output = self._integer_output(input) if self.is_integer else self._weight_only_output(input)
        if makes_graph():
            weight, rounded = self._rounded_channels_first(), self.rounded_input(input)
            return linear_through(output, rounded, weight, self.bias_to_add())
        trains = input.requires_grad or self.is_trained()
        if torch.is_grad_enabled() and trains:
            output = straight_through(output, self._float_output(input))
        return output

    def _is_autocast(self, input: Tensor) -> bool:
        """Whether ``qat_linear`` would cast the input for autocast; no converted layer does."""
        if torch.jit.is_scripting():
            return False
        is_enabled: bool = torch.is_autocast_enabled(input.device.type)
        return is_enabled

    def _whole(self, input: Tensor) -> Tensor:
        weight, qweight, scale = self._weight_and_integers()
        return ops.qat_linear(
            input,
            weight,
            self.bias_to_add(),
            symmetric=self.symmetric,
            weight_quant_min=self.weight_quant_min,
            weight_quant_max=self.weight_quant_max,
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            backward=self.backward,
            rounding=self.rounding,
            qweight=qweight,
            weight_scale=scale,
        )

    def _weight_and_integers(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the weight that gets the gradient, its integers and their scale.

        The last two are None where ``qat_linear`` finds them.
        """
        weight = self._channels_first(self.weight_to_round())
        qweight: Tensor | None = None
        scale: Tensor | None = None
        if self.gives_integers:
            qweight, scale, _ = self.quantized_weight()
            weight = self.weight_fake_quant.smooth(weight)
        return weight, qweight, scale

    def _float_output(self, input: Tensor) -> Tensor:
        weight = self._rounded_channels_first()
        return linear(self.rounded_input(input), weight, self.bias_to_add())

    def _integer_output(self, input: Tensor) -> Tensor:
        integers, scale, zero_point = self.input_fake_quant.quantize(without_gradient(input))
        weight, weight_scale, _ = self.quantized_weight()
        bias = matching_bias(self.bias_to_add(), input.dtype, weight_scale)
        return ops.int8_linear(
            integers,
            weight,
            scale,
            weight_scale,
            None if bias is None else without_gradient(bias),
            input_zero_point=None if self.symmetric else zero_point,
            dtype=input.dtype,
        )

    def _weight_only_output(self, input: Tensor) -> Tensor:
        rows = self.rounded_input(without_gradient(input))
        weight, scale, zero_point = self.quantized_weight()
        bias = self.bias_to_add()
        bias = fixing_bias(
            None if bias is None else without_gradient(bias), input, self.out_features
        )
        group_size: int | None = None
        if self.group_size > 0:
            group_size = self.group_size
        return ops.weight_only_linear(
            rows,
            weight,
            scale,
            bias,
            weight_zero_point=zero_point,
            group_size=group_size,
        )

    def _is_on(self) -> bool:
        is_on: bool = self.weight_fake_quant._rounds and self.input_fake_quant._rounds
        return is_on

    def _why_not_state(self, state: Any, prefix: str, metadata: Any) -> list[str]:
        found = super()._why_not_state(state, prefix, metadata)
        return [*found, *other_mark(self, state, prefix)]

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return f"{nn.Linear.extra_repr(self)}, {self.config}"


class FakeQuantizedConv1D(FakeQuantizedLinear):
    """Transformers' ``Conv1D``: a linear layer whose weight is ``[in_features, out_features]``.

    Except for the layout of the parameter it is like :class:`FakeQuantizedLinear`. ``nx`` and
    ``nf`` are transformers' names of the sizes.

    Args:
        nf: Size of each output.
        nx: Size of each input.
        config: As in :class:`FakeQuantizedLinear`.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: The configuration does not fit, as in :class:`FakeQuantizedLinear`.
        TypeError: ``config`` is not a configuration.
    """

    _transposed_groups = 1

    def __init__(
        self,
        nf: int,
        nx: int,
        *,
        config: Config | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.nx, self.nf = nx, nf, nx, nf
        self.weight = nn.Parameter(torch.empty(nx, nf, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(nf, device=device, dtype=dtype))
        nn.init.normal_(self._parameters["weight"], std=0.02)
        self._set_config(W8A8() if config is None else config)
        self.rotate_weight_()

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _take_sizes(self, weight: Tensor) -> None:
        self.in_features, self.out_features = weight.shape
        self.nx, self.nf = weight.shape


def is_integer_product(config: QuantConfig) -> bool:
    """Whether the converted layer multiplies integers by integers.

    It does not if the terms of a sum have several floating scales (groups), or if the weight has a
    zero point.
    """
    weight, activation = config.weight, config.activation
    is_flat = weight.symmetric and weight.granularity in ("per_tensor", "per_channel")
    return (
        activation is not None
        and (is_flat or weight.group_factors)
        and activation.granularity in ("per_tensor", "per_token")
    )


def check_config(config: QuantConfig, features: int) -> None:
    """Check that a configuration fits the number of a layer's inputs."""
    check_groups(config.weight, features, "in_features")
    if config.activation is not None:
        check_groups(config.activation, features, "in_features")
        limit = MAX_FEATURES if config.activation.symmetric else MAX_SHIFTED_FEATURES
        if is_integer_product(config) and features > limit:
            raise ValueError(
                f"expected in_features to be at most {limit} for an exact int32 product"
                f"{'' if config.activation.symmetric else ' with a zero point'}, but got {features}"
            )
