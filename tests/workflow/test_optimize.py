# SPDX-License-Identifier: BSD-3-Clause
"""``optimize_for_inference_``: everything at once, as the single calls do it."""

import copy

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8
from tests.support.bits import assert_same_bits
from tests.support.docstrings import run_examples
from tests.workflow.test_merge_linears import calls, numbers


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 32), nn.Linear(16, 32)
        self.down_proj, self.act_fn = nn.Linear(32, 16), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp, self.plane = nn.RMSNorm(16), Mlp(), nn.LayerNorm([3, 16])

    def forward(self, x):
        return self.plane(x + self.mlp(self.norm(x)))


def quantized():
    torch.manual_seed(0)
    model = Block().train()
    baraquant.quantize_(model, W8A8())
    return model


@pytest.mark.parametrize("has_example", [False, True])
def test_it_does_what_the_single_calls_do(has_example):
    model, x = quantized(), numbers(2, 3, 16)
    apart = copy.deepcopy(model).eval()
    baraquant.use_fused_ops_(apart)
    baraquant.merge_linears_(apart)
    example = (x,) if has_example else None
    report = baraquant.optimize_for_inference_(model, example)
    assert report.changed == {
        "norm": "RMSNorm", "mlp": "GatedMLP", "mlp.gate_proj": "one call with up_proj",
        "mlp.up_proj": "one call with gate_proj",
    }  # fmt: skip
    assert {*report.left_out} == {"plane", "mlp.down_proj"}
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    expected = apart(x)  # with gradients switched on, too
    for _ in range(2):
        output, counts = calls(model, x)
        assert_same_bits(output, expected)
        assert counts["_int8_linears"] == 1  # of the integers that the GatedMLP makes
        again = baraquant.optimize_for_inference_(model, example)
        assert again.changed.items() <= report.changed.items()


def test_a_model_with_nothing_to_change_is_no_error():
    model = nn.Sequential(nn.Linear(4, 4)).train()
    assert baraquant.optimize_for_inference_(model).changed == {} and not model.training
    with pytest.raises(TypeError, match="optimize_for_inference_: expected model to be a Module"):
        baraquant.optimize_for_inference_(3)


def test_an_error_leaves_the_model_as_it_was():
    model = quantized()
    with pytest.raises(ValueError, match="rms_norm: expected weight"):
        baraquant.optimize_for_inference_(model, torch.zeros(3, 5))
    assert all(module.training for module in model.modules() if isinstance(module, (Block, Mlp)))
    assert type(model.norm) is nn.RMSNorm and model.norm.weight.requires_grad
    assert baraquant.split_linears_(model).changed == {}


@pytest.mark.parametrize(
    "function",
    [baraquant.merge_linears_, baraquant.split_linears_, baraquant.optimize_for_inference_],
)
def test_examples(function):
    torch.manual_seed(0)
    run_examples(function, function.__name__)
