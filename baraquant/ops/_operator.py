# SPDX-License-Identifier: BSD-3-Clause
"""What the functions of this package share: the end of their documentation, and fast calls."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.jit._builtins

from baraquant._C import eager_call

F = TypeVar("F", bound=Callable[..., object])

_RAISES = """
    Raises:
        ValueError: A shape, a device, a range or a number that does not fit.
        TypeError: A dtype or a layout (sparse, quantized, complex) that the op does not take.
        IndexError: An ``axis`` that ``input`` does not have.
        NotImplementedError: No kernel for the device, or a gradient that has no formula.
"""

_ROUNDING = """
    Rounding:
        Ties go to the even integer; ``x / s`` is a true division; the zero point is added after
        rounding. Computed in float32, or float64 where the input is float64, with one rounding
        to the result's dtype. {nan}
"""

_DEQUANTIZE_ROUNDING = """
    Rounding:
        Computed in the dtype of ``scale`` (for a number: float64 where ``input`` or ``dtype`` is,
        else float32), with one rounding to the result's dtype, ties to even. NaN stays NaN.
"""

_GRADIENTS = {
    "quantize": """
    Gradient:
        Where ``dtype`` is floating: ``grad / s`` where x lay inside the range (its ends
        included) and 0 elsewhere; differentiable twice. Integers carry none.
""",
    "dequantize": """
    Gradient:
        ``grad * s`` where ``input`` is floating; differentiable twice. Integers carry none.
""",
    "fake_quantize": """
    Gradient:
        Straight through: ``grad`` where x lay inside the range (its ends included) and 0
        elsewhere; differentiable twice. A scale that requires grad gets the sum over its segment
        of ``grad * (rint(x / s) - x / s)`` inside the range and ``grad * (q - z)`` outside; a
        floating zero point, of which the forward uses ``rint(z)`` clamped to the range, that of
        ``-s * grad`` outside. The sums are float64 and give the same bits in every run.
""",
    "backward": """
    Gradient:
        Linear in ``grad``, and differentiable in it.
""",
    "backward_qparams": """
    Gradient:
        None: the gradients of scale and zero point cannot be differentiated again.
""",
}

_ENDINGS = {
    "quantize": "NaN gives the zero point, infinities the ends of the range.",
    "fake_quantize": "NaN stays NaN, infinities give the ends of the range.",
    "backward": "A NaN x lies outside the range.",
    "backward_qparams": "Sums are float64; a NaN x adds nothing to the scale's.",
}

_REFERENCES = {
    "quantize": """
    References:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference".
""",
    "fake_quantize": """
    References:
        Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients
        Through Stochastic Neurons for Conditional Computation". Gradient of the scale: Esser et
        al. 2020, "Learned Step Size Quantization"; of the zero point: Bhalgat et al. 2020, "LSQ+".
""",
}


def _shared_sections(name: str) -> str:
    """Return the sections that end the docstring of the op of that name."""
    verb = name.partition("_per_")[0]
    direction = name.partition("_backward")[1:]
    kind = "".join(direction).strip("_") or verb
    if verb == "dequantize":
        rounding = _DEQUANTIZE_ROUNDING
    else:
        rounding = _ROUNDING.format(nan=_ENDINGS[kind])
    references = _REFERENCES[verb.removeprefix("de")]
    return _RAISES + _GRADIENTS[kind] + rounding + references + "    "


def operator(function: F) -> F:
    """Declare a function to be the op ``baraquant::<its name>``.

    Its docstring gets the sections that it shares with its siblings. What it does stays what its
    body says, yet two others do it faster: TorchScript calls the op instead of compiling the body,
    and eager mode goes past ``torch.ops`` where all arguments are plain.
    """
    name = function.__name__
    function.__doc__ = (function.__doc__ or "").rstrip() + "\n" + _shared_sections(name)
    overloads = getattr(torch.ops.baraquant, name).overloads()
    eager = eager_call(f"baraquant::{name}", ["" if o == "default" else o for o in overloads])

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            result = eager(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return function(*args, **kwargs)

    torch.jit._builtins._register_builtin(call, f"baraquant::{name}")
    return cast(F, call)
