# SPDX-License-Identifier: BSD-3-Clause
"""What ``bench_range.py`` measures: for each part of the family the calls, their bytes, targets.

Bound is the bytes that an op has to move, against a copy of the same input: where a segment can be
kept on the chip (a token, a group) the input is read once, per tensor and per channel twice. The
peers are the chains of ``pytorch_chains.py``, eager and under ``torch.compile``, and for the
observers PyTorch's fused op.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.bench import Call, Compiler, Timer, describe, empty_launch
from benchmarks.bench_row import Case, Row, Target, Within

# isort: split
from baraquant import ops
from benchmarks.pytorch_chains import AVERAGING_CONSTANT, QUANT_MAX, QUANT_MIN, Chain
from tests.support.cases import PER_TENSOR, PER_TOKEN, compute_dtype, per_channel, per_group

GRANULARITIES = {
    "token": PER_TOKEN,
    "group128": per_group(128),
    "tensor": PER_TENSOR,
    "channel0": per_channel(0),
    "channel1": per_channel(1),
}
MODES = ("symmetric", "asymmetric")
RANGE = (QUANT_MIN, QUANT_MAX)
OVER_THE_BOUND = 1.5e-6  # seconds that a decode step may take longer than launch and bytes
CPU_TARGETS = (Target("PyTorch", 2.0), Target("torch.compile", 1.0))
LARGE_COPY = [8192, 8192]  # whose rate is that of memory


@dataclass(frozen=True)
class Bench:
    """One case of one chain, and what measures it; ``compiler`` is None where nothing compiles."""

    case: Case
    chain: Chain
    timer: Timer
    compiler: Compiler | None

    @property
    def name(self) -> str:
        """The case, as the table has it."""
        return f"{self.chain.granularity}, {MODES[not self.chain.symmetric]}"

    @property
    def reads(self) -> int:
        """How often the input has to be read before its results can be written."""
        return 1 if self.chain.granularity.kind in ("per_token", "per_group") else 2

    def op(self, verb: str) -> Callable[[Tensor], object]:
        """The op of baraquant as a function of the input alone."""
        function = self.chain.granularity.op(verb, ops)
        args = (*self.chain.granularity.args, *RANGE)
        symmetric = self.chain.symmetric
        return lambda x: function(x, *args, symmetric=symmetric)

    @property
    def qparams_bytes(self) -> int:
        """The bytes of scales and zero points."""
        segments = math.prod(self.chain.granularity.param_shape(tuple(self.case.shape)))
        return segments * (compute_dtype(self.case.dtype).itemsize + 4)

    def targets(self, share: float | None = None) -> list[Target]:
        """On the CPU ratios to the peers; on a GPU that share of the copy, if that is the bound."""
        if self.case.device.type == "cpu":
            return list(CPU_TARGETS)
        return [Target("copy", share)] if share and self.case.exceeds_caches else []

    def compiled(self, chain: Callable) -> dict[str, Callable]:
        """The chain under torch.compile, where and while that is wanted."""
        function = self.compiler(chain) if self.compiler else None
        return {} if function is None else {"torch.compile": function}

    def measure(
        self,
        row: Row,
        functions: dict[str, Callable[[Tensor], object]],
        moved: float,
        bounds: dict[str, Call] | None = None,
        copied: float = 0,
    ) -> Row:
        """Fills the row from functions of the input; ``bounds`` replaces the copy of the case."""
        xs, n = self.case.inputs, self.case.rotation
        calls: dict[str, Call] = dict(bounds or {"copy": self.case.copy})
        for name, function in functions.items():
            calls[name] = lambda i, function=function: function(xs[i % n])
        try:
            with torch.no_grad():
                results = self.timer.compare(calls, n)
            row.fill(results, "baraquant", moved, copied or self.case.copied)
        except Exception as error:  # recorded in the row
            row.fail(describe(error))
        return row


def bench_quantize(bench: Bench, what: str = "segments") -> Iterator[Row]:
    """A row of dynamic_range_quantize to int8."""
    case, chain = bench.case, bench.chain
    targets = bench.targets(0.92 if bench.reads == 1 else 0.9)
    if (
        case.exceeds_caches
        and chain.granularity is PER_TOKEN
        and case.dtype == torch.bfloat16
        and case.shape[1] in (4096, 14336)
    ):
        targets.append(Target("torch.compile", 2.5))
    yield _quantize_row(bench, case.row(what, "dynamic_range_quantize", bench.name, *targets))


def bench_decode(bench: Bench) -> Iterator[Row]:
    """A row of dynamic_range_quantize for few rows: the launch is what it costs on a GPU."""
    case = bench.case
    if case.device.type == "cpu":
        yield from bench_quantize(bench, "decode")
        return
    row = case.row("decode", "dynamic_range_quantize", bench.name, Within(OVER_THE_BOUND))
    large = Case(case.device, case.dtype, LARGE_COPY)
    bounds: dict[str, Call] = {"launch": empty_launch, "copy": large.copy}
    yield _quantize_row(bench, row, bounds, large.copied)


def _quantize_row(
    bench: Bench, row: Row, bounds: dict[str, Call] | None = None, copied: float = 0
) -> Row:
    functions = {
        "baraquant": bench.op("dynamic_range_quantize"),
        "PyTorch": bench.chain.quantize,
        **bench.compiled(bench.chain.quantize),
    }
    moved = bench.case.numel * (bench.reads * bench.case.itemsize + 1) + bench.qparams_bytes
    return bench.measure(row, functions, moved, bounds, copied)


def bench_choose(bench: Bench) -> Iterator[Row]:
    """A row of choose_qparams, which reads the input once."""
    row = bench.case.row("choose", "choose_qparams", bench.name, *bench.targets())
    functions = {
        "baraquant": bench.op("choose_qparams"),
        "PyTorch": bench.chain.choose_qparams,
        **bench.compiled(bench.chain.choose_qparams),
    }
    yield bench.measure(row, functions, bench.case.nbytes + bench.qparams_bytes)


def bench_fake_quantize(bench: Bench) -> Iterator[Row]:
    """Rows of dynamic_fake_quantize: forward, and forward + backward."""
    case = bench.case
    op, chain = bench.op("dynamic_fake_quantize"), bench.chain.straight_through
    forward_bytes = (bench.reads + 1) * case.nbytes
    targets = bench.targets(0.95 if bench.reads == 1 else 0.9)

    row = case.row("forward", "dynamic_fake_quantize", bench.name, *targets)
    functions = {
        "baraquant": op,
        "PyTorch": bench.chain.fake_quantize,
        **bench.compiled(bench.chain.fake_quantize),
    }
    yield bench.measure(row, functions, forward_bytes)

    # Backward, symmetric: nothing. Asymmetric: a bit for each element is kept, and selects.
    backward_bytes = 0 if bench.chain.symmetric else (2 * case.itemsize + 2 / 8) * case.numel
    row = case.row("forward + backward", "dynamic_fake_quantize", bench.name, *targets)
    grad = torch.randn_like(case.inputs[0])
    case.inputs = [x.detach().requires_grad_() for x in case.inputs]

    def step(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], object]:
        def run(x: Tensor) -> object:
            with torch.enable_grad():
                return torch.autograd.grad(forward(x), x, grad)

        return run

    functions = {"baraquant": op, "PyTorch": chain, **bench.compiled(chain)}
    steps = {name: step(function) for name, function in functions.items()}
    yield bench.measure(row, steps, forward_bytes + backward_bytes)
    case.inputs = [x.detach() for x in case.inputs]


def bench_observe(bench: Bench) -> Iterator[Row]:
    """Rows of observe_min_max_ and observe_fake_quantize, with moving averages."""
    case, chain = bench.case, bench.chain
    axis = None if chain.axis is None else 0
    count = 1 if axis is None else case.shape[0]
    own, fused = (_running(case, [count], torch.int32) for _ in range(2))
    kept_axes = [] if axis is None else [count, 1]
    plain = _running(case, kept_axes, compute_dtype(case.dtype))
    on = torch.ones(1, device=case.device, dtype=torch.uint8)
    averaging = {"averaging_constant": AVERAGING_CONSTANT}

    def pytorchs_op(fake_quantize: bool) -> dict[str, Callable[[Tensor], object]]:
        if case.dtype != torch.float32:
            return {}  # it takes no other
        call = torch.fused_moving_avg_obs_fake_quant
        flags = [on.long(), on.long() * fake_quantize]  # on CUDA it reads them as int64
        args = (*fused, AVERAGING_CONSTANT, *RANGE, 0, axis == 0, chain.symmetric)
        return {call.__name__: lambda x: call(x, *flags, *args)}

    def chains(function: Callable, *state: Tensor) -> dict[str, Callable[[Tensor], object]]:
        both = {"PyTorch": function, **bench.compiled(function)}
        return {name: (lambda x, f=f: f(x, *state)) for name, f in both.items()}

    targets = bench.targets()
    observe = {
        "baraquant": lambda x: ops.observe_min_max_(x, *own[:2], axis, **averaging),
        **chains(chain.observe, *plain[:2]),
        **pytorchs_op(fake_quantize=False),
    }
    yield bench.measure(
        case.row("observe", "observe_min_max_", bench.name, *targets), observe, case.nbytes
    )
    kwargs = {"symmetric": chain.symmetric, **averaging}
    observe_fake_quantize = {
        "baraquant": lambda x: ops.observe_fake_quantize(x, *own, on, on, axis, *RANGE, **kwargs),
        **chains(chain.observe_fake_quantize, *plain),
        **pytorchs_op(fake_quantize=True),
    }
    row = case.row("observe", "observe_fake_quantize", bench.name, *targets)
    yield bench.measure(row, observe_fake_quantize, 3 * case.nbytes)


def _running(case: Case, shape: list[int], zero_point_dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A running range (a finite one, which moving averages need), a scale and a zero point."""
    low, high, scale = (
        torch.full(shape, value, device=case.device, dtype=compute_dtype(case.dtype))
        for value in (-1, 1, 1)
    )
    return low, high, scale, torch.zeros(shape, device=case.device, dtype=zero_point_dtype)
