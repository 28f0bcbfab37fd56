# SPDX-License-Identifier: BSD-3-Clause
"""Calibration: observes the inputs of a model's layers on real data, in constant memory.

:func:`baraquant.quantize_` does the whole calibration. The parts can also be used separately: an
observer follows one tensor, and :func:`calibrate` runs a model with an observer for each of some
modules.
"""

from .workflow.calibration.observers import (
    OBSERVERS,
    MinMaxObserver,
    MovingAverageObserver,
    MSEObserver,
    Observer,
    PercentileObserver,
)
from .workflow.calibration.run import Calibration, calibrate

__all__ = [
    "OBSERVERS",
    "Calibration",
    "MSEObserver",
    "MinMaxObserver",
    "MovingAverageObserver",
    "Observer",
    "PercentileObserver",
    "calibrate",
]
