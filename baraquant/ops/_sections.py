# SPDX-License-Identifier: BSD-3-Clause
"""The last sections of the ops' docstrings: all granularities of an op share one text."""

import re
import textwrap
from typing import NamedTuple


class Sections(NamedTuple):
    """The texts of one op."""

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
    "No kernel for the device; :func:`torch.vmap`, whose samples cannot share a tensor that "
    "changes in place."
)

# ---- Gradient -----------------------------------------------------------------------------------

_QUANTIZE_GRADIENT = (
    "If ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends included), and "
    "0 elsewhere; differentiable twice. Integers have no gradient."
)
_DEQUANTIZE_GRADIENT = (
    "If ``input`` is floating: ``grad * s``; differentiable twice. Integers have no gradient."
)
_FAKE_QUANTIZE_GRADIENT = (
    "Straight through: ``grad`` where x lay inside the range (its ends included) and 0 elsewhere; "
    "differentiable twice. A scale that requires grad gets the sum over its segment of "
    "``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside. A floating "
    "zero point that requires grad gets the sum of ``-s * grad`` outside the range; the forward "
    "pass uses ``rint(z)``, clamped to the range. The sums are float64 and give the same bits in "
    "every run."
)
_BACKWARD_GRADIENT = "Linear in ``grad``, and differentiable in it."
_BACKWARD_QPARAMS_GRADIENT = (
    "None: the gradients of scale and zero point cannot be differentiated again."
)
_RANGE_GRADIENT = (
    "None: autograd takes the range of the data as a constant, and integers have no gradient."
)
_DYNAMIC_GRADIENT = (
    "Straight through, with the scale as a constant; differentiable twice. A symmetric scale clips "
    "nothing: the gradient is ``grad`` itself, and nothing is kept for it. An asymmetric scale: "
    "``grad`` where x lay inside the range and 0 elsewhere; one bit per element is kept."
)
_OBSERVED_TWICE = (
    ":mod:`torch.utils.checkpoint` runs the op again in the backward pass. A minimum and a "
    "maximum, and the scale from them, do not change then if nothing else was observed in between. "
    "A moving average counts the batch twice: switch it off, or leave it out of the checkpoint."
)
_OBSERVE_GRADIENT = f"None. {_OBSERVED_TWICE}"
_OBSERVE_FAKE_QUANTIZE_GRADIENT = (
    "Straight through, with the scale as a constant: ``grad`` where x lay inside the range or "
    "nothing was quantized, and 0 elsewhere; differentiable twice. One bit per element is kept. "
    f"{_OBSERVED_TWICE}"
)

_PRODUCT_GRADIENT = (
    "Integers have no gradient; ``bias`` gets the sum over tokens. A scale that requires grad "
    "raises NotImplementedError."
)
_SERVED = (
    "Straight through the rounding of ``input``, as :func:`qat_linear` does it: ``grad @ w^`` with "
    "``w^ = dequantize_per_channel(weight, weight_scale, None, 0)`` in the dtype of ``input``"
)
_SERVED_BIAS = (
    "``bias`` gets the sum over tokens. Differentiable twice. A scale that requires grad raises "
    "NotImplementedError."
)
_QUANTIZED_LINEAR_GRADIENT = (
    f"{_SERVED}. A symmetric scale clips nothing, and nothing is kept for it. With an asymmetric "
    "scale the gradient is 0 where x lay outside the range, and one bit per element is kept. "
    f"{_SERVED_BIAS}"
)
_STATIC_QUANTIZED_LINEAR_GRADIENT = (
    f"{_SERVED}, and 0 where x lay outside the range (its ends are inside); one bit per element is "
    "kept. With ``smooth_scale`` it is multiplied by ``act_scale / smooth_scale``. "
    f"{_SERVED_BIAS}"
)
_QAT_LINEAR_GRADIENT = (
    "The gradient of ``linear(dynamic_fake_quantize_per_token(input), "
    "dynamic_fake_quantize_per_channel(weight, 0), bias)``, with the ranges of both: straight "
    "through the roundings, with the scales as constants; differentiable twice. The op keeps for "
    "the backward pass: the integers, one byte per element, and their scales; if ``symmetric`` is "
    "False, also one bit per element of ``input``. If the weight is a leaf (a parameter) or a view "
    "of one, it is kept itself instead of its integers, at no cost. Only what the requested "
    "gradients need is kept."
)

_GROUPED_GRADIENT = (
    "All this holds for each group with its weight; a token after the last group gets 0. On a GPU, "
    "PyTorch's grouped product computes the floating products of the backward pass if the dtype is "
    "bfloat16 and N and K are multiples of 8. Otherwise the host reads ``offsets`` there, and "
    "waits for them."
)

# ---- Rounding -----------------------------------------------------------------------------------

_COMPUTED = "Computed in float32, or in float64 for a float64 input"
_AFFINE_ROUNDING = (
    "Ties go to the even integer; ``x / s`` is a true division; the zero point is added after "
    f"rounding. {_COMPUTED}, with one rounding to the result's dtype."
)
_DEQUANTIZE_ROUNDING = (
    "Computed in the dtype of ``scale`` (for a number: float64 if ``input`` or ``dtype`` is "
    "float64, else float32), with one rounding to the result's dtype, ties to even. NaN stays NaN."
)
_RANGE_ROUNDING = (
    f"{_COMPUTED}; ties go to the even integer. A segment of zeros, or an empty one, has scale 1; "
    "any other scale is at least the smallest normal number. One NaN or infinity makes the scale "
    "of its segment NaN or infinite:"
)
_RUNNING_ROUNDING = f"{_COMPUTED}. A batch with a NaN or an infinity leaves its range as it was."
_PRODUCT_ROUNDING = (
    "The sums are exact: this is why K is limited. Then ``fma(sum * sw[n], s[t], bias[n])`` in "
    "float32 (float64 for a float64 result), with one rounding to the result's dtype."
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
        f"{_AFFINE_ROUNDING} NaN gives the zero point, an infinity an end of the range.",
        _JACOB,
    ),
    "quantize_backward": Sections(_BACKWARD_GRADIENT, f"{_AFFINE_ROUNDING} {_OUTSIDE}", _JACOB),
    "dequantize": Sections(_DEQUANTIZE_GRADIENT, _DEQUANTIZE_ROUNDING, _JACOB),
    "dequantize_backward": Sections(_BACKWARD_GRADIENT, _DEQUANTIZE_ROUNDING, _JACOB),
    "fake_quantize": Sections(
        _FAKE_QUANTIZE_GRADIENT,
        f"{_AFFINE_ROUNDING} NaN stays NaN, an infinity gives an end of the range.",
        _LEARNED,
    ),
    "fake_quantize_backward": Sections(
        _BACKWARD_GRADIENT, f"{_AFFINE_ROUNDING} {_OUTSIDE}", _LEARNED
    ),
    "fake_quantize_backward_qparams": Sections(
        _BACKWARD_QPARAMS_GRADIENT,
        f"{_AFFINE_ROUNDING} Sums are float64; a NaN x adds nothing to the scale's sum.",
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
        f"{_PRODUCT_ROUNDING} A NaN becomes the zero point, an infinity an end of the range.",
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
        f"{_RUNNING_ROUNDING} The scale, the zero point and the rounding follow the rules of "
        ":func:`choose_qparams_per_tensor` and :func:`fake_quantize_per_tensor`.",
        _JACOB,
        _NO_VMAP,
    ),
}


def shared_sections(name: str) -> str:
    """Return the sections that end the docstring of the op of that name."""
    return str(_SECTIONS[re.sub("_per_(tensor|channel|token|group)", "", name)])
