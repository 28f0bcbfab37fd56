# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of the scaled family."""

from . import RAISES

TO_ROWS = {
    "input": "``[..., N]``",
    "factor": "``[N]``, one for each column",
    "output": "``[..., N]``",
    "scale": "``[..., 1]``",
    "line": "row",
}
TO_TRANSPOSE = {
    "input": "``[..., N]``, seen as ``[M, N]``",
    "factor": "one for each row, ``[...]`` or ``[..., 1]``",
    "output": "``[N, M]``",
    "scale": "``[N]``",
    "line": "column",
}

_RAISES = f"""\
{RAISES}
    NotImplementedError: No kernel for the device; :func:`torch.vmap`."""

SCALED_QUANTIZE = f"""
Args:
    input: $input;
        float32, float64, float16 or bfloat16. Any strides; what is not contiguous is copied first.
    factor: $factor;
        float32 (float64 for a float64 input).
    random: None rounds to the nearest integer. A state of :func:`draw_random`, int64 ``[2]`` on the
        device of ``input``, rounds stochastically.

Returns:
    The integers, $output, int8, contiguous.
    The scale, $scale, of the dtype of ``factor``.

$example

{_RAISES}

Gradient:
    None: autograd takes the range of the data as a constant, and integers have no gradient.

Rounding:
    ``v = C(x) * factor`` is rounded once. The scale of a $line is ``max |v| / 127`` (1 for zeros;
    otherwise at least the smallest normal number), and the integers lie in [-128, 127]. To the
    nearest: ``q = rint(v / s)``, ties to even. Stochastically: ``q = floor(v / s + u)`` with
    ``u = (k + 1/2) / 2**16``, where both the division and the sum are rounded in the compute type.
    The 16 bits ``k`` of element number ``i`` (row-major, in ``input``) are half ``i % 8`` of the
    four words of Philox4x32-10 with the key ``random[0]`` and the counter ``random[1]`` (low 64
    bits), ``i // 8`` (high 64 bits), the low half of a word first; so they are the same on every
    device. An integer is kept as it is, and the mean over all ``k`` is within ``2**-17`` of
    ``v / s``. One NaN or infinity makes the scale of its $line NaN or infinite; its integers are
    0, and dequantize to NaN.

References:
    Stochastic rounding: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision".
    Philox: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
"""

TRANSPOSE_INT8 = f"""
Args:
    input: ``[M, N]``, int8. Any strides; what is not contiguous is copied first.

Returns:
    ``[N, M]``, int8, contiguous.

$example

{_RAISES}

Gradient:
    None: integers have no gradient.

Rounding:
    None: the bytes are copied.

References:
    Products of eight bits on Hopper read both matrices with the summed dimension last: NVIDIA, "PTX
    ISA", section "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
"""

DRAW_RANDOM = f"""
Args:
    like: A tensor on the device whose generator is used; its values are not read.
    count: How many calls will use the state: call number i adds i to its second number.

Returns:
    A seed and the number of the first call, ``[2]``, int64, on that device. Neither the host nor
    the device waits.

$example

{_RAISES}

Gradient:
    None.

Rounding:
    On a GPU the seed is that of the generator, and the number a quarter of its offset, which goes
    up by ``4 * count``; no other op of PyTorch uses those numbers. On the CPU the seed is the next
    64 bits of the generator, and the number 0.

References:
    Philox: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
"""
