# SPDX-License-Identifier: BSD-3-Clause
"""The ops of :mod:`baraquant.ops` in plain PyTorch: an executable specification.

The functions have the names, arguments and defaults of the ops, those of
:mod:`baraquant.ops.backward` included. They give the same bits, except that the gradient of a scale
sums in another order. They are written for reading: nothing is fused, every intermediate result has
its own tensor, and arguments are not checked (the ops check theirs).

With ``C`` the compute type (float32, or float64 where the input is float64), scale ``s``, zero
point ``z`` and ``rint`` rounding half to even::

    r = rint(C(x) / s)      v = r + C(z)      q = min(max(v, quant_min), quant_max)
    quantize       q as an integer                            NaN v: z, clamped to the range
    dequantize     (C(q) - C(z)) * s, rounded once
    fake_quantize  (q - C(z)) * s, rounded once               NaN v: NaN
    mask           quant_min <= v <= quant_max                NaN v: false

and where the scale comes from the data, with ``xmin = min(0, min x)``, ``xmax = max(0, max x)``::

    symmetric      z = (quant_min + quant_max + 1) // 2       s = max |x| / (quant_max - z)
    asymmetric     s = (xmax - xmin) / (quant_max - quant_min)
                   z = quant_min - rint(xmin / s), clamped    NaN: quant_min
    only zeros     s = 1; any other s is at least the smallest normal number

and in the matrix products, with ``sw`` the scale of the weight's row n, ``C`` that of the result::

    acc[t, n]      sum_k (q[t, k] - z[t]) * w[n, k]          exact
    y[t, n]        fma(C(acc[t, n]) * sw[n], s[t], bias[n]), rounded once

and for weights of four bits, with a whole factor ``f`` for each group of columns::

    scale          max |w| / 112 of a row
    f              ceil(max |w| / 7 / scale) of a group      u = clamp(rint(w / (scale * f)) + 8)
    w8             (u - 8) * f, an int8                      u in 0 .. 15

and where numbers are scaled and rounded stochastically, with ``k`` 16 bits of Philox4x32-10::

    v              C(x) * f                                  rounded once
    q              clamp(floor(v / s + u), -128, 127)        u = (k + 1/2) / 2^16; NaN: 0

The norms, the activations and the rotation are in ``baraquant.reference.fused``.
"""

from . import _ops
from ._ops import *  # noqa: F403
from .granularity import Segments, expand_qparams, segments, sum_segments
from .products import fused_multiply_add, rescaled, sums_of_products
from .rules import compute_dtype, dequantized, grid_position, is_inside, round_to
from .scaled import philox, uniform_numbers

__all__ = [
    "Segments",
    "compute_dtype",
    "dequantized",
    "expand_qparams",
    "fused_multiply_add",
    "grid_position",
    "is_inside",
    "philox",
    "rescaled",
    "round_to",
    "segments",
    "sum_segments",
    "sums_of_products",
    "uniform_numbers",
]
__all__ += _ops.__all__
