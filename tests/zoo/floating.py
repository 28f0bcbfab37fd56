# SPDX-License-Identifier: BSD-3-Clause
"""What share of a model's parameters became integers, and what stayed floating and why."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VECTORS = "norms, biases and other vectors"


def share(plain: nn.Module, quantized: nn.Module) -> float:
    """The number of integers of the quantized weights, as a part of all parameters."""
    integers = {
        tensor.data_ptr(): tensor.numel()
        for tensor in quantized.buffers()
        if tensor.dtype in (torch.int8, torch.uint8) and tensor.dim() > 1
    }
    total = sum(p.numel() for p in plain.parameters())
    return sum(integers.values()) / max(total, 1)


def listed(plain: nn.Module, quantized: nn.Module, report: Any) -> dict[str, int]:
    """Numbers of parameters that stay floating, by what they are and why, the largest first."""
    kept = {id(p): p for p in plain.parameters()}
    integers = _paths_of_integers(quantized)
    found: dict[str, int] = {}
    at = dict(plain.named_modules())
    for path, module in at.items():
        for name, parameter in module._parameters.items():
            if parameter is None or kept.pop(id(parameter), None) is None:
                continue
            if _is_quantized(path, name, integers):
                continue
            is_vector = parameter.dim() < 2
            reason = report.left_out.get(path)
            what = VECTORS if is_vector else f"{type(module).__name__}: {_short(reason)}"
            found[what] = found.get(what, 0) + parameter.numel()
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _paths_of_integers(model: nn.Module) -> set[str]:
    """Paths of the modules that hold integers."""
    return {
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if any(_is_integer(b) for b in module._buffers.values())
    }


def _is_integer(buffer: Tensor | None) -> bool:
    return buffer is not None and buffer.dtype in (torch.int8, torch.uint8) and buffer.dim() > 1


def _is_quantized(path: str, name: str, integers: set[str]) -> bool:
    if "bias" in name and "weight" not in name:
        return False
    packed = f"{path}.q_proj" in integers and "in_proj" in name
    return path in integers or packed


def _short(reason: str | None) -> str:
    return "not looked at" if reason is None else reason
