# SPDX-License-Identifier: BSD-3-Clause
"""Which quantizations become one, which do not, and what the report says of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import ops
from tests.graph.blocks import assert_values_fit, counts

K, N = 16, 8
EPS = 1e-6
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


class Weights(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        for name in ("a", "b"):
            integers = torch.randint(-127, 128, (N, K), generator=random, dtype=torch.int8)
            self.register_buffer(name, integers)
        self.register_buffer("scale", torch.rand(N, generator=random))
        self.function = function

    def product(self, x: Tensor, name: str = "a", **options: Any) -> Tensor:
        return ops.quantized_linear(x, getattr(self, name), self.scale, **options)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


@torch.no_grad()
def fuse(function: Callable[..., Any], *args: Tensor, decompose: bool = False) -> tuple[Any, Any]:
    """Fuse a function's program: the counts of its ops, the report. The bits stay the same."""
    program = torch.export.export(Weights(function), args)
    if decompose:
        program = program.run_decompositions()
    expected = program.module()(*(x.clone() for x in args))
    report = baraquant.graph.fuse_(program)
    assert_values_fit(program.graph)
    found = program.module()(*(x.clone() for x in args))
    expected, found = (r if isinstance(r, (tuple, list)) else [r] for r in (expected, found))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return counts(program.graph), report


def example(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*(shape or (2, 3)), K, generator=torch.Generator().manual_seed(1)).to(dtype)


def norm(x: Tensor) -> Tensor:
    return ops.rms_norm(x, None, EPS)


DYNAMIC, FUSED = "dynamic_range_quantize_per_token", "rms_norm_quantize_per_token"


def test_two_products_share_and_a_single_one_stays() -> None:
    found, report = fuse(two_products, example())
    assert found == {DYNAMIC: 1, "int8_linear": 2}
    assert report.fusions[0].source == "args_0" and report.after == 1
    found, report = fuse(lambda m, x: m.product(x), example())
    assert found == {"quantized_linear": 1} and report == baraquant.graph.Report((), {}, 1, 1)


FACTORS = torch.rand(2, K, generator=torch.Generator().manual_seed(2))
FLOAT_OPS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "rms_norm": lambda x, y: ops.rms_norm(x, FACTORS[0], 0.5),
    "layer_norm": lambda x, y: ops.layer_norm(x, FACTORS[0], FACTORS[1], eps=0.5),
    "rms_norm of a sum": lambda x, y: ops.rms_norm(x, FACTORS[0], 0.5, residual=y),
    "layer_norm of a sum": lambda x, y: ops.layer_norm(x, *FACTORS, eps=0.5, residual=y),
    "silu_mul": ops.silu_mul,
    "gelu": lambda x, y: ops.gelu(x),
    "gelu by tanh": lambda x, y: ops.gelu(x, approximate="tanh"),
    "hadamard": lambda x, y: ops.hadamard(x, 8),
}


@pytest.mark.exhaustive
@pytest.mark.pairs
@pytest.mark.parametrize("decompose", (False, True), ids=("exported", "decomposed"))
@pytest.mark.parametrize(
    "options", ({}, {"symmetric": False, "quant_min": -8, "quant_max": 7}), ids=str
)
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_each_float_op(op: str, options: dict[str, Any], decompose: bool) -> None:
    """Its arguments are those of the quantizing form, options and block too."""

    def function(m: Weights, x: Tensor, y: Tensor) -> Any:
        result = FLOAT_OPS[op](x, y)
        h, *sums = result if isinstance(result, tuple) else (result,)
        return m.product(h, **options), m.product(h, "b", **options), *(t * 2 for t in sums)

    found, report = fuse(function, example(5, 3), example(5, 3) + 1, decompose=decompose)
    assert [len(fusion.users) for fusion in report.fusions] == [2]
    assert report.fusions[0].op == f"{op.split()[0]}_quantize_per_token"
    assert found["int8_linear"] == 2 and sum(found.values()) == 3


X = example()

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda h: h.view(-1, K),
    "reshape of all": lambda h: h.reshape(3, 2, -1),
    "flatten": lambda h: h.flatten(0, 1),
    "unsqueeze": lambda h: h.unsqueeze(0),
    "unsqueeze before the last": lambda h: h.unsqueeze(-2),
    "squeeze": lambda h: h.unsqueeze(0).squeeze(0),
    "transpose": lambda h: h.transpose(0, 1),
    "permute": lambda h: h.permute(1, 0, 2),
    "contiguous": lambda h: h.transpose(0, 1).contiguous(),
    "chain": lambda h: h.transpose(0, 1).reshape(-1, K).unsqueeze(1).clone(),
    "detach": lambda h: h.detach(),
}
PICKS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda h: h[:, 1:],
    "slice with a step": lambda h: h[:, ::2],
    "select": lambda h: h[1],
    "last token": lambda h: h[:, -1],
    "one token": lambda h: h[0, 0],
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "other tokens": lambda h: h.reshape(-1, K // 2).repeat(1, 2),
    "transposed tokens": lambda h: h.reshape(K, -1)[:, :3].repeat(1, 6)[:, :K],
    "slice of features": lambda h: h[..., 1:].repeat(1, 1, 2)[..., :K],
    "flipped": lambda h: h.flip(-1),
    "cast": lambda h: h.bfloat16(),
}


@pytest.mark.exhaustive
@pytest.mark.pairs
@pytest.mark.parametrize("symmetric", (True, False))
@pytest.mark.parametrize("decompose", (False, True), ids=("exported", "decomposed"))
@pytest.mark.parametrize("view", (*VIEWS, *PICKS))
def test_views_of_a_norm(view: str, decompose: bool, symmetric: bool) -> None:
    """They come after the quantization; a part of the tokens too."""
    see = {**VIEWS, **PICKS}[view]

    def function(m: Weights, x: Tensor) -> Any:
        h = norm(x)
        return m.product(h, symmetric=symmetric), m.product(see(h), "b", symmetric=symmetric)

    found, report = fuse(function, example(), decompose=decompose)
    name = "norm_quantize" if decompose else FUSED
    assert found == {name: 1, "int8_linear": 2} and report.left_out == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("view", (*VIEWS, *PICKS, *OTHERS))
def test_views_of_an_input(view: str) -> None:
    """All tokens are quantized once; a part of them is not worth the whole, others are others.

    Others of a norm are read beside it.
    """
    see = {**VIEWS, **PICKS, **OTHERS}[view]
    found, _ = fuse(lambda m, x: (m.product(x), m.product(see(x), "b")), example())
    if view in VIEWS:
        assert found == {DYNAMIC: 1, "int8_linear": 2}
    else:
        assert found == {"quantized_linear": 2}
    if view in OTHERS:
        found, report = fuse(lambda m, x: (m.product(h := norm(x)), m.product(see(h), "b")), X)
        assert found == {"rms_norm": 1, "quantized_linear": 2}
        assert next(iter(report.left_out.values())).startswith("its output is also read by ")


# --- what else reads it, other options, what is written in place ---------------------------------


def two_products(m: Weights, x: Tensor) -> Any:
    return m.product(x), m.product(x, "b")


def sum_of_a_residual(m: Weights, x: Tensor, r: Tensor) -> Any:
    h, total = ops.rms_norm(x, None, EPS, residual=r)
    return m.product(h), total, total.relu()


def sum_and_norm(m: Weights, x: Tensor, r: Tensor) -> Any:
    h, total = ops.layer_norm(x, None, None, EPS, residual=r)
    return m.product(h), m.product(total), h


def two_options(m: Weights, x: Tensor) -> Any:
    h = norm(x)
    four = {"quant_min": -8, "quant_max": 7}
    return m.product(h), m.product(h, "b"), m.product(h, **four), m.product(h, "b", **four)


def dtypes_of_products(m: Weights, x: Tensor) -> Any:
    h = norm(x)
    return tuple(m.product(h, dtype=dtype) for dtype in (torch.float16, torch.float32, None))


def two_results_of_a_norm(m: Weights, x: Tensor) -> Any:
    h = norm(x)
    return tuple(ops.dynamic_range_quantize_per_token(h)[0] for _ in range(2))


def explicit(m: Weights, x: Tensor, y: Tensor) -> Any:
    results = []
    for h in (norm(x), y):
        q, s, _ = ops.dynamic_range_quantize_per_token(h)
        again, _, z = ops.dynamic_range_quantize_per_token(h.view(-1, K), -128, 127)
        results += [m.product(h), q.int(), s * 2, again.sum(-1), z + 1]
    return tuple(results)


def unsigned(m: Weights, x: Tensor) -> Any:
    given = {"symmetric": False, "dtype": torch.uint8}
    q, s, z = ops.dynamic_range_quantize_per_token(norm(x), 0, 255, **given)
    return ops.int8_linear(q, m.a, s, m.scale, input_zero_point=z)


def other_granularities(m: Weights, x: Tensor) -> Any:
    h = norm(x)
    q, s, _ = ops.dynamic_range_quantize_per_tensor(h)
    g, t, _ = ops.dynamic_range_quantize_per_group(h, K)
    return m.product(h), q * s, g.float().view(-1) * t.sum()


def two_results(m: Weights, x: Tensor) -> Any:
    one, _, _ = ops.dynamic_range_quantize_per_token(x)
    two, _, _ = ops.dynamic_range_quantize_per_token(x)
    return one, two.view(-1), m.product(x)


def written_input(m: Weights, x: Tensor) -> Any:
    x = x * 2
    first = m.product(x)
    x[0].add_(1)
    return first, m.product(x, "b")


def written_view(m: Weights, x: Tensor) -> Any:
    x = x * 2
    row = x[0]
    first = m.product(x), m.product(x, "b")
    row.mul_(3)
    return *first, m.product(x), m.product(x, "b")


def written_norm(m: Weights, x: Tensor) -> Any:
    h = norm(x)
    first = m.product(h)
    h.view(-1).add_(1)
    return first, m.product(h)


def written_integers(m: Weights, x: Tensor) -> Any:
    h = norm(x)
    q, s, _ = ops.dynamic_range_quantize_per_token(h)
    q.view(-1).clamp_(-3, 3)
    return q * s, m.product(h)


class Case(NamedTuple):
    """A function, its inputs, what its graph calls then, and what the report leaves out."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    found: dict[str, int]
    left_out: dict[str, str] | None = None
    decompose: bool = False


LINEAR = "quantized_linear"
READ, OPTIONS = "its output is also read by output", "its quantizations have different options"
WRITTEN = "the graph may write in place between its quantizations"
CASES: dict[str, Case] = {
    # One vector, and none.
    **{
        str(shape): Case(lambda m, x: two_products(m, norm(x)), (torch.randn(shape),),
            {FUSED: 1, "int8_linear": 2})
        for shape in ((K,), (0, K), (3, 0, K))
    },
    # The same view stays where it is, also of tokens that are no tokens of the input.
    **{
        f"view of {tuple(x.shape)}": Case(lambda m, x: two_products(m, x.reshape(-1, K)), (x,),
            {DYNAMIC: 1, "int8_linear": 2})
        for x in (X, torch.randn(4, K // 2))
    },
    # The sum keeps its readers; a norm that something else reads stays, and the products share.
    "sum": Case(sum_of_a_residual, (X, X), {FUSED: 1, "int8_linear": 1}),
    "sum and norm": Case(sum_and_norm, (X, X), {"layer_norm": 1, LINEAR: 2}, {"layer_norm": READ}),
    "norm": Case(lambda m, x: (m.product(h := norm(x)), m.product(h, "b"), h), (X,),
        {"rms_norm": 1, DYNAMIC: 1, "int8_linear": 2}, {"rms_norm": READ}),
    "scale": Case(lambda m, x: ops.quantized_linear(h := norm(x), m.a[:, :N].contiguous(), h),
        (torch.rand(N),), {"rms_norm": 1, LINEAR: 1}),
    "two options": Case(two_options, (X,), {"rms_norm": 1, DYNAMIC: 2, "int8_linear": 4},
        {"rms_norm": OPTIONS}),
    **{
        str(options): Case(lambda m, x, options=options: (m.product(x), m.product(x, **options)),
            (X,), {LINEAR: 2}, {"args_0": OPTIONS})
        for options in (
            {"symmetric": False}, {"quant_min": -127}, {"quant_min": -8, "quant_max": 7}
        )
    },
    # The dtype of a product is no option of the quantization.
    **{
        str(dtype): Case(dtypes_of_products, (X.to(dtype),), {FUSED: 1, "int8_linear": 3})
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    },
    # Explicit quantizations merge with products and with each other, and into a norm.
    "explicit": Case(explicit, (X, example(4)), {FUSED: 1, DYNAMIC: 1, "int8_linear": 2}),
    "explicit, decomposed": Case(explicit, (X, example(4)),
        {"norm_quantize": 1, DYNAMIC: 1, "int8_linear": 2}, decompose=True),
    "uint8": Case(unsigned, (X,), {FUSED: 1, "int8_linear": 1}),
    "other granularities": Case(other_granularities, (X,), {"rms_norm": 1, LINEAR: 1}),
    "other granularities, decomposed": Case(other_granularities, (X,), {"norm": 1, LINEAR: 1},
        decompose=True),
    "two results": Case(two_results, (X,), {DYNAMIC: 2, "int8_linear": 1}),
    "two results of a norm": Case(two_results_of_a_norm, (X,), {"rms_norm": 1, DYNAMIC: 2},
        {"rms_norm": "more than one quantization of it is returned"}),
    # Nothing moves across a write, as exported, before it is functional.
    "written input": Case(written_input, (X,), {LINEAR: 2}, {"mul": WRITTEN}),
    "written view": Case(written_view, (X,), {DYNAMIC: 2, "int8_linear": 4}),
    "written norm": Case(written_norm, (X,), {"rms_norm": 1, LINEAR: 2}),
    "written norm, decomposed": Case(written_norm, (X,), {"norm": 1, LINEAR: 2}, decompose=True),
    "written integers": Case(written_integers, (X,), {"rms_norm": 1, DYNAMIC: 1, LINEAR: 1},
        {"rms_norm": "the integers of a quantization are written in place"}),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_what_becomes_one(name: str) -> None:
    case = CASES[name]
    found, report = fuse(case.function, *case.inputs, decompose=case.decompose)
    is_whole = not name.startswith("other granularities")
    assert found == case.found if is_whole else case.found.items() <= found.items()
    assert case.left_out is None or report.left_out == case.left_out


@torch.no_grad()
@pytest.mark.exhaustive
def test_two_results_of_the_caller_share_no_memory() -> None:
    program = torch.export.export(Weights(two_results), (X,))
    baraquant.graph.fuse_(program)
    one, two, _ = program.module()(X)
    assert one.data_ptr() != two.data_ptr()


@pytest.mark.exhaustive
def test_grouped_products() -> None:
    """Those of experts share, and take the integers of what gates them."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randint(-9, 9, (2, N, K), generator=random, dtype=torch.int8)
    down = torch.randint(-9, 9, (2, K, N), generator=random, dtype=torch.int8)
    scale, ends = torch.rand(2, N), torch.tensor([2, 6], dtype=torch.int32)

    def function(m: Weights, x: Tensor) -> Any:
        def product(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
            return ops.quantized_grouped_linear(x, w, ends, s, symmetric=False)

        gate, up = product(x, weight, scale), product(x, weight + 1, scale)
        return product(ops.silu_mul(gate, up), down, torch.ones(2, K))

    found, report = fuse(function, example(6))
    assert found == {DYNAMIC: 1, "silu_mul_quantize_per_token": 1, "int8_grouped_linear": 3}
    assert (report.before, report.after) == (3, 2)
