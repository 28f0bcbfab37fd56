# SPDX-License-Identifier: BSD-3-Clause
"""Functions for ``model.apply`` that switch every fake quantizer of a model, also scripted ones.

Each takes any module and does nothing to modules of other kinds. After a warm-up that only
observed, ``model.apply(baraquant.nn.enable_fake_quant)`` starts to quantize.
"""

import torch
from torch import nn

from .shared.quantizer import Quantizer
from .training.learned import LearnedFakeQuantize


def enable_observer(module: nn.Module) -> None:
    """If ``module`` is an observed ``FakeQuantize``, let it follow the range of its input."""
    if _is_fake_quantize(module) and module.is_observed:
        module.enable_observer()


def disable_observer(module: nn.Module) -> None:
    """If ``module`` is an observed ``FakeQuantize``, freeze its range and scale."""
    if _is_fake_quantize(module) and module.is_observed:
        module.disable_observer()


def enable_fake_quant(module: nn.Module) -> None:
    """If ``module`` is a fake quantizer, let it round its input."""
    if _is_fake_quantize(module):
        module.enable_fake_quant()


def disable_fake_quant(module: nn.Module) -> None:
    """If ``module`` is a fake quantizer, let it pass its input through unchanged."""
    if _is_fake_quantize(module):
        module.disable_fake_quant()


def sync_qparams(module: nn.Module) -> None:
    """Give all processes the union of an observed range, or the mean of a learned scale.

    A collective operation over the default group of ``torch.distributed``: every process has to
    apply it to the same model.
    """
    if isinstance(module, LearnedFakeQuantize) or (
        _is_fake_quantize(module) and module.is_observed
    ):
        module.sync_qparams()


def _is_fake_quantize(module: nn.Module) -> bool:
    if not isinstance(module, torch.jit.ScriptModule):
        return isinstance(module, Quantizer)
    # A scripted module knows its class only by a name, such as
    # __torch__.baraquant.nn.shared.fake_quantize.___torch_mangle_3.FakeQuantize.
    is_own = module._c._type().qualified_name().startswith("__torch__.baraquant.nn.")
    return is_own and hasattr(module, "disable_fake_quant")
