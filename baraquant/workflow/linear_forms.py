# SPDX-License-Identifier: BSD-3-Clause
"""What linear layers are converted to, and how this is stored; rows of the table of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from .. import nn as bnn
from ..nn.training._quantizers import Int4Integers, Integers, PackedIntegers
from . import forms
from .forms import Form

WEIGHT_TENSORS = {"qweight": True, "weight_scale": True, "bias": False}
COMMON_OPTIONS = {
    "weight_bits": forms.int_option("weight_bits"),
    "dtype": forms.dtype_option("dtype"),
}
SINCE: Mapping[str, tuple[int, Any]] = {"dtype": (2, None)}
_ROTATE = {"rotate": forms.maybe_int_option("rotate")}
_LINEAR_OPTIONS = {**COMMON_OPTIONS, **_ROTATE, "transposed": forms.bool_option("transposed")}
_LINEAR_SINCE = {**SINCE, "transposed": (3, False), "rotate": (4, None)}
_INT4_OPTIONS = {
    "group_size": forms.int_option("group_size"),
    "in_features": forms.int_option("in_features"),
    "bits": forms.int_option("bits"),
    "dtype": forms.dtype_option("dtype"),
    "transposed": forms.bool_option("transposed"),
    **_ROTATE,
}
_INT4_TENSORS = {
    "packed": True,
    "weight_scale": True,
    "group_factor": True,
    "group_zero_point": False,
    "bias": False,
}

LINEAR_FORMS = (
    Form(
        bnn.QuantizedLinear,
        {
            "symmetric": forms.bool_option("symmetric"),
            "bits": forms.int_option("bits"),
            "granularity": forms.name_option("granularity"),
            **_LINEAR_OPTIONS,
        },
        {**WEIGHT_TENSORS, "smooth": False},
        _LINEAR_SINCE,
    ),
    Form(
        bnn.StaticQuantizedLinear,
        {"bits": forms.int_option("bits"), **_LINEAR_OPTIONS},
        {**WEIGHT_TENSORS, "act_scale": True, "act_zero_point": False, "smooth_scale": False},
        _LINEAR_SINCE,
    ),
    Form(
        bnn.WeightOnlyLinear,
        {
            "group_size": forms.maybe_int_option("group_size"),
            "input_fake_quant": forms.ROUNDER,
            **_LINEAR_OPTIONS,
        },
        {**WEIGHT_TENSORS, "weight_zero_point": False},
        _LINEAR_SINCE,
    ),
    Form(
        bnn.WeightOnlyInt4Linear,
        {
            "in_features": forms.int_option("in_features"),
            "group_size": forms.maybe_int_option("group_size"),
            "input_fake_quant": forms.ROUNDER,
            **_LINEAR_OPTIONS,
        },
        {"packed": True, "weight_scale": True, "bias": False, "weight_zero_point": False},
    ),
    Form(
        bnn.QuantizedInt4Linear,
        {
            "symmetric": forms.bool_option("symmetric"),
            "granularity": forms.name_option("granularity"),
            **_INT4_OPTIONS,
        },
        _INT4_TENSORS,
    ),
    Form(
        bnn.StaticQuantizedInt4Linear,
        _INT4_OPTIONS,
        {**_INT4_TENSORS, "act_scale": True, "act_zero_point": False},
    ),
)


def convert_linear(
    prepared: Any, integers: Callable[[], Integers | Int4Integers | PackedIntegers]
) -> nn.Module:
    """Convert a prepared linear layer."""
    form, own = linear_form(prepared), integers()
    if form is bnn.WeightOnlyInt4Linear and not isinstance(own, PackedIntegers):
        form = bnn.WeightOnlyLinear  # another layer has the same integers as int8
    new: nn.Module = form.from_prepared(prepared, own)
    return new


def linear_form(prepared: Any) -> type[Any]:
    """Return the class that a prepared linear layer is converted to."""
    if not prepared.is_integer:
        is_narrow = prepared.config.weight.bits <= 4
        return bnn.WeightOnlyInt4Linear if is_narrow else bnn.WeightOnlyLinear
    is_static = prepared.config.is_static
    if prepared.has_group_factors:
        return bnn.StaticQuantizedInt4Linear if is_static else bnn.QuantizedInt4Linear
    return bnn.StaticQuantizedLinear if is_static else bnn.QuantizedLinear
