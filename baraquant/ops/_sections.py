# SPDX-License-Identifier: BSD-3-Clause
"""The sections that end the docstrings of the ops: one text for all granularities of an op."""

import re
from typing import NamedTuple

_RAISES = """
    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that the op does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or {unsupported}.
"""

_GRADIENT = """
    Gradient:
        {text}
"""

_ROUNDING = """
    Rounding:
        {text}
"""

_REFERENCES = """
    References:
        {text}
"""


class Sections(NamedTuple):
    """What an op says of itself, lines after the first indented by eight spaces."""

    gradient: str
    rounding: str
    references: str
    unsupported: str = "a gradient that has no formula"

    def __str__(self) -> str:
        return "".join(
            (
                _RAISES.format(unsupported=self.unsupported),
                _GRADIENT.format(text=self.gradient),
                _ROUNDING.format(text=self.rounding),
                _REFERENCES.format(text=self.references),
                "    ",
            )
        )


# ---- Gradient -----------------------------------------------------------------------------------

_QUANTIZE_GRADIENT = """\
Where ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends
        included) and 0 elsewhere; differentiable twice. Integers carry none."""

_DEQUANTIZE_GRADIENT = """\
``grad * s`` where ``input`` is floating; differentiable twice. Integers carry none."""

_FAKE_QUANTIZE_GRADIENT = """\
Straight through: ``grad`` where x lay inside the range (its ends included) and 0
        elsewhere; differentiable twice. A scale that requires grad gets the sum over its segment
        of ``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside; a
        floating zero point, of which the forward uses ``rint(z)`` clamped to the range, that of
        ``-s * grad`` outside. The sums are float64 and give the same bits in every run."""

_BACKWARD_GRADIENT = "Linear in ``grad``, and differentiable in it."

_BACKWARD_QPARAMS_GRADIENT = (
    "None: the gradients of scale and zero point cannot be differentiated again."
)

_NO_GRADIENT = "None: to autograd, the range of the data is a constant, and integers carry none."

_DYNAMIC_GRADIENT = """\
Straight through, with the scale as a constant; differentiable twice. A symmetric scale
        clips nothing: ``grad`` itself, for which nothing is kept. Asymmetric: ``grad`` where x lay
        inside the range and 0 elsewhere, for which a bit per element is kept."""

_REPEATED = """\
:mod:`torch.utils.checkpoint` runs it again in the backward pass. The extremes and
        what follows from them stay as they are if nothing else was observed in between, while a
        moving average counts the batch twice: switch it off, or leave it out of the checkpoint."""

_OBSERVE_GRADIENT = f"""\
None. {_REPEATED}"""

_OBSERVE_FAKE_QUANTIZE_GRADIENT = f"""\
Straight through, with the scale as a constant: ``grad`` where x lay inside the range
        or nothing was quantized, and 0 elsewhere; differentiable twice. A bit per element is kept.
        {_REPEATED}"""

# ---- Rounding -----------------------------------------------------------------------------------

_AFFINE_ROUNDING = """\
Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or float64 where the input is float64, with one rounding
        to the result's dtype. """

_DEQUANTIZE_ROUNDING = """\
Computed in the dtype of ``scale`` (for a number: float64 where ``input`` or ``dtype`` is,
        else float32), with one rounding to the result's dtype, ties to even. NaN stays NaN."""

_RANGE_ROUNDING = """\
Computed in float32, or float64 where the input is float64; ties go to the even integer.
        A segment of zeros or of nothing has scale 1, any other at least the smallest normal
        number. One NaN or infinity makes the scale of its segment NaN or infinite: """

_RUNNING_ROUNDING = """\
Computed in float32, or float64 where the input is float64. One NaN makes both ends of
        its range NaN, for good; infinities are numbers like others. """

# ---- References ---------------------------------------------------------------------------------

_JACOB = """\
Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference"."""

_STRAIGHT_THROUGH = """\
Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients
        Through Stochastic Neurons for Conditional Computation"."""

_LEARNED = f"""\
{_STRAIGHT_THROUGH} Gradient of the scale:
        Esser et al. 2020, "Learned Step Size Quantization"; of the zero point: Bhalgat et al. 2020,
        "LSQ+"."""

_WU = f"""\
{_JACOB} Wu et al. 2020, "Integer
        Quantization for Deep Learning Inference: Principles and Empirical Evaluation"."""

_DYNAMIC = """\
Activations quantized on the fly, a scale for each token: Yao et al. 2022, "ZeroQuant:
        Efficient and Affordable Post-Training Quantization for Large-Scale Transformers"."""

# ---- The ops, without their granularity ---------------------------------------------------------

_VMAP = ":func:`torch.vmap`, whose samples cannot share what changes in place"
_OUTSIDE = "A NaN x lies outside the range."

_SECTIONS = {
    "quantize": Sections(
        _QUANTIZE_GRADIENT,
        _AFFINE_ROUNDING + "NaN gives the zero point, infinities the ends of the range.",
        _JACOB,
    ),
    "quantize_backward": Sections(_BACKWARD_GRADIENT, _AFFINE_ROUNDING + _OUTSIDE, _JACOB),
    "dequantize": Sections(_DEQUANTIZE_GRADIENT, _DEQUANTIZE_ROUNDING, _JACOB),
    "dequantize_backward": Sections(_BACKWARD_GRADIENT, _DEQUANTIZE_ROUNDING, _JACOB),
    "fake_quantize": Sections(
        _FAKE_QUANTIZE_GRADIENT,
        _AFFINE_ROUNDING + "NaN stays NaN, infinities give the ends of the range.",
        _LEARNED,
    ),
    "fake_quantize_backward": Sections(_BACKWARD_GRADIENT, _AFFINE_ROUNDING + _OUTSIDE, _LEARNED),
    "fake_quantize_backward_qparams": Sections(
        _BACKWARD_QPARAMS_GRADIENT,
        _AFFINE_ROUNDING + "Sums are float64; a NaN x adds nothing to the scale's.",
        _LEARNED,
    ),
    "choose_qparams": Sections(
        _NO_GRADIENT, _RANGE_ROUNDING + "the\n        segment dequantizes to NaN.", _WU
    ),
    "dynamic_range_quantize": Sections(
        _NO_GRADIENT,
        _RANGE_ROUNDING + "its\n        integers are the zero point, and dequantize to NaN.",
        _DYNAMIC,
    ),
    "dynamic_fake_quantize": Sections(
        _DYNAMIC_GRADIENT, _RANGE_ROUNDING + "it\n        becomes NaN.", _STRAIGHT_THROUGH
    ),
    "observe_min_max_": Sections(
        _OBSERVE_GRADIENT, _RUNNING_ROUNDING + "-0 is less than +0.", _JACOB, _VMAP
    ),
    "observe_fake_quantize": Sections(
        _OBSERVE_FAKE_QUANTIZE_GRADIENT,
        _RUNNING_ROUNDING + "The scale and what is rounded\n        with it follow the other ops.",
        _JACOB,
        _VMAP,
    ),
}


def shared_sections(name: str) -> str:
    """Return the sections that end the docstring of the op of that name."""
    return str(_SECTIONS[re.sub("_per_(tensor|channel|token|group)", "", name)])
