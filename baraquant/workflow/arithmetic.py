# SPDX-License-Identifier: BSD-3-Clause
"""Whether a layer multiplies integers, and the warning where a scheme speeds up nothing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import nn

from .. import nn as bnn
from .._table import some
from ..configs import QuantConfig
from ..nn.shared.convolution import ConvolvesIntegers
from .layers import Layer, form_of, layer_of_prepared, layer_with
from .report import FLOATS, INTEGERS, ROWS, multiply_adds

_PRODUCTS = (
    bnn.QuantizedLinear,
    bnn.StaticQuantizedLinear,
    bnn.QuantizedInt4Linear,
    bnn.StaticQuantizedInt4Linear,
)
_SMALL = 0.1  # the share of integer products up to which nothing is faster


def arithmetic_of(module: nn.Module) -> str | None:
    """Return how a converted module computes, or a prepared one after conversion; else None.

    A registered kind of layer says with ``is_integer`` that it multiplies integers.
    """
    form, layer = form_of(module), layer_of_prepared(module)
    known = layer if form is None else layer_with(form)
    if known is None:
        return None
    if _looks_up(known):
        return ROWS
    is_integer = getattr(module, "is_integer", None)
    if is_integer is None:
        # A registered layer may say it in the class for inference alone.
        kind = type(module) if layer is None else layer.forms[0].module
        rounds = layer is None or bool(getattr(module, "rounds_input", False))
        is_integer = rounds and (issubclass(kind, _PRODUCTS) or getattr(kind, "is_integer", False))
    return INTEGERS if is_integer is True else FLOATS


def _looks_up(layer: Layer) -> bool:
    kind = layer.float_type
    return kind is not None and issubclass(kind, (nn.Embedding, nn.EmbeddingBag))


def warn_if_no_faster(
    prepared: Mapping[str, nn.Module],
    schemes: Mapping[str, QuantConfig],
    caller: str,
    stacklevel: int = 4,
) -> None:
    """Warn of schemes that round inputs, but whose layers compute in floating point.

    Args:
        prepared: The layers as they will be converted, by path.
        schemes: The configuration of each, as the caller gave it.
        caller: The public function, for the message.
        stacklevel: That of the caller's caller.
    """
    by_scheme: dict[QuantConfig, list[str]] = {}
    for path, scheme in schemes.items():
        if scheme.activation is not None:
            by_scheme.setdefault(scheme, []).append(path)
    for scheme, paths in by_scheme.items():
        how = {path: arithmetic_of(prepared[path]) for path in paths}
        products = {
            path: multiply_adds(prepared[path], whole=False) for path in paths if how[path] != ROWS
        }
        total = sum(products.values())
        share = sum(count for path, count in products.items() if how[path] == INTEGERS) / (
            total or 1
        )
        if total == 0 or share > _SMALL:
            continue
        floating = [path for path in products if how[path] == FLOATS]
        is_conv = any(isinstance(prepared[path], ConvolvesIntegers) for path in floating)
        advice = (
            "; convolutions round their inputs with conv_inputs=True, one scale each: "
            "W8A8Static(conv_inputs=True)"
            if is_conv and not scheme.conv_inputs
            else ""
        )
        what = "all of them" if share == 0 else f"{100 * (1 - share):.0f} % of the multiply-adds"
        verb = "store integers and compute" if share == 0 else "belong to layers that compute"
        which = "the model is" if len(paths) == len(schemes) else f"{some(floating, 3)} are"
        warnings.warn(
            f"{caller}: expected layers that multiply integers with {scheme}, but {what} "
            f"{verb} in floating point: {which} smaller and no faster{advice}",
            stacklevel=stacklevel,
        )
