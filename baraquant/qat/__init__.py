# SPDX-License-Identifier: BSD-3-Clause
"""Quantization-aware training of a whole model: prepare it, train it, convert it to integers.

>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> report = baraquant.qat.prepare_(model, baraquant.W8A8())
>>> model(torch.randn(3, 4)).sum().backward()  # train as usual; the optimizer after prepare_
>>> report = baraquant.qat.convert_(model.eval())
"""

from ..workflow.convert import convert_
from ..workflow.prepare import prepare_
from ..workflow.report import Report
from .dampening import dampening_loss
from .distillation import distillation_loss, teacher
from .parameters import FrozenWeights, freeze_weights, parameter_groups

__all__ = [
    "FrozenWeights",
    "Report",
    "convert_",
    "dampening_loss",
    "distillation_loss",
    "freeze_weights",
    "parameter_groups",
    "prepare_",
    "teacher",
]
