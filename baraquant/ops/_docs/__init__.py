# SPDX-License-Identifier: BSD-3-Clause
"""What the docstrings of several functions have in common, said once.

A function's own docstring holds its first sentence and its example. The template of its verb
(``affine.QUANTIZE``, say) holds the rest. In a template, ``$`` marks the words that differ between
the functions of the verb: those of a granularity (``affine.PER_CHANNEL``), or those of a product
with one weight or with groups (``int8_mm.ONE_WEIGHT``).
"""

import inspect
from collections.abc import Mapping
from string import Template

EXAMPLE = "\n\nExample:\n"

RAISES = """\
Raises:
    ValueError: A shape, a device, a range or a number that does not fit.
    TypeError: A dtype or a layout (sparse, quantized, complex) that the op does not take.\
"""
RAISES_WITH_AXIS = f"""\
{RAISES}
    IndexError: An ``axis`` that ``input`` does not have.\
"""

JACOB = """\
    Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference".\
"""
STRAIGHT_THROUGH = """\
    Straight-through estimator: Bengio et al. 2013, "Estimating or Propagating Gradients Through
    Stochastic Neurons for Conditional Computation".\
"""
ZEROQUANT = """\
    Activations quantized on the fly, with a scale for each token: Yao et al. 2022, "ZeroQuant:
    Efficient and Affordable Post-Training Quantization for Large-Scale Transformers".\
"""


def completed(own: str, template: str, words: Mapping[str, str]) -> str:
    """Return a function's whole docstring.

    Args:
        own: The docstring that stands in the function: text, and then an example.
        template: The sections of its verb. ``$example`` marks where the example goes.
        words: What stands for the other ``$`` marks.
    """
    text, example = inspect.cleandoc(own).split(EXAMPLE)
    shared = Template(template.strip("\n")).substitute(words, example=f"Example:\n{example}")
    # An empty word leaves a line of spaces: an argument that this function does not have.
    lines = (line for line in shared.splitlines() if not line.isspace())
    return "\n".join((text, "", *lines, ""))
