# SPDX-License-Identifier: BSD-3-Clause
"""What ``bench_int8_mm.py`` measures: for each op of the family the calls, the bound, the targets.

Integers are random over their full range, as an int8 product is limited by power, and values that
toggle fewer bits run faster. The weights rotate, so that none is in a cache; the input stays, as
what the layer before has just written. The bound is the time of all bytes at a copy's rate, or of
all operations at the peak of the tensor cores, whichever is longer.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bench import Call, Compiler, Timer, describe, rotation_for
from bench_row import OWN, AnyOf, AnyTarget, Case, HoldsLess, Row, Target, Tops, empty_row

# isort: split
from baraquant import ops
from cases import compute_dtype, name_of
from h200_sweep import sweep_seconds
from pytorch_linears import (
    IntMm,
    dynamic_linear,
    fake_quantized_linear,
    float8_linear,
    float8_product,
    float8_rows,
)
from saved_tensors import saved_tensors, storages

# A bfloat16 copy this large runs at the rate of memory, on the CPU as it rotates.
COPIED = {"cuda": [8192, 8192], "cpu": [2048, 8192]}
# Operations per second of dense int8 products, as the data sheets have it, by part of the name.
PEAKS = {"H200": 1979e12, "H100 80GB HBM3": 1979e12, "A100": 624e12}
INT_MM, FP8, COMPILED = "torch._int_mm", "fp8 rowwise", "torch.compile"
DEQUANTIZED, WHOLE = "_int_mm + dequantize", "quantize + _int_mm + dequantize"
FAKE, DYNAMIC = "fake_quantize + linear", "quantize_dynamic"
SWEEP, STREAM = "sweep's best", "weights streamed"
OPERATIONS_PER_CORE = 0.275  # in 1e12 per second, with VNNI: 0.55 on the two cores of the target
FUSED_FROM = 1024  # rows from which the product is bound by arithmetic
DECODE_UP_TO = 64  # and up to which by the weights' bytes


def int8_peak(device: torch.device) -> float:
    """Operations per second at the most; 0 where that is not known."""
    if device.type != "cuda":
        return 0
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), 0)


class Weights:
    """The weight ``[n, k]`` of a layer in all forms that are measured, each rotated."""

    def __init__(self, device: torch.device, dtype: torch.dtype, n: int, k: int) -> None:
        self.device, self.dtype, self.n, self.k = device, dtype, n, k
        self.scale = self.random_scale(n)

    def random_scale(self, *shape: int) -> Tensor:
        """Around 0.02."""
        dtype = compute_dtype(self.dtype)
        return torch.rand(shape, device=self.device, dtype=dtype) * 0.01 + 0.015

    def random_integers(self, rows: int, dtype: torch.dtype = torch.int8) -> Tensor:
        """``[rows, k]`` over the whole range of the dtype."""
        info = torch.iinfo(dtype)
        shape = (rows, self.k)
        return torch.randint(info.min, info.max + 1, shape, device=self.device, dtype=dtype)

    def random(self, rows: int) -> Tensor:
        """Normal values ``[rows, k]``."""
        return torch.randn(rows, self.k, device=self.device, dtype=self.dtype)

    @functools.cached_property
    def integers(self) -> list[Tensor]:
        """In int8."""
        return [self.random_integers(self.n) for _ in range(rotation_for(self.n * self.k))]

    @functools.cached_property
    def floats(self) -> list[Tensor]:
        """In the dtype of the layer."""
        count = rotation_for(self.n * self.k * self.dtype.itemsize)
        return [self.random(self.n) for _ in range(count)]

    @functools.cached_property
    def float8(self) -> tuple[list[Tensor], Tensor]:
        """In fp8, with the scales ``[n, 1]``."""
        first, scale = float8_rows(self.random(self.n))
        copies = rotation_for(first.nbytes) - 1
        return [first] + [first.clone() for _ in range(copies)], scale

    @functools.cached_property
    def dynamic(self) -> list[torch.nn.Module]:
        """As layers of ``quantize_dynamic``."""
        return [dynamic_linear(self.random(self.n)) for _ in self.integers]


@dataclass(frozen=True)
class Bench:
    """One layer at one number of rows, and what measures it; ``compiler`` may be None."""

    weights: Weights
    m: int
    timer: Timer
    compiler: Compiler | None
    copy: Case

    @property
    def shape(self) -> list[int]:
        """M, N and K."""
        return [self.m, self.weights.n, self.weights.k]

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is measured."""
        return self.weights.device.type == "cpu"

    @property
    def linear_name(self) -> str:
        """The float layer in the table."""
        return f"{name_of(self.weights.dtype)} linear"

    @property
    def products(self) -> int:
        """Multiplications and additions of one product."""
        return 2 * self.m * self.weights.n * self.weights.k

    @property
    def int_mm(self) -> IntMm:
        """PyTorch's product at this size."""
        return IntMm(self.weights.device, *self.shape)

    def moved(self, input_bytes: int) -> int:
        """Bytes of input, int8 weight, output and scales."""
        m, n, k = self.shape
        dtype = self.weights.dtype
        scales = (m + n) * compute_dtype(dtype).itemsize
        return m * k * input_bytes + n * k + m * n * dtype.itemsize + scales

    def row(self, what: str, op: str, case: str, *targets: AnyTarget) -> Row:
        """An empty row that names this layer."""
        return empty_row(
            self.weights.device, self.weights.dtype, self.shape, what, op, case, *targets
        )

    def measure(
        self,
        row: Row,
        calls: dict[str, Call],
        moved: float,
        operations: float,
        peak: float | None = None,
        rotation: int | None = None,
    ) -> Row:
        """Fills the row; beside the calls stand the sweep's time and that of reading the weights.

        On the CPU, whose peak is not known, only one row of input has a bound: its bytes. As many
        outputs are kept alive as int8 weights rotate, unless ``rotation`` says another number.
        """
        peak = int8_peak(self.weights.device) if peak is None else peak
        if peak or self.m == 1:
            calls = {"copy": self.copy.copy, **calls}
        asked = {
            part.against
            for target in row.targets
            for part in (target.targets if isinstance(target, AnyOf) else (target,))
            if isinstance(part, Target)
        }
        try:
            results = self.timer.compare(calls, rotation or len(self.weights.integers))
            copied = results.get("copy")
            if STREAM in asked and isinstance(copied, float):
                weight_bytes = self.weights.n * self.weights.k
                results[STREAM] = weight_bytes * copied / self.copy.copied
            sweep = self.sweep_seconds
            if SWEEP in asked and sweep is not None:
                results[SWEEP] = sweep
            row.fill(results, OWN, moved, self.copy.copied, operations, peak)
        except Exception as error:  # recorded in the row
            row.fail(describe(error))
        return row

    @property
    def sweep_seconds(self) -> float | None:
        """What the sweep reached, if this is its card and one of its shapes."""
        if self.on_cpu:
            return None
        return sweep_seconds(torch.cuda.get_device_name(self.weights.device), *self.shape)


def product_targets(bench: Bench) -> list[AnyTarget]:
    """Of a product alone: bound by arithmetic, between the two, or by the weights' bytes."""
    if bench.on_cpu:
        return cpu_targets(bench)
    sweep = Target(SWEEP, 0.97)
    known = [sweep] if bench.sweep_seconds is not None else []
    if bench.m >= FUSED_FROM:
        return [Target(INT_MM, 1.45), Target(FP8, 1.0), *known]
    if bench.m > DECODE_UP_TO:
        return list(known)
    targets: list[AnyTarget] = [AnyOf((sweep, Target(STREAM, 0.85)))]
    if bench.m <= 16 and bench.shape[1:] == [4096, 4096]:
        targets.append(Target(INT_MM, 1 / 0.65))
    return targets


def cpu_targets(bench: Bench) -> list[AnyTarget]:
    """A multiple of the float layer, or with VNNI a rate."""
    from baraquant import _C

    if bench.m == 1:
        return [Target(bench.linear_name, 5.0)]
    if bench.m < 128:
        return []
    if "vnni" in _C.cpu_isa():
        return [Tops(OPERATIONS_PER_CORE * torch.get_num_threads())]
    return [Target(bench.linear_name, 1.4)]


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


def bench_linear(bench: Bench) -> Iterator[Row]:
    """A row of int8_linear: int8 input, a scale per token."""
    weights, m = bench.weights, bench.m
    x, scale = weights.random_integers(m), weights.random_scale(m, 1)
    calls = {
        OWN: own_product(bench, x, scale),
        **int_mm_calls(bench, x, scale),
        **linear_call(bench, weights.random(m)),
        **float8_call(bench),
    }
    row = bench.row("linear", "int8_linear", "per token", *product_targets(bench))
    row.note = bench.int_mm.note
    yield bench.measure(row, calls, bench.moved(1), bench.products)


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
    targets = cpu_targets(bench) if bench.on_cpu else []
    if not bench.on_cpu and bench.m == 4096:
        targets = [Target(bench.linear_name, 1.85)]
    row = bench.row("whole", "quantized_linear", "symmetric", *targets)
    row.note = int_mm.note
    with torch.no_grad():
        yield bench.measure(row, calls, bench.moved(weights.dtype.itemsize), bench.products)


def bench_training(bench: Bench) -> Iterator[Row]:
    """A row of qat_linear, forward + backward, and what it holds between the two."""
    weights, (m, n, k) = bench.weights, bench.shape
    x = weights.random(m).requires_grad_()
    grad = torch.randn(m, n, device=weights.device, dtype=weights.dtype)
    ws = [weight.detach().requires_grad_() for weight in weights.floats]
    forwards: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        OWN: ops.qat_linear,
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
        targets = [Target(bench.linear_name, 1.1), HoldsLess(bench.linear_name)]
    row = bench.row("training", "qat_linear", "forward + backward", *targets)
    for name, forward in forwards.items():
        with contextlib.suppress(Exception):  # its timing below fails as well, and says why
            row.held[name] = held_bytes(forward, x, ws[0])
    # The two products of the backward are bfloat16's, at half the peak: five times a product's.
    peak = int8_peak(weights.device) * 3 / 5
    kept = m * k + n * k
    moved = 2 * (m * k + n * k + m * n) * weights.dtype.itemsize + 2 * kept
    steps = {name: step(forward) for name, forward in forwards.items()}
    yield bench.measure(row, steps, moved, 3 * bench.products, peak, rotation=2)


def held_bytes(forward: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> int:
    """Bytes that autograd keeps for the backward, beside the weight itself."""
    forward(x, weight)  # compiles it, which hooks would hinder
    with saved_tensors() as saved:
        forward(x, weight)
    kept = storages(saved)
    kept.pop(weight.untyped_storage().data_ptr(), None)
    return sum(kept.values())
