# SPDX-License-Identifier: BSD-3-Clause
"""Every scheme behind every op: a value that three layers read is quantized once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import ops
from tests.graph.blocks import (
    EVERY,
    SCHEMES,
    WIDTH,
    assert_values_fit,
    counts,
    quantizations,
    quantized,
)  # fmt: skip

CHAINS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "rms_norm": lambda x, y: ops.rms_norm(x, None, 1e-6),
    "layer_norm": lambda x, y: ops.layer_norm(x, None, None, 1e-6, residual=y),
    "silu_mul": ops.silu_mul,
    "gelu": lambda x, y: ops.gelu(x),
    "": lambda x, y: x,  # no op
}
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


class Readers(nn.Module):
    def __init__(self, chain: str) -> None:
        super().__init__()
        self.chain = chain
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, 8) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        result = CHAINS[self.chain](x, y)
        h, *sums = result if isinstance(result, tuple) else (result,)
        return self.q_proj(h), self.k_proj(h), self.v_proj(h), *sums


@torch.no_grad()
@pytest.mark.exhaustive
@pytest.mark.pairs
@pytest.mark.parametrize("decompose", (False, True), ids=("exported", "decomposed"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("scheme", EVERY)
def test_one_quantization(
    scheme: str, chain: str, dtype: torch.dtype, decompose: bool, device: str
) -> None:
    model = quantized(Readers(chain), scheme, dtype, device, inputs=2)
    inputs = tuple(torch.randn(2, 3, WIDTH, dtype=dtype, device=device) for _ in range(2))
    program = torch.export.export(model, inputs)
    program = program.run_decompositions() if decompose else program
    expected = program.module()(*inputs)
    baraquant.graph.fuse_(program)
    assert_values_fit(program.graph)
    assert all(map(torch.equal, program.module()(*inputs), expected))
    found = quantizations(counts(program.graph))
    assert sum(found.values()) == 1, found
    if scheme in SCHEMES and chain and not decompose:
        assert found == {f"{chain}_quantize_per_token": 1}


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", [name for name in EVERY if name != "W4A8 groups"])
def test_no_gradient_is_dropped(scheme: str) -> None:
    """The integers that layers share carry none, and a call that asks for one is an error."""
    model = quantized(Readers(""), scheme, inputs=2)
    x, y = (torch.randn(2, 3, WIDTH) for _ in range(2))
    program = torch.export.export(model, (x, y))
    baraquant.graph.fuse_(program)
    with pytest.raises(NotImplementedError, match=r"requires? grad|no gradient"):
        program.module()(x.requires_grad_(), y)
