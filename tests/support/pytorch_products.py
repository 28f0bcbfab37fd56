# SPDX-License-Identifier: BSD-3-Clause
"""Weight-only layers that multiply by PyTorch's product, as other packages do with their files."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from baraquant.nn import WeightOnlyLinear
from baraquant.nn.shared.product import linear


def _forward(layer: Any, input: Tensor) -> Tensor:
    rows = layer.input_fake_quant(layer._rotated(input))
    bias = None if layer.bias is None else layer.bias.to(input.dtype)
    return linear(rows, layer._dequantized(input.dtype), bias)


@contextmanager
def products_of_pytorch() -> Iterator[None]:
    """In this block the sums of ``WeightOnlyLinear`` have PyTorch's order.

    So equal weights give equal bits, which the layer's own product does not promise.
    """
    with mock.patch.object(WeightOnlyLinear, "forward", _forward):
        yield
