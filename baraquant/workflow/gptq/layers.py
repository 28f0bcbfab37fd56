# SPDX-License-Identifier: BSD-3-Clause
"""Runs the calibration of GPTQ: layer by layer, each after those before it were quantized.

A first run of the float model finds the order in which the layers are called, and which of them
read the same tensor. The layers of one tensor are quantized together: one more run of the model, in
which all earlier layers are quantized, adds up the Hessian of their inputs. So the memory for
calibration is that of the Hessians of one such set of layers, and the number of runs is one more
than the number of sets.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from ... import ops
from ...nn import FakeQuantizedLinear
from ...nn.shared.precision import compute_dtype
from ...nn.training.quantizers import Int4Integers, Integers
from ...schemes import GPTQ
from ..calibration.observers import FiniteCalls
from ..calibration.run import Run, counting
from ..convert import Maker
from ..passes import Chosen, Pass, register_pass
from ..replace import put
from ..transaction import undone
from .formula import Hessian, rounded

_UNREACHED = "; rounded to nearest, as the calibration data does not reach it"


class GPTQPass(Pass):
    """Rounds the weights of the linear layers of :class:`baraquant.GPTQ`."""

    reads = "several times for GPTQ"
    after_inputs = True
    instead = "rounded to nearest"

    def __init__(self) -> None:
        self._made: set[str] = set()

    def why_not(self, layer: Chosen) -> str | None:
        """Return why the weight of a layer is rounded to nearest."""
        return None if layer.is_linear else "GPTQ is for linear layers"

    def describe(self, path: str) -> str:
        """Return the name of the algorithm, where it rounded the weight."""
        return ", GPTQ" if path in self._made else ""

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        """Make the quantized layers; one that the data does not reach gets a remark.

        Raises:
            ValueError: The data reaches no layer, no input of one is finite, or a Hessian cannot be
                inverted. The message has the layer's path.
        """
        if not layers:
            return
        calls = _Calls()
        seen = {path: _Seen(calls, path) for path in layers}
        unreached = run(seen, "order of the layers")
        calls.last = None
        for path in unreached:
            layers[path].remark += _UNREACHED
        maker = Maker(chosen.values(), run.where)
        made: dict[str, nn.Module] = {}
        with undone(), counting("GPTQ", len(calls.sets), run.progress) as advance:
            for paths in calls.sets:
                hessians = _hessians({p: layers[p] for p in paths}, run, seen)
                for path in paths:
                    one, matrix = layers[path], hessians.pop(path).matrix
                    rounding = partial(_integers, matrix, one, f"{run.where}: {path}")
                    made[path] = one.made = maker.make(path, one, rounding)
                # A layer whose outputs are divided for others, which do not expect it yet, stays
                # floating in the runs.
                own = [(path, layers[path]) for path in paths if layers[path].divisor is None]
                put(run.model, [(one.module, made[path]) for path, one in own])
                advance()
        self._made = set(made)


register_pass(GPTQ, GPTQPass)


def _hessians(
    layers: Mapping[str, Chosen], run: Run, seen: Mapping[str, _Seen]
) -> dict[str, Hessian]:
    """Run the model as it is now; return the Hessians of some layers' inputs."""
    hessians = {
        path: Hessian(
            one.prepared.in_features,
            compute_dtype(one.module.weight.dtype),
            partial(_multiplied, one.prepared),
            seen[path].count(),
        )
        for path, one in layers.items()
    }
    run.again(hessians)
    return hessians


@torch.no_grad()  # type: ignore[untyped-decorator]
def _integers(
    hessian: Tensor | None, one: Chosen, where: str, prepared: nn.Module
) -> Integers | Int4Integers:
    assert isinstance(one.config, GPTQ) and hessian is not None
    damping = float(one.config.damping)
    integers, used = rounded(
        prepared.rows_of_weight(),
        hessian,
        prepared.weight_fake_quant,
        searches=one.scheme.searches_scales,
        damping=damping,
        act_order=one.config.act_order,
    )
    if not math.isclose(used, damping):
        warnings.warn(
            f"{where}: with damping {damping:g} the Hessian of the inputs is not positive "
            f"definite; it is with {used:g}, which was used. More calibration data helps",
            stacklevel=8,
        )
    return integers


def _multiplied(prepared: FakeQuantizedLinear, rows: Tensor) -> Tensor:
    """Return what a prepared layer multiplies: its input rotated and rounded, as it will be."""
    if prepared.rotate > 0:
        rows = ops.hadamard(rows, prepared.rotate)
    return prepared.input_fake_quant.round(rows) if prepared.rounds_input else rows


class _Calls:
    """The layers in the order of their first calls, in sets that read the same tensor.

    Attributes:
        sets: The paths of the layers.
        last: The tensor that the last call read, with its version and the index of its set. It is
            kept so that no other tensor takes its place.
    """

    def __init__(self) -> None:
        self.sets: list[list[str]] = []
        self.last: tuple[Tensor, int, int] | None = None
        self._set_of: dict[str, int] = {}

    def note(self, path: str, input: Tensor) -> None:
        """Note the call of a layer."""
        version = 0 if input.is_inference() else input._version
        last = self.last
        if path not in self._set_of:
            is_same = last is not None and last[0] is input and last[1] == version
            index = last[2] if last is not None and is_same else len(self.sets)
            if index == len(self.sets):
                self.sets.append([])
            self.sets[index].append(path)
            self._set_of[path] = index
        self.last = input, version, self._set_of[path]


class _Seen(FiniteCalls):
    """A watcher that notes the calls of one layer, and counts the inputs that are not finite."""

    def __init__(self, calls: _Calls, path: str) -> None:
        super().__init__()
        self._notes, self._path = calls, path

    def observe(self, input: Tensor) -> None:
        if input.numel() > 0:
            self.begin(input)
            self._notes.note(self._path, input)
