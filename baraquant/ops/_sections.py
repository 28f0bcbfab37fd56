# SPDX-License-Identifier: BSD-3-Clause
"""The sections that end the docstrings of the ops: one text for all granularities of an op."""

import re
import textwrap
from typing import NamedTuple


class Sections(NamedTuple):
    """What an op says of itself."""

    gradient: str
    rounding: str
    references: str
    not_implemented: str = "No kernel for the device, or a gradient that has no formula."

    def __str__(self) -> str:
        raises = [*_RAISES, f"NotImplementedError: {self.not_implemented}"]
        sections = {
            "Raises": "\n".join(_filled(line, hanging=4) for line in raises),
            "Gradient": _filled(self.gradient),
            "Rounding": _filled(self.rounding),
            "References": _filled(self.references),
        }
        return "".join(f"\n    {title}:\n{text}\n" for title, text in sections.items()) + "    "


def _filled(text: str, hanging: int = 0) -> str:
    indent = " " * 8
    kept = re.sub("``.*?``", lambda code: code[0].replace(" ", "\0"), text)  # in one line
    lines = textwrap.fill(
        kept,
        100,
        initial_indent=indent,
        subsequent_indent=indent + " " * hanging,
        break_on_hyphens=False,
    )
    return lines.replace("\0", " ")


_RAISES = (
    "ValueError: A shape, a device, a range or a number that does not fit.",
    "TypeError: A dtype or a layout (sparse, quantized, complex) that the op does not take.",
    "IndexError: An ``axis`` that ``input`` does not have.",
)
_ONE_WEIGHT = (
    "No kernel for the device; :func:`torch.vmap` over anything but the input and its scales."
)
_NO_BATCH = "No kernel for the device; :func:`torch.vmap`."
_NO_VMAP = (
    "No kernel for the device; :func:`torch.vmap`, whose samples cannot share what is changed in "
    "place."
)

# ---- Gradient -----------------------------------------------------------------------------------

_QUANTIZE_GRADIENT = (
    "Where ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends included) "
    "and 0 elsewhere; differentiable twice. Integers carry none."
)
_DEQUANTIZE_GRADIENT = (
    "``grad * s`` where ``input`` is floating; differentiable twice. Integers carry none."
)
_FAKE_QUANTIZE_GRADIENT = (
    "Straight through: ``grad`` where x lay inside the range (its ends included) and 0 elsewhere; "
    "differentiable twice. A scale that requires grad gets the sum over its segment of "
    "``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside; a floating "
    "zero point, of which the forward uses ``rint(z)`` clamped to the range, that of ``-s * grad`` "
    "outside. The sums are float64 and give the same bits in every run."
)
_BACKWARD_GRADIENT = "Linear in ``grad``, and differentiable in it."
_BACKWARD_QPARAMS_GRADIENT = (
    "None: the gradients of scale and zero point cannot be differentiated again."
)
_RANGE_GRADIENT = "None: to autograd, the range of the data is a constant, and integers carry none."
_DYNAMIC_GRADIENT = (
    "Straight through, with the scale as a constant; differentiable twice. A symmetric scale clips "
    "nothing: ``grad`` itself, for which nothing is kept. Asymmetric: ``grad`` where x lay inside "
    "the range and 0 elsewhere, for which a bit per element is kept."
)
_OBSERVED_TWICE = (
    ":mod:`torch.utils.checkpoint` runs the op again in the backward pass. Extremes, and what "
    "follows from them, stay as they are if nothing else was observed in between, while a moving "
    "average counts the batch twice: switch it off, or leave it out of the checkpoint."
)
_OBSERVE_GRADIENT = f"None. {_OBSERVED_TWICE}"
_OBSERVE_FAKE_QUANTIZE_GRADIENT = (
    "Straight through, with the scale as a constant: ``grad`` where x lay inside the range or "
    "nothing was quantized, and 0 elsewhere; differentiable twice. A bit per element is kept. "
    f"{_OBSERVED_TWICE}"
)

_PRODUCT_GRADIENT = (
    "Integers carry none; ``bias`` gets the sum over tokens. A scale that requires grad is an "
    "error: NotImplementedError."
)
_SERVED = (
    "Straight through the rounding of ``input``, as :func:`qat_linear` does it: ``grad @ w^`` with "
    "``w^ = dequantize_per_channel(weight, weight_scale, None, 0)`` in the dtype of ``input``"
)
_SERVED_BIAS = (
    "``bias`` gets the sum over tokens. Differentiable twice. A scale that requires grad is an "
    "error: NotImplementedError."
)
_QUANTIZED_LINEAR_GRADIENT = (
    f"{_SERVED}. A symmetric scale clips nothing, and nothing is kept for it; else 0 where x lay "
    f"outside the range, for which a bit per element is kept. {_SERVED_BIAS}"
)
_STATIC_QUANTIZED_LINEAR_GRADIENT = (
    f"{_SERVED}, and 0 where x lay outside the range (its ends are inside), for which a bit per "
    "element is kept; with ``smooth_scale``, times ``act_scale / smooth_scale``. "
    f"{_SERVED_BIAS}"
)
_QAT_LINEAR_GRADIENT = (
    "That of ``linear(dynamic_fake_quantize_per_token(input), "
    "dynamic_fake_quantize_per_channel(weight, 0), bias)``, with the ranges of both: straight "
    "through the roundings, with the scales as constants; differentiable twice. Kept for backward: "
    "the integers, a byte per element, and their scales; where ``symmetric`` is False also a bit "
    "per element of ``input``. A weight that is a leaf (a parameter), or a view of one, is kept "
    "itself instead of its integers, at no cost. Of these only what the gradients that are asked "
    "for need."
)

_GROUPED_GRADIENT = (
    "All this for each group with its weight; a token behind the last group gets 0. On a GPU the "
    "float products of the backward go to PyTorch's grouped product where the dtype is bfloat16 "
    "and N and K are multiples of 8; else the host reads ``offsets`` there, and waits for them."
)

# ---- Rounding -----------------------------------------------------------------------------------

_COMPUTED = "Computed in float32, or float64 where the input is float64"
_AFFINE_ROUNDING = (
    "Ties go to the even integer; ``x / s`` is a true division; the zero point is added after "
    f"rounding. {_COMPUTED}, with one rounding to the result's dtype."
)
_DEQUANTIZE_ROUNDING = (
    "Computed in the dtype of ``scale`` (for a number: float64 where ``input`` or ``dtype`` is, "
    "else float32), with one rounding to the result's dtype, ties to even. NaN stays NaN."
)
_RANGE_ROUNDING = (
    f"{_COMPUTED}; ties go to the even integer. A segment of zeros or of nothing has scale 1, any "
    "other at least the smallest normal number. One NaN or infinity makes the scale of its segment "
    "NaN or infinite:"
)
_RUNNING_ROUNDING = f"{_COMPUTED}. A batch with a NaN or an infinity leaves its range as it was."
_PRODUCT_ROUNDING = (
    "The sums are exact, which is what K is limited for. Then, in float32 (float64 for a float64 "
    "result): ``fma(sum * sw[n], s[t], bias[n])``, and one rounding to the result's dtype."
)
_OUTSIDE = "A NaN x lies outside the range."

# ---- References ---------------------------------------------------------------------------------

_JACOB = (
    'Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient '
    'Integer-Arithmetic-Only Inference".'
)
_WU = (
    f'{_JACOB} Wu et al. 2020, "Integer Quantization for Deep Learning Inference: Principles and '
    'Empirical Evaluation".'
)
_STRAIGHT_THROUGH = (
    'Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through '
    'Stochastic Neurons for Conditional Computation".'
)
_LEARNED = (
    f'{_STRAIGHT_THROUGH} Gradient of the scale: Esser et al. 2020, "Learned Step Size '
    'Quantization"; of the zero point: Bhalgat et al. 2020, "LSQ+".'
)
_DYNAMIC = (
    "Activations quantized on the fly, a scale for each token: Yao et al. 2022, "
    '"ZeroQuant: Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".'
)

_SMOOTHQUANT = (
    f'{_JACOB} Xiao et al. 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization '
    'for Large Language Models".'
)

_EXPERTS = (
    f'{_JACOB} Groups of tokens with a weight each: Shazeer et al. 2017, "Outrageously Large '
    'Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer".'
)

# ---- The ops, without their granularity ---------------------------------------------------------

_SECTIONS = {
    "quantize": Sections(
        _QUANTIZE_GRADIENT,
        f"{_AFFINE_ROUNDING} NaN gives the zero point, infinities the ends of the range.",
        _JACOB,
    ),
    "quantize_backward": Sections(_BACKWARD_GRADIENT, f"{_AFFINE_ROUNDING} {_OUTSIDE}", _JACOB),
    "dequantize": Sections(_DEQUANTIZE_GRADIENT, _DEQUANTIZE_ROUNDING, _JACOB),
    "dequantize_backward": Sections(_BACKWARD_GRADIENT, _DEQUANTIZE_ROUNDING, _JACOB),
    "fake_quantize": Sections(
        _FAKE_QUANTIZE_GRADIENT,
        f"{_AFFINE_ROUNDING} NaN stays NaN, infinities give the ends of the range.",
        _LEARNED,
    ),
    "fake_quantize_backward": Sections(
        _BACKWARD_GRADIENT, f"{_AFFINE_ROUNDING} {_OUTSIDE}", _LEARNED
    ),
    "fake_quantize_backward_qparams": Sections(
        _BACKWARD_QPARAMS_GRADIENT,
        f"{_AFFINE_ROUNDING} Sums are float64; a NaN x adds nothing to the scale's.",
        _LEARNED,
    ),
    "choose_qparams": Sections(
        _RANGE_GRADIENT, f"{_RANGE_ROUNDING} the segment dequantizes to NaN.", _WU
    ),
    "dynamic_range_quantize": Sections(
        _RANGE_GRADIENT,
        f"{_RANGE_ROUNDING} its integers are the zero point, and dequantize to NaN.",
        _DYNAMIC,
    ),
    "dynamic_fake_quantize": Sections(
        _DYNAMIC_GRADIENT, f"{_RANGE_ROUNDING} the segment becomes NaN.", _STRAIGHT_THROUGH
    ),
    "int8_linear": Sections(_PRODUCT_GRADIENT, _PRODUCT_ROUNDING, _JACOB, _ONE_WEIGHT),
    "smoothquant_linear": Sections(_PRODUCT_GRADIENT, _PRODUCT_ROUNDING, _SMOOTHQUANT, _ONE_WEIGHT),
    "quantized_linear": Sections(
        _QUANTIZED_LINEAR_GRADIENT,
        f"{_PRODUCT_ROUNDING} One NaN or infinity makes its token's results NaN.",
        _DYNAMIC,
        _ONE_WEIGHT,
    ),
    "static_quantized_linear": Sections(
        _STATIC_QUANTIZED_LINEAR_GRADIENT,
        f"{_PRODUCT_ROUNDING} A NaN becomes the zero point, infinities the ends of the range.",
        _SMOOTHQUANT,
        "No kernel for the device, a gradient of a scale; :func:`torch.vmap` over anything but the "
        "input.",
    ),
    "qat_linear": Sections(
        _QAT_LINEAR_GRADIENT,
        f"{_PRODUCT_ROUNDING} One NaN or infinity makes the results of its token, or of its row "
        "of the weight, NaN.",
        f"{_STRAIGHT_THROUGH} {_JACOB}",
        _ONE_WEIGHT,
    ),
    "int8_grouped_linear": Sections(_PRODUCT_GRADIENT, _PRODUCT_ROUNDING, _EXPERTS, _NO_BATCH),
    "quantized_grouped_linear": Sections(
        f"{_QUANTIZED_LINEAR_GRADIENT} {_GROUPED_GRADIENT}",
        f"{_PRODUCT_ROUNDING} One NaN or infinity makes its token's results NaN.",
        f"{_DYNAMIC} {_EXPERTS}",
        _NO_BATCH,
    ),
    "qat_grouped_linear": Sections(
        f"{_QAT_LINEAR_GRADIENT} {_GROUPED_GRADIENT}",
        f"{_PRODUCT_ROUNDING} One NaN or infinity makes the results of its token, or of its row "
        "of the weight, NaN.",
        f"{_STRAIGHT_THROUGH} {_EXPERTS}",
        _NO_BATCH,
    ),
    "observe_min_max_": Sections(_OBSERVE_GRADIENT, _RUNNING_ROUNDING, _JACOB, _NO_VMAP),
    "observe_fake_quantize": Sections(
        _OBSERVE_FAKE_QUANTIZE_GRADIENT,
        f"{_RUNNING_ROUNDING} What is chosen from it, and rounded with that, follows the rules of "
        ":func:`choose_qparams_per_tensor` and :func:`fake_quantize_per_tensor`.",
        _JACOB,
        _NO_VMAP,
    ),
}


def shared_sections(name: str) -> str:
    """Return the sections that end the docstring of the op of that name."""
    return str(_SECTIONS[re.sub("_per_(tensor|channel|token|group)", "", name)])
