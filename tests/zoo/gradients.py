# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of whole models: of floating inputs, of what embeddings give, of parameters."""

import contextlib
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.tiny_transformers import build as tiny
from tests.support.tiny_transformers.models import Inputs


def loss(model: nn.Module, inputs: Inputs) -> Tensor:
    """The mean squares of all outputs that depend on something, summed."""
    found = [t for t in tiny.tensors(model(**inputs)) if t.requires_grad]
    squares = [t.float().square().masked_fill(~t.isfinite(), 0.0).mean() for t in found]
    return torch.stack(squares).sum() if squares else torch.zeros(())


def of(model: nn.Module, inputs: Inputs, plain: nn.Module) -> dict[str, Tensor]:
    """The gradients in evaluation, by name; embeddings are looked for in the float model."""
    leaves: dict[str, Tensor] = {}
    paths = {name for name, m in plain.named_modules() if isinstance(m, nn.Embedding)}
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if name in paths:
                hooks.enter_context(module.register_forward_hook(_adds_a_leaf(name, leaves)))
        torch.manual_seed(1)
        model.eval()
        model.zero_grad()
        value = loss(model, _leaf(inputs, "input", leaves))
        if not value.requires_grad:
            return {}
        value.backward()
    found = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    found |= {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def runs_of(model: nn.Module, inputs: Inputs, plain: nn.Module) -> list[dict[str, Tensor]]:
    """The gradients of one run; of eight runs where two differ in a bit.

    On a GPU some backward kernels of PyTorch add in a different order each time, such as that of
    `grid_sample`.
    """
    runs = [of(model, inputs, plain) for _ in range(2)]
    if all(torch.equal(value, runs[1][name]) for name, value in runs[0].items()):
        return runs[:1]
    return runs + [of(model, inputs, plain) for _ in range(6)]


def expect_near(got: dict[str, Tensor], wanted: list[dict[str, Tensor]], tolerance: float) -> None:
    """Each gradient that both models have, relative to its norm.

    `wanted` has those of one run or of several: what the runs of one model differ by is no
    difference of the models. `tolerance` is the relative difference that rounding explains.
    """
    names = [name for name in wanted[0] if name in got]
    largest = max((float(wanted[0][name].double().norm()) for name in names), default=0.0)
    worst = (0.0, "")
    for name in names:
        runs = [run[name].double() for run in wanted]
        spread = max((float((a - b).norm()) for a, b in combinations(runs, 2)), default=0.0)
        difference = min(float((got[name].double() - run).norm()) for run in runs) - spread
        # What is nothing but rounding, as the gradient of a key's bias, has no digits to compare.
        floor = 1e-3 * largest
        worst = max(worst, (difference / max(float(runs[0].norm()), floor, 1e-30), name))
    assert worst[0] <= tolerance, f"the gradient of {worst[1]} is {worst[0]:.3g} away, relatively"


def _adds_a_leaf(name: str, leaves: dict[str, Tensor]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        # A module that is called several times has a leaf for each call.
        key = f"{name} (output {sum(k.startswith(f'{name} (') for k in leaves)})"
        leaves[key] = torch.zeros_like(output, requires_grad=True)
        return output + leaves[key]

    return hook


def _leaf(value: Any, name: str, leaves: dict[str, Tensor]) -> Any:
    """The inputs with leaves for their floating tensors."""
    if isinstance(value, Tensor) and value.is_floating_point():
        leaves[name] = value.detach().clone().requires_grad_()
        return leaves[name]
    if isinstance(value, dict):
        return {key: _leaf(entry, f"{name}.{key}", leaves) for key, entry in value.items()}
    if isinstance(value, list):
        return [_leaf(entry, f"{name}.{i}", leaves) for i, entry in enumerate(value)]
    return value
