# SPDX-License-Identifier: BSD-3-Clause
"""Whether a quantized layer multiplies integers, and the warning where no layer of a model does."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import nn

from .. import nn as bnn
from ..configs import QuantConfig
from .report import FLOATS, INTEGERS, ROWS, Report

_PRODUCTS = (
    bnn.QuantizedLinear,
    bnn.StaticQuantizedLinear,
    bnn.QuantizedInt4Linear,
    bnn.StaticQuantizedInt4Linear,
)


_EITHER = (bnn.QuantizedConv1d, bnn.QuantizedConv2d, bnn.QuantizedConv3d, bnn.QuantizedExperts)
_TRANSPOSED = (
    bnn.QuantizedConvTranspose1d,
    bnn.QuantizedConvTranspose2d,
    bnn.QuantizedConvTranspose3d,
)


def arithmetic_of(module: nn.Module) -> str | None:
    """Return how a converted module computes; None for other modules."""
    if isinstance(module, _PRODUCTS):
        return INTEGERS
    if isinstance(module, bnn.QuantizedEmbedding):
        return ROWS
    if isinstance(module, bnn.WeightOnlyLinear):
        return FLOATS
    if isinstance(module, _EITHER):
        return INTEGERS if module.is_integer else FLOATS
    return FLOATS if isinstance(module, _TRANSPOSED) else None


def warn_if_no_faster(report: Report, schemes: Iterable[QuantConfig], caller: str) -> None:
    """Warn if a scheme rounds inputs, and each layer still computes in floating point."""
    schemes = [scheme for scheme in schemes if scheme.activation is not None]
    known = set(report.computes.values()) - {ROWS}
    if not schemes or known != {FLOATS}:
        return
    is_conv = any("Conv" in report.changed[path] for path in report.computes)
    advice = (
        "; convolutions round their inputs with conv_inputs=True, one scale each: "
        "W8A8Static(conv_inputs=True)"
        if is_conv and not all(scheme.conv_inputs for scheme in schemes)
        else ""
    )
    warnings.warn(
        f"{caller}: expected layers that multiply integers with {schemes[0]}, but all of them "
        "store integers and compute in floating point: the model is smaller and no faster"
        f"{advice}",
        stacklevel=4,
    )
