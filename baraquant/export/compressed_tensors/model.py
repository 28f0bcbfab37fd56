# SPDX-License-Identifier: BSD-3-Clause
"""A converted model as the tensors and the configuration of a compressed-tensors folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...nn import FakeQuantize, QuantizedExperts
from ...workflow.computed import in_files as weight_in_files
from ...workflow.computed import names_in_files
from ...workflow.layers import inside, is_converted, is_prepared
from ...workflow.unpack import UNPACKED
from .._layers import IntegerLayer, check_layers, integer_layers
from .checks import Exported, check_server, is_exact, nudged_scale
from .config import write_config
from .experts import (
    expert_layers,
    floating_targets,
    has_experts,
    in_files,
    path_in_files,
    routers_of,
    target_of,
)
from .scheme import Scheme, scheme_of
from .tensors import tensors_of
from .ties import check_ties, head_of, tensors_outside


def describe(
    model: nn.Module,
    *,
    serve: str | None = None,
    allow: Iterable[str] = (),
    float_embeddings: bool = False,
    caller: str,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what goes into a folder: tensors by name, and the object ``quantization_config``.

    The arguments are those of ``to_compressed_tensors``.
    """
    layers = integer_layers(model, caller, expert_layers)
    _check_parts(model, caller)
    check_ties(model, caller)
    kinds = ("Linear",) if float_embeddings else ("Linear", "Embedding")  # stored as integers
    check_layers(layers, caller, lambda layer: _why_not(layer, layer.float_name not in kinds))
    written = {path: layer for path, layer in layers.items() if layer.float_name in kinds}
    floats = {path: layer for path, layer in layers.items() if path not in written}
    if not written:
        raise ValueError(
            f"{caller}: expected a quantized Linear or Embedding, but {', '.join(floats)} is all "
            "that is quantized, and the format has no such integers"
        )
    schemes = {path: scheme_of(layer) for path, layer in written.items()}
    check_server(Exported(model, written, schemes, serve), serve, allow, caller)
    if serve == "vllm":
        written = {path: _nudged(layer) for path, layer in written.items()}
    tensors = _tensors(model, written, schemes, floats, caller)
    # The paths of floating layers of the kinds that a target could mean.
    linear = (path for path, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Embedding)))
    floating = [path for path in linear if path not in schemes]
    floating += [*routers_of(model), *floating_targets(model)]
    named = {
        target_of(path) if isinstance(written[path].module, QuantizedExperts) else path: scheme
        for path, scheme in schemes.items()
    }
    # The class may stand for all layers.
    is_linear = {layer.float_name for layer in written.values()} == {"Linear"}
    config = write_config(named, floating, "Linear" if is_linear else None, head_of(model))
    return tensors, config


def _check_parts(model: nn.Module, caller: str) -> None:
    for path, module in model.named_modules():
        if type(module) in UNPACKED.values():
            raise ValueError(
                f"{caller}: {path}: expected layers with the names of the float model, but "
                f"{type(module).__name__} holds its weights in layers of its own; keep this part "
                "floating, or use baraquant.save"
            )
        parent = model.get_submodule(path.rpartition(".")[0])
        if isinstance(module, FakeQuantize) and not (is_prepared(parent) or is_converted(parent)):
            raise ValueError(
                f"{caller}: {path}: the format has no place for a FakeQuantize outside of a layer"
            )


def _why_not(layer: IntegerLayer, is_float: bool) -> str | None:
    """Return why no folder of this format can hold a layer, whatever reads it; or None."""
    if layer.transposed:
        return (
            f"the format has no integers for a {layer.float_name}, which keeps its weight "
            "transposed; keep it floating (map it to None), or use baraquant.save"
        )
    if is_float and layer.input is not None:
        return (
            f"the format has no quantized inputs for a {layer.float_name}; leave its input floating"
        )
    names = names_in_files(layer.module)
    if names != ("weight",) and not (is_float and names):
        return (
            "expected a weight that is a parameter of the float model, but a parametrization or a "
            "hook computes it there, and a reader of the folder would start that anew; keep this "
            "layer floating, or use baraquant.save"
        )
    if layer.smooth is not None:
        return (
            "its input is divided by a smoothing factor, for which the format has no place; use "
            "SmoothQuant only where a preceding layer takes the factor, or keep this layer out of "
            "it"
        )
    if layer.rotate > 0:
        return (
            f"its input is rotated (rotate={layer.rotate}), for which the format has no place; "
            "quantize with a scheme without rotate, or use baraquant.save"
        )
    if layer.scale.dtype == torch.float64:
        return "expected float32 scales, but they are float64"
    return None


def _nudged(layer: IntegerLayer) -> IntegerLayer:
    """Return the layer with a static scale from which vLLM rebuilds the zero point."""
    input = layer.input
    if input is None or input.scale is None or input.zero_point is None:
        return layer
    scale = nudged_scale(input.scale, input.zero_point)
    return layer if scale is None else replace(layer, input=replace(input, scale=scale))


def _tensors(
    model: nn.Module,
    written: dict[str, IntegerLayer],
    schemes: dict[str, Scheme],
    floats: dict[str, IntegerLayer],
    caller: str,
) -> dict[str, Tensor]:
    """Return all tensors by name, on the CPU; layers with several names once."""
    modules = model.named_modules(remove_duplicate=False)
    is_inside = inside({path: module for path, module in modules if is_converted(module)})
    stored_apart = has_experts(model)  # then files of transformers have other names
    tensors: dict[str, Tensor] = {}
    done: set[int] = set()
    for path, layer in (written | floats).items():
        if id(layer) in done:
            continue
        done.add(id(layer))
        if path in floats:
            own = weight_in_files(layer.module)
            if layer.bias is not None:
                own["bias"] = layer.bias
        else:
            exact = is_exact(layer.scale, layer.dtype)
            own = tensors_of(layer, schemes[path], layer.dtype if exact else torch.float32)
        is_expert = isinstance(layer.module, QuantizedExperts)
        home = path if is_expert or not stored_apart else path_in_files(model, path)
        tensors |= {f"{home}.{name}": tensor for name, tensor in own.items()}
    rest = tensors_outside(model, is_inside)
    for name, tensor in rest.items():
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta:
            raise ValueError(f"{caller}: {name}: expected a plain tensor with data")
    tensors |= in_files(model, rest) if stored_apart else rest
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
