# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the fused family: norms, activations and a rotation that are quantized at once.

Every figure stands beside a copy of the same input, beside PyTorch's op followed by
dynamic_range_quantize_per_token, and beside baraquant's float op followed by the same, timed in
turns in the same run. The rows of few tokens are a decode step.

    python -m benchmarks.bench_fused                    # on a GPU if there is one
    python -m benchmarks.bench_fused --device cpu --json results/fused.json
"""

import argparse
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import Call, Timer, describe, free_memory
from benchmarks.bench_cli import Plan, parse, parse_size, parser_of, parts_of, run, timer_of
from benchmarks.bench_plot import plot_lengths
from benchmarks.bench_report import Part
from benchmarks.bench_row import Case, Row, Target

# isort: split
from baraquant import ops

EPS, BLOCK = 1e-6, 128
PEER, PARTS = "PyTorch + quantize", "float op + quantize"
LENGTHS = (2048, 4096, 8192, 14336)


@dataclass(frozen=True)
class Op:
    """One op: functions of an input, of another tensor of its shape and of a weight.

    Attributes:
        own: The op that quantizes.
        float_op: Its float op.
        peer: What a user calls without it; None where PyTorch has no such op.
        reads: How many tensors of the input's size the op reads; ``writes``: in the input's dtype.
    """

    own: Callable[[Tensor, Tensor, Tensor], Any]
    float_op: Callable[[Tensor, Tensor, Tensor], Any]
    peer: Callable[[Tensor, Tensor, Tensor], Any] | None
    reads: int = 1
    writes: int = 0


def _rms_norm(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, EPS)


def _sum_and_rms_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return _rms_norm(total, r, w), total


OPS: dict[str, Op] = {
    "rms_norm": Op(
        lambda x, r, w: ops.rms_norm_quantize_per_token(x, w, EPS),
        lambda x, r, w: ops.rms_norm(x, w, EPS),
        _rms_norm,
    ),
    "rms_norm_residual": Op(
        lambda x, r, w: ops.rms_norm_quantize_per_token(x, w, EPS, residual=r),
        lambda x, r, w: ops.rms_norm(x, w, EPS, residual=r),
        _sum_and_rms_norm,
        reads=2,
        writes=1,
    ),
    "layer_norm": Op(
        lambda x, r, w: ops.layer_norm_quantize_per_token(x, w, w, EPS),
        lambda x, r, w: ops.layer_norm(x, w, w, EPS),
        lambda x, r, w: torch.nn.functional.layer_norm(x, x.shape[-1:], w, w, EPS),
    ),
    "silu_mul": Op(
        lambda x, r, w: ops.silu_mul_quantize_per_token(x, r),
        lambda x, r, w: ops.silu_mul(x, r),
        lambda x, r, w: torch.nn.functional.silu(x) * r,
        reads=2,
    ),
    "gelu": Op(
        lambda x, r, w: ops.gelu_quantize_per_token(x),
        lambda x, r, w: ops.gelu(x),
        lambda x, r, w: torch.nn.functional.gelu(x),
    ),
    "gelu_tanh": Op(
        lambda x, r, w: ops.gelu_quantize_per_token(x, approximate="tanh"),
        lambda x, r, w: ops.gelu(x, approximate="tanh"),
        lambda x, r, w: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "hadamard": Op(
        lambda x, r, w: ops.hadamard_quantize_per_token(x, BLOCK),
        lambda x, r, w: ops.hadamard(x, BLOCK),
        None,
    ),
}


def then_quantized(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, and its (first) result quantized."""

    def call(*tensors: Tensor) -> Any:
        result = function(*tensors)
        first = result[0] if isinstance(result, tuple) else result
        return ops.dynamic_range_quantize_per_token(first), result

    return call


@dataclass(frozen=True)
class FusedPlan(Plan):
    """A plan over the ops."""

    ops: list[str]

    def cases(self) -> list[str]:
        """Each op."""
        return list(self.ops)


def plans_of(what: str, options: argparse.Namespace) -> list[FusedPlan]:
    """The plans of a section; quick is the last size of each."""
    cuda = options.device.type == "cuda"
    threads = sorted({1, torch.get_num_threads()})
    tokens = (65536 if cuda else 1024) if what == "token" else (1, 16, 64)
    counts = [tokens] if isinstance(tokens, int) else tokens
    lengths = LENGTHS if what == "token" else LENGTHS[1:2]
    sizes = [f"{count}x{length}" for length, count in itertools.product(lengths, counts)]
    dtypes = ["bfloat16", "float32"]
    plan = FusedPlan(sizes, dtypes, threads, list(OPS))
    return [replace(plan, sizes=plan.sizes[-1:])] if options.quick else [plan]


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, each with its parts: functions that yield rows."""
    timer = timer_of(options)
    for what in (what for what in WHATS if what in options.what):
        rows = functools.partial(measure, what, options.device, timer)
        yield what, list(parts_of(plans_of(what, options), options, rows))


WHATS = ("token", "decode")


def measure(
    what: str,
    device: torch.device,
    timer: Timer,
    plan: FusedPlan,
    size: str,
    dtype: torch.dtype,
    cases: list[str],
) -> Iterator[Row]:
    """The rows of one size and dtype."""
    match = re.fullmatch(r"(\d+)x(\d+)", size)
    shape = [int(match[1]), int(match[2])] if match else [parse_size(size, dtype) // 4096, 4096]
    case = Case(device, dtype, shape)
    for name in cases:
        yield measure_op(what, case, timer, name)
        free_memory(device)


def measure_op(what: str, case: Case, timer: Timer, name: str) -> Row:
    """One row."""
    op, cpu = OPS[name], case.device.type == "cpu"
    peer_target = Target(PEER, 1.0 if cpu else 1.5) if op.peer is not None else None
    copy_target = Target("copy", 0.85) if case.exceeds_caches else None
    row = case.row(what, f"{name}_quantize", "per token", peer_target, copy_target)
    xs, n = case.inputs, case.rotation
    others, weight = case.random(), torch.ones_like(xs[0][0])
    functions = {"baraquant": op.own, PARTS: then_quantized(op.float_op)}
    if op.peer is not None:
        functions[PEER] = then_quantized(op.peer)
    calls: dict[str, Call] = {"copy": case.copy}
    for label, function in functions.items():
        calls[label] = lambda i, f=function: f(xs[i % n], others[i % n], weight)
    moved = case.numel * ((op.reads + op.writes) * case.itemsize + 1) + case.shape[0] * 8
    try:
        with torch.no_grad():
            row.fill(timer.compare(calls, n), "baraquant", moved, case.copied)
    except Exception as error:  # recorded in the row
        row.fail(describe(error))
    return row


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("fused", __doc__, WHATS, sizes="1024x4096")
    parser.add_argument("--ops", nargs="+", choices=list(OPS))
    options = parse(parser, argv)
    options.what = options.what or list(WHATS)
    return run(sections(options), options, plot_lengths)


if __name__ == "__main__":
    main()
