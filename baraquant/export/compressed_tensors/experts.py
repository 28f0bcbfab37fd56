# SPDX-License-Identifier: BSD-3-Clause
"""Mixtures of experts in a folder of compressed-tensors: a layer for each expert and projection.

In memory transformers 5 has one weight of three dimensions for all experts, ``[experts, N, K]``. In
files each expert has its own projections (``experts.0.gate_proj.weight``), and servers read these.
transformers knows how to turn the one into the other. It is asked with the numbers of the rows in
the place of the weights, which shows where each row of integers, scales and zero points goes.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ...nn import FakeQuantize, QuantizedExperts
from ...nn.shared.experts import form_of, is_experts
from .._layers import IntegerLayer, input_of

# The rows of a weight, [experts * N], that each layer in a file has, by the layer's path there.
Places: TypeAlias = "dict[str, Tensor]"


def has_experts(model: nn.Module) -> bool:
    """Whether a model holds experts, floating or quantized, that transformers has put together."""
    return any(isinstance(m, QuantizedExperts) or is_experts(m) for m in model.modules())


def in_files(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the names, and in the shapes, that they have in files of transformers.

    Tensors of a model that is not of transformers 5 are returned as they are.
    """
    transformers: Any = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return tensors
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # transformers 4.57, whose models have modules for their experts
        return tensors
    reverted: dict[str, Tensor] = revert_weight_conversion(model, dict(tensors))
    return reverted


def path_in_files(model: nn.Module, path: str) -> str:
    """Return the path that a layer has in files of transformers."""
    (name,) = in_files(model, {f"{path}.weight": torch.empty(2, 2)})
    return name.removesuffix(".weight")


def target_of(path: str) -> str:
    """Return a target for all layers of some experts, from the path of one of them in files."""
    return rf"re:{re.escape(path.rsplit('.', 2)[0])}\.\d+\."


def floating_targets(model: nn.Module) -> list[str]:
    """Return targets for floating experts, whose layers in servers are linear ones."""
    targets = []
    for path, module in model.named_modules():
        if is_experts(module):
            places = places_of(model, path, module)
            if places is None:
                targets.append(rf"re:{re.escape(path)}\b")
            else:
                targets += [target_of(one) for one in next(iter(places.values()))]
    return list(dict.fromkeys(targets))


def routers_of(model: nn.Module) -> list[str]:
    """Return the paths in files of floating routers that are no ``Linear``.

    They stand beside the experts. In servers they are linear layers, which a target could mean.
    """
    found = []
    for path, module in model.named_modules():
        if not (isinstance(module, QuantizedExperts) or is_experts(module)):
            continue
        parent = path.rpartition(".")[0]
        for name, beside in model.get_submodule(parent).named_children():
            weight = beside._parameters.get("weight")
            if weight is not None and weight.dim() == 2 and not isinstance(beside, nn.Linear):
                found.append(path_in_files(model, f"{parent}.{name}" if parent else name))
    return found


def places_of(model: nn.Module, path: str, module: nn.Module) -> dict[str, Places] | None:
    """Return where files of transformers have the rows of experts, by the names of the weights.

    None: files do not have a layer for each expert and projection, or the experts have biases.
    """
    form = form_of(module)
    assert form is not None
    if form.has_bias:
        return None
    found: dict[str, Places] = {}
    for name in form.weights:
        if isinstance(module, QuantizedExperts):
            experts, count, _ = module._integers(name).shape
        else:
            experts, count, _ = form.canonical(module.get_parameter(name)).shape
        numbers = torch.arange(experts * count, device="cpu")
        # Two columns: some versions of transformers drop a last dimension of one.
        columns = numbers.view(experts, count, 1).expand(-1, -1, 2).contiguous()
        stored = in_files(model, {f"{path}.{name}": form.canonical(columns)})
        if not all(n.endswith(".weight") and p.dim() == 2 for n, p in stored.items()):
            return None
        places = {n.removesuffix(".weight"): part[:, 0] for n, part in stored.items()}
        if not torch.equal(torch.cat(list(places.values())).sort().values, numbers):
            return None
        found[name] = places
    return found


def expert_layers(
    model: nn.Module, path: str, module: QuantizedExperts, caller: str
) -> dict[str, IntegerLayer]:
    """Return a layer for each expert and projection, by their paths in files of transformers."""
    form = form_of(module)
    assert form is not None
    if form.has_bias:
        raise ValueError(
            f"{caller}: {path}: expected experts without biases, as those of servers, but these "
            "have some; keep the experts floating (a rule that maps them to None)"
        )
    places_of_all = places_of(model, path, module)
    if places_of_all is None:
        raise ValueError(
            f"{caller}: {path}: expected experts that have layers of their own in files of "
            f"transformers, but it keeps those of {type(model).__name__} together, and the format "
            "has no integers for that; keep the experts floating (a rule that maps them to None)"
        )
    layers: dict[str, IntegerLayer] = {}
    for name, places in places_of_all.items():
        rounder = module._modules[f"{name}_input_fake_quant"]
        is_rounded = isinstance(rounder, FakeQuantize)
        weight = module._integers(name)
        scale = module._buffers[f"{name}_scale"]
        zero_point = module._parameters[f"{name}_zero_point"]
        assert scale is not None
        for layer, rows in places.items():
            chosen = rows.to(weight.device)
            layers[layer] = IntegerLayer(
                path=layer,
                module=module,
                float_name="Linear",
                qweight=weight.flatten(0, 1)[chosen],
                scale=scale.flatten(0, 1)[chosen],
                zero_point=None if zero_point is None else zero_point.flatten(0, 1)[chosen],
                bits=module.weight_bits,
                group_size=module.group_size,
                dtype=module.dtype,
                input=input_of(rounder, module.symmetric) if is_rounded else None,
            )
    return layers
