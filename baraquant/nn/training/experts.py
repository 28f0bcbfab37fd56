# SPDX-License-Identifier: BSD-3-Clause
"""``FakeQuantizedExperts``: a mixture's experts in quantization-aware training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ... import ops
from ...configs import Config, QuantConfig
from ...schemes import quant_config
from ..shared.experts import (
    RunsExperts,
    float_grouped_linear,
    integer_output,
    of_dtype,
    taken,
    why_not,
)
from ..shared.master import HoldsMaster
from ..shared.straight_through import experts_through, makes_graph, straight_through
from ..shared.weight import weight_to_read
from .linear import check_config, is_integer_product
from .quantizers import _of_activation, _of_weight, has_trained_scale


class FakeQuantizedExperts(HoldsMaster, RunsExperts):
    """Experts for quantization-aware training; all parameters stay floating.

    It replaces the experts of transformers whose weights are parameters of three dimensions
    (Mixtral, Qwen3-MoE, GPT-OSS, DeepSeek, ...): ``gate_up_proj`` or ``up_proj``, and
    ``down_proj``, with their names, layouts and biases. Between the products the class runs its own
    code (its gate, a norm). Both products are computed as in
    :class:`baraquant.nn.FakeQuantizedLinear`, the rows of an expert with the weight of this expert:

    * In evaluation they have the bits of :class:`baraquant.nn.QuantizedExperts`.
    * In training it is the integer product itself if weights are symmetric per channel, inputs are
      per token, and both are dynamic. Otherwise it is the floating product of the results of the
      fake quantizers.

    A scale of a weight belongs to one expert: ``per_tensor`` is one scale for each expert,
    ``per_channel`` one for each of its output channels, and ``per_group`` one for each group along
    the input features. For an input, ``per_tensor`` is one scale for the tokens of all experts.
    Each of the two products has its own input quantizer.

    The gradient goes straight through the rounding to the input and all parameters, in evaluation
    too. Its products are floating: ``backward`` and ``rotate`` of the configuration are for linear
    layers, and ``config`` of the experts has ``"float"`` and None.

    Args:
        experts: Floating experts for which :meth:`why_not` returns None. The parameters and the
            submodules are shared with them.
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`.

    Raises:
        ValueError: The experts cannot be swapped, or the configuration does not fit: the group size
            does not divide the input features of a product, or there are more of them than an int32
            sum holds.
        TypeError: ``config`` is not a configuration.
    """

    config: QuantConfig
    is_integer: bool  # deployed as products of integers
    is_whole: bool  # one op does it all, in training as well
    is_observing = False  # calibration runs: nothing is rounded

    def __init__(self, experts: nn.Module, config: Config) -> None:
        super().__init__()
        reason = why_not(experts)
        if reason is not None:
            raise ValueError(f"FakeQuantizedExperts: expected experts to swap, but {reason}")
        qat = quant_config(config).with_float_backward().with_float_scales().with_rotation(0)
        self._take_place_of(experts)
        for name in self.form.weights:
            self.register_parameter(name, experts._parameters[name])
            if self.form.has_bias:
                bias = f"{name}_bias"
                self.register_parameter(bias, experts._parameters[bias])
        self.config, self.master = qat, qat.master or ""
        self._held_dtype = self.float_weight(self.form.up).dtype
        self.is_integer = is_integer_product(qat)
        self.is_whole = qat.trains_on_integers and not qat.weight.gives_integers
        is_whole_expert = qat.weight.granularity == "per_tensor"  # an expert is a row then
        of_rows = replace(qat.weight, granularity="per_channel") if is_whole_expert else qat.weight
        for name in self.form.weights:
            weight = self.weight_to_round(name).detach()
            try:
                check_config(qat, weight.shape[-1])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            quantizer = _of_weight(of_rows, self._rows_of(weight), qat.weight.group_size, qat)
            self.add_module(f"{name}_weight_fake_quant", quantizer)
            rounder = _of_activation(qat.activation, qat, weight)
            self.add_module(f"{name}_input_fake_quant", rounder)

    @staticmethod
    def why_not(module: nn.Module) -> str | None:
        """Return why this class cannot replace a module; None if it can."""
        return why_not(module)

    @classmethod
    def from_float(cls, module: nn.Module, config: Config) -> Self:
        """Return experts that share the parameters and the submodules of ``module``."""
        return cls(module, config)

    def float_weight(self, name: str) -> Tensor:
        """Return the floating weight of this name that is trained, in evaluation too."""
        own = self._parameters.get(name)
        return getattr(self, name) if own is None else own  # a parametrization computes it

    def weight_to_round(self, name: str) -> Tensor:
        """Return the weight of this name that is quantized, ``[E, N, K]``, with its gradient.

        It is the parameter as the optimizer holds it, rounded to the configuration's ``master``.
        """
        return self.form.canonical(self._rounded_master(self.float_weight(name)))

    def bias_to_add(self, name: str) -> Tensor | None:
        """Return the bias of the weight of this name, rounded like the weight."""
        if not self.form.has_bias:
            return None
        return self._rounded_master(self.float_weight(f"{name}_bias"))

    def _held_parameter(self) -> Tensor | None:
        return self._parameters.get(self.form.up)

    def quantized_weight(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weight of this name as it will be stored.

        Returns:
            int8 ``[E, N, K]``, whatever the layout of the parameter; its scale and its int32 zero
            point, ``[E, N]``, or ``[E, N, groups]`` for groups.
        """
        weight = self.weight_to_round(name).detach()
        integers, scale, zero_point = self._weight_quantizer(name).quantize(self._rows_of(weight))
        experts, channels, _ = weight.shape
        shape: tuple[int, ...] = (experts, channels)
        if self.config.weight.granularity == "per_tensor":
            scale = scale.reshape(-1, 1).expand(shape)
            zero_point = zero_point.reshape(-1, 1).expand(shape)
        elif self.config.weight.group_size is not None:
            shape = (experts, channels, weight.shape[-1] // self.config.weight.group_size)
        return (
            integers.reshape(weight.shape).contiguous(),
            scale.reshape(shape).contiguous(),
            zero_point.reshape(shape).contiguous(),
        )

    def weight_rows(self) -> dict[str, Tensor]:
        """Return the inputs of the weights' fake quantizers, by the names of these modules."""
        weights = {name: self.weight_to_round(name).detach() for name in self.form.weights}
        return {f"{name}_weight_fake_quant": self._rows_of(w) for name, w in weights.items()}

    def input_quantizers(self) -> dict[str, nn.Module]:
        """Return the fake quantizers of inputs by the names of these modules."""
        if self.config.activation is None:
            return {}
        names = [f"{name}_input_fake_quant" for name in self.form.weights]
        return {name: self._modules[name] for name in names}

    def _product(self, name: str, input: Tensor, offsets: Tensor, token: Tensor | None) -> Tensor:
        input = of_dtype(input, self.float_weight(name).dtype)
        if self.is_observing or self._is_teacher(name):
            return self._float_output(name, input, offsets, token)
        is_autocast = torch.is_autocast_enabled(input.device.type)  # casts an input first
        if self.is_whole and (self._is_on(name) if self.training else not is_autocast):
            return self._whole(name, taken(input, token), offsets)
        if self.is_integer and not self.training:
            return self._integer_output(name, input, offsets, token)
        return self._float_output(name, input, offsets, token)

    def _whole(self, name: str, rows: Tensor, offsets: Tensor) -> Tensor:
        weight, activation = self.config.weight, self.config.activation
        assert activation is not None
        return ops.qat_grouped_linear(
            rows,
            self.weight_to_round(name).contiguous(),
            offsets,
            self.bias_to_add(name),
            symmetric=activation.symmetric,
            weight_quant_min=weight.quant_min,
            weight_quant_max=weight.quant_max,
            quant_min=activation.quant_min,
            quant_max=activation.quant_max,
        )

    def _float_output(
        self, name: str, input: Tensor, offsets: Tensor, token: Tensor | None
    ) -> Tensor:
        weight = self.weight_to_round(name) if self.is_observing else self._rounded(name)
        passes = self.training or self._is_teacher(name)
        weights, is_part = weight.unbind(0), passes or self.is_observing

        def weight_of(expert: int) -> Tensor:
            # In evaluation this is a separate tensor, as in the converted layer: the last bit of a
            # product may depend on its alignment.
            return weights[expert] if is_part else weights[expert].clone()

        rounder: Any = self._input_quantizer(name)
        if self.is_observing:
            rounder(input)
        elif self.config.activation is not None:
            input = rounder(input) if passes else rounder.round(input)
        return float_grouped_linear(
            taken(input, token), weight_of, offsets, weights[0].shape[0], self.bias_to_add(name)
        )

    def _integer_output(
        self, name: str, input: Tensor, offsets: Tensor, token: Tensor | None
    ) -> Tensor:
        activation, bias = self.config.activation, self.bias_to_add(name)
        assert activation is not None
        weight, weight_scale, _ = self.quantized_weight(name)
        output = integer_output(
            self._input_quantizer(name),
            input,
            weight,
            offsets,
            weight_scale,
            None if bias is None else bias.detach(),
            token=token,
            symmetric=activation.symmetric,
        )
        if makes_graph():
            rounded = taken(self._input_quantizer(name).round(input), token)
            return experts_through(output, rounded, self._rounded(name), None, offsets, bias)
        parameters = [self.float_weight(name), *([] if bias is None else [bias])]
        trains = any(tensor.requires_grad for tensor in (input, *parameters)) or has_trained_scale(
            self._weight_quantizer(name), self._input_quantizer(name)
        )
        if torch.is_grad_enabled() and trains:
            output = straight_through(output, self._float_output(name, input, offsets, token))
        return output

    def _rounded(self, name: str) -> Tensor:
        """Return the weight ``[E, N, K]`` as the quantizer rounds it."""
        weight = self.weight_to_round(name)
        rows, quantizer = self._rows_of(weight), self._weight_quantizer(name)
        passes = self.training or self._is_teacher(name)  # forward minds the switches
        rows = quantizer(rows) if passes else quantizer.round(rows)
        return rows.reshape(weight.shape)

    def _rows_of(self, weight: Tensor) -> Tensor:
        """Return a weight ``[E, N, K]`` as the rows that its quantizer takes."""
        config, length = self.config.weight, weight.shape[2]
        if config.granularity == "per_tensor":
            length *= weight.shape[1]
        elif config.group_size is not None and not (config.dynamic or config.learned):
            length = config.group_size
        return weight.reshape(-1, length)

    def _weight_quantizer(self, name: str) -> Any:
        return self._modules[f"{name}_weight_fake_quant"]

    def _input_quantizer(self, name: str) -> Any:
        return self._modules[f"{name}_input_fake_quant"]

    def _is_teacher(self, name: str) -> bool:
        return bool(self._weight_quantizer(name).is_teacher())

    def _is_on(self, name: str) -> bool:
        return bool(self._weight_quantizer(name)._rounds and self._input_quantizer(name)._rounds)

    def _own(self) -> Iterable[str]:
        return [name for name in self._modules if name.endswith("_fake_quant")]

    def __getattr__(self, name: str) -> Any:
        """Return the parameter; for a weight in evaluation, the rounded weight."""
        value = super().__getattr__(name)
        if self.training or name not in self.form.weights:
            return value
        canonical = self.form.canonical

        def rounded() -> Tensor:
            return canonical(self._rounded(name)).contiguous()

        scaled = value if self.config.weight.dynamic else None
        return weight_to_read(self, rounded, value, value.dtype, value, scaled)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        shapes = ", ".join(
            f"{name}={list(self.form.canonical(self.float_weight(name)).shape)}"
            for name in self.form.weights
        )
        return f"{shapes}, bias={self.form.has_bias}, {self.config}"
