# SPDX-License-Identifier: BSD-3-Clause
"""AWQ: the factors of input channels, and the error that they leave (Lin et al., 2024).

``y = (x / s) (w s)^T`` for any ``s[k] > 0``. Where the inputs are large, a larger ``s`` makes the
rounding of ``w s`` finer in units of ``w``, as long as it does not widen the scale of its group.
``s = mean|x|^alpha / sqrt(max * min)``, with the maximum and the minimum of ``mean|x|^alpha`` over
the channels. With ``E = round(w s) / s - w`` the summed squared error of the output is
``trace(E H E^T)`` for ``H = X^T X`` of the inputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...nn import FakeQuantize
from ...nn.training._range import power_to_one
from ..calibration.finite import NearOne, Seen
from ..fit import fit
from ..gptq.formula import Hessian


class SeenSquares(Seen):
    """A watcher that counts the inputs of one layer, and adds up the squares of their channels.

    Args:
        features: The number K of inputs.
        dtype: The dtype of the sums, float32 or float64.

    Attributes:
        squares: The sums over the finite inputs times a power of two, ``[K]``; None if there was
            no input.
    """

    def __init__(self, features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._features, self._dtype = features, dtype
        self._near_one = NearOne()
        self.squares: Tensor | None = None

    def observe(self, input: Tensor) -> None:
        """Add ``input``, ``[..., K]``, if it is finite."""
        if input.numel() == 0 or input.shape[-1] != self._features:
            return  # the layer itself raises the error of a wrong shape
        is_finite = self.begin(input)
        rows = input.detach().reshape(-1, self._features).to(self._dtype)
        rows, change = self._near_one(torch.where(is_finite, rows, 0.0))
        squares = rows.square().sum(dim=0)
        if self.squares is not None:
            squares += self.squares * change.square()
        self.squares = squares


class Inputs(Hessian):
    """Adds up ``X^T X`` and ``|X|`` of one layer's inputs, and keeps nothing else.

    Attributes:
        absolute: The sum of the absolute values of each channel times the same power of two,
            ``[K]``; None if no input was seen.
    """

    absolute: Tensor | None = None

    def _add(self, rows: Tensor, change: Tensor) -> None:
        super()._add(rows, change)
        if self.absolute is None:
            self.absolute = rows.new_zeros(rows.shape[1])
        self.absolute.mul_(change).add_(rows.abs().sum(dim=0))


def scaling(absolute: Tensor, alpha: float) -> Tensor:
    """Return the factors ``s`` that divide the input and multiply the weights.

    Args:
        absolute: The mean of the absolute values of each channel of the input, ``[K]``, or any
            multiple of it, which has the same factors.
        alpha: The exponent, in [0, 1].

    Returns:
        ``[K]``, of the dtype of ``absolute``, in [1e-5, 1e5]. 1 for a channel that is always 0,
        which has no part in the maximum and the minimum.
    """
    powers = absolute.to(torch.float64).pow(alpha)
    is_zero = absolute == 0
    largest = powers.masked_fill(is_zero, 0.0).amax()
    least = powers.masked_fill(is_zero, math.inf).amin()
    factors = powers / (largest.sqrt() * least.sqrt())
    return factors.clamp(1e-5, 1e5).masked_fill(is_zero, 1.0).to(absolute.dtype)


def output_error(
    weight: Tensor,
    smooth: Tensor,
    hessian: Tensor,
    quantizer: FakeQuantize,
    *,
    importance: Tensor | None,
) -> Tensor:
    """Return the squared error of a layer's output, summed over its inputs, float64 ``[]``.

    Args:
        weight: The weight, ``[N, K]``.
        smooth: Its factors, ``[K]``, of the same dtype.
        hessian: ``X^T X`` of the inputs, ``[K, K]``, of the same dtype.
        quantizer: The dynamic quantizer of the weight.
        importance: The squares of the unscaled inputs, ``[K]``, if the scales are searched.
    """
    scaled = weight * smooth
    if importance is not None:
        quantizer = fit(scaled, quantizer, importance / smooth.square())
    error = quantizer.round(scaled) / smooth - weight
    # Powers of two, so that no product overflows or vanishes; they change no other bit.
    of_weight = power_to_one(weight.abs().amax())
    of_hessian = power_to_one(hessian.abs().amax())
    error = error * of_weight
    with torch.autocast(error.device.type, enabled=False):
        product = ((error @ (hessian * of_hessian)) * error).sum(dtype=torch.float64)
    return product / of_weight.double().square() / of_hessian.double()
