# SPDX-License-Identifier: BSD-3-Clause
"""Calibration: what a model's layers see of real data, in constant memory.

:func:`baraquant.quantize_` does it all. The parts serve by themselves too: an observer follows one
tensor, and :func:`calibrate` runs a model with an observer at each of some modules.
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
