# SPDX-License-Identifier: BSD-3-Clause
"""ONNX, by PyTorch's own exporter: our layers as QuantizeLinear, DequantizeLinear and products."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..configs import integer_range
from ..nn import (
    FakeQuantize,
    LearnedFakeQuantize,
    QuantizedLinear,
    StaticQuantizedLinear,
    WeightOnlyLinear,
)
from ..nn._convolution import ConvolvesIntegers
from ..nn._subclassed import plain_type
from ._folder import new_files
from ._layers import IntegerLayer, integer_layers
from ._packages import need
from ._rewrite import rewritten

_CALLER = "to_onnx"
_STYLES = ("integer", "qdq")
_METADATA = "baraquant.saturates_without_vnni"
_OPSETS = range(21, 26)  # 21 is the first with groups, output_dtype and int4


def to_onnx(
    model: nn.Module,
    args: tuple[Any, ...] | Tensor,
    path: str | os.PathLike[str],
    *,
    style: str = "integer",
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int = 21,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    external_data: bool | None = None,
    unsigned_weights: bool = False,
) -> None:
    """Write a quantized model as an ONNX file.

    The model is exported in evaluation mode by ``torch.onnx.export(..., dynamo=True)``; it does not
    change. In both styles a layer with weights only is ``DequantizeLinear`` before its MatMul or
    Conv, with integers of at most four bits as int4 in linear layers, and a ``FakeQuantize`` is
    ``QuantizeLinear`` and ``DequantizeLinear``. The styles differ in linear layers that also round
    their input:

    * ``"integer"``: the input becomes integers, and ``MatMulInteger`` multiplies them: the sums are
      those of the converted layer, exactly. For onnxruntime.
    * ``"qdq"``: ``QuantizeLinear`` and ``DequantizeLinear`` around a floating MatMul, the pattern
      that TensorRT, OpenVINO and QNN look for. The scale of an input must be static.

    A convolution is computed in integers by such a program if its input is rounded too, with a
    fixed scale (``input_fake_quant``). Fold batch norms into convolutions before quantizing.

    On x86 CPUs with AVX2 and without VNNI (Intel before Ice Lake, AMD before Zen 4), onnxruntime
    adds products of a uint8 input and an int8 weight in pairs of 16 bits, which saturate where
    weights exceed 64: results are off by some percent. Where that can happen the exporter warns,
    and writes the layers' paths into the metadata ``baraquant.saturates_without_vnni``. Cures:
    ``unsigned_weights=True``; the session option ``session.x64quantprecision`` set to ``"1"``; or
    weights of 7 bits (``TensorConfig(7)``).

    onnxruntime rounds the inputs of int4 layers to int8 by default. The session option
    ``session.qdq_matmulnbits_accuracy_level`` set to ``"1"`` keeps them floating.

    Args:
        model: A model from :func:`baraquant.quantize_` or :func:`baraquant.qat.convert_`.
        args: Its arguments, for tracing: a tuple, or one tensor.
        path: The file. It is replaced if it exists. If weights are stored apart, they are in a file
            beside it, whose name has ``.data`` added.
        style: ``"integer"`` or ``"qdq"``.
        kwargs: Its keyword arguments, for tracing.
        dynamic_shapes: As in ``torch.onnx.export``: the dimensions that may vary.
        opset_version: 21 to 25.
        input_names: The names of the inputs in the file. None: those of ``forward``.
        output_names: The names of the outputs.
        external_data: Whether weights are stored apart. None: where they exceed 2 GB.
        unsigned_weights: Whether ``MatMulInteger`` gets its weights as uint8 with the zero point
            128: the same sums, right on every CPU, but up to 3 times slower on CPUs with VNNI. In
            the style ``"integer"`` only.

    Raises:
        ImportError: The package onnx or onnxscript is missing.
        TypeError: An argument has another type.
        ValueError: The model, a layer or an argument does not fit.
        RuntimeError: PyTorch's exporter cannot follow the model.
        OSError: The file cannot be written.

    Example::

        baraquant.quantize_(model, baraquant.W8A8())
        baraquant.export.to_onnx(model, (x,), "model.onnx", dynamic_shapes=({0: "batch"},))
    """
    _check_arguments(args, style, kwargs, opset_version, external_data, unsigned_weights)
    need(_CALLER, "onnx", "onnx")
    need(_CALLER, "onnxscript", "onnx")
    layers = integer_layers(model, _CALLER)
    copied, four_bits = _rewritten(model, layers, style, unsigned_weights)
    saturating = [path for path, layer in layers.items() if _saturates(layer, unsigned_weights)]
    options = {
        "kwargs": None if kwargs is None else dict(kwargs),
        "dynamic_shapes": dynamic_shapes,
        "opset_version": opset_version,
        "input_names": input_names,
        "output_names": output_names,
    }
    with new_files(_CALLER, path) as partial:
        program = _exported(copied, (args,) if isinstance(args, Tensor) else args, options)
        from . import _onnx_passes

        _onnx_passes.fold_casts(program.model)
        _onnx_passes.store_four_bits(program.model, four_bits)
        if saturating:
            program.model.metadata_props[_METADATA] = " ".join(saturating)
            warnings.warn(_warning(saturating, style), stacklevel=2)
        program.save(str(partial), external_data=external_data)


def _saturates(layer: IntegerLayer, unsigned_weights: bool) -> bool:
    """Whether sums of pairs of products of a uint8 and an int8 can leave 16 bits in a layer."""
    given = layer.input
    is_linear = layer.qweight.dim() == 2
    if given is None or given.granularity == "per_group" or (is_linear and unsigned_weights):
        return False
    is_integer = plain_type(layer.module) in (QuantizedLinear, StaticQuantizedLinear)
    # Of a floating product onnxruntime makes one of integers if the scale is fixed.
    if not is_integer and not given.is_static:
        return False
    largest = integer_range(given.bits)[1] + 128  # of the input, as uint8
    weights = layer.qweight.to(torch.int16).abs()
    return weights.numel() > 0 and 2 * largest * int(weights.max()) > 2**15 - 1


def _warning(paths: list[str], style: str) -> str:
    first = f"{paths[0]} and {len(paths) - 1} others" if len(paths) > 1 else paths[0]
    instead = "unsigned_weights=True, or " if style == "integer" else ""
    return (
        f"{_CALLER}: the weights of {first} exceed 64, so that sums saturate in onnxruntime on x86 "
        f"CPUs with AVX2 and without VNNI, and results are off by some percent there: use "
        f"{instead}the session option session.x64quantprecision=1, or weights of 7 bits"
    )


def _check_arguments(
    args: Any,
    style: Any,
    kwargs: Any,
    opset_version: Any,
    external_data: Any,
    unsigned_weights: Any,
) -> None:
    if not isinstance(args, (tuple, Tensor)):
        raise TypeError(
            f"{_CALLER}: expected args to be a tuple of the model's arguments, or one tensor, but "
            f"got {type(args).__name__}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(
            f"{_CALLER}: expected kwargs to be a dictionary, but got {type(kwargs).__name__}"
        )
    if style not in _STYLES:
        raise ValueError(
            f"{_CALLER}: expected style to be one of {', '.join(_STYLES)}, but got {style!r}"
        )
    if type(opset_version) is not int or opset_version not in _OPSETS:
        raise ValueError(
            f"{_CALLER}: expected opset_version to lie in [{_OPSETS[0]}, {_OPSETS[-1]}], but got "
            f"{opset_version!r}; opset 21 is the first with groups and int4"
        )
    if type(unsigned_weights) is not bool:
        raise TypeError(
            f"{_CALLER}: expected unsigned_weights to be a bool, but got "
            f"{type(unsigned_weights).__name__}"
        )
    if unsigned_weights and style != "integer":
        raise ValueError(
            f"{_CALLER}: expected style='integer' with unsigned_weights, but got {style!r}, whose "
            "readers look for int8 weights; use the session option session.x64quantprecision=1"
        )
    if external_data is not None and type(external_data) is not bool:
        raise TypeError(
            f"{_CALLER}: expected external_data to be a bool or None, but got "
            f"{type(external_data).__name__}"
        )


def _rewritten(
    model: nn.Module, layers: dict[str, IntegerLayer], style: str, unsigned_weights: bool
) -> tuple[nn.Module, list[str]]:
    """Return a copy of the model for the exporter, and the names of what becomes int4.

    Raises:
        ValueError: A layer has no form in this style.
    """
    for layer in layers.values():
        if layer.scale.dtype == torch.float64:
            raise ValueError(
                f"{_CALLER}: {layer.path}: expected a float32 scale, but got float64, which "
                "QuantizeLinear does not take; quantize a float32 model"
            )
    copied = rewritten(
        model,
        layers,
        lambda path, module, layer: _replacement(path, module, layer, style, unsigned_weights),
    )
    for module in copied.modules():
        if isinstance(module, ConvolvesIntegers):
            # onnxruntime makes an integer convolution of the floating one.
            module.is_integer = False
    four_bits = [
        f"{path}.{name}".lstrip(".")
        for path, layer in layers.items()
        if plain_type(layer.module) is WeightOnlyLinear and layer.bits <= 4
        for name in ("qweight", "weight_zero_point")
    ]
    return copied, four_bits


def _replacement(
    path: str, module: nn.Module, layer: IntegerLayer | None, style: str, unsigned_weights: bool
) -> nn.Module:
    """Return the form of a module for the exporter; the module itself if it can stay."""
    from . import _onnx_modules as forms

    if isinstance(module, LearnedFakeQuantize):
        raise ValueError(
            f"{_CALLER}: {path}: expected no LearnedFakeQuantize, which is for training; replace "
            "it by a FakeQuantize with its scale"
        )
    if isinstance(module, FakeQuantize):
        return _rounder(path, module, style)
    if layer is None:
        return module
    kind = plain_type(layer.module)
    new: nn.Module | None = None
    if kind is QuantizedLinear:
        if style == "qdq":
            raise _not_static(path)
        new = forms.DynamicLinear(layer, unsigned_weights)
    elif kind is StaticQuantizedLinear:
        is_qdq = style == "qdq"
        new = (
            forms.StaticLinearQDQ(layer) if is_qdq else forms.StaticLinear(layer, unsigned_weights)
        )
    elif kind is WeightOnlyLinear:
        rounder: Any = module.input_fake_quant
        if isinstance(rounder, FakeQuantize):
            rounder = _rounder(f"{path}.input_fake_quant", rounder, style)
        new = forms.WeightOnly(layer, rounder)
    return module if new is None else new


def _rounder(path: str, rounder: FakeQuantize, style: str) -> nn.Module:
    from . import _onnx_modules as forms

    is_input = path.endswith("input_fake_quant")
    if rounder.is_observed:
        if int(rounder.observer_enabled) != 0:
            raise ValueError(
                f"{_CALLER}: {path}: expected a FakeQuantize whose range is fixed, but its "
                "observer is on; call disable_observer() first"
            )
        is_off = int(rounder.fake_quant_enabled) == 0
        return nn.Identity() if is_off else forms.FixedRounder(rounder.freeze(), is_input)
    if not rounder._rounds:
        return nn.Identity()
    if rounder.is_dynamic:
        if style == "qdq":
            raise _not_static(path)
        return forms.DynamicRounder(rounder)
    return forms.FixedRounder(rounder, is_input)


def _not_static(path: str) -> ValueError:
    return ValueError(
        f"{_CALLER}: {path}: expected a static scale of the input for style='qdq', but got a "
        "dynamic one; use style='integer', or quantize with W8A8Static()"
    )


def _exported(model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    from . import _onnx_translations

    try:
        return torch.onnx.export(
            model,
            args,
            dynamo=True,
            custom_translation_table=_onnx_translations.table(),
            verbose=False,
            **options,
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
        raise RuntimeError(
            f"{_CALLER}: PyTorch's exporter could not follow the model ({reason}); see the error "
            "above, and check that torch.export.export(model, args) works"
        ) from error
