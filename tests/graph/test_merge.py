# SPDX-License-Identifier: BSD-3-Clause
"""Which products of one input become one call, with the same bits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

import baraquant
from baraquant import ops
from baraquant.graph import Fuse
from baraquant.graph._merge import merge_products
from tests.graph.blocks import assert_values_fit, merged
from tests.graph.test_exported import exported, outputs
from tests.nn.test_quantizer_modules import saved

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


def cast(m: Model, x: Tensor) -> list[Tensor]:
    return [
        m.floating(x.bfloat16(), name, bias=m.get(name, "bias").double().bfloat16())
        for name in SIZES
    ]


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
    "cast": Case(cast, [], [(FLOATING, 3)]),  # in the exported graph by other ops
    "made later": Case(made_later, [(INT8, 2)]),
    "made of the first": Case(made_of_the_first, []),
    # Exported graphs write in place; in decomposed ones that is an output.
    "written between": Case(written_between, [(INT8, 2)], [(INT8, 3)]),
    "written results": Case(written_results, [(INT8, 3)]),
}  # fmt: skip


def module_of(name: str, decompose: bool = True) -> tuple[GraphModule, Case]:
    """Graphs that are not functional are only seen here: Inductor's are."""
    case = CASES[name]
    program = exported(Model(case.function), X)
    return (program.run_decompositions() if decompose else program).module(), case


def fused(module: GraphModule) -> list[Tensor]:
    """Fuse a graph as Inductor does, and run it."""
    Fuse()(module.graph)
    module.recompile()
    return outputs(module, X)


@pytest.mark.parametrize("decompose", (False, True), ids=("exported", "decomposed"))
@pytest.mark.parametrize("name", CASES)
def test_what_is_one_call(name: str, decompose: bool) -> None:
    module, case = module_of(name, decompose)
    expected = outputs(module, X)
    results = [node.name for node in module.graph.output_node().all_input_nodes]
    found = fused(module)
    assert_values_fit(module.graph)
    calls = case.decomposed if decompose and case.decomposed else case.calls
    assert merged(module.graph) == calls
    assert results == [node.name for node in module.graph.output_node().all_input_nodes]
    for one, right in zip(found, expected, strict=True):
        assert one.dtype == right.dtype and torch.equal(one, right)


def test_attributes_may_stand_anywhere() -> None:
    """As after a folding of constants, in front of what reads them."""
    module, _ = module_of("bias")
    for node in [n for n in module.graph.nodes if n.op == "get_attr" and n.users]:
        next(iter(node.users)).prepend(node)
    expected = outputs(module, X)
    assert all(map(torch.equal, fused(module), expected)) and merged(module.graph) == [(INT8, 3)]


@pytest.mark.parametrize(
    "name", ("quantized_linear", "bias", "int4 asymmetric", "floating", "floating groups")
)
def test_exported_programs(name: str) -> None:
    """They are saved, and are called under autocast and vmap."""
    program = exported(Model(CASES[name].function), X)
    before = program.module()
    baraquant.graph.fuse_(program)
    assert merged(program.graph) == CASES[name].calls
    assert_values_fit(program.graph)
    after = torch.export.load(saved(torch.export.save, program)).module()

    def called(module: Any) -> list[Tensor]:
        plain, batch = outputs(module, X), torch.vmap(module)(torch.stack((X, -X)))
        with torch.autocast("cpu", torch.bfloat16):
            return [*plain, *batch, *outputs(module, X)]

    for found, expected in zip(called(after), called(before), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_gradients_of_an_exported_program() -> None:
    program = exported(Model(CASES["floating"].function), X)
    modules = [program.module()]
    baraquant.graph.fuse_(program)
    gradients = []
    for module in (*modules, program.module()):
        x = X.clone().requires_grad_()
        sum(y.sin().sum() for y in module(x)).backward()
        gradients.append(x.grad)
    assert merged(program.graph) and torch.equal(*gradients)


def test_a_bias_of_negative_zeros_is_none() -> None:
    """torch 2.11 takes every graph for an exported one, in which such a bias stands for none."""
    graph = Graph()
    x, *weights = (graph.placeholder(name) for name in ("x", "w", "s", "v", "t"))
    outputs = []
    for value, pair in ((-0.0, weights[:2]), (-0.0, weights[2:]), (0.0, weights[:2])):
        bias = graph.call_function(torch.ops.aten.full.default, ([8], value))
        outputs.append(
            graph.call_function(torch.ops.baraquant.weight_only_linear.default, (x, *pair, bias))
        )
    graph.output(tuple(outputs))
    merge_products(graph)
    (call,) = graph.find_nodes(
        op="call_function", target=torch.ops.baraquant._weight_only_linears.default
    )
    assert call.args == (x, weights[::2], weights[1::2], None, None, None)
    assert outputs[2].args[3].target is torch.ops.aten.full.default
