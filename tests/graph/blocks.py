# SPDX-License-Identifier: BSD-3-Clause
"""Models whose float ops are baraquant's, and what the tests ask of their graphs."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph

import baraquant
from baraquant import W2A8, W4A8, W8A8, SmoothQuant, W8A8Static, ops
from baraquant.workflow.shared_inputs import fused_paths
from tests.support.schemes import described

WIDTH, HIDDEN, HEADS = 32, 48, 4
# What an op quantizes as it computes.
SCHEMES = {
    "W8A8": W8A8(), "W8A8 asymmetric": W8A8(symmetric=False), "W4A8": W4A8(None),
    "W4A8 factors": W4A8(8, symmetric=False), "W2A8 factors": W2A8(8),
}  # fmt: skip
# What is quantized after it, once for all that read it.
BESIDE = {
    "rotated": W8A8(rotate=16), "static": W8A8Static(symmetric=False),
    "smoothed": SmoothQuant(0.5),
    "static, smoothed": SmoothQuant(0.5, W8A8Static(symmetric=False)),
    "static, rotated": W8A8Static(rotate=16), "W4A8 groups": W4A8(8, group_factors=False),
    "W4A8 static": described("int4 per_group(8) factors, int8 per_tensor static"),
    "per tensor": described("int8 per_channel, int8 per_tensor asymmetric"),
}  # fmt: skip
EVERY = {**SCHEMES, **BESIDE}


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        return ops.rms_norm(x, self.weight, 1e-6, residual=residual)


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:  # type: ignore[override]
        return ops.layer_norm(x, self.weight, self.bias, self.eps, residual=residual)


class Attention(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=bias) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        shape = (rows, tokens, HEADS, width // HEADS)
        layers = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in layers)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, width))


class LlamaBlock(nn.Module):
    """Pre-norm: nothing but quantized layers reads a norm's output."""

    def __init__(self, width: int = WIDTH, hidden: int = HIDDEN, bias: bool = False) -> None:
        super().__init__()
        self.input_norm, self.post_norm = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, bias)
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=bias) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.input_norm(x))
        h, x = self.post_norm(attended, residual=x)
        return x + self.down(ops.silu_mul(self.gate_proj(h), self.up_proj(h)))


class BertBlock(nn.Module):
    """Post-norm: the residual reads each norm's output as well."""

    def __init__(self, width: int = WIDTH, hidden: int = HIDDEN, bias: bool = True) -> None:
        super().__init__()
        self.attention = Attention(width, bias)
        self.norm, self.last_norm = LayerNorm(width), LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x + self.attention(x))
        return self.last_norm(h + self.down(ops.gelu(self.up(h))))


BLOCKS = {"llama": LlamaBlock, "bert": BertBlock}


def quantized(
    model: nn.Module, scheme: str = "W8A8", dtype: torch.dtype = torch.float32, device: str = "cpu",
    inputs: int = 1,
) -> nn.Module:  # fmt: skip
    """Layers that read one value divide it by the same factors, and have one static scale."""
    random = torch.Generator().manual_seed(3)
    batch = tuple(torch.randn(4, 8, WIDTH, generator=random) for _ in range(inputs))
    baraquant.quantize_(model.eval(), EVERY[scheme], calibration=[batch], progress=False)
    baraquant.export.tie_fused_scales(model)
    at = dict(model.named_modules())
    for first, *others in fused_paths(at):
        own = at[first]._buffers
        kept = {name: own[name] for name in ("smooth", "smooth_scale") if name in own}
        for path in others:
            at[path]._buffers.update(kept)
    return model.to(device, dtype)


def quantizations(counted: Counter[str]) -> dict[str, int]:
    """The ops that quantize, alone or with more, and how often they are called."""
    return {name: n for name, n in counted.items() if re.search(r"(?<!de)quantize", name)}


def counts(graph: Graph) -> Counter[str]:
    """How often a graph computes each op of the library; core ops have the names of public ones.

    A call of several products counts as that many.
    """
    public = {
        "_norm": "norm", "_norm_quantize": "norm_quantize", "_norm_residual": "norm",
        "_norm_residual_quantize": "norm_quantize", "_activation": "activation",
        "_activation_quantize": "activation_quantize", "_dynamic_quantize":
        "dynamic_range_quantize_per_token",
    }  # fmt: skip
    found: Counter[str] = Counter()
    for node, name in _own_calls(graph):
        if name.endswith("_linears"):
            found[name[1:-1]] += len(node.args[1])
        else:
            found[public.get(name, name)] += 1
    return found


def merged(graph: Graph) -> list[tuple[str, int]]:
    """The calls of several products, by the op of one, and how many each is."""
    calls = [(node, name) for node, name in _own_calls(graph) if name.endswith("_linears")]
    return [(name[1:-1], len(node.args[1])) for node, name in calls]


def _own_calls(graph: Graph) -> Iterator[tuple[Any, str]]:
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "baraquant":
            yield node, node.target._schema.name.partition("::")[2]


def assert_values_fit(graph: Graph) -> None:
    """Every call of the graph has a fake value with the shape, dtype and device of its op's."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        assert "val" in node.meta or not node.users, node.format_node()
        if not node.target._schema.name.startswith("baraquant::"):
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with args[0].fake_mode, torch.no_grad():
            expected = node.target(*args, **kwargs)
        found = node.meta["val"]
        found, expected = ([r] if isinstance(r, Tensor) else r for r in (found, expected))
        for one, other in zip(found, expected, strict=True):
            assert (one.dtype, one.device) == (other.dtype, other.device), node
            assert [str(s) for s in one.shape] == [str(s) for s in other.shape], node
