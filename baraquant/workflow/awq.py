# SPDX-License-Identifier: BSD-3-Clause
"""AWQ: the factors of input channels, and the error that they leave (Lin et al., 2024).

``y = (x / s) (w s)^T`` for any ``s[k] > 0``. Where the inputs are large, a larger ``s`` makes the
rounding of ``w s`` finer in units of ``w``, as long as it does not widen the scale of its group.
``s = mean|x|^alpha / sqrt(max * min)``, with the maximum and the minimum of ``mean|x|^alpha`` over
the channels. With ``E = round(w s) / s - w`` the summed squared error of the output is
``trace(E H E^T)`` for ``H = X^T X`` of the inputs.

A first run finds which layers share the output of a module that can absorb their factors, as for
SmoothQuant, and adds up the squares of each channel, by which a search for scales weighs the errors
of the weights. Further runs add up ``X^T X`` of the inputs of those layers; of how many at a time
depends on the memory alone, not on the number of batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..nn import FakeQuantize
from ..nn.shared.precision import compute_dtype
from ..nn.shared.range import power_to_one
from ..schemes import AWQ
from .calibration.run import Run, counting
from .gptq.formula import Hessian
from .passes import Chosen, Scaling, register_pass
from .smoothquant.producers import ScalesInputs, can_fold
from .smoothquant.smoothing import find_groups


class Squares(Hessian):
    """Adds up the diagonal of ``X^T X`` alone: its ``matrix`` is ``[K]``."""

    _axes = 1

    def _add(self, rows: Tensor, change: Tensor) -> None:
        assert self.matrix is not None
        self.matrix.mul_(change.square()).add_(rows.square().sum(dim=0))


class Inputs(Hessian):
    """Adds up ``X^T X`` and ``|X|`` of one layer's inputs, and keeps nothing else.

    Attributes:
        absolute: The sum of the magnitudes of each channel times the same power of two, ``[K]``.
    """

    absolute: Tensor | None = None

    def _add(self, rows: Tensor, change: Tensor) -> None:
        super()._add(rows, change)
        if self.absolute is None:
            self.absolute = rows.new_zeros(rows.shape[1])
        self.absolute.mul_(change).add_(rows.abs().sum(dim=0))


def scaling(absolute: Tensor, alpha: float) -> Tensor:
    """Return the factors ``s``, ``[K]``, that divide the input and multiply the weights.

    ``absolute``, ``[K]``, is the mean of the absolute values of each channel of the input, or any
    multiple of it, which has the same factors and their dtype. ``alpha`` is in [0, 1], and they are
    in [1e-5, 1e5]. A channel that is always 0 has no part in the maximum and the minimum, and the
    factor 1.
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
        quantizer, _ = quantizer.fitted(scaled, importance / smooth.square())
    error = quantizer.round(scaled) / smooth - weight
    # Powers of two, so that no product overflows or vanishes; they change no other bit.
    of_weight = power_to_one(weight.abs().amax())
    of_hessian = power_to_one(hessian.abs().amax())
    error = error * of_weight
    with torch.autocast(error.device.type, enabled=False):
        product = ((error @ (hessian * of_hessian)) * error).sum(dtype=torch.float64)
    return product / of_weight.double().square() / of_hessian.double()


class AWQPass(ScalesInputs):
    """Scales the weights of the linear layers of :class:`baraquant.AWQ`."""

    reads = "several times for AWQ"
    instead = "not scaled"
    name = ", AWQ"

    def why_not(self, layer: Chosen) -> str | None:
        """Return why a layer is not scaled."""
        return None if layer.is_linear else "AWQ is for linear layers"

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        """Find the factors of each layer."""
        self.scale(find_scalings(layers, run), chosen, run.model)


register_pass(AWQ, AWQPass)

_UNREACHED = "; not scaled, as the calibration data does not reach it"
_NO_PRODUCER = "; not scaled, as no preceding layer can absorb the division"
_READABLE = "; not scaled, as other calls may read the output of {}"
_NO_GAIN = "; not scaled, as no factors lower the error"

# The bytes of the matrices X^T X that are held at a time, if there are several groups.
_BYTES = 1 << 30


def find_scalings(layers: Mapping[str, Chosen], run: Run) -> dict[str, Scaling]:
    """Run the calibration, and return the factors of the layers to scale; others get a remark.

    The layers share their weights with no other.

    Raises:
        ValueError: The data reaches no layer, or no input of one is finite; with the layer's path.
    """
    if not layers:
        return {}
    seen = {path: Squares(*_size_and_dtype(one)) for path, one in layers.items()}
    found, unreached = find_groups(run, seen, set(), "what feeds the layers")
    for path, one in layers.items():
        if one.scheme.searches_scales:
            one.importance = seen[path].matrix
    groups = [group for group in found if group.producer is not None]
    readable = {group.layers[0]: group.readable for group in found if group.readable is not None}
    for path in layers.keys() - {path for group in groups for path in group.layers}:
        without = _NO_PRODUCER if path not in readable else _READABLE.format(readable[path])
        layers[path].remark += _UNREACHED if path in unreached else without
    with counting("AWQ", len(groups), run.progress) as advance:
        for part in _parts(groups, layers):
            inputs = {
                path: Inputs(*_size_and_dtype(layers[path]), known=seen[path].count())
                for group in part
                for path in group.layers
            }
            run.again(inputs)
            for group in part:
                own = {path: inputs.pop(path) for path in group.layers}
                _search(run.model, group, layers, own)
                advance()
    for group in groups:
        if group.smooth is None:
            for path in group.layers:
                layers[path].remark += _NO_GAIN
    return {path: group for group in groups if group.smooth is not None for path in group.layers}


def _size_and_dtype(one: Chosen) -> tuple[int, torch.dtype]:
    """Return the number of a layer's inputs, and the dtype of its factors and sums."""
    return one.prepared.in_features, compute_dtype(one.module.weight.dtype)


def _parts(groups: list[Scaling], layers: Mapping[str, Chosen]) -> Iterator[list[Scaling]]:
    """Yield groups whose matrices fit into the memory together, at least one at a time."""
    part: list[Scaling] = []
    held = 0
    for group in groups:
        sizes = (_size_and_dtype(layers[path]) for path in group.layers)
        size = sum(features**2 * dtype.itemsize for features, dtype in sizes)
        if part and held + size > _BYTES:
            yield part
            part, held = [], 0
        part.append(group)
        held += size
    if part:
        yield part


@torch.no_grad()  # type: ignore[untyped-decorator]
def _search(
    model: nn.Module, group: Scaling, layers: Mapping[str, Chosen], inputs: Mapping[str, Inputs]
) -> None:
    """Give a group the alpha with the minimum error of its layers' outputs, and the factors.

    Of equal errors that of the smaller alpha counts. 0 leaves the group without factors.
    """
    assert group.producer is not None
    producer = model.get_submodule(group.producer)
    weights: dict[str, Tensor] = {}
    for path in group.layers:
        _, dtype = _size_and_dtype(layers[path])
        weights[path] = layers[path].prepared.rows_of_weight().to(dtype)
    device = weights[group.layers[0]].device
    # The sums of all layers are taken to the least of their powers of two.
    sums, powers = {}, {}
    for path, one in inputs.items():
        assert one.absolute is not None and one.near_one.power is not None
        sums[path], powers[path] = one.absolute.to(device), one.near_one.power.to(device)
    power = torch.stack([*powers.values()]).amin()
    shares = {path: power / own for path, own in powers.items()}
    near_one = torch.stack([sums[path] * share for path, share in shares.items()]).sum(dim=0)
    absolute = near_one.double() / power.double()

    def error_of(smooth: Tensor) -> Tensor:
        errors = []
        for path, weight in weights.items():
            one = layers[path]
            error = output_error(
                weight,
                smooth.to(weight),
                inputs[path].matrix.to(weight),  # type: ignore[union-attr]
                one.prepared.weight_fake_quant,
                importance=None if one.importance is None else one.importance.to(weight),
            )
            errors.append(error.to(device) * shares[path].double().square())
        return torch.stack(errors).sum()

    configs = [layers[path].config for path in group.layers]
    steps = max(config.steps for config in configs if isinstance(config, AWQ))
    least = error_of(torch.ones_like(near_one))
    for step in range(1, steps + 1):
        smooth = scaling(absolute, step / steps).to(near_one.dtype)
        # In float16 a parameter of the producer may overflow.
        if can_fold(producer, smooth):
            error = error_of(smooth)
            if bool(error < least):
                least, group.alpha, group.smooth = error, step / steps, smooth
