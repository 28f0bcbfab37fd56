# SPDX-License-Identifier: BSD-3-Clause
"""``QuantizedExperts``: the int8 experts of a mixture of experts, for inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ... import ops
from ..shared.arguments import check, check_bits
from ..shared.experts import (
    Form,
    RunsExperts,
    float_grouped_linear,
    form_of,
    integer_output,
    of_dtype,
    taken,
)
from ..shared.fake_quantize import FakeQuantize
from ..shared.product import fixed_dtype
from ..shared.straight_through import experts_through, makes_graph, straight_through
from ..shared.weight import weight_to_read
from . import _arguments
from .integers import ReadsFloats

_NAME = "QuantizedExperts"


class QuantizedExperts(RunsExperts, ReadsFloats):
    """Experts with int8 weights, and a scale for each channel or group of each expert.

    It replaces floating experts, and keeps their code between the products (the gate, a norm). It
    also replaces :class:`baraquant.nn.FakeQuantizedExperts`, with the same bits as their
    evaluation. If inputs have one scale for each token or one for all, and weights have neither
    groups nor zero points, both products are integer products. Otherwise the weights of those
    experts that have tokens are dequantized, and the products are floating. The gradient goes
    straight through the rounding to the input and to ``top_k_weights``.

    The floating weights can be read by their names and in their layout. Each read computes them
    from the integers, as ``weight`` of :class:`baraquant.nn.WeightOnlyLinear`.

    Args:
        tensors: The tensors by their names in the state dict. ``<w>`` is ``gate_up_proj``
            (``up_proj`` for experts without a gate) or ``down_proj``.

            * ``<w>_qweight``: int8 ``[experts, out_features, in_features]``, whatever the layout of
              the floating weight.
            * ``<w>_scale``: float32 (float64 for float64 inputs) ``[experts, out_features]``, or
              ``[experts, out_features, groups]`` with ``group_size``.
            * ``<w>_zero_point``: integer, shaped like the scale; 0 if it is missing.
            * ``<w>_bias``: floating ``[experts, out_features]``, as in the floating experts.
            * ``<w>_input_fake_quant.scale`` and ``<w>_input_fake_quant.zero_point``: for the input,
              ``[]`` or ``[1]``, if ``is_static``.
        like: The experts that it replaces, on any device, including the meta device. It shares
            their submodules (an activation, a norm).
        group_size: The number of adjacent input features that share a scale.
        weight_bits: The width of the weights' integers, 2 to 8. They are always stored as int8.
        granularity: The granularity of the inputs: ``per_token``, ``per_tensor`` or ``per_group``;
            None: the inputs stay floating.
        bits: The width of the inputs' integers, 2 to 8.
        symmetric: True for no zero point: 0 is in the middle of the inputs' integers. False adds a
            zero point.
        is_static: Whether the inputs' scale is given; else it is computed from the input.
        input_group_size: The number of adjacent values of an input that share a scale, for
            ``per_group``.
        dtype: The dtype of the floating weights. None: the dtype of the bias, else of the scale.

    Raises:
        ValueError: A tensor is missing or unknown, or a shape, width or option does not fit.
        TypeError: The weights are not int8, the scales are not float32 or float64, the zero points
            are not integer tensors, or a value is not a tensor.
    """

    is_integer: bool  # products of integers

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        like: nn.Module,
        *,
        group_size: int | None = None,
        weight_bits: int = 8,
        granularity: str | None = None,
        bits: int = 8,
        symmetric: bool = True,
        is_static: bool = False,
        input_group_size: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        form = form_of(like)
        if form is None:
            raise ValueError(f"{_NAME}: expected like to be experts, but got {type(like).__name__}")
        check_bits(_NAME, "weight_bits", weight_bits)
        check_bits(_NAME, "bits", bits)
        is_known = granularity in (None, "per_token", "per_tensor", "per_group")
        wanted = "granularity to be per_token, per_tensor, per_group or None"
        check(_NAME, is_known, wanted, repr(granularity))
        fits = not is_static or granularity == "per_tensor"
        check(_NAME, fits, "granularity to be per_tensor for a static scale", repr(granularity))
        _check_names(form, tensors, is_static)
        self._take_place_of(like)
        self.group_size, self.weight_bits = group_size, weight_bits
        self.granularity, self.input_group_size = granularity, input_group_size
        self.bits, self.symmetric, self.is_static = bits, symmetric, is_static
        scales = []
        for name in form.weights:
            self._set_weight(name, tensors)
            self.add_module(f"{name}_input_fake_quant", self._rounder(name, tensors))
            scales.append(f"{name}_scale")
        self._scales = tuple(scales)
        self._check_shapes(like)
        first = (self._bias(form.up), self._buffers[f"{form.up}_scale"])
        assert first[1] is not None
        self.dtype = _arguments.weight_dtype(_NAME, dtype, *first)
        self.is_integer = (
            granularity in ("per_token", "per_tensor")
            and group_size is None
            and all(self._parameters[f"{name}_zero_point"] is None for name in form.weights)
        )

    def _set_weight(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        weight, bias = tensors[f"{name}_qweight"], tensors.get(f"{name}_bias")
        _arguments.check_experts(_NAME, name, weight, bias)
        scale = _arguments.scale_of_experts(
            _NAME, name, tensors[f"{name}_scale"], weight, self.group_size
        )
        zero_point = _arguments.zero_point_of_weight(
            _NAME, tensors.get(f"{name}_zero_point"), scale, name
        )
        if bias is not None:
            self.register_parameter(f"{name}_bias", _arguments.parameter(bias))
        self.register_parameter(f"{name}_qweight", _arguments.parameter(weight))
        self.register_buffer(f"{name}_scale", scale)
        self.register_parameter(f"{name}_zero_point", zero_point)

    def _rounder(self, name: str, tensors: Mapping[str, Tensor]) -> nn.Module:
        if self.granularity is None:
            return nn.Identity()
        half, prefix = 1 << (self.bits - 1), f"{name}_input_fake_quant"
        options: dict[str, Any] = {"mode": "dynamic", "symmetric": self.symmetric}
        if self.is_static:
            options = {"scale": tensors[f"{prefix}.scale"]}
            options["zero_point"] = tensors[f"{prefix}.zero_point"]
        return FakeQuantize(
            granularity=self.granularity,
            group_size=self.input_group_size,
            quant_min=-half,
            quant_max=half - 1,
            **options,
        ).without_state()

    def _check_shapes(self, like: nn.Module) -> None:
        for name in self.form.weights:
            shape = list(self._integers(name).shape)
            own = like._parameters.get(name)
            if isinstance(like, QuantizedExperts):
                own = like._integers(name)
            elif own is not None:
                own = self.form.canonical(own)
            expected = f"{self.num_experts} experts" if own is None else list(own.shape)
            fits = shape[0] == self.num_experts and (own is None or expected == shape)
            wanted = f"the shape of the experts whose place it takes ({expected})"
            check(_NAME, fits, f"{name}_qweight to have {wanted}", shape)

    def _product(self, name: str, input: Tensor, offsets: Tensor, token: Tensor | None) -> Tensor:
        input = of_dtype(input, self.dtype)
        if not self.is_integer:
            return self._float_output(name, input, offsets, token)
        weight, scale = self._integers(name), self._buffers[f"{name}_scale"]
        bias = self._bias(name)
        assert scale is not None
        rounder: Any = self._modules[f"{name}_input_fake_quant"]
        trains = torch.is_grad_enabled() and input.requires_grad
        if (trains or makes_graph()) and self.granularity == "per_token":
            return ops.quantized_grouped_linear(
                taken(input, token),
                weight,
                offsets,
                scale,
                bias,
                symmetric=self.symmetric,
                quant_min=rounder.quant_min,
                quant_max=rounder.quant_max,
                dtype=fixed_dtype(input.dtype),
            )
        output = integer_output(
            rounder,
            input,
            weight,
            offsets,
            scale,
            bias,
            token=token,
            symmetric=self.symmetric,
        )
        if makes_graph():
            return experts_through(
                output, taken(rounder(input), token), weight, scale, offsets, bias
            )
        if trains:
            output = straight_through(output, self._float_output(name, input, offsets, token))
        return output

    def _float_output(
        self, name: str, input: Tensor, offsets: Tensor, token: Tensor | None
    ) -> Tensor:
        weight = self._integers(name)
        rounder: Any = self._modules[f"{name}_input_fake_quant"]
        return float_grouped_linear(
            taken(rounder(input), token),
            lambda expert: self._dequantized(name, slice(expert, expert + 1), input.dtype)[0],
            offsets,
            weight.shape[1],
            self._bias(name),
        )

    def dequantized_weight(self, name: str) -> Tensor:
        """Return the floating weight of this name, dequantized, in its layout."""
        return self.form.canonical(self._dequantized(name, slice(None), self.dtype))

    def _dequantized(self, name: str, experts: slice, dtype: torch.dtype) -> Tensor:
        """Return the weights of these experts, ``[experts, N, K]``."""
        weight, zero_point = self._integers(name)[experts], self._parameters[f"{name}_zero_point"]
        scale = self._buffers[f"{name}_scale"]
        assert scale is not None
        scale = scale[experts].flatten(0, 1)
        zero_point = None if zero_point is None else zero_point[experts].flatten(0, 1)
        rows = weight.flatten(0, 1)
        if self.group_size is None:
            rows = ops.dequantize_per_channel(rows, scale, zero_point, 0, dtype=dtype)
        else:
            rows = ops.dequantize_per_group(
                rows, scale, zero_point, self.group_size, 1, dtype=dtype
            )
        return rows.reshape(weight.shape)

    def _integers(self, name: str) -> Tensor:
        weight = self._parameters[f"{name}_qweight"]
        assert weight is not None
        return weight

    def _bias(self, name: str) -> Tensor | None:
        return self._parameters.get(f"{name}_bias")

    def _own(self) -> Iterable[str]:
        return [
            f"{name}_{end}"
            for name in self.form.weights
            for end in ("qweight", "scale", "zero_point", "bias", "input_fake_quant")
        ]

    def __getattr__(self, name: str) -> Any:
        """Return a dequantized weight, to read only, or any other attribute."""
        form = vars(self).get("form")
        if form is None or name not in form.weights:
            return super().__getattr__(name)
        like = form.canonical(self._integers(name))
        scale = super().__getattr__(f"{name}_scale")
        return weight_to_read(
            self, lambda: self.dequantized_weight(name), like, self.dtype, scaled=scale
        )

    def __setattr__(self, name: str, value: Any) -> None:
        form = vars(self).get("form")
        if form is not None and name in form.weights:
            scale = super().__getattr__(f"{name}_scale")
            self._check_assigned(name, value, scale, f"{name}_qweight")
            return
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        shapes = ", ".join(f"{n}={list(self._integers(n).shape)}" for n in self.form.weights)
        how = "per_channel" if self.group_size is None else f"per_group({self.group_size})"
        has_zero = self._parameters["down_proj_zero_point"] is not None
        of_input = "float"
        if self.granularity is not None:
            zero = "symmetric" if self.symmetric else "asymmetric"
            when = "static" if self.is_static else "dynamic"
            of_input = f"int{self.bits} {self.granularity} {zero} {when}"
        return (
            f"{shapes}, bias={self.form.has_bias}, weight=int{self.weight_bits} {how}"
            f"{' asymmetric' if has_zero else ''}, input={of_input}"
        )


def _check_names(form: Form, tensors: Mapping[str, Tensor], is_static: bool) -> None:
    """Check that there are all tensors and no others, and that both weights have the same ones."""
    needed = ["qweight", "scale"] + (["bias"] if form.has_bias else [])
    if is_static:
        needed += ["input_fake_quant.scale", "input_fake_quant.zero_point"]
    if any(f"{name}_zero_point" in tensors for name in form.weights):
        needed.append("zero_point")
    names = {f"{name}_{end}" for name in form.weights for end in needed}
    for name in sorted(names):
        if name not in tensors:
            raise ValueError(f"{_NAME}: expected a tensor {name}, but there is none")
        if not isinstance(tensors[name], Tensor):
            got = type(tensors[name]).__name__
            raise TypeError(f"{_NAME}: expected {name} to be a Tensor, but got {got}")
    unknown = min(tensors.keys() - names, default=None)
    check(_NAME, unknown is None, f"the tensors {', '.join(sorted(names))}", unknown)
