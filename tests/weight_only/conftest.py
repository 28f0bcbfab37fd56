# SPDX-License-Identifier: BSD-3-Clause
"""On a GPU, PyTorch's product adds in float32: the op's bound holds for no other setting."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def sums_in_float32() -> Iterator[None]:
    """Switches off what would add in fewer bits."""
    settings = torch.backends.cuda.matmul
    names = (
        "allow_tf32",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
    )
    before = {name: getattr(settings, name) for name in names}
    for name in names:
        setattr(settings, name, False)
    yield
    for name, value in before.items():
        setattr(settings, name, value)
