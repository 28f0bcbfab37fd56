# SPDX-License-Identifier: BSD-3-Clause
"""Which preceding layer can absorb the division of an input, and which cannot."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baraquant import ops
from baraquant.workflow.smoothquant.producers import divided, producers
from baraquant.workflow.smoothquant.smoothing import Flow
from tests.support.models.outlier_models import Block, OffsetRMSNorm, OwnRMSNorm, batches, seeded


def feeds(model, *data):
    """Which modules feed which linear layers and nothing else; and why others do not."""
    found = [feeds_under(mode, model, data) for mode in (torch.no_grad, torch.inference_mode)]
    assert found[0][0] == found[1][0] and found[0][1].keys() == found[1][1].keys()
    return found[0]


def feeds_under(mode, model, data):
    linears = {n: m for n, m in model.named_modules() if type(m) is nn.Linear}
    flow = Flow(model, producers(model), linears)
    with mode(), flow:
        for x in data:
            model(x)
    return flow.feeds(), flow.refused


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, OwnRMSNorm])
def test_a_norm_before_linear_layers_is_found(norm):
    found, refused = feeds(seeded(Block, norm=norm), *batches())
    assert found == {"norm1": ["query", "key"], "norm2": ["up"], "up": ["down"]}
    assert set(refused) == {"query", "key", "out", "down"}
    assert refused["query"] == "its output goes into aten.clamp.default as well"
    assert refused["down"] == "its output goes into aten.add.Tensor as well"


def test_a_norm_with_a_residual_connection_is_not():
    found, refused = feeds(seeded(Block, pre_norm=False), *batches())
    assert found == {"up": ["down"]}
    assert "aten.add" in refused["norm1"]
    assert refused["norm2"] == "its output is kept, or returned by the model"


def test_a_norm_whose_factor_is_not_its_weight_is_not():
    assert "norm1" not in producers(seeded(Block, norm=OffsetRMSNorm))
    assert "norm1" in producers(seeded(Block, norm=OwnRMSNorm))


class Wired(nn.Module):
    def __init__(self, wiring):
        super().__init__()
        self.norm, self.linear, self.other = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.wiring, self.kept = wiring, []

    def forward(self, x):
        return self.wiring(self, x, self.norm(x))


def partly(m, x, y):
    z = torch.ones(2 * len(y), *y.shape[1:])
    z[: len(y)] *= y
    return m.linear(z)


def attended(m, x, y, q=None, mask=None):
    heads = [t.unflatten(-1, (2, 2)).transpose(1, 2) for t in (x if q is None else q, x, y)]
    attention = F.scaled_dot_product_attention(*heads, attn_mask=mask)
    return m.linear(attention.transpose(1, 2).flatten(2))


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return grad


GOOD = {
    "plain": lambda m, x, y: m.linear(y),
    "by name": lambda m, x, y: m.linear(input=y),
    "flat": lambda m, x, y: m.linear(y.view(-1, 4)),
    "a slice": lambda m, x, y: m.linear(y[:, 1:]),
    "turned": lambda m, x, y: m.linear(y.transpose(0, 1)),
    "relu": lambda m, x, y: m.linear(F.leaky_relu(F.relu(y).view(-1, 4))),
    "relu in place": lambda m, x, y: m.linear(F.relu(y, inplace=True)),
    "dropout": lambda m, x, y: m.linear(F.dropout(y, 0.5, m.training)),
    "shape": lambda m, x, y: m.linear(y) * len(y) * y.shape[-1] + y.dim(),
    "two": lambda m, x, y: (m.linear(y), m.other(y)),
    "a loop": lambda m, x, y: m.other(m.norm(m.linear(y))),
    "a gate": lambda m, x, y: m.linear(F.silu(x) * y),
    "a gate at the left": lambda m, x, y: m.linear(y * x.sigmoid()),
    "a gate for each row": lambda m, x, y: m.linear(y * x[..., :1]),
    "multiplied in place": lambda m, x, y: m.linear(y.mul_(x)),
    "numbers that multiply": lambda m, x, y: m.linear(2 * y / 3 / x.abs().amax(-1, keepdim=True)),
    "attention": attended,
    "attention with a mask": lambda m, x, y: attended(m, x, y, mask=torch.ones(5, 5).tril() > 0),
}
BAD = {
    "kept": lambda m, x, y: (m.linear(y), m.kept.append(y))[0],
    "returned": lambda m, x, y: (m.linear(y), y),
    "a view returned": lambda m, x, y: (m.linear(y), y[0]),
    "added": lambda m, x, y: m.linear(y) + y,
    "a view added": lambda m, x, y: m.linear(y).sum() + y.view(-1)[3],
    "in place": lambda m, x, y: m.linear(y.add_(1)),
    "a part in place": partly,
    "squared": lambda m, x, y: m.linear(y * y),
    "divided by": lambda m, x, y: m.linear(x / y),
    "expanded": lambda m, x, y: m.linear(y[:1] * x),
    "two outputs that are multiplied": lambda m, x, y: m.linear(y * m.linear(x)),
    "the queries of an attention": lambda m, x, y: attended(m, x, y, q=y),
    "gelu": lambda m, x, y: m.linear(y) + F.gelu(y),
    "relu used": lambda m, x, y: m.linear(z := F.relu(y)) + z,
    "cut": lambda m, x, y: m.linear(y.view(-1)[2:-2].view(-1, 4)),
    "transposed": lambda m, x, y: m.linear(y.transpose(1, 2)[:, :, :4]),
    "scripted": lambda m, x, y: m.linear(y) + scripted(y),
    "a function": lambda m, x, y: m.linear(y) + Cube.apply(y),
    "an op": lambda m, x, y: m.linear(y) + ops.dynamic_fake_quantize_per_token(y),
    "numbers": lambda m, x, y: m.linear(y) + y.sum().item(),
    "concatenated": lambda m, x, y: (m.linear(y), torch.cat([y, x])),
    "another's": lambda m, x, y: m.linear(y) + m.linear(x),
    "a sum": lambda m, x, y: m.linear(y + x),
    "functional": lambda m, x, y: m.linear(y) + F.linear(y, x[0, :4]),
}


@pytest.mark.parametrize("wiring", GOOD.values(), ids=GOOD)
def test_uses_that_folding_survives(wiring):
    model = seeded(Wired, wiring)
    x = torch.randn(3, 5, 4)
    found, _ = feeds(model, x, x)
    assert "linear" in found["norm"]
    before = model(x)
    factors = torch.tensor([0.5, 2.0, 4.0, 8.0])  # powers of two: exact
    with torch.no_grad():
        for parameter, quotient in divided(model.norm, factors):
            parameter.copy_(quotient)
        for name in found["norm"]:
            getattr(model, name).weight *= factors
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("wiring", BAD.values(), ids=BAD)
def test_uses_that_folding_would_change(wiring):
    found, _ = feeds(seeded(Wired, wiring), torch.randn(3, 5, 4))
    assert "norm" not in found


def test_one_batch_of_many_can_forbid_folding():
    model = seeded(Wired, lambda m, x, y: m.linear(y) + (y if len(x) == 2 else 0))
    assert "norm" in feeds(model, torch.randn(3, 4), torch.randn(5, 4))[0]
    assert "norm" not in feeds(model, torch.randn(3, 4), torch.randn(2, 4), torch.randn(5, 4))[0]


def test_a_norm_called_from_outside_is_not_folded():
    model = seeded(Wired, GOOD["plain"])
    flow = Flow(model, producers(model), {"linear": model.linear})
    with torch.no_grad(), flow:
        model.linear(model.norm(torch.randn(2, 4)))
    assert flow.feeds() == {}
    assert not model.norm._forward_hooks and not model._forward_hooks


def test_what_shares_its_parameters_or_has_hooks_is_no_producer():
    model = seeded(Wired, GOOD["plain"])
    model.other.weight = model.linear.weight
    assert set(producers(model)) == {"norm"}
    model.norm.register_forward_hook(lambda *_: None)
    assert set(producers(model)) == set()
    model = seeded(Wired, GOOD["plain"])
    nn.utils.parametrizations.weight_norm(model.linear)
    assert set(producers(model)) == {"norm", "other"}
