# SPDX-License-Identifier: BSD-3-Clause
"""Nothing is kept: the process does not grow, whether calls are right or wrong."""

import contextlib
import ctypes
import gc
import itertools
from collections.abc import Callable

import pytest
import torch

from tests.support.bad_arguments import affine, grouped, int8_mm
from tests.support.bad_arguments import range as of_range
from tests.support.calls.affine import ALL_CALLS, value_and_gradients
from tests.support.calls.range import OBSERVE_CALLS

MODULES = (affine, of_range, int8_mm, grouped)
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


def check_that_nothing_is_kept(make_calls: Callable[[], None]) -> None:
    """The first rounds fill caches; then one span without growth shows it."""
    sizes = []
    for turn in range(3 * ROUNDS):
        if turn % ROUNDS == 0:
            sizes.append(bytes_in_use())
        make_calls()
    sizes.append(bytes_in_use())
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    assert min(growth) < MAX_GROWTH, sizes


@pytest.mark.exhaustive
def test_right_calls_and_their_gradients() -> None:
    made = [(call, call.tensors(SHAPE)) for call in (*ALL_CALLS, *OBSERVE_CALLS)]

    def make_calls() -> None:
        for call, tensors in made:
            value_and_gradients(call, tensors)

    check_that_nothing_is_kept(make_calls)


def test_wrong_calls() -> None:
    pairs = [pair for module in MODULES for pair in module.PAIRS[::40]]

    def make_calls() -> None:
        for op, bad in pairs:
            arguments = op.arguments("cpu") | {"input": torch.ones(SHAPE)}
            with contextlib.suppress(Exception):
                arguments[bad.argument] = bad.change(arguments)
                op(arguments)

    check_that_nothing_is_kept(make_calls)
