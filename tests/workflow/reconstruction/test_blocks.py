# SPDX-License-Identifier: BSD-3-Clause
"""Which modules are blocks, and how often the model runs for them."""

from typing import Any

import pytest
from torch import nn

from baraquant import W4A16
from tests.workflow.reconstruction.models import made, reconstructed

RESIDUAL = ["0", "3.0", "3.1", "4", "6"]
CASES: list[tuple[str, Any, list[str], int]] = [  # with the runs of the model for each batch
    ("mlp", None, ["0", "2", "4"], 7),
    ("mlp", "*", ["0", "2", "4"], 7),
    ("transformer", None, ["layers.0", "layers.1"], 3),
    ("convolutions", None, RESIDUAL, 7),
    ("convolutions", ["3"], ["0", "3", "4", "6"], 7),
    ("text", None, ["lstm", "attention", "head"], 3),
    ("llama", None, ["model.layers.0", "model.layers.1", "lm_head"], 5),
    ("llama", "*.mlp", [], 0),
]


@pytest.mark.parametrize("name, patterns, blocks, runs", CASES)
def test_blocks(name: str, patterns: Any, blocks: list[str], runs: int) -> None:
    model, batches = made(name, 2)
    calls: list[nn.Module] = []
    model.register_forward_pre_hook(lambda module, args: calls.append(module))
    _, report = reconstructed(model, W4A16(None), batches, blocks=patterns)
    if blocks:
        assert [*report.errors] == blocks
        assert len(calls) == runs * len(batches)
    else:
        inner = [f"model.layers.{i}.self_attn.{n}_proj" for i in range(2) for n in "qkvo"]
        outer = ["model.layers.0.mlp", "model.layers.1.mlp", "lm_head"]
        assert sorted(report.errors) == sorted(inner + outer)
