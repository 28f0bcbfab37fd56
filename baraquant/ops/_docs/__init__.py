# SPDX-License-Identifier: BSD-3-Clause
"""What the docstrings of several functions have in common, said once.

A function's own docstring holds its first sentence and its example. The template of its verb holds
the rest (``QUANTIZE`` in ``affine.py``, for example). In a template, ``$`` marks the words that
differ between the functions of the verb. These are the words of a granularity (``PER_CHANNEL``), or
those of a product with one weight or with groups (``ONE_WEIGHT`` in ``int8_mm.py``).
"""

RAISES = """\
Raises:
    ValueError: A shape, a device, a range or a number that does not fit.
    TypeError: A dtype or a layout (sparse, quantized, complex) that the op does not take.\
"""
RAISES_WITH_AXIS = f"""\
{RAISES}
    IndexError: An ``axis`` that ``input`` does not have.\
"""
RAISES_OF_ELEMENTS = f"""\
{RAISES_WITH_AXIS}
    NotImplementedError: No kernel for the device, or a gradient that has no formula.\
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
