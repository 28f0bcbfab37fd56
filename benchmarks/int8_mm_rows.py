# SPDX-License-Identifier: BSD-3-Clause
"""What ``bench_int8_mm.py`` measures: for each op of the family the calls, and their peers."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.bench import Call, Timer
from benchmarks.bench_row import OWN, AnyTarget, HoldsLess, Row, Target

# isort: split
from baraquant import ops
from benchmarks.int8_mm_layer import (
    COMPILED,
    DEQUANTIZED,
    DYNAMIC,
    FAKE,
    FP8,
    INT_MM,
    WHOLE,
    Bench,
    Weights,
    cpu_targets,
    int8_peak,
    product_targets,
)
from benchmarks.pytorch_linears import (
    fake_quantized_linear,
    float8_linear,
    float8_product,
    float8_rows,
)
from tests.support.saved_tensors import saved_tensors, storages

EPS = 1e-6  # of a norm


def int_mm_calls(bench: Bench, x: Tensor, scale: Tensor) -> dict[str, Call]:
    """``torch._int_mm`` alone, with its dequantization, and that under torch.compile."""
    int_mm, weights = bench.int_mm, bench.weights
    padded = int_mm.pad_input(x)
    ws = [int_mm.pad_weight(weight) for weight in weights.integers]
    n = len(ws)

    def dequantized(w: Tensor) -> Tensor:
        return int_mm.linear(x, w, scale, weights.scale, weights.dtype)

    calls: dict[str, Call] = {
        INT_MM: lambda i: torch._int_mm(padded, ws[i % n].t()),
        DEQUANTIZED: lambda i: dequantized(ws[i % n]),
    }
    compiled = bench.compiler(dequantized) if bench.compiler else None
    if compiled is not None:
        calls[COMPILED] = lambda i: compiled(ws[i % n])
    return calls


def linear_call(bench: Bench, x: Tensor) -> dict[str, Call]:
    """The float layer."""
    weights = bench.weights
    return {bench.linear_name: lambda i: F.linear(x, weights.floats[i % len(weights.floats)])}


def float8_call(bench: Bench) -> dict[str, Call]:
    """The product of fp8, on a GPU and for the sizes that it takes."""
    weights = bench.weights
    if bench.on_cpu or weights.n % 16 or weights.k % 16:
        return {}
    x, x_scale = float8_rows(weights.random(bench.m))

    def call(i: int) -> Tensor:
        ws, scale = weights.float8
        return float8_product(x, ws[i % len(ws)], x_scale, scale, weights.dtype)

    return {FP8: call}


def own_product(bench: Bench, x: Tensor, scale: Tensor, **options: object) -> Call:
    """``int8_linear``, with a scale per token or one for all."""
    weights = bench.weights
    ws, dtype = weights.integers, weights.dtype
    return lambda i: ops.int8_linear(
        x, ws[i % len(ws)], scale, weights.scale, dtype=dtype, **options
    )


def bench_linear(bench: Bench, what: str = "linear") -> Iterator[Row]:
    """A row of int8_linear: int8 input, a scale per token."""
    weights, m = bench.weights, bench.m
    x, scale = weights.random_integers(m), weights.random_scale(m, 1)
    calls = {
        OWN: own_product(bench, x, scale),
        **int_mm_calls(bench, x, scale),
        **linear_call(bench, weights.random(m)),
        **float8_call(bench),
    }
    row = bench.row(what, "int8_linear", "per token", *product_targets(bench))
    row.note = bench.int_mm.note
    yield bench.measure(row, calls, bench.moved(1), bench.products)


def bench_cached(bench: Bench) -> Iterator[Row]:
    """The same of one weight that is used again and again: integers may fit a cache.

    Each call is repeated for long enough that what its turn begins with counts little.
    """
    own = bench.weights
    kept = Weights(own.device, own.dtype, own.n, own.k, rotated=False)
    timer = Timer(own.device, bench.timer.rounds, batch_seconds=50e-3)
    yield from bench_linear(replace(bench, weights=kept, timer=timer), "cached")


def bench_variants(bench: Bench) -> Iterator[Row]:
    """Rows of the other forms of the product, beside int8 with a scale per token."""
    weights, m = bench.weights, bench.m
    ws, dtype = weights.integers, weights.dtype
    x, scale = weights.random_integers(m), weights.random_scale(m, 1)
    unsigned = weights.random_integers(m, torch.uint8)
    zero_point = torch.randint(0, 256, (m, 1), device=weights.device, dtype=torch.int32)
    sums = [w.sum(1, dtype=torch.int32) for w in ws]

    def smoothquant(i: int) -> Tensor:
        return ops.smoothquant_linear(x, ws[i % len(ws)], weights.scale, 0.02, dtype=dtype)

    def with_sums(i: int) -> Tensor:
        options = {"input_zero_point": zero_point, "weight_sum": sums[i % len(ws)]}
        return own_product(bench, unsigned, scale, **options)(i)

    plain = own_product(bench, x, scale)
    works: list[tuple[str, str, Call]] = [
        ("smoothquant_linear", "int8, a number", smoothquant),
        ("int8_linear", "uint8, zero point, weight_sum", with_sums),
        (
            "int8_linear",
            "uint8, zero point",
            own_product(bench, unsigned, scale, input_zero_point=zero_point),
        ),
    ]
    for op, case, call in works:
        calls = {OWN: call, "int8 per token": plain}
        row = bench.row("variants", op, case)
        yield bench.measure(row, calls, bench.moved(1), bench.products)


def bench_odd(bench: Bench) -> Iterator[Row]:
    """A row of int8_linear at a size that no tile fits, beside the next size that one does."""
    weights, m = bench.weights, bench.m
    even = Weights(
        weights.device, weights.dtype, *(-(-size // 16) * 16 for size in bench.shape[1:])
    )
    x, scale = weights.random_integers(m), weights.random_scale(m, 1)
    neighbour = Bench(even, m, bench.timer, None, bench.copy)
    name = f"at {even.n}x{even.k}"
    calls = {
        OWN: own_product(bench, x, scale),
        name: own_product(neighbour, even.random_integers(m), scale),
        **int_mm_calls(bench, x, scale),
        **linear_call(bench, weights.random(m)),
    }
    row = bench.row("odd", "int8_linear", "per token")
    row.note = bench.int_mm.note
    yield bench.measure(row, calls, bench.moved(1), bench.products)


def bench_whole(bench: Bench) -> Iterator[Row]:
    """A row of quantized_linear: the input is quantized on the fly."""
    weights, x = bench.weights, bench.weights.random(bench.m)
    int_mm, ws = bench.int_mm, bench.weights.integers
    padded = [int_mm.pad_weight(weight) for weight in ws]

    def chain(w: Tensor) -> Tensor:
        return int_mm.quantized_linear(x, w, weights.scale)

    calls: dict[str, Call] = {
        OWN: lambda i: ops.quantized_linear(x, ws[i % len(ws)], weights.scale),
        WHOLE: lambda i: chain(padded[i % len(ws)]),
        **linear_call(bench, x),
    }
    if bench.on_cpu:
        calls[DYNAMIC] = lambda i: weights.dynamic[i % len(ws)](x)
    if compiled := bench.compiler and bench.compiler(chain):
        calls[COMPILED] = lambda i: compiled(padded[i % len(ws)])
    if not bench.on_cpu and (compiled8 := bench.compiler and bench.compiler(float8_linear)):
        calls[f"{FP8} compiled"] = lambda i: compiled8(
            x, weights.float8[0][i % len(weights.float8[0])], weights.float8[1]
        )
    targets = gpu_layer_targets(bench)
    if bench.on_cpu:
        targets = [*cpu_targets(bench), Target(DYNAMIC, 1.1)]
    row = bench.row("whole", "quantized_linear", "symmetric", *targets)
    row.note = int_mm.note
    with torch.no_grad():
        yield bench.measure(row, calls, bench.moved(weights.dtype.itemsize), bench.products)


def gpu_layer_targets(bench: Bench) -> list[AnyTarget]:
    """Of a layer that quantizes its input, or takes it from what quantizes."""
    return [Target(bench.linear_name, 1.85)] if bench.m == 4096 else []


def bench_behind(bench: Bench) -> Iterator[Row]:
    """Rows of what precedes a layer and the layer: quantized by the norm or the activation.

    Beside PyTorch's norm or activation and the float layer, and beside PyTorch's and
    quantized_linear.
    """
    weights, k = bench.weights, bench.shape[2]
    xs, others = ([weights.random(bench.m) for _ in range(4)] for _ in range(2))
    ones = torch.ones(k, device=weights.device, dtype=weights.dtype)
    befores: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[..., Any]]] = {
        "rms_norm": (
            lambda x, _: F.rms_norm(x, (k,), ones, EPS),
            lambda x, _: ops.rms_norm_quantize_per_token(x, ones, EPS),
        ),
        "silu_mul": (lambda x, up: F.silu(x) * up, ops.silu_mul_quantize_per_token),
        "gelu": (lambda x, _: F.gelu(x), lambda x, _: ops.gelu_quantize_per_token(x)),
    }
    for name, (plain, quantizes) in befores.items():
        calls = behind_calls(bench, xs, others, plain, quantizes)
        targets = [] if bench.on_cpu else gpu_layer_targets(bench)
        row = bench.row("behind", "int8_linear", name, *targets)
        moved = bench.moved(weights.dtype.itemsize)
        with torch.no_grad():
            yield bench.measure(row, calls, moved, bench.products)


def behind_calls(
    bench: Bench,
    xs: list[Tensor],
    others: list[Tensor],
    plain: Callable[[Tensor, Tensor], Tensor],
    quantizes: Callable[..., Any],
) -> dict[str, Call]:
    """The fused op and int8_linear; PyTorch's op and the float layer, or quantized_linear."""
    weights = bench.weights
    ws, floats, dtype = weights.integers, weights.floats, weights.dtype

    def own(i: int) -> Tensor:
        q, scale = quantizes(xs[i % 4], others[i % 4])[:2]
        return ops.int8_linear(q, ws[i % len(ws)], scale, weights.scale, dtype=dtype)

    def apart(i: int) -> Tensor:
        x = plain(xs[i % 4], others[i % 4])
        return ops.quantized_linear(x, ws[i % len(ws)], weights.scale)

    return {
        OWN: own,
        "quantized_linear": apart,
        bench.linear_name: lambda i: F.linear(
            plain(xs[i % 4], others[i % 4]), floats[i % len(floats)]
        ),
    }


def bench_training(bench: Bench) -> Iterator[Row]:
    """Rows of qat_linear, forward + backward, and what it holds between the two."""
    for backward in ("float", "int8_input", "int8"):
        yield bench_step(bench, backward)


def bench_step(bench: Bench, backward: str) -> Row:
    """The row with one kind of backward pass."""
    weights, (m, n, k) = bench.weights, bench.shape
    x = weights.random(m).requires_grad_()
    grad = torch.randn(m, n, device=weights.device, dtype=weights.dtype)
    ws = [weight.detach().requires_grad_() for weight in weights.floats]
    forwards: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        OWN: functools.partial(ops.qat_linear, backward=backward),
        bench.linear_name: F.linear,
        FAKE: fake_quantized_linear,
    }
    if compiled := bench.compiler and bench.compiler(fake_quantized_linear):
        forwards[COMPILED] = compiled

    def step(forward: Callable[[Tensor, Tensor], Tensor]) -> Call:
        def call(i: int) -> object:
            w = ws[i % len(ws)]
            return torch.autograd.grad(forward(x, w), (x, w), grad)

        return call

    targets: list[AnyTarget] = []
    if not bench.on_cpu:
        wanted = 1.6 if backward == "int8" and bench.m == 16384 else 1.1
        targets = [Target(bench.linear_name, wanted), HoldsLess(bench.linear_name)]
    case = "forward + backward" + ("" if backward == "float" else f", {backward}")
    row = bench.row("training", "qat_linear", case, *targets)
    for name, forward in forwards.items():
        with contextlib.suppress(Exception):  # its timing below fails as well, and says why
            row.held[name] = held_bytes(forward, x, ws[0])
    # A product of the backward in bfloat16 has half the peak, so that it takes twice as long.
    peak = int8_peak(weights.device) * 3 / {"float": 5, "int8_input": 4, "int8": 3}[backward]
    kept = m * k + n * k
    moved = 2 * (m * k + n * k + m * n) * weights.dtype.itemsize + 2 * kept
    steps = {name: step(forward) for name, forward in forwards.items()}
    return bench.measure(row, steps, moved, 3 * bench.products, peak, rotation=2)


def held_bytes(forward: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> int:
    """Bytes that autograd keeps for the backward, beside the weight itself."""
    forward(x, weight)  # compiles it, which hooks would hinder
    with saved_tensors() as saved:
        forward(x, weight)
    kept = storages(saved)
    kept.pop(weight.untyped_storage().data_ptr(), None)
    return sum(kept.values())
