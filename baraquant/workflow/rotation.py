# SPDX-License-Identifier: BSD-3-Clause
"""Which linear layers are rotated, and when."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from ..nn import FakeQuantizedConv1D, FakeQuantizedLinear
from ..nn.recurrent_cells import Cell
from ..nn.shared.rotation import rotate_of

# The classes of prepared layers that rotate their inputs.
ROTATED = (FakeQuantizedLinear, FakeQuantizedConv1D)


def not_rotated(model: nn.Module) -> set[int]:
    """Return the ids of the modules of a float model that no configuration rotates.

    These are modules that share a parameter with another one, which would then compute with a
    rotated weight, and the products of recurrent cells, whose weights have names of the cells.
    """
    holders: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), set()).add(id(module))
    fixed = {module for sharing in holders.values() if len(sharing) > 1 for module in sharing}
    for module in model.modules():
        if isinstance(module, Cell):
            fixed |= {id(part) for part in module.modules()}
    return fixed


def rotate_weights_(prepared: Iterable[nn.Module]) -> None:
    """Rotate the weights of prepared layers in place, where that is still to be done."""
    for layer in prepared:
        if isinstance(layer, FakeQuantizedLinear):
            layer.rotate_weight_()


def about_rotation(layer: nn.Module) -> str:
    """Return what a report adds to the class of a converted layer."""
    block = rotate_of(layer)
    return f", rotate={block}" if block > 0 else ""
