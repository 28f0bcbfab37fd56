# SPDX-License-Identifier: BSD-3-Clause
"""The module that rounds an input after training."""

import copy

from torch import Tensor, nn

from ..shared.fake_quantize import FakeQuantize
from ..shared.observed_range import UNSEEN, skipped
from .learned import LearnedFakeQuantize

# What the message of a learned scale adds: the cause that a reader does not see.
COPIED = (
    "; a copy of the model that averages its parameters (EMA) has to be made after that first batch"
)


def is_unseen(quantizer: nn.Module) -> bool:
    """Whether a fake quantizer has a range that no batch has set; none was skipped either."""
    is_learned = isinstance(quantizer, LearnedFakeQuantize)
    if not is_learned and not (isinstance(quantizer, FakeQuantize) and quantizer.is_observed):
        return False
    if quantizer.scale.is_meta or int(quantizer.skipped_batches) > 0:
        return False
    if is_learned:
        return not quantizer._is_initialized()
    return bool(quantizer.min_val > quantizer.max_val)


def frozen(quantizer: nn.Module) -> FakeQuantize | None:
    """Return the module that rounds the input from now on; None if there is none."""
    if isinstance(quantizer, LearnedFakeQuantize):
        scale, zero_point = quantizer.calculate_qparams()
        if not quantizer._is_initialized() and not scale.is_meta:
            raise ValueError(UNSEEN + skipped(quantizer) + COPIED)
        check_scale("the input", scale)
        low, high = quantizer.quant_min, quantizer.quant_max
        return FakeQuantize(scale, zero_point, quant_min=low, quant_max=high).without_state()
    if not isinstance(quantizer, FakeQuantize):
        return None
    if quantizer.is_dynamic:
        dynamic = copy.deepcopy(quantizer).without_state()
        dynamic.enable_fake_quant()
        return dynamic
    has_range = quantizer.is_observed and not quantizer.scale.is_meta
    if has_range and bool(quantizer.min_val > quantizer.max_val):
        raise ValueError(UNSEEN + skipped(quantizer))
    check_scale("the input", quantizer.scale)
    return quantizer.freeze()


def check_scale(what: str, scale: Tensor, scale_dtype: str = "float32") -> None:
    """Check that a scale is finite; ``scale_dtype`` is what it was rounded to."""
    if scale.is_meta or bool(scale.isfinite().all()):
        return
    if scale_dtype == "float32":
        raise ValueError(
            f"expected the scale of {what} to be finite, but got NaN or infinity, as a value was"
        )
    largest = "65504" if scale_dtype == "float16" else "3.39e+38"
    raise ValueError(
        f"expected the scale of {what} to be a finite {scale_dtype}, but got NaN or infinity: a "
        f"value was, or the scale is larger than {largest}; then take another scale_dtype"
    )
