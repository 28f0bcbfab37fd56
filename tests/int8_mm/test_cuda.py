# SPDX-License-Identifier: BSD-3-Clause
"""What only CUDA has in the integer matrix family: every kernel, graphs, streams, alignment."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.checks.int8_mm import call, moved
from tests.support.cuda import MIB, capture, measured
from tests.support.family_cases import grouped
from tests.support.family_cases.grouped import Grouped, ends, floating, one_weight
from tests.support.family_cases.int8_mm import DEEPEST_SHIFTED, GENERIC, VALUES, Case, integers
from tests.support.family_cases.on_cuda import OnCuda, Step, check_graph, check_streams
from tests.support.marks import by_mode

pytestmark = pytest.mark.cuda

HOPPER = (
    "hopper_16x64x256_swapped",
    "hopper_32x64x256_swapped",
    "hopper_32x64x256_swapped_two_blocks",
    "hopper_64x32x256_warp_specialized",
    "hopper_64x64x256_warp_specialized",
    "hopper_64x64x256_warp_specialized_two_blocks",
    "hopper_64x128x128_swapped_cooperative",
    "hopper_96x128x128_swapped_cooperative",
    "hopper_128x128x128_swapped_cooperative",
    "hopper_192x128x128_swapped_cooperative",
    "hopper_256x128x128_cooperative",
    "hopper_128x128x128_pingpong_cluster2x1",
)
KERNELS = ("vector", *GENERIC, *HOPPER)
ON_HOPPER = (
    "grouped_128x128x128_pingpong_cluster1x2",
    "grouped_64x256x128_pingpong_cluster1x2",
    "grouped_32x128x256_swapped_pingpong",
)
# Rows that begin anywhere are copied for Hopper's kernels where there are so many of them.
MIN_INPUTS, MIN_WEIGHTS = 5, 17
# Each is taken by another kernel where the chip is a Hopper.
SIZES = ((1, 512, 4096), (3, 129, 4095), (16, 1024, 512), (33, 640, 1040), (65, 300, 1001))
SIZES += ((128, 256, 2048), (200, 1001, 512), (300, 1024, 528), (1100, 4224, 1024))


@pytest.fixture
def kernel(request: pytest.FixtureRequest, cuda: str) -> Iterator[str]:
    """The name of the kernel that every product takes; skips where the kernel is not there."""
    name = request.param
    if name not in torch.ops.baraquant._int8_kernels():
        pytest.skip("built without the kernels for Hopper")
    if name in (*HOPPER, *ON_HOPPER) and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")
    torch.ops.baraquant._force_int8_kernel(name)
    yield name
    torch.ops.baraquant._force_int8_kernel("")


by_kernel = pytest.mark.parametrize("kernel", KERNELS, indirect=True)
by_grouped_kernel = pytest.mark.parametrize("kernel", (*GENERIC, *ON_HOPPER), indirect=True)


def int8_linear(arguments: dict[str, Any]) -> Tensor:
    result: Tensor = torch.ops.baraquant.int8_linear(**arguments)
    return result


def shape_for(kernel: str, seed: int) -> tuple[int, int, int]:
    """A random shape that the kernel takes, at times larger than its tile."""
    gen = cases.generator(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=gen))

    rows = pick(1, 4) if kernel == "vector" else pick(1, (17, 70, 300)[seed % 3])
    if kernel in HOPPER:
        columns, depth = 8 * pick(1, 60) + (0, pick(1, 7))[seed % 2], 16 * pick(1, 60)
        copied = rows >= MIN_INPUTS and columns >= MIN_WEIGHTS
        odd = pick(0, 15) if copied else 0
        return rows, columns, depth - odd
    return rows, pick(1, 300), pick(0, (40, 300, 1100)[seed % 3])


def case_for(kernel: str, seed: int) -> Case:
    """All options take turns; a Hopper kernel gives no float64."""
    m, n, k = shape_for(kernel, seed)
    dtypes = [d for d in cases.FLOAT_DTYPES if d != torch.float64 or kernel not in HOPPER]
    point = (None, "one", "token")[seed % 3]
    unsigned = seed % 5 in (1, 3) and (point is not None or kernel not in HOPPER or m >= 128)
    return Case(
        (m,),
        n,
        k,
        input_dtype=torch.uint8 if unsigned else torch.int8,
        dtype=dtypes[seed % len(dtypes)],
        scale=("token", "one")[seed % 2],
        zero_point=point,
        bias=(None, "compute", "output")[seed // 2 % 3],
        values=VALUES[seed % len(VALUES)] if seed % 4 == 0 else "random",
        seed=seed,
    )


@by_kernel
def test_the_bits_of_the_cpu_over_random_shapes(kernel: str, cuda: str) -> None:
    for seed in range(210):
        case = case_for(kernel, seed)
        arguments = case.arguments()
        got = int8_linear(moved(arguments, cuda))
        assert_same_bits(got.cpu(), int8_linear(arguments), str(case))


@by_kernel
def test_sums_over_random_shapes(kernel: str, cuda: str) -> None:
    """int8_product, by the same kernels; the rows that are copied and made dense too."""
    names = ("input", "weight", "input_zero_point", "weight_sum")
    for seed in range(0, 210, 3):
        case = case_for(kernel, seed)
        arguments = {k: v for k, v in case.arguments().items() if k in names}
        got = torch.ops.baraquant.int8_product(**moved(arguments, cuda))
        expected = torch.ops.baraquant.int8_product(**arguments)
        assert torch.equal(got.cpu(), expected), str(case)
        (plan,) = baraquant.plan("int8_product", **moved(arguments, cuda))[-1:]
        assert plan.name.startswith("int8_product_") and plan.compute_dtype == "int32"


@by_kernel
@pytest.mark.parametrize("values", ("lowest", "highest", "alternating"))
def test_the_largest_sums(kernel: str, values: str, cuda: str) -> None:
    """At the limit of the depth, with the zero point that makes the sums as large as they get."""
    for dtype, point in ((torch.int8, 127), (torch.int8, -128), (torch.uint8, 0)):
        m, n, k = (4 if kernel == "vector" else 129), 72, DEEPEST_SHIFTED
        a, w = integers((m, k), dtype, values), integers((n, k), torch.int8, values)
        exact = (a.double() - point) @ w.double().T
        assert exact.abs().max() < 2**31
        one, ones = torch.ones((), device=cuda), torch.ones(n, device=cuda)
        zero_point = torch.full((m,), point, device=cuda, dtype=torch.int32)
        ops, point = torch.ops.baraquant, {"input_zero_point": zero_point}
        got = ops.int8_linear(a.to(cuda), w.to(cuda), one, ones, **point)
        assert torch.equal(got.cpu(), exact.float())
        sums = ops.int8_product(a.to(cuda), w.to(cuda), **point)
        assert torch.equal(sums.cpu(), exact.to(torch.int32))


@by_kernel
@pytest.mark.parametrize("offsets", ((1, 0), (0, 1), (3, 8), (15, 7)), ids=str)
def test_unaligned_views(kernel: str, offsets: tuple[int, int], cuda: str) -> None:
    """Matrices that begin anywhere, at the very end of their memory too."""
    sizes = ((4, 67, 512), (3, 33, 4097), (1, 1, 1), (2, 100, 31))
    if kernel in HOPPER:
        sizes = ((140, 67, 512), (MIN_INPUTS, 33, 4097), (150, 17, 1), (300, 200, 31))
    for (m, n, k), dtype in itertools.product(sizes, (torch.int8, torch.uint8)):
        if kernel in HOPPER and dtype == torch.uint8 and m < 128:
            continue  # refused: the sums of the weight would have to be found first
        case = Case((m,), n, k, input_dtype=dtype, zero_point="token", bias="compute")
        arguments = case.arguments()
        expected = int8_linear(arguments)
        views = moved(arguments, cuda)
        for name, offset in zip(("input", "weight"), offsets, strict=True):
            whole = torch.empty(views[name].numel() + offset, dtype=views[name].dtype, device=cuda)
            whole[offset:] = views[name].view(-1)
            views[name] = whole[offset:].view(views[name].shape)
        assert_same_bits(int8_linear(views).cpu(), expected, f"{m} {n} {k}")


def test_unaligned_sizes_are_taken_without_being_forced(cuda: str) -> None:
    for m, n, k in SIZES:
        arguments = Case((m,), n + 1, k + 1, zero_point="token", dtype=torch.bfloat16).arguments()
        assert_same_bits(int8_linear(moved(arguments, cuda)).cpu(), int8_linear(arguments))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_twenty_runs_give_the_same_bits(size: tuple[int, int, int], cuda: str) -> None:
    arguments = Case(size[:1], *size[1:], scale="token", zero_point="token").arguments()
    expected = int8_linear(arguments)
    on_gpu = moved(arguments, cuda)
    for _ in range(20):
        assert_same_bits(int8_linear(on_gpu).cpu(), expected)


def step(size: tuple[int, int, int], input_dtype: torch.dtype = torch.int8) -> Step:
    """Of int8 the product alone; of uint8 also one whose input is quantized on the way."""
    case = Case(size[:1], *size[1:], input_dtype, scale="token", zero_point="token", bias="output")
    names = ("input", "input_scale", "weight", "weight_scale", "input_zero_point", "bias")

    def make(seed: int) -> tuple[Tensor, ...]:
        arguments = dataclasses.replace(case, seed=seed).arguments()
        return tuple(arguments[name] for name in names)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        y = int8_linear(dict(zip(names, tensors, strict=True)))
        if input_dtype == torch.int8:
            return (y,)
        x, _, weight, scale, *_ = tensors
        quantized = torch.ops.baraquant.quantized_linear
        return y, quantized(x.float(), weight, scale, symmetric=False)

    return Step(f"{size}-{cases.name_of(input_dtype)}", make, run)


class TestOnCuda(OnCuda):
    STEPS = tuple(step(size, dtype) for size in SIZES for dtype in cases.INTEGER_DTYPES)


@by_kernel
def test_graphs_and_streams_of_every_kernel(kernel: str, cuda: str) -> None:
    """Stream-K's counters begin anew each time."""
    check_graph(step((4 if kernel == "vector" else 200, 1040, 1536)), cuda)
    sizes = [(4 if kernel == "vector" else 40 + i, 2048, 2048) for i in range(4)]
    check_streams([step(size) for size in sizes], cuda)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_memory(size: tuple[int, int, int], cuda: str) -> None:
    """The output, and little else even for a moment."""
    call = moved(Case(size[:1], *size[1:], scale="token").arguments(), cuda)
    held, peak = measured(lambda: int8_linear(call))
    output = size[0] * size[1] * 4
    assert output <= held <= output + MIB
    assert peak <= output + 20 * MIB


@pytest.mark.parametrize("kernel", ("vector", HOPPER[0]), indirect=True)
def test_what_a_forced_kernel_does_not_take(kernel: str, cuda: str) -> None:
    sizes = ((MIN_INPUTS - 1, 80, 33), (40, MIN_WEIGHTS - 1, 33))
    for m, n, k in ((5, 8, 16),) if kernel == "vector" else sizes:
        with pytest.raises(NotImplementedError, match="forced"):
            int8_linear(moved(Case((m,), n, k).arguments(), cuda))
    with pytest.raises(ValueError, match="no kernel is named 'none'"):
        torch.ops.baraquant._force_int8_kernel("none")


def test_the_kernels_are_those_tested_here(cuda: str) -> None:
    there = [k for k in torch.ops.baraquant._int8_kernels() if not k.startswith("grouped")]
    with_hopper = len(there) > 1 + len(GENERIC)
    assert sorted(there) == sorted(KERNELS if with_hopper else ("vector", *GENERIC))


# --- products that begin before the kernel ends that quantizes their input -----------------------


@by_mode
@pytest.mark.parametrize("m", (1, 4, 16, 32, 64, 128, 256))
def test_fresh_inputs_in_a_graph(m: int, symmetric: bool, cuda: str) -> None:
    """The bits of a product that does not follow the quantization: another kernel is between."""
    n, k = 1024, 2048
    ws = [integers((n, k), torch.int8, "random", i).to(cuda) for i in range(3)]
    scale = torch.rand(n, device=cuda) * 0.01 + 0.015
    norm = torch.ones(k, device=cuda, dtype=torch.bfloat16)
    wrong = torch.zeros((), device=cuda, dtype=torch.int64)
    ops = torch.ops.baraquant

    def multiply(q: tuple[Tensor, ...], w: Tensor) -> Tensor:
        options = {"input_zero_point": None if symmetric else q[2], "dtype": torch.bfloat16}
        result: Tensor = ops.int8_linear(q[0], w, q[1], scale, **options)
        return result

    def run() -> Tensor:
        for w in ws:
            x = torch.randn(m, k, device=cuda, dtype=torch.bfloat16)
            y = ops.quantized_linear(x, w, scale, symmetric=symmetric)
            q = ops.dynamic_range_quantize_per_token(x, symmetric=symmetric)
            wrong.add_(0)
            wrong.add_((multiply(q, w) != y).sum())
            q = ops.rms_norm_quantize_per_token(x, norm, 1e-6, symmetric=symmetric)
            y = multiply(q, w)
            wrong.add_(0)
            wrong.add_((multiply(q, w) != y).sum())
        return wrong

    graph, found = capture(run)
    for _ in range(300):
        graph.replay()
    assert found.item() == 0


# --- more than 2^31 elements ---------------------------------------------------------------------

LARGE_SIZES = {
    "outputs": (70_016, 32_768, 16),
    "outputs_of_odd_rows": (70_016, 32_767, 17),
    "input": (40_000, 8, 65_536),
    "input_of_odd_depth": (40_000, 9, 65_535),
    "weight": (3, 40_000, 65_536),
    "weight_for_few_rows": (40, 40_000, 65_536),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE_SIZES)
def test_more_than_2_to_the_31_elements(name: str, room: None) -> None:
    """The last rows, as a call of their own gives them."""
    m, n, k = LARGE_SIZES[name]
    assert max(m * n, m * k, n * k) > 2**31
    gen = torch.Generator("cuda").manual_seed(0)
    a = torch.empty(m, k, dtype=torch.int8, device="cuda").random_(-128, 128, generator=gen)
    w = torch.empty(n, k, dtype=torch.int8, device="cuda").random_(-128, 128, generator=gen)
    scale = torch.rand(m, device="cuda", generator=gen)
    weight_scale = torch.rand(n, device="cuda", generator=gen)
    y = torch.ops.baraquant.int8_linear(a, w, scale, weight_scale, dtype=torch.bfloat16)
    for rows in (slice(0, 3), slice(m // 2, m // 2 + 3), slice(m - 3, m)):
        for columns in (slice(0, 8), slice(n - 8, n)):
            part = torch.ops.baraquant.int8_linear(
                *(t.cpu() for t in (a[rows], w[columns], scale[rows], weight_scale[columns])),
                dtype=torch.bfloat16,
            )
            assert_same_bits(y[rows, columns].cpu(), part, f"{rows} {columns}")


# --- products with a weight for each group: offsets that the host does not read ------------------


def aligned_cases(kernel: str) -> list[Grouped]:
    """What the kernel takes, in shapes of one tile and of several."""
    dtypes = [d for d in cases.FLOAT_DTYPES if d != torch.float64 or kernel in GENERIC]
    shapes = ((40, 64), (264, 272), (300, 1040), (129, 528))
    found = []
    for seed, (sizes, (n, k)) in enumerate(itertools.product(grouped.SIZES, shapes)):
        point = (None, "token", "one")[seed % 3]
        unsigned = kernel in GENERIC and point is not None and seed % 2 == 0
        found.append(
            Grouped(
                *(sizes, n, k, torch.uint8 if unsigned else torch.int8, dtypes[seed % len(dtypes)]),
                scale=("token", "one")[seed % 2],
                zero_point=point,
                bias=(None, "compute", "output")[seed % 3],
                seed=seed,
            )
        )
    return found


def check_grouped(case: Grouped) -> None:
    arguments = case.arguments()
    got = call("int8_grouped_linear", arguments, "cuda")
    assert_same_bits(got.cpu(), one_weight("int8_grouped_linear", arguments), str(case))


@by_grouped_kernel
def test_every_grouped_kernel(kernel: str) -> None:
    for case in aligned_cases(kernel):
        check_grouped(case)


@by_grouped_kernel
def test_rows_that_begin_anywhere(kernel: str) -> None:
    """K that is no multiple of 16, and unsigned inputs: Hopper's kernels get copies."""
    for seed, dtype in itertools.product(range(3), (torch.int8, torch.uint8)):
        check_grouped(Grouped("one_of_many_rows", 83 + seed, 131 + seed, dtype, zero_point="token"))


@by_grouped_kernel
def test_offsets_out_of_order_stay_inside(kernel: str) -> None:
    """They count as the nearest that ascend and lie inside."""
    arguments = Grouped("uneven", 40, 64).arguments()
    for bad in ([50, 20, 90, -7, 2**31 - 1, 3], [-5, 500, 1, 1, 1, 1], [10**9] * 6, [-1] * 6):
        arguments["offsets"] = torch.tensor(bad, dtype=torch.int32)
        expected = reference.int8_grouped_linear(**arguments)
        got = call("int8_grouped_linear", arguments, "cuda")
        assert_same_bits(got.cpu(), expected, f"{bad}")


@by_grouped_kernel
def test_graph_with_new_offsets(kernel: str) -> None:
    """Captured once; replayed with other groups, which only the device knows."""
    arguments = Grouped("uneven", 264, 528, zero_point="token").arguments()
    static = moved(arguments, "cuda")
    graph, captured = capture(lambda: ops.int8_grouped_linear(**static))
    for sizes in ((221, 0, 0, 0, 0, 0), (30, 30, 30, 30, 30, 30), (0, 1, 0, 219, 0, 1)):
        arguments["offsets"] = ends(sizes)
        static["offsets"].copy_(arguments["offsets"])
        graph.replay()
        assert_same_bits(captured.cpu(), one_weight("int8_grouped_linear", arguments), str(sizes))


def test_never_makes_the_host_wait(cuda: str, request: pytest.FixtureRequest) -> None:
    """The forward of every op; in bfloat16 the backward too."""
    integer = moved(Grouped("uneven", 40, 64, torch.uint8, zero_point="token").arguments(), cuda)
    trained = moved(floating("uneven", torch.bfloat16), cuda)
    for key in ("input", "weight", "bias"):
        trained[key].requires_grad_()

    def run() -> tuple[Tensor, ...]:
        y = ops.qat_grouped_linear(**trained)
        leaves = [trained[key] for key in ("input", "weight", "bias")]
        return ops.int8_grouped_linear(**integer), *torch.autograd.grad(y.sum(), leaves)

    first = run()
    request.getfixturevalue("no_synchronisation")
    again = run()
    torch.cuda.set_sync_debug_mode("default")
    assert_all_same(again, first)
