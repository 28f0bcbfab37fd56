# SPDX-License-Identifier: BSD-3-Clause
"""What share of a model's parameters became integers, and what stayed floating and why."""

import torch
from torch import nn

from baraquant.nn import QuantizedInt4Linear, StaticQuantizedInt4Linear, WeightOnlyInt4Linear
from baraquant.workflow.report import Report

VECTORS = "norms, biases and other vectors"
_PACKED = (QuantizedInt4Linear, StaticQuantizedInt4Linear, WeightOnlyInt4Linear)


def share(plain: nn.Module, quantized: nn.Module) -> float:
    """The number of integers of the quantized weights, as a part of all parameters."""
    integers: dict[int, int] = {}  # by the address of the weight, which several may share
    at = dict(plain.named_modules())
    for path, module in quantized.named_modules():
        # A weight that a parametrization computes has an address for a moment only.
        weight = at[path]._parameters.get("weight") if path in at else None
        if isinstance(module, _PACKED):
            kept = module.packed if weight is None else weight
            integers[kept.data_ptr()] = module.out_features * module.in_features
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.dtype in (torch.int8, torch.uint8) and tensor.dim() > 1:
                integers[(tensor if weight is None else weight).data_ptr()] = tensor.numel()
    total = sum(p.numel() for p in plain.parameters())
    return sum(integers.values()) / max(total, 1)


def listed(plain: nn.Module, report: Report) -> dict[str, int]:
    """Numbers of parameters that stay floating, by what they are and why, the largest first."""
    at = dict(plain.named_modules())
    found: dict[str, int] = {}
    for path, count in report.floating.items():
        reason = report.left_out.get(path)
        kind = type(at[path]).__name__ if path in at else path
        what = VECTORS if reason is None else f"{kind}: {reason}"
        found[what] = found.get(what, 0) + count
    return dict(sorted(found.items(), key=lambda item: -item[1]))
