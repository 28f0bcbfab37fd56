# SPDX-License-Identifier: BSD-3-Clause
"""The pass for exported programs, and for other graphs of ATen's ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ._fuse import fuse
from ._merge import merge_products
from .report import Report, merged


def fuse_(program: ExportedProgram | GraphModule) -> Report:
    """Fuse quantization into what precedes it, in place, for inference.

    Quantizations of the same value with the same options become one, those in products too:
    :func:`~baraquant.ops.quantized_linear` then is :func:`~baraquant.ops.int8_linear`, and those of
    four-bit weights, of groups, and with a static scale likewise. Static scales are the same if
    they are one tensor: :func:`baraquant.export.tie_fused_scales` makes them one. What layers
    compute before they quantize (a rotation, a division by the factors of SmoothQuant, a range) is
    also computed once.

    If the value has a scale for each token and is the output of :func:`~baraquant.ops.rms_norm`,
    :func:`~baraquant.ops.layer_norm`, :func:`~baraquant.ops.silu_mul`,
    :func:`~baraquant.ops.gelu` or :func:`~baraquant.ops.hadamard`, and nothing else reads it, that
    op becomes its ``_quantize_per_token`` form. Views in between may be there if they keep each
    token whole. No bit of a result changes. A quantization is not moved across what is written in
    place, and ops of PyTorch itself, such as its ``rms_norm``, are left as they are, since they
    round differently. Products of one input are one call then, as :class:`Fuse` makes it.

    The program can be saved, loaded, run and compiled as before; to AOTInductor give :class:`Fuse`,
    which does the same there. Integers carry no gradient: the parameters of a program that was
    changed no longer require one (those of the model still do), and for an input that requires one
    the program raises NotImplementedError, but not under ``torch.no_grad()``.

    Args:
        program: What ``torch.export.export`` returned, or a graph of ATen's and baraquant's ops.
            It is changed.

    Returns:
        What was fused and what was not.

    Raises:
        TypeError: ``program`` is neither.
        ValueError: The graph has no ops of ATen or baraquant, such as one of
            ``torch.fx.symbolic_trace``.

    Example:
        >>> class Layers(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.gate, self.up = nn.Linear(16, 32), nn.Linear(16, 32)
        ...         self.down = nn.Linear(32, 16)
        ...     def forward(self, x):
        ...         return self.down(baraquant.ops.silu_mul(self.gate(x), self.up(x)))
        >>> model = Layers()
        >>> _ = baraquant.quantize_(model, baraquant.W8A8(), progress=False)
        >>> program = torch.export.export(model, (torch.randn(4, 16),))
        >>> print(baraquant.graph.fuse_(program))
        silu_mul  -> down (silu_mul_quantize_per_token)
        x         -> gate, up (dynamic_range_quantize_per_token)
        2 fused, 0 left out; 3 quantizations before, 2 now
    """
    module = program.graph_module if isinstance(program, ExportedProgram) else program
    if not isinstance(module, GraphModule):
        raise TypeError(
            "baraquant.graph.fuse_: expected program to be an ExportedProgram or a GraphModule, "
            f"but got {type(program).__name__}; call torch.export.export(model, args) first, or "
            'torch.compile(model, options={"post_grad_custom_pre_pass": baraquant.graph.Fuse()})'
        )
    # The branches of a condition and the bodies of other higher-order ops are graphs too.
    graphs = [found for found in module.modules() if isinstance(found, GraphModule)]
    nodes = (node for found in graphs for node in found.graph.nodes)
    if not any(isinstance(node.target, torch._ops.OpOverload) for node in nodes):
        raise ValueError(
            "baraquant.graph.fuse_: expected program to be a graph of ATen's and baraquant's ops, "
            "but it calls none; make it with torch.export.export(model, args)"
        )
    reports = []
    for found in graphs:
        reports.append(fuse(found.graph, recorded=True))
        merge_products(found.graph)
        found.graph.lint()
        found.recompile()
    report = merged(reports)
    if isinstance(program, ExportedProgram) and report.fusions:
        _freeze(program.state_dict)
    return report


def _freeze(state: dict[str, Any]) -> None:
    """Replace parameters by ones with the same memory that require no gradient."""
    frozen = {
        id(value): nn.Parameter(value.detach(), requires_grad=False)
        for value in state.values()
        if isinstance(value, nn.Parameter) and value.requires_grad
    }
    for name, value in state.items():
        state[name] = frozen.get(id(value), value)
