# SPDX-License-Identifier: BSD-3-Clause
"""Runs the calibration of AWQ, and finds the factors of each linear layer.

A first run finds which layers share the output of a module that can absorb their factors, as for
SmoothQuant, and adds up the squares of each channel, by which a search for scales weighs the errors
of the weights. Further runs add up ``X^T X`` of the inputs of those layers; of how many at a time
depends on the memory alone, not on the number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ...schemes import AWQ
from ..calibration.progress import ProgressBar
from ..calibration.run import Calibration, Watcher, calibrate, check_repeatable
from ..fit import searches_scales
from ..select import Chosen
from ..smoothquant.flow import Group, find_groups
from ..smoothquant.producers import can_fold
from ..smoothquant.smoothing import Smoothing
from .formula import Inputs, SeenSquares, output_error, scaling

_UNREACHED = "; not scaled, as the calibration data does not reach it"
_NO_PRODUCER = "; not scaled, as no preceding layer can absorb the division"
_READABLE = "; not scaled, as other calls may read the output of {}"
_NO_GAIN = "; not scaled, as no factors lower the error"

# The bytes of the matrices X^T X that are held at a time, if there are several groups.
_BYTES = 1 << 30


def find_scalings(
    model: nn.Module,
    layers: Mapping[str, Chosen],
    calibration: Calibration | None,
    *,
    progress: bool,
    where: str,
) -> dict[str, Smoothing]:
    """Run the calibration, and return the factors of the layers to scale; others get a remark.

    Args:
        model: The float model.
        layers: The linear layers of :class:`AWQ`, by path. They share their weights with no other.
        calibration: Batches, or a function that runs the model.
        progress: Whether to show a bar.
        where: The function name for error messages.

    Raises:
        ValueError: The data can be read only once, it reaches no layer, or no input of one is
            finite. The message has the layer's path.
    """
    if not layers:
        return {}
    assert calibration is not None
    check_repeatable(calibration, "several times for AWQ", where)

    def run(watchers: Mapping[str, Watcher]) -> set[str]:
        return calibrate(
            model,
            calibration,
            watchers,
            description="what feeds the layers",
            progress=progress,
            where=where,
            allows_unreached=True,
        )

    seen = {path: SeenSquares(*_size_and_dtype(one)) for path, one in layers.items()}
    found, unreached = find_groups(model, seen, set(), run)
    for path, one in layers.items():
        if searches_scales(one.scheme):
            one.importance = seen[path].squares
    groups = [group for group in found if group.producer is not None]
    readable = {group.layers[0]: group.readable for group in found if group.readable is not None}
    for path in layers.keys() - {path for group in groups for path in group.layers}:
        without = _NO_PRODUCER if path not in readable else _READABLE.format(readable[path])
        layers[path].remark += _UNREACHED if path in unreached else without
    with ProgressBar("AWQ", len(groups), progress) as bar:
        for part in _parts(groups, layers):
            inputs = {
                path: Inputs(*_size_and_dtype(layers[path]), known=seen[path].count())
                for group in part
                for path in group.layers
            }
            calibrate(model, calibration, inputs, progress=False, where=where)
            for group in part:
                own = {path: inputs.pop(path) for path in group.layers}
                _search(model, group, layers, own)
                bar.advance()
    for group in groups:
        if group.smooth is None:
            for path in group.layers:
                layers[path].remark += _NO_GAIN
    return {
        path: Smoothing(group.smooth, group.alpha, group.producer)
        for group in groups
        if group.smooth is not None
        for path in group.layers
    }


def _size_and_dtype(one: Chosen) -> tuple[int, torch.dtype]:
    """Return the number of a layer's inputs, and the dtype of its factors and sums."""
    is_double = one.module.weight.dtype == torch.float64
    return one.prepared.in_features, torch.float64 if is_double else torch.float32


def _parts(groups: list[Group], layers: Mapping[str, Chosen]) -> Iterator[list[Group]]:
    """Yield groups whose matrices fit into the memory together, at least one at a time."""
    part: list[Group] = []
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
    model: nn.Module,
    group: Group,
    layers: Mapping[str, Chosen],
    inputs: Mapping[str, Inputs],
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
