# SPDX-License-Identifier: BSD-3-Clause
"""Which products of one input become one call: the bits and the gradients stay as they are."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import ops
from tests.graph.blocks import assert_values_fit, merged
from tests.graph.test_exported import Program, exported, outputs

K, SIZES = 16, {"a": 8, "b": 8, "c": 24}
X = torch.randn(2, 3, K, generator=torch.Generator().manual_seed(1))
GROUPS = K // 8
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


class Model(nn.Module):
    """Weights of every kind under three names, and a function that multiplies by them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        for name, n in SIZES.items():
            weight = torch.randint(-8, 8, (n, K), generator=random, dtype=torch.int8)
            scale = torch.rand(n, generator=random) + 0.5
            kinds = {
                "": weight, "packed": ops.pack_int4(weight), "scale": scale, "bias": scale - 1,
                "sum": weight.sum(1, dtype=torch.int32), "scales": scale[:, None].repeat(1, GROUPS),
                "factor": torch.randint(1, 9, (n, GROUPS), generator=random, dtype=torch.uint8),
                "zero_point": torch.randint(4, (n, GROUPS), generator=random, dtype=torch.uint8),
            }  # fmt: skip
            for kind, tensor in kinds.items():
                self.register_buffer(f"{name}_{kind}", tensor)
        self.register_buffer("cache", torch.zeros(1))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)

    def get(self, name: str, kind: str, is_given: bool = True) -> Any:
        return getattr(self, f"{name}_{kind}") if is_given else None

    def int8(self, q: Tensor, s: Tensor, name: str, bias: bool = False, **options: Any) -> Tensor:
        options.setdefault("weight", self.get(name, ""))
        scale, given = self.get(name, "scale"), self.get(name, "bias", bias)
        return ops.int8_linear(q, input_scale=s, weight_scale=scale, bias=given, **options)

    def int4(self, q: Tensor, s: Tensor, name: str, zero: bool = False, **options: Any) -> Tensor:
        weight = self.get(name, "packed"), s, self.get(name, "scale"), self.get(name, "factor")
        zero_point = self.get(name, "zero_point", zero)
        return ops.int4_linear(q, *weight, 8, group_zero_point=zero_point, **options)

    def floating(self, x: Tensor, name: str, kind: str = "", **options: Any) -> Tensor:
        return ops.weight_only_linear(x, self.get(name, kind), self.get(name, "scale"), **options)

    def groups(self, x: Tensor, name: str, zero: bool = False) -> Tensor:
        weight = self.get(name, "packed"), self.get(name, "scales"), self.get(name, "bias")
        zero_point = self.get(name, "zero_point", zero)
        return ops.weight_only_linear(x, *weight, weight_zero_point=zero_point, group_size=8)


def quantized(x: Tensor, symmetric: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    return ops.dynamic_range_quantize_per_token(x, symmetric=symmetric)


def all_int8(m: Model, x: Tensor, **options: Any) -> list[Tensor]:
    q, s, _ = quantized(x)
    return [m.int8(q, s, name, **options) for name in SIZES]


def asymmetric(m: Model, x: Tensor) -> list[Tensor]:
    q, s, z = quantized(x, symmetric=False)
    sums = [m.int8(q, s, n, input_zero_point=z, weight_sum=m.get(n, "sum")) for n in SIZES]
    return [*sums, *(m.int8(q, s, name, input_zero_point=z) for name in SIZES)]


def unequal(m: Model, x: Tensor) -> list[Tensor]:
    """Another scale, other integers, other zero points, and one more weight for the first."""
    q, s, z = quantized(x, symmetric=False)
    again = m.int8(q, s, "a"), m.int8(q, s, "b")
    return [
        *again,
        m.int8(q, s * 2, "b"),
        m.int8(-q, s, "b"),
        m.int8(q, s, "c", input_zero_point=z),
    ]


def some(m: Model, x: Tensor, **options: Any) -> list[Tensor]:
    q, s, _ = quantized(x)
    return [m.int8(q, s, "a", **options), m.int8(q, s, "b"), m.int8(q, s, "c", **options)]


def all_int4(m: Model, x: Tensor, zeros: str) -> list[Tensor]:
    q, s, z = quantized(x, symmetric=False)
    return [m.int4(q, s, n, n in zeros, input_zero_point=z, dtype=torch.float16) for n in SIZES]


def made_later(m: Model, x: Tensor) -> list[Tensor]:
    q, s, _ = quantized(x)
    first = m.int8(q, s, "a")
    return [first, m.int8(q, s, "b", weight=m.get("b", "") + 1), m.int8(q, s, "c")]


def made_of_the_first(m: Model, x: Tensor) -> list[Tensor]:
    first = m.floating(x, "a")
    return [first, ops.weight_only_linear(x, m.get("b", ""), first[0, 0].abs())]


def written_between(m: Model, x: Tensor) -> list[Tensor]:
    q, s, _ = quantized(x)
    first = m.int8(q, s, "a")
    m.cache.fill_(2)
    return [first + m.cache, m.int8(q, s, "b"), m.int8(q, s, "c")]


def written_results(m: Model, x: Tensor) -> list[Tensor]:
    first, *others = all_int8(m, x)
    first.view(-1).mul_(2)
    return [first, *others, first + 1]


class Case(NamedTuple):
    """A function, and its calls of several products: the op of one, and how many."""

    function: Callable[[Model, Tensor], list[Tensor]]
    calls: list[tuple[str, int]]
    decomposed: list[tuple[str, int]] | None = None  # None: the same


INT8, INT4, FLOATING = "int8_linear", "int4_linear", "weight_only_linear"
CASES = {
    "int8": Case(all_int8, [(INT8, 3)]),
    "bias": Case(lambda m, x: all_int8(m, x, bias=True), [(INT8, 3)]),
    "bias of some": Case(lambda m, x: some(m, x, bias=True), [(INT8, 2)]),
    "dtype of some": Case(lambda m, x: some(m, x, dtype=torch.bfloat16), [(INT8, 2)]),
    "default dtype": Case(lambda m, x: some(m, x, dtype=torch.float32), [(INT8, 3)]),
    "asymmetric": Case(asymmetric, [(INT8, 3), (INT8, 3)]),
    "quantized_linear": Case(lambda m, x: [ops.quantized_linear(x, m.get(n, ""), m.get(n, "scale"))
        for n in SIZES], [(INT8, 3)]),
    "unequal": Case(unequal, [(INT8, 2)]),
    "int4": Case(lambda m, x: all_int4(m, x, ""), [(INT4, 3)]),
    "int4 asymmetric": Case(lambda m, x: all_int4(m, x, "abc"), [(INT4, 3)]),
    "int4 some asymmetric": Case(lambda m, x: all_int4(m, x, "ac"), [(INT4, 2)]),
    "floating": Case(lambda m, x: [m.floating(x, n) for n in SIZES], [(FLOATING, 3)]),
    "floating groups": Case(lambda m, x: [m.groups(x, n) for n in SIZES], [(FLOATING, 3)]),
    "floating asymmetric": Case(lambda m, x: [m.groups(x, n, n != "a") for n in SIZES],
        [(FLOATING, 2)]),
    "floating, packed or not": Case(lambda m, x: [m.floating(x, n, kind) for n in SIZES
        for kind in ("", "packed")], [(FLOATING, 3), (FLOATING, 3)]),
    "made later": Case(made_later, [(INT8, 2)]),
    "made of the first": Case(made_of_the_first, []),
    # Exported graphs write in place; in decomposed ones that is an output.
    "written between": Case(written_between, [(INT8, 2)], [(INT8, 3)]),
    "written results": Case(written_results, [(INT8, 3)]),
}  # fmt: skip


def program_of(name: str, decompose: bool) -> tuple[Program, Case]:
    case = CASES[name]
    program = exported(Model(case.function), X)
    return (program.run_decompositions() if decompose else program), case


@pytest.mark.parametrize("decompose", (False, True), ids=("exported", "decomposed"))
@pytest.mark.parametrize("name", CASES)
def test_what_is_one_call(name: str, decompose: bool) -> None:
    program, case = program_of(name, decompose)
    expected = outputs(program, X)
    names = [node.name for node in program.graph.output_node().args[0]]  # type: ignore[union-attr]
    report = baraquant.graph.fuse_(program)
    assert_values_fit(program.graph)
    calls = case.decomposed if decompose and case.decomposed else case.calls
    assert merged(program.graph) == calls
    assert [(one.op, len(one.users)) for one in report.products] == calls
    assert names == [node.name for node in program.graph.output_node().args[0]]  # type: ignore[union-attr]
    for found, right in zip(outputs(program, X), expected, strict=True):
        assert found.dtype == right.dtype and torch.equal(found, right)
    assert baraquant.graph.fuse_(program).products == ()


def test_attributes_may_stand_anywhere() -> None:
    """As after a folding of constants, in front of what reads them."""
    module = program_of("bias", False)[0].module()
    for node in [n for n in module.graph.nodes if n.op == "get_attr" and n.users]:
        next(iter(node.users)).prepend(node)
    expected = outputs(module, X)
    report = baraquant.graph.fuse_(module)
    assert [len(one.users) for one in report.products] == [3]
    assert all(map(torch.equal, outputs(module, X), expected))


def test_report() -> None:
    program, _ = program_of("quantized_linear", False)
    names = ", ".join(f"quantized_linear{end}" for end in ("", "_1", "_2"))
    assert str(baraquant.graph.fuse_(program)).splitlines() == [
        f"x  -> {names} (dynamic_range_quantize_per_token)",
        f"x  -> {names} (int8_linear) in one call",
        "1 fused, 0 left out; 3 quantizations before, 1 now; 3 products merged into 1",
    ]


@pytest.mark.parametrize("name", ("floating", "floating groups"))
def test_gradients_and_autocast(name: str) -> None:
    """Of floating inputs; those of integers are refused as before (test_schemes)."""
    program, _ = program_of(name, False)
    results = []
    for fused in (False, True):
        if fused:
            baraquant.graph.fuse_(program)
        x = X.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lowered = [*program.module()(x), *program.module()(X)]
        ys = [*program.module()(x), *lowered]
        grads = [torch.autograd.grad(y.float().square().sum(), x)[0] for y in ys if y.grad_fn]
        results.append([*ys, *grads])
    for found, right in zip(*results, strict=True):
        assert found.dtype == right.dtype and torch.equal(found, right)
    assert {y.dtype for y in lowered} == {torch.bfloat16}
