# SPDX-License-Identifier: BSD-3-Clause
"""Modules around the ops of :mod:`baraquant.ops`, and switches for all of them in a model."""

from .fake_quantize import FakeQuantize
from .switches import disable_fake_quant, disable_observer, enable_fake_quant, enable_observer

__all__ = [
    "FakeQuantize",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
]
