# SPDX-License-Identifier: BSD-3-Clause
"""Fuse under torch.compile and AOTInductor: the bits of the same compilation without it."""

import copy
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.fx import Graph

import baraquant
from baraquant import ops
from baraquant.graph import Fuse
from tests.graph.blocks import (
    BLOCKS,
    EVERY,
    SCHEMES,
    WIDTH,
    Attention,
    LlamaBlock,
    RMSNorm,
    counts,
    merged,
    quantizations,
    quantized,
)
from tests.support.aot_inductor import packaged

SEEN: list[Counter[str]] = []
CALLS: list[list[tuple[str, int]]] = []  # of several products


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    """Compiled anew, so that the pass is called."""
    torch._dynamo.reset()
    SEEN.clear()
    CALLS.clear()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def look(graph: Graph) -> None:
    """What Inductor is left with: the custom pass that comes last."""
    SEEN.append(counts(graph))
    CALLS.append(merged(graph))


WITHOUT = {"post_grad_custom_post_pass": look}
WITH = {"post_grad_custom_pre_pass": Fuse(), **WITHOUT}


@torch.no_grad()
def assert_same_bits(model: nn.Module, inputs: list[Tensor], **options: Any) -> Counter[str]:
    """Compile without and with the pass; the ops of the last graph with it."""
    expected = [torch.compile(model, options=WITHOUT, **options)(x) for x in inputs]
    torch._dynamo.reset()
    SEEN.clear()
    compiled = torch.compile(model, options=WITH, **options)
    for x, right in zip(inputs, expected, strict=True):
        found = compiled(x)
        assert found.dtype == right.dtype and torch.equal(found, right)
    return SEEN[-1]


OF_BOTH = Counter(
    norm_quantize=2, norm=2, activation_quantize=2, dynamic_range_quantize_per_token=1,
    int8_linear=10, quantized_linear=3,
)  # fmt: skip


# `test_bits` of exported programs has every combination; what is compiled takes seconds.
@pytest.mark.inductor
@pytest.mark.parametrize(
    ("scheme", "dtype"),
    list(zip(EVERY, itertools.cycle([torch.float32, torch.bfloat16]), strict=False)),
    ids=str,
)
def test_every_scheme(scheme: str, dtype: torch.dtype, device: str) -> None:
    """Each of the eight values that layers of a llama and a bert read is quantized once."""
    blocks = nn.Sequential(*(block(bias=True) for block in BLOCKS.values()))
    model = quantized(blocks, scheme, dtype, device)
    found = assert_same_bits(model, [torch.randn(2, 8, WIDTH, dtype=dtype, device=device)])
    assert sum(quantizations(found).values()) == 8
    assert [count for _, count in CALLS[-1]] == [3, 2, 3]
    if scheme in SCHEMES:
        products = {name.replace("int8", "int4").replace("ed_linear", "ed_int4_linear"): n
            for name, n in OF_BOTH.items()}  # fmt: skip
        assert found == (products if "factors" in scheme else OF_BOTH)


@pytest.mark.inductor
def test_compiled_for_any_shape(device: str) -> None:
    model = quantized(nn.Sequential(*(block() for block in BLOCKS.values())), "W8A8 asymmetric")
    shapes = ((2, 8), (1, 64), (32, 3), (1, 1))
    inputs = [torch.randn(*shape, WIDTH, device=device) for shape in shapes]
    assert assert_same_bits(model.to(device), inputs, dynamic=True, fullgraph=True) == OF_BOTH


@pytest.mark.inductor
def test_under_autocast(device: str) -> None:
    """Floating layers compute in bfloat16; each quantization keeps the dtype of its input."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(WIDTH, WIDTH), RMSNorm(WIDTH)
            self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                h = self.norm(self.first(x))
                return self.down(ops.silu_mul(self.gate(h), self.up(h)))

    model = Model().eval()
    baraquant.quantize_(model, {"first": None, "*": baraquant.W8A8()}, progress=False)
    x = torch.randn(2, 8, WIDTH, device=device)
    found = assert_same_bits(model.to(device), [x])
    assert found == {"norm_quantize": 1, "activation_quantize": 1, "int8_linear": 3}


@pytest.mark.inductor
@pytest.mark.parametrize("name", ("W8A16", "W4A16"))
def test_floating_inputs(name: str, device: str) -> None:
    """Nothing is quantized, and products are one call, in the dtype of autocast."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention(WIDTH, bias=True)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return self.attention(x)

    scheme = baraquant.W8A16() if name == "W8A16" else baraquant.W4A16(8, symmetric=False)
    model = Model().eval()
    baraquant.quantize_(model, scheme, progress=False)
    assert_same_bits(model.to(device), [torch.randn(2, 8, WIDTH, device=device)])
    assert CALLS[-1] == [("weight_only_linear", 3)]


@pytest.mark.inductor
def test_training_of_what_is_around(device: str) -> None:
    """An adapter beside frozen layers: the same output and gradients; masks stay in the graph."""

    torch.manual_seed(0)
    schemes = ("W8A8", "W8A8 asymmetric")
    first = nn.Linear(WIDTH, WIDTH, bias=False)
    model = nn.Sequential(first, *(quantized(LlamaBlock(), scheme) for scheme in schemes))
    model.to(device)
    x = torch.randn(2, 8, WIDTH, device=device)
    results = []
    for options in (WITHOUT, WITH):
        torch._dynamo.reset()
        SEEN.clear()
        CALLS.clear()
        own = copy.deepcopy(model)
        y = torch.compile(own, options=options)(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad for p in own.parameters() if p.requires_grad)])
    for found, expected in zip(*results, strict=True):
        if device == "cpu" or found is results[0][0]:
            assert torch.equal(found, expected)
        else:  # Inductor splits a float sum otherwise when there is less in the kernel before it
            most = expected.abs().max().item()
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * most)
    forward = SEEN[0]
    assert forward["norm_quantize"] == 2 and forward["int8_linear"] == 6
    assert CALLS[0] == [("int8_linear", 3), ("int8_linear", 2)]
    assert forward["norm"] == 2 and forward["_quantized_linear_with_mask"] == 7


@torch.no_grad()
@pytest.mark.inductor
def test_a_cache_is_written(device: str) -> None:
    """In place, between products of it; the state and the output are those without the pass."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.register_buffer("keys", torch.zeros(8, WIDTH))
            self.register_buffer("values", torch.zeros(8, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            h = ops.layer_norm(x, None, None, 1e-6)
            self.keys[2:4] = self.k(h)
            self.values[2:4].copy_(self.v(h))
            return self.q(h) @ self.keys.t() @ self.values

    model = quantized(Cached()).to(device)
    x = torch.randn(2, WIDTH, device=device)
    states = []
    for options in (WITHOUT, WITH):
        torch._dynamo.reset()
        own = copy.deepcopy(model)
        states.append([torch.compile(own, options=options)(x), own.keys, own.values])
    for found, expected in zip(*states, strict=True):
        assert torch.equal(found, expected)
    assert SEEN[-1] == {"norm_quantize": 1, "int8_linear": 3}
    assert CALLS[-1] == [("int8_linear", 3)]


@pytest.mark.inductor
def test_package(tmp_path: Path, device: str) -> None:
    """A package of AOTInductor, which C++ loads too: it calls the fused ops, with the same bits."""
    if torch.__version__.startswith("2.11."):
        pytest.skip("AOTInductor of torch 2.11 hands a dtype argument on as another dtype")
    blocks = (block(bias=True) for block in BLOCKS.values())
    floating = Attention(WIDTH, bias=False)
    baraquant.quantize_(floating, baraquant.W4A16(8), progress=False)
    integers = quantized(nn.Sequential(*blocks), "W8A8 asymmetric")
    model = nn.Sequential(*integers, floating).to(device)
    x = torch.randn(2, 8, WIDTH, device=device)
    rows = {0: torch.export.Dim("rows", min=1, max=64), 1: torch.export.Dim("tokens", max=64)}
    runners = {}
    for how, configs in {"as it is": WITHOUT, "Fuse": WITH, "fuse_, then Fuse": WITH}.items():
        program = torch.export.export(model, (x,), dynamic_shapes=(rows,))
        if "fuse_" in how:
            baraquant.graph.fuse_(program)
        runners[how] = packaged(program, tmp_path / f"{how}.pt2", device, **configs)
        is_fused = how != "as it is"
        assert (SEEN[-1] == OF_BOTH + Counter(weight_only_linear=4)) == is_fused, how
        assert [count for _, count in CALLS[-1]] == ([3, 2, 3, 3] if is_fused else []), how
    for shape in ((2, 8), (1, 64), (5, 3)):
        x = torch.randn(*shape, WIDTH, device=device)
        expected = runners["as it is"](x)
        assert all(torch.equal(run(x), expected) for run in runners.values())


@pytest.mark.inductor
def test_cache_of_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache tells a compilation with the pass from one without, and finds both again."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = quantized(LlamaBlock())
    x = torch.randn(2, 8, WIDTH)
    found = []
    with torch._inductor.config.patch(force_disable_caches=False, fx_graph_cache=True):
        for options in ({}, {"post_grad_custom_pre_pass": Fuse()}) * 2:
            torch._dynamo.reset()
            counters.clear()
            with torch.no_grad():
                torch.compile(model, options=options)(x)
            counted = counters["inductor"]
            found.append((counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"]))
            assert counted["fxgraph_cache_bypass"] == 0
    assert found == [(0, 1), (0, 1), (1, 0), (1, 0)]


def test_the_pass_is_one() -> None:
    """Two of them are equal, else a model would be compiled again; the key is a string."""
    assert Fuse() == Fuse() and hash(Fuse()) == hash(Fuse()) and Fuse() != 1
    assert Fuse().uuid() == Fuse().uuid() and len(Fuse().uuid()) > 64
    with pytest.raises(TypeError, match=r"Fuse: expected a torch\.fx\.Graph, but got Linear; give"):
        Fuse()(nn.Linear(1, 1))  # type: ignore[arg-type]
