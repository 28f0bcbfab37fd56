# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers under the tools of PyTorch."""

import torch
from torch import Tensor

from baraquant import ops
from tests.support.bits import assert_same_bits
from tests.support.calls.int8_conv import CONV_CALLS
from tests.support.family_cases.torch_tools import Tools


class TestTools(Tools):
    CALLS, BATCHED, ANY_ROWS = CONV_CALLS, ("input",), False


def test_exported_with_any_number_and_size_of_images() -> None:
    w, scale = torch.ones(4, 3, 3, 3, dtype=torch.int8), torch.full((4,), 0.5)

    class Module(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return ops.int8_conv(q, w, scale[0], scale, stride=2, padding=1)

    dims = {n: torch.export.Dim(f"d{n}", min=3, max=100) for n in (0, 2, 3)}
    q = torch.ones(4, 3, 8, 9, dtype=torch.int8)
    exported = torch.export.export(Module(), (q,), dynamic_shapes={"q": dims}).module()
    for shape in ((4, 3, 8, 9), (5, 3, 12, 31), (3, 3, 3, 4)):
        q = torch.randint(-128, 128, shape).to(torch.int8)
        assert_same_bits(exported(q), Module()(q))
