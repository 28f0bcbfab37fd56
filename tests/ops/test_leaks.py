# SPDX-License-Identifier: BSD-3-Clause
"""Nothing is kept: the process does not grow, whether calls are right or wrong."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools

import pytest
import torch

from tests.support.bad_arguments import affine as bad_arguments
from tests.support.bad_arguments import grouped as grouped_bad_arguments
from tests.support.bad_arguments import int8_mm as int8_bad_arguments
from tests.support.bad_arguments import range as range_bad_arguments
from tests.support.calls.affine import ALL_CALLS, value_and_gradients
from tests.support.calls.range import OBSERVE_CALLS

SHAPE = (128, 256)
# A mask of one bit for each element is the least that could be kept: 4 KiB in each round.
ROUNDS, MAX_GROWTH = 10, 10 * 128 * 256 // 8


class Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    _fields_ = [(name, ctypes.c_size_t) for name in (*names, "fordblks", "keepcost")]


def bytes_in_use() -> int:
    """What has been allocated and not freed, of the heap and by mmap."""
    gc.collect()
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("the C library has no mallinfo2 (glibc 2.33)")
    mallinfo.restype = Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


@pytest.mark.exhaustive
def test_right_calls_and_their_gradients() -> None:
    made = [(call, call.tensors(SHAPE)) for call in (*ALL_CALLS, *OBSERVE_CALLS)]
    sizes = []
    for turn in range(3 * ROUNDS):
        if turn % ROUNDS == 0:
            sizes.append(bytes_in_use())
        for call, tensors in made:
            value_and_gradients(call, tensors)
    sizes.append(bytes_in_use())
    # The first rounds fill caches; then one span without growth shows that nothing is kept.
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    assert min(growth) < MAX_GROWTH, sizes


def test_wrong_calls() -> None:
    modules = (bad_arguments, range_bad_arguments, int8_bad_arguments, grouped_bad_arguments)
    pairs = [pair for module in modules for pair in module.PAIRS[::40]]
    sizes = []
    for turn in range(3 * ROUNDS):
        if turn % ROUNDS == 0:
            sizes.append(bytes_in_use())
        for op, bad in pairs:
            arguments = op.arguments("cpu") | {"input": torch.ones(SHAPE)}
            with contextlib.suppress(Exception):
                arguments[bad.argument] = bad.change(arguments)
                op(arguments)
    sizes.append(bytes_in_use())
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    assert min(growth) < MAX_GROWTH, sizes
