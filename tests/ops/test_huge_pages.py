# SPDX-License-Identifier: BSD-3-Clause
"""The memory of large outputs on the CPU comes in pages of 2 MiB, where Linux has them."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.processes import run

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE = 2 << 20
needs_huge_pages = pytest.mark.skipif(
    not ENABLED.exists() or "[never]" in ENABLED.read_text(),
    reason="this system has no transparent huge pages",
)


def huge_bytes(tensor: Tensor) -> int:
    """Of the mappings that a tensor's memory lies in."""
    begin, found, inside = tensor.data_ptr(), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head:
            low, high = (int(part, 16) for part in head.groups())
            inside = low < begin + tensor.nbytes and high > begin
        elif inside and line.startswith("AnonHugePages:"):
            found += int(line.split()[1]) << 10
    return found


def rounded(count: int) -> Tensor:
    """A large output of so many elements."""
    result: Tensor = ops.fake_quantize_per_tensor(torch.ones(count), torch.tensor(0.5), None)
    return result


@needs_huge_pages
@pytest.mark.parametrize("wish", ("0", None))
def test_the_variable(wish: str | None) -> None:
    """Asked in a process of its own, since it is read once."""
    program = "from tests.ops.test_huge_pages import *\nprint(huge_bytes(rounded(64 << 20)))"
    output = run(sys.executable, "-c", program, env={"BARAQUANT_HUGE_PAGES": wish}).stdout
    if wish is None:
        assert int(output) >= (64 << 20) * 4 - 2 * HUGE  # of float32, but for the ends
    else:
        assert (int(output) > 0) == ("[always]" in ENABLED.read_text())
