# SPDX-License-Identifier: BSD-3-Clause
"""Python threads that work side by side."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cpp_programs import PATIENCE

Result = TypeVar("Result")


def side_by_side(count: int, work: Callable[[int], Result]) -> list[Result]:
    """What `work` returns for the number of each thread; the threads begin together."""
    together = threading.Barrier(count, timeout=PATIENCE)

    def begin(index: int) -> Result:
        together.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))
