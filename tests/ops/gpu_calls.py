# SPDX-License-Identifier: BSD-3-Clause
"""Small calls of every CUDA kernel: `python -m tests.ops.gpu_calls [--kernels]`.

`make gpu-sanitize` runs them under NVIDIA's compute-sanitizer. `--kernels` runs them under
PyTorch's profiler instead, prints which kernels of ours were launched, and fails where a kernel
that the sources name was not.
"""

import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support import cases
from tests.support.calls import int8_mm as int8_calls
from tests.support.calls.affine import BACKWARD, Call, value_and_gradients
from tests.support.calls.fused import FLOAT_CALLS, NORMS, QUANTIZE_CALLS
from tests.support.calls.int4 import INT4_CALLS
from tests.support.calls.int8_conv import CONV_CALLS
from tests.support.calls.range import OBSERVE_CALLS, RangeCall
from tests.support.calls.scaled import SCALED_CALLS, IntegerQatCall
from tests.support.calls.weight_only import WEIGHT_ONLY_CALLS
from tests.support.checks.int8_mm import moved
from tests.support.family_cases.grouped import Grouped
from tests.support.family_cases.int8_mm import Case

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda"
GRANULARITIES = (
    *(cases.PER_TENSOR, cases.per_channel(0), cases.per_channel(-1), cases.PER_TOKEN),
    *(cases.per_group(8), cases.per_group(3), cases.per_group(4, 0)),
)
SMALL, ODD = (6, 5, 24), (3, 7, 13)  # whole packs; parts of packs
# Sums in several slices, along runs and along columns.
SLICED = ((2, 40_001), (520, 40))
# Rows for a warp, a block, a cluster of blocks; too long for the registers; many rows of the last
# two kinds; columns in several slices.
ROWS = ((9, 200), (3, 5000), (2, 70_000), (1, 400_003), (300, 2560), (300, 6400), (5000, 40))
# Of the fused and scaled families: whole packs and parts of packs, of rows for a warp, for a block,
# and of those that are read twice.
SHARED = ((6, 5, 24), (3, 7, 13), (70, 200), (300, 4096), (2, 16_385), (2, 40_000))
VERBS = (
    *(("quantize", {}), ("quantize", {"dtype": torch.float32}), ("dequantize", {})),
    *(("fake_quantize", {}), ("fake_quantize", {"learned": True})),
    *((verb, {}) for verb in BACKWARD),
)
Run = Callable[[], object]
OPS = torch.ops.baraquant


def each(
    calls: Iterable[Any],
    shapes: Iterable[tuple[int, ...]],
    dtypes: Iterable[torch.dtype] = cases.FLOAT_DTYPES,
    layout: str = "contiguous",
    gradients: bool = True,
) -> Iterator[Run]:
    """Every call in every shape and dtype, the first tensor in a layout, and the gradients."""
    for call, shape, dtype in itertools.product(calls, shapes, dtypes):
        if dtype == torch.float64 and not getattr(call, "takes_float64", True):
            continue
        first, *rest = call.tensors(shape, dtype, DEVICE)
        made = cases.LAYOUTS[layout](first.detach())
        if gradients:
            tensors = (made.requires_grad_(first.requires_grad), *rest)
            yield partial(value_and_gradients, call, tensors)
        else:
            yield partial(call, made, *(t.detach() for t in rest))


def affine_calls() -> Iterator[Run]:
    """Each direction and gradient, granularity and dtype; aligned and not; sums in slices."""
    calls = [Call(verb, g, **options) for g in GRANULARITIES for verb, options in VERBS]
    yield from each(calls, (SMALL, ODD))
    yield from each(calls, (SMALL,), (torch.float32, torch.bfloat16), "misaligned")
    for shape, dtype, g in itertools.product((SMALL, ODD), cases.FLOAT_DTYPES, GRANULARITIES):
        yield from integer_calls(shape, dtype, g)
    kinds = (cases.PER_TENSOR, cases.per_channel(0), cases.per_channel(-1))
    learned = [Call("fake_quantize", g, learned=True) for g in kinds]
    yield from each(learned, SLICED, (torch.float32, torch.float64, torch.float16))


def integer_calls(shape: tuple[int, ...], dtype: torch.dtype, g: cases.Granularity) -> list[Run]:
    """From 8-bit integers and to both kinds of them."""
    params = g.param_shape(shape)
    scale = torch.ones(params, dtype=cases.compute_dtype(dtype), device=DEVICE)
    x = torch.ones(shape, dtype=dtype, device=DEVICE)
    runs: list[Run] = []
    for kind in cases.INTEGER_DTYPES:
        q = torch.ones(shape, dtype=kind, device=DEVICE)
        runs.append(lambda q=q: g.op("dequantize")(q, scale, None, *g.args, dtype=dtype))
        ends = cases.default_range(kind)
        runs.append(lambda e=ends, k=kind: g.op("quantize")(x, scale, None, *g.args, *e, dtype=k))
    return runs


def range_calls() -> Iterator[Run]:
    """Ranges, integers and fake-quantized values from the data; observers."""
    verbs = ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize")
    for symmetric in (True, False):
        calls = [RangeCall(verb, g, symmetric) for g in GRANULARITIES for verb in verbs]
        yield from each(calls, (SMALL, ODD))
        yield from each(calls, (SMALL,), layout="misaligned")
        kinds = (cases.PER_TENSOR, cases.PER_TOKEN, cases.per_channel(-1))
        calls = [RangeCall(verb, g, symmetric) for g in kinds for verb in verbs[1:]]
        yield from each(calls, ROWS, (torch.float32, torch.bfloat16, torch.float64))
    for dtype in cases.FLOAT_DTYPES:  # a range for each channel, and the count of what was left out
        low, high = (torch.full((33,), end, device=DEVICE) for end in (math.inf, -math.inf))
        if dtype == torch.float64:
            low, high = low.double(), high.double()
        x = torch.full((33, 70), math.nan, dtype=dtype, device=DEVICE)
        count = torch.zeros((), dtype=torch.int64, device=DEVICE)
        yield partial(OPS.observe_min_max_, x, low, high, 0, skipped_batches=count)
    yield from each(OBSERVE_CALLS, (SMALL, ODD, (2, 70_000), (5000, 40)))


def cases_for(kernel: str) -> Iterator[Case]:
    """Aligned rows and others, zero points, unsigned inputs, each type of the output."""
    hopper = kernel.startswith("hopper")
    dtypes = [d for d in cases.FLOAT_DTYPES if d != torch.float64 or not hopper]
    few, many = (3, 4) if kernel == "vector" else (16, 150)
    for dtype in dtypes:
        yield Case((few,), 72, 144, dtype=dtype, scale="token", bias="output")
        yield Case((many,), 264, 544, dtype=dtype, zero_point="token", bias="compute")
        yield Case((many,), 83, 139, dtype=dtype, scale="token", zero_point="one")
        sums = dtype == torch.float16
        yield Case((many,), 136, 80, torch.uint8, dtype, zero_point="token", weight_sum=sums)
    yield Case((few,), 2184, 2048, scale="token")  # stream-K shares a tile along k


def grouped_cases_for(kernel: str) -> Iterator[Grouped]:
    """Aligned rows and others, groups without rows, rows behind the last."""
    dtypes = [d for d in cases.FLOAT_DTYPES if d != torch.float64 or kernel.startswith("generic")]
    for dtype in dtypes:
        yield Grouped("empty_at_the_ends", 264, 272, dtype=dtype, zero_point="token")
        yield Grouped("one_of_many_rows", 83, 139, dtype=dtype, scale="one", bias="output")


def forced(kernel: str, op: Any, arguments: dict[str, Any]) -> None:
    OPS._force_int8_kernel(kernel)
    try:
        op(**arguments)
    finally:
        OPS._force_int8_kernel("")


def product_calls() -> Iterator[Run]:
    """Each kernel that this GPU takes, forced; then the ops, which choose for themselves."""
    is_hopper = torch.cuda.get_device_capability() == (9, 0)
    for kernel in OPS._int8_kernels():
        if kernel.startswith(("hopper", "grouped")) and not is_hopper:
            continue
        found: list[tuple[Any, dict[str, Any]]] = []
        if not kernel.startswith("grouped"):
            given = [case.arguments() for case in cases_for(kernel)]
            found += [(OPS.int8_linear, arguments) for arguments in given]
            names = ("input", "weight", "input_zero_point", "weight_sum")
            found += [
                (OPS.int8_product, {k: v for k, v in arguments.items() if k in names})
                for arguments in given
                if arguments["dtype"] == torch.float32
            ]
        if kernel.startswith(("grouped", "generic")):
            found += [(OPS.int8_grouped_linear, c.arguments()) for c in grouped_cases_for(kernel)]
        for op, arguments in found:
            yield partial(forced, kernel, op, moved(arguments, DEVICE))
    calls = (*int8_calls.INT8_CALLS, *int8_calls.QAT_CALLS, *CONV_CALLS)
    # No gradient: it is a product of cuBLAS, which racecheck does not get through.
    shapes, dtypes = ((2, 2, 33), (130, 64)), (torch.float32, torch.bfloat16)
    yield from each(calls, shapes, dtypes, gradients=False)


def fused_calls() -> Iterator[Run]:
    """Each op, alone and quantizing; its gradients, which are PyTorch's, at the small shapes."""
    calls = (*FLOAT_CALLS, *QUANTIZE_CALLS)
    yield from each(calls, (SMALL, ODD))
    yield from each(calls, SHARED[2:], gradients=False)
    yield from each((c for c in calls if c.base in NORMS), (SMALL,), layout="misaligned")


def scaled_calls() -> Iterator[Run]:
    """Each op; the gradients of qat_linear, of which each product is one of integers."""
    yield from each(SCALED_CALLS, SHARED, gradients=False)
    for dtype in cases.FLOAT_DTYPES:
        trained = [IntegerQatCall("qat_linear", dtype, bias=True, shift=s) for s in (False, True)]
        yield from each(trained, ((130, 64), (17, 33), (4, 2049)), (dtype,))
        yield partial(OPS.draw_random, torch.empty(1, dtype=dtype, device=DEVICE), 2)


def int4_calls() -> Iterator[Run]:
    """Each op, with words of packed numbers and with parts of them."""
    yield from each(INT4_CALLS, SHARED, gradients=False)
    packed = torch.full((33, 64), 0x5A, dtype=torch.uint8, device=DEVICE)
    yield from (partial(run, packed) for run in (few_rows_of_int4, expand_int4))
    # So many outputs that a block takes several tiles of them.
    yield partial(few_rows_of_int4, packed[:1].expand(17_000, -1).contiguous())


def expand_int4(packed: Tensor) -> None:
    factor = torch.ones(33, 4, dtype=torch.uint8, device=DEVICE)
    OPS.expand_int4(packed, factor, 32, 128)


def few_rows_of_int4(packed: Tensor) -> None:
    """Each number of tiles, with groups of all kinds."""
    for dtype in cases.FLOAT_DTYPES:
        outputs = packed.shape[0]
        scale = torch.ones(outputs, device=DEVICE, dtype=cases.compute_dtype(dtype))
        for rows, kind in zip((1, 13, 20, 40, 100), (torch.int8, torch.uint8) * 3, strict=False):
            x = torch.ones(rows, 128, dtype=kind, device=DEVICE)
            for factor in (3, 200):
                groups = torch.full((outputs, 4), factor, dtype=torch.uint8, device=DEVICE)
                for zero_point in (None, groups):
                    given = {"group_zero_point": zero_point, "dtype": dtype}
                    OPS.int4_linear(x, packed, scale[:1], scale, groups, 32, **given)


def weight_only_calls() -> Iterator[Run]:
    """Few rows and many, with a scale for each channel and for each group."""
    for dtype in (torch.float16, torch.bfloat16):
        for rows, outputs, full in (
            *((1, 33, False), (13, 33, True), (40, 33, False), (100, 33, True), (257, 33, True)),
            *((20, 8200, False), (20, 8200, True)),
        ):
            w = torch.ones(outputs, 128, dtype=torch.int8, device=DEVICE)
            scale = torch.ones(outputs, 4, device=DEVICE)
            zero_point = scale.int() if full else None
            x = torch.ones(rows, 128, device=DEVICE, dtype=dtype)
            given = {"weight_zero_point": zero_point, "group_size": 32}
            for weight in (w, OPS.pack_int4(w)):
                yield partial(OPS.weight_only_linear, x, weight, scale, **given)
    shapes = (*SHARED, (1, 200), (4, 33), (49, 128))
    yield from each(WEIGHT_ONLY_CALLS, shapes, gradients=False)
    yield from each(WEIGHT_ONLY_CALLS, (SMALL,), layout="misaligned", gradients=False)


def run_all() -> int:
    """Make every call; their number."""
    count = 0
    families = (affine_calls, range_calls, product_calls, fused_calls, scaled_calls, int4_calls)
    for family in (*families, weight_only_calls):
        for run in family():
            run()
            count += 1
        torch.cuda.synchronize()
    return count


def kernels_of_sources() -> set[str]:
    """The kernels that the sources define."""
    found: set[str] = set()
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix in (".cu", ".cuh"):
            found.update(re.findall(r"__global__[^;{]*?\b(\w+_kernel)\s*\(", path.read_text()))
    return found


def print_kernels() -> int:
    """Run under the profiler: which of the sources' kernels were launched, and which were not."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        count = run_all()
    ours = {e.key for e in profile.key_averages() if "baraquant" in e.key}
    expected = kernels_of_sources()
    with_hopper = any(k.startswith("hopper") for k in OPS._int8_kernels())
    if with_hopper and torch.cuda.get_device_capability() == (9, 0):
        expected.add("device_kernel")  # CUTLASS's
    # The long names of CUTLASS's kernels stay mangled: 13device_kernelI...
    missing = {n for n in expected if not any(re.search(rf"(\b|\d){n}(\b|I)", k) for k in ours)}
    print(f"{count} calls, {len(ours)} kernels, of {len(expected - missing)} names", flush=True)
    if missing:
        print(f"not launched: {sorted(missing)}")
    return 1 if missing or not expected else 0


def main() -> int:
    if "--kernels" in sys.argv:
        return print_kernels()
    print(f"{run_all()} calls", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
