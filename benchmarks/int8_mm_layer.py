# SPDX-License-Identifier: BSD-3-Clause
"""The layers that ``bench_int8_mm.py`` measures: their tensors, their bound and their targets.

Integers are random over their full range, as an int8 product is limited by power, and values that
toggle fewer bits run faster. The weights rotate, so that none is in a cache; the input stays, as
what the layer before has just written. The bound is the time of all bytes at a copy's rate, or of
all operations at the peak of the tensor cores, whichever is longer.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.bench import Call, Compiler, Timer, describe, rotation_for
from benchmarks.bench_row import OWN, AnyOf, AnyTarget, Case, Row, Target, empty_row

# isort: split
from benchmarks.cpu_peak import PEAK, has_peak, peak_call
from benchmarks.h200_sweep import sweep_seconds
from benchmarks.pytorch_linears import IntMm, dynamic_linear, float8_rows
from tests.support.cases import compute_dtype, name_of

# A bfloat16 copy this large runs at the rate of memory, on the CPU as it rotates.
COPIED = {"cuda": [8192, 8192], "cpu": [2048, 8192]}
# Operations per second of dense int8 products, as the data sheets have it, by part of the name.
PEAKS = {"H200": 1979e12, "H100 80GB HBM3": 1979e12, "A100": 624e12}
INT_MM, FP8, COMPILED = "torch._int_mm", "fp8 rowwise", "torch.compile"
DEQUANTIZED, WHOLE = "_int_mm + dequantize", "quantize + _int_mm + dequantize"
FAKE, DYNAMIC = "fake_quantize + linear", "quantize_dynamic"
SWEEP, STREAM = "sweep's best", "weights streamed"
SHARE_OF_PEAK = 0.85  # that a product of many rows reaches on a CPU with VNNI
FUSED_FROM = 1024  # rows from which the product is bound by arithmetic
DECODE_UP_TO = 64  # and up to which by the weights' bytes


def int8_peak(device: torch.device) -> float:
    """Operations per second at the most; 0 where that is not known."""
    if device.type != "cuda":
        return 0
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), 0)


class Weights:
    """The weight ``[n, k]`` of a layer in all forms that are measured, each rotated.

    Not rotated it stays in a cache, as far as it fits.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, n: int, k: int, rotated: bool = True
    ) -> None:
        self.device, self.dtype, self.n, self.k, self.rotated = device, dtype, n, k, rotated
        self.scale = self.random_scale(n)

    def _count(self, itemsize: int) -> int:
        return rotation_for(self.n * self.k * itemsize) if self.rotated else 1

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
        return [self.random_integers(self.n) for _ in range(self._count(1))]

    @functools.cached_property
    def floats(self) -> list[Tensor]:
        """In the dtype of the layer."""
        return [self.random(self.n) for _ in range(self._count(self.dtype.itemsize))]

    @functools.cached_property
    def float8(self) -> tuple[list[Tensor], Tensor]:
        """In fp8, with the scales ``[n, 1]``."""
        first, scale = float8_rows(self.random(self.n))
        return [first] + [first.clone() for _ in range(self._count(1) - 1)], scale

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

        On the CPU, whose peak is timed in turns where a target asks for it, only one row of input
        and a weight from memory have a bound: their bytes. As many outputs are kept alive as int8
        weights rotate, unless ``rotation`` says another number.
        """
        asked = {
            part.against
            for target in row.targets
            for part in (target.targets if isinstance(target, AnyOf) else (target,))
            if isinstance(part, Target)
        }
        if PEAK in asked:
            calls = {**calls, PEAK: peak_call(operations)}
        peak = int8_peak(self.weights.device) if peak is None else peak
        if peak or (self.m == 1 and self.weights.rotated):
            calls = {"copy": self.copy.copy, **calls}
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
    """A multiple of the float layer, or with VNNI a share of the peak."""
    if bench.m == 1:
        return [Target(bench.linear_name, 5.0)]
    if bench.m < 128:
        return []
    if has_peak():
        return [Target(PEAK, SHARE_OF_PEAK)]
    return [Target(bench.linear_name, 1.4)]
