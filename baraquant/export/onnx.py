# SPDX-License-Identifier: BSD-3-Clause
"""ONNX, by PyTorch's own exporter: our layers as QuantizeLinear, DequantizeLinear and products."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import nn as bnn
from .._fields import check_type
from .._packages import need
from ..nn import (
    FakeQuantize,
    LearnedFakeQuantize,
    QuantizedLinear,
    StaticQuantizedLinear,
    WeightOnlyLinear,
)
from ..nn.shared.convolution import ConvolvesIntegers
from ..nn.shared.subclassed import plain_type
from ..workflow.serialization.disk import new_file
from . import _onnx_modules as forms
from ._layers import IntegerLayer, check_layers, integer_layers, rewritten

_CALLER = "to_onnx"
_STYLES = ("integer", "qdq")
_EXPORTER = threading.Lock()  # PyTorch's exporter traces for one thread at a time
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
    int8_weights: bool | None = None,
) -> None:
    """Write a quantized model as an ONNX file.

    The model is exported in evaluation mode by ``torch.onnx.export(..., dynamo=True)``; it does not
    change. A layer with weights only is ``DequantizeLinear`` before its MatMul or Conv, integers of
    at most four bits as int4 in linear layers, and a ``FakeQuantize`` is ``QuantizeLinear`` and
    ``DequantizeLinear``. The styles differ in linear layers that also round
    their input:

    * ``"integer"``: the input becomes integers, and ``MatMulInteger`` multiplies them: the sums are
      those of the converted layer, exactly. For onnxruntime.
    * ``"qdq"``: ``QuantizeLinear`` and ``DequantizeLinear`` around a floating MatMul, the pattern
      that TensorRT, OpenVINO and QNN look for. The scale of an input must be static.

    A convolution is computed in integers by such a program if its input is rounded too, with a
    fixed scale (``input_fake_quant``). Fold batch norms into convolutions before quantizing.

    onnxruntime rounds the inputs of linear layers with weights only to int8 by default. In the
    style ``"integer"`` these are its own ``MatMulNBits`` (8 bits: from version 1.22 on) with an
    ``accuracy_level`` that keeps inputs floating. In the style ``"qdq"`` the session option
    ``session.qdq_matmulnbits_accuracy_level`` set to ``"1"`` does so.

    On x86 processors without VNNI (AVX2, and AVX-512 before it) onnxruntime's products of uint8 and
    int8 saturate where weights exceed [-64, 64]. Such weights are written as uint8, 128 larger,
    whose sums are exact on every processor. Where there is VNNI these take longer (2.3 times for
    128 rows on a Zen 4 EPYC): for such machines, and for ARM, ``int8_weights=True`` writes int8.

    The steps of recurrent layers are written out, so that a file is for one number of steps.

    A file says what the right numbers need of a session in its metadata, under keys that begin with
    ``baraquant.``.

    Args:
        model: A model from :func:`baraquant.quantize_` or :func:`baraquant.qat.convert_`.
        args: Its arguments, for tracing: a tuple, or one tensor.
        path: The file. It is replaced if it exists. If weights are stored apart, they are in a file
            beside it with a name of its own, ``model.TOKEN.onnx.data``, that only this file says:
            a reader gets the weights that belong to it. What it replaces loses its own then.
        style: ``"integer"`` or ``"qdq"``.
        kwargs: Its keyword arguments, for tracing.
        dynamic_shapes: As in ``torch.onnx.export``: the dimensions that may vary.
        opset_version: 21 to 25.
        input_names: The names of the inputs in the file. None: those of ``forward``.
        output_names: The names of the outputs.
        external_data: Whether weights are stored apart. None: where they exceed 2 GB.
        int8_weights: Whether weights in products of integers stay int8 where they exceed [-64, 64]:
            for processors with VNNI, for ARM, and for sessions of onnxruntime with the option
            ``session.x64quantprecision`` set to ``"1"``. None: in the style ``"qdq"``, with a
            warning, since the programs that it is for want int8.

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
    _check_arguments(args, style, kwargs, opset_version, external_data, int8_weights)
    need(_CALLER, "onnx", "onnx")
    need(_CALLER, "onnxscript", "onnx")
    from . import _onnx_passes as passes

    layers = integer_layers(model, _CALLER)
    signed = style == "qdq" if int8_weights is None else int8_weights
    copied, four_bits = _rewritten(model, layers, _Form(style, signed))
    options = {
        "kwargs": None if kwargs is None else dict(kwargs),
        "dynamic_shapes": dynamic_shapes,
        "opset_version": opset_version,
        "input_names": input_names,
        "output_names": output_names,
        "custom_translation_table": passes.table(),
    }
    with new_file(_CALLER, path) as partial:
        program = _exported(copied, (args,) if isinstance(args, Tensor) else args, options)
        passes.fold_casts(program.model)
        passes.store_four_bits(program.model, four_bits)
        _make_safe(passes, program.model, style, signed, is_asked_for=int8_weights is not None)
        program.save(str(partial), external_data=external_data)


@dataclass(frozen=True)
class _Form:
    """The style of a file, and whether its products take int8 weights."""

    style: str
    signed: bool


def _make_safe(passes: Any, model: Any, style: str, signed: bool, is_asked_for: bool) -> None:
    """Make products exact in every session of onnxruntime, or say what they need."""

    def note(key: str, text: str, advice: str | None = "") -> None:
        """Write a text into the file, and warn of it; with an advice of None only write it."""
        model.metadata_props[f"baraquant.{key}"] = text
        if advice is not None:
            warnings.warn(f"{_CALLER}: {text}{advice}", UserWarning, stacklevel=4)

    if not signed:
        made = len(passes.saturating(model))
        passes.make_unsigned(model)
        if made:
            text = (
                f"{made} weights are uint8, whose sums are exact on every processor; for ARM and "
                "for x86 with VNNI int8_weights=True of to_onnx writes int8 ones, which are faster"
            )
            note("unsigned", text, None)
    wrong = passes.saturating(model)
    if wrong:
        text = (
            f"{len(wrong)} int8 weights ({_some([weight.name for weight in wrong])}) exceed "
            "[-64, 64]: onnxruntime's sums saturate on x86 processors without VNNI, unless the "
            "session option session.x64quantprecision is '1'"
        )
        note("saturation", text, None if is_asked_for else "; int8_weights=False writes uint8 ones")
    if style == "integer":
        passes.keep_inputs_floating(model)
    elif passes.weights_only(model):
        text = (
            "onnxruntime rounds the inputs of layers with weights only to int8, unless the "
            "session option session.qdq_matmulnbits_accuracy_level is '1'"
        )
        note("accuracy_level", text, "; style='integer' needs no option")
        small = passes.rounded_scales(model)
        if small:
            text = (
                f"onnxruntime rounds the scales of {len(small)} weights ({_some(small)}) to "
                "float16, which does not hold them"
            )
            note("scales", text, "; use style='integer', or scale_dtype='float16'")
    reasons, count = passes.floating_convolutions(model)
    if reasons:
        text = (
            f"{count - len(reasons)} of {count} convolutions will be int8 in onnxruntime: no "
            f"quantizer behind {_some(reasons)}"
        )
        note("convolutions", text, "" if 2 * len(reasons) > count > 1 else None)
    rounded = passes.rounded_biases(model)
    if rounded:
        text = (
            f"onnxruntime rounds the biases of {rounded} int8 convolutions to multiples of the "
            "input's scale times the weight's, which their outputs may differ by; "
            "baraquant.export.round_biases_ rounds them before"
        )
        note("biases", text)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if names[3:] else "")


def _check_arguments(
    args: Any, style: Any, kwargs: Any, opset_version: Any, external_data: Any, int8_weights: Any
) -> None:
    wanted = "a tuple of the model's arguments, or one tensor"
    check_type(_CALLER, "args", args, isinstance(args, (tuple, Tensor)), wanted)
    is_right = kwargs is None or isinstance(kwargs, Mapping)
    check_type(_CALLER, "kwargs", kwargs, is_right, "a dictionary")
    if style not in _STYLES:
        raise ValueError(
            f"{_CALLER}: expected style to be one of {', '.join(_STYLES)}, but got {style!r}"
        )
    if type(opset_version) is not int or opset_version not in _OPSETS:
        raise ValueError(
            f"{_CALLER}: expected opset_version to lie in [{_OPSETS[0]}, {_OPSETS[-1]}], but got "
            f"{opset_version!r}; opset 21 is the first with groups and int4"
        )
    for name, value in (("external_data", external_data), ("int8_weights", int8_weights)):
        check_type(_CALLER, name, value, value is None or type(value) is bool, "a bool or None")


def _rewritten(
    model: nn.Module, layers: dict[str, IntegerLayer], form: _Form
) -> tuple[nn.Module, list[str]]:
    """Return a copy of the model for the exporter, and the names of what becomes int4."""
    check_layers(layers, _CALLER, _why_not)
    copied = rewritten(
        model, layers, lambda path, module, layer: _replacement(path, module, layer, form)
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


def _why_not(layer: IntegerLayer) -> str | None:
    if layer.scale.dtype == torch.float64:
        return (
            "expected a float32 scale, but got float64, which QuantizeLinear does not take; "
            "quantize a float32 model"
        )
    return None


def _replacement(
    path: str, module: nn.Module, layer: IntegerLayer | None, form: _Form
) -> nn.Module:
    """Return the form of a module for the exporter; the module itself if it can stay."""
    if isinstance(module, LearnedFakeQuantize):
        raise ValueError(
            f"{_CALLER}: {path}: expected no LearnedFakeQuantize, which is for training; replace "
            "it by a FakeQuantize with its scale"
        )
    if isinstance(module, FakeQuantize):
        return _rounder(path, module, form)
    if layer is None:
        return module
    kind = plain_type(layer.module)
    if kind is QuantizedLinear:
        if form.style == "qdq":
            raise _not_static(path)
        return forms.DynamicLinear(layer)
    if kind is StaticQuantizedLinear:
        is_qdq = form.style == "qdq"
        return forms.StaticLinearQDQ(layer, form.signed) if is_qdq else forms.StaticLinear(layer)
    if kind is WeightOnlyLinear:
        rounder: Any = module.input_fake_quant
        if isinstance(rounder, FakeQuantize):
            rounder = _rounder(f"{path}.input_fake_quant", rounder, form)
        return forms.WeightOnly(layer, rounder)
    return module


def _rounder(path: str, rounder: FakeQuantize, form: _Form) -> nn.Module:
    is_input = path.endswith("input_fake_quant")
    if rounder.is_observed:
        if int(rounder.observer_enabled) != 0:
            raise ValueError(
                f"{_CALLER}: {path}: expected a FakeQuantize whose range is fixed, but its "
                "observer is on; call disable_observer() first"
            )
        is_off = int(rounder.fake_quant_enabled) == 0
        return nn.Identity() if is_off else _fixed(rounder.freeze(), is_input, form)
    if not rounder._rounds:
        return nn.Identity()
    if rounder.is_dynamic:
        if form.style == "qdq":
            raise _not_static(path)
        return forms.DynamicRounder(rounder)
    return _fixed(rounder, is_input, form)


def _fixed(rounder: FakeQuantize, is_input: bool, form: _Form) -> nn.Module:
    return forms.FixedRounder(rounder, keeps_zero=is_input, signed=form.signed or not is_input)


def _not_static(path: str) -> ValueError:
    return ValueError(
        f"{_CALLER}: {path}: expected a static scale of the input for style='qdq', but got a "
        "dynamic one; use style='integer', or quantize with W8A8Static()"
    )


def _exported(model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        with _EXPORTER:
            return torch.onnx.export(model, args, dynamo=True, verbose=False, **options)
    except Exception as error:
        raise RuntimeError(
            f"{_CALLER}: PyTorch's exporter could not follow the model ({_reason(error)}); "
            f"{_advice(model, options)}"
        ) from error


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _advice(model: nn.Module, options: dict[str, Any]) -> str:
    kinds = (nn.RNNBase, bnn.LSTM, bnn.GRU, bnn.RNN)
    recurrent = [path for path, module in model.named_modules() if isinstance(module, kinds)]
    if recurrent and options["dynamic_shapes"] is not None:
        kind = type(model.get_submodule(recurrent[0])).__name__
        return (
            f"{recurrent[0]}: the exporter writes out the steps of a {kind}, so that a file is for "
            "one number of steps: take their dimension out of dynamic_shapes (others, such as the "
            f"batch, may vary), or export a model of one step with {kind}Cell and call it for each"
        )
    return "see the error above, and check that torch.export.export(model, args) works"
