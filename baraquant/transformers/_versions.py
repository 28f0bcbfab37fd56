# SPDX-License-Identifier: BSD-3-Clause
"""What differs between transformers 4.57 and 5, and what both leave undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ..nn.inference.linear import _IntegerLinear

if TYPE_CHECKING:

    class ConversionOps:
        """The base of the operations on tensors that arrive, in transformers 5."""

else:
    try:
        from transformers.core_model_loading import ConversionOps
    except ImportError:  # transformers 4.57

        class ConversionOps:
            """Never used: 4.57 has no such operations."""


def refresh_sums(model: nn.Module) -> None:
    """Compute the sums of the weights' rows again.

    They are in no file, and transformers replaces every such buffer by an uninitialized one.
    """
    for module in model.modules():
        if isinstance(module, _IntegerLinear):
            module.sum_weight()


__all__: list[Any] = ["ConversionOps", "refresh_sums"]
