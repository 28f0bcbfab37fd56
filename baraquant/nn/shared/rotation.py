# SPDX-License-Identifier: BSD-3-Clause
"""What prepared and converted linear layers share of a rotation of their inputs.

The matrix ``H`` of :func:`baraquant.ops.hadamard` is orthonormal and symmetric, so ``x @ W.T`` is
``(x @ H) @ (W @ H).T``. A rotated layer stores ``W @ H`` and rotates ``x``. Outliers of a few
channels are spread over their blocks, and the scales of all other values get smaller (Ashkboos et
al. 2024, "QuaRot").
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ... import ops
from ..._table import shown
from .arguments import check

# The buffer that a prepared layer has if it is rotated. Its name makes a state dict of rotated
# weights differ from one of floating weights, whatever the format of the file.
MARK = "rotation"


def turned(weight: Tensor, block: int, is_transposed: bool) -> Tensor:
    """Return a weight ``[out_features, in_features]`` in the other basis: rotated, or rotated back.

    It is computed in float32 (float64 for float64) and rounded once, to the weight's dtype.
    """
    if not is_transposed:
        return ops.hadamard(weight, block)
    return ops.hadamard(weight.t(), block).t().contiguous()


def other_mark(layer: Any, state: Mapping[str, Any], prefix: str) -> list[str]:
    """Return an error if a state dict holds a prepared layer's weight in another basis."""
    mark = state.get(f"{prefix}{MARK}")
    if f"{prefix}weight" not in state or (isinstance(mark, Tensor) and mark.is_meta):
        return []
    if mark is not None and not (isinstance(mark, Tensor) and mark.numel() == 1):
        return [f"{prefix}{MARK}: expected a tensor of one number, but got {shown(mark)}"]
    return _other_basis(prefix, layer.rotate, 0 if mark is None else int(mark))


def other_metadata(layer: Any, metadata: Mapping[str, Any], prefix: str) -> list[str]:
    """Return an error if the metadata of a state dict have another basis of the integers.

    Other containers than ``state_dict()`` and ``torch.save`` lose the metadata; then there is
    nothing to check.
    """
    block = metadata.get(MARK, 0) if "version" in metadata else layer.rotate
    return _other_basis(prefix, layer.rotate, block)


def note_metadata(layer: Any, destination: Any, prefix: str) -> None:
    """Note the rotation of a converted layer in the metadata of a state dict."""
    metadata = getattr(destination, "_metadata", None)
    if layer.rotate > 0 and metadata is not None and prefix[:-1] in metadata:
        metadata[prefix[:-1]][MARK] = layer.rotate


def _other_basis(prefix: str, own: int, given: int) -> list[str]:
    if given == own:
        return []
    path = prefix[:-1] or "the layer"
    return [
        f"{path}: expected a weight with rotate={own or None}, as the layer has, but got one with "
        f"rotate={given or None}; load floating weights before baraquant.qat.prepare_ or "
        "baraquant.quantize_, and others into a model with the configuration that they come from"
    ]


def check_block(name: str, block: int | None, features: int) -> int:
    """Check the argument ``rotate`` of a converted layer; return 0 for None."""
    if block is None:
        return 0
    if type(block) is not int:
        raise TypeError(
            f"{name}: expected rotate to be an int or None, but got {type(block).__name__}"
        )
    fits = block >= 2 and block & (block - 1) == 0 and features % block == 0
    wanted = f"rotate to be a power of two >= 2 that divides in_features ({features})"
    check(name, fits, wanted, block)
    return block


def rotate_of(module: nn.Module) -> int:
    """Return the block that a layer rotates; 0 if it rotates nothing."""
    block = getattr(module, "rotate", 0)
    return block if type(block) is int else 0
