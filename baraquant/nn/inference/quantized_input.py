# SPDX-License-Identifier: BSD-3-Clause
"""Inputs that are integers already: layers that read the same numbers quantize them once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ..shared.product import matching_bias


class QuantizedInput(NamedTuple):
    """The integers of an input of :class:`QuantizedLinear`, which takes them in place of numbers.

    :meth:`QuantizedLinear.quantize` makes one, and so do the ops whose names end in
    ``_quantize_per_token``: ``QuantizedInput(*ops.silu_mul_quantize_per_token(gate, up), dtype)``.
    Layers with the same ``bits``, ``symmetric`` and ``rotate``, and no ``smooth``, may share one.
    No gradient goes through it.

    Args:
        values: int8 ``[..., in_features]``.
        scale: Of each token, ``[..., 1]``, of the dtype of the layer's scales.
        zero_point: int32 ``[..., 1]``; a symmetric layer ignores it, as it is 0.
        dtype: That of the numbers, which the layer's output will have.

    Example:
        >>> weight = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
        >>> layer = baraquant.nn.QuantizedLinear(weight, torch.tensor([0.5, 0.25]))
        >>> layer(layer.quantize(torch.tensor([[127.0, 64.0]])))
        tensor([[ -0.5000, 159.2500]])
    """

    values: Tensor
    scale: Tensor
    zero_point: Tensor
    dtype: torch.dtype


class TakesIntegers:
    """A layer with dynamic inputs that may get a :class:`QuantizedInput`."""

    def quantize(self: Any, input: Tensor) -> QuantizedInput:
        """Return the integers of an input, which this layer and others like it take in its place.

        ``layer(layer.quantize(x))`` has the bits of ``layer(x)``, but no gradient.

        Args:
            input: ``[..., in_features]``.

        Raises:
            ValueError: The layer's inputs have one scale in all (``granularity="per_tensor"``).
        """
        self._check_per_token()
        rows = input.detach()
        if self.rotate > 0:
            values, scale, zero_point = self._rotated_integers(rows)
        else:
            values, scale, zero_point = ops.dynamic_range_quantize_per_token(
                rows if self.smooth is None else rows / self.smooth,
                self.quant_min,
                self.quant_max,
                symmetric=self.symmetric,
            )
        return QuantizedInput(values, scale, zero_point, input.dtype)

    def _check_per_token(self: Any) -> None:
        if not self.per_token:
            raise ValueError(
                "QuantizedLinear: expected granularity per_token for an input of integers, but "
                f"got {self.granularity}; give the layer the floating input"
            )

    def _output_of(self: Any, input: QuantizedInput) -> Any:
        self._check_per_token()
        values, scale, zero_point, dtype = input
        bias = matching_bias(self.bias, dtype, self.weight_scale)
        zero = None if self.symmetric else zero_point
        return self._product_of_integers(values, scale, bias, zero, dtype)
