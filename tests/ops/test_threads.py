# SPDX-License-Identifier: BSD-3-Clause
"""The ops from eight Python threads at once: the bits of one thread, on any device."""

import pytest

from tests.ops import eight_threads


@pytest.mark.parametrize("shape", eight_threads.SHAPES, ids=str)
def test_eight_threads_get_the_bits_of_one(device: str, shape: tuple[int, ...]) -> None:
    compared = eight_threads.check(device, shape, rounds=2)
    assert compared >= eight_threads.THREADS * len(eight_threads.CALLS)
