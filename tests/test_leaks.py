# SPDX-License-Identifier: BSD-3-Clause
"""Nothing is kept: the process does not grow, whether calls are right or wrong."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from pathlib import Path

import torch

import bad_arguments
import int8_bad_arguments
import range_bad_arguments
from calls import ALL_CALLS, value_and_gradients
from range_calls import OBSERVE_CALLS

SHAPE = (128, 256)  # 131 kB in float32: one tensor that is kept each round is seen
ROUNDS, MOST_GROWTH = 30, 3_000_000


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_right_calls_and_their_gradients() -> None:
    made = [(call, call.tensors(SHAPE)) for call in (*ALL_CALLS, *OBSERVE_CALLS)]
    sizes = []
    for turn in range(3 * ROUNDS):
        if turn % ROUNDS == 0:
            sizes.append(resident_bytes())
        for call, tensors in made:
            value_and_gradients(call, tensors)
    sizes.append(resident_bytes())
    # The first rounds fill caches; then one span without growth shows that nothing is kept.
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    assert min(growth) < MOST_GROWTH, sizes


def test_wrong_calls() -> None:
    modules = (bad_arguments, range_bad_arguments, int8_bad_arguments)
    pairs = [pair for module in modules for pair in module.PAIRS[::40]]
    sizes = []
    for turn in range(3 * ROUNDS):
        if turn % ROUNDS == 0:
            sizes.append(resident_bytes())
        for op, bad in pairs:
            arguments = op.arguments("cpu") | {"input": torch.ones(SHAPE)}
            with contextlib.suppress(Exception):
                arguments[bad.argument] = bad.change(arguments)
                op(arguments)
    sizes.append(resident_bytes())
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    assert min(growth) < MOST_GROWTH, sizes
