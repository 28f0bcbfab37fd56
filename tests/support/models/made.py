# SPDX-License-Identifier: BSD-3-Clause
"""Models of one's own, quantized or prepared in place: what tests of refusals write into rows."""

from typing import Any

from torch import nn

import baraquant
from baraquant.workflow.layers import is_converted


def quantized(model: nn.Module, scheme: Any, batch: Any = None, **options: Any) -> Any:
    """The model with integers; a batch is the calibration data."""
    calibration = None if batch is None else [batch]
    baraquant.quantize_(model, scheme, calibration=calibration, progress=False, **options)
    assert any(is_converted(module) for module in model.modules())
    return model


def prepared(model: nn.Module, scheme: Any) -> Any:
    baraquant.qat.prepare_(model, scheme)
    return model
