# SPDX-License-Identifier: BSD-3-Clause
"""The pass of SmoothQuant, and what it shares with others that divide the inputs of layers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor, nn

from ...nn import FakeQuantizedLinear
from ...schemes import SmoothQuant
from ..calibration.run import Run
from ..calibration.static import fixed_input, leave_input
from ..passes import Chosen, Pass, Scaling, register_pass
from .producers import fold
from .smoothing import find_smoothings


class ScalesInputs(Pass):
    """A pass that divides the inputs of linear layers, where possible in the modules before."""

    name = ""  # what reports say of each scaled layer

    def __init__(self) -> None:
        self._abouts: dict[str, str] = {}
        self._folds: dict[str, Tensor] = {}  # the divisors of modules that stay floating

    def scale(self, found: Mapping[str, Scaling], chosen: Mapping[str, Chosen]) -> None:
        """Note how layers are scaled, and which modules divide their outputs for them."""
        for path, scaling in found.items():
            chosen[path].scaling = scaling
            self._abouts[path] = self.name + scaling.about()
            if scaling.producer is None or scaling.smooth is None:
                continue
            if scaling.producer in chosen:
                chosen[scaling.producer].divisor = scaling.smooth
            else:
                self._folds[scaling.producer] = scaling.smooth

    def describe(self, path: str) -> str:
        """Return the exponent, and where the division happens."""
        return self._abouts.get(path, "")

    def finish(self, model: nn.Module) -> None:
        """Fold the divisions into floating modules; quantized ones have them already."""
        for path, smooth in self._folds.items():
            fold(model.get_submodule(path), smooth)


class SmoothQuantPass(ScalesInputs):
    """Smooths the linear layers of :class:`baraquant.SmoothQuant`."""

    def takes(self, layer: Chosen) -> bool:
        """Whether a layer is linear. One whose weight is shared is not smoothed, but calibrated."""
        return isinstance(layer.prepared, FakeQuantizedLinear)

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        """Find the factors of each layer, and the scales of static inputs."""
        for config in dict.fromkeys(one.config for one in layers.values()):
            assert isinstance(config, SmoothQuant)
            own = {path: one for path, one in layers.items() if one.config == config}
            tied = {path for path, one in own.items() if one.shares_weight}
            weights = {path: one.prepared.rows_of_weight() for path, one in own.items()}
            found = find_smoothings(config, run, weights, tied)
            for path, one in own.items():
                if path in found:
                    _fix_input(one, found[path])
                elif config.activation.is_static:
                    leave_input(path, one, run.where)
                else:
                    one.remark += "; not smoothed, as the calibration data does not reach it"
            self.scale(found, chosen)
        if not any(self._abouts.values()):
            warnings.warn(
                f"{run.where}: expected SmoothQuant to smooth a layer, but it smooths none: "
                "no linear layer is reached by the calibration data and gains from it",
                stacklevel=4,
            )


def _fix_input(one: Chosen, scaling: Scaling) -> None:
    activation = one.scheme.activation
    if scaling.qparams is not None:
        assert activation is not None
        one.prepared.input_fake_quant = fixed_input(scaling.qparams, activation, one.module)


register_pass(SmoothQuant, SmoothQuantPass)
