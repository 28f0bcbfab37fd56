# SPDX-License-Identifier: BSD-3-Clause
"""What only CUDA has in the grouped products: every kernel, offsets that the host does not read."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.checks.int8_mm import call, moved
from tests.support.cuda import capture
from tests.support.family_cases.grouped import SIZES, Grouped, ends, floating, one_weight
from tests.support.family_cases.int8_mm import GENERIC

pytestmark = pytest.mark.cuda

ON_HOPPER = (
    "grouped_128x128x128_pingpong_cluster1x2",
    "grouped_64x256x128_pingpong_cluster1x2",
    "grouped_32x128x256_swapped_pingpong",
)


@pytest.fixture
def forced(request: pytest.FixtureRequest, cuda: str) -> Iterator[str]:
    """The name of a kernel that every grouped product takes."""
    kernel = request.param
    if kernel not in torch.ops.baraquant._int8_kernels():
        pytest.skip("built without the kernels for Hopper")
    if kernel in ON_HOPPER and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")
    torch.ops.baraquant._force_int8_kernel(kernel)
    yield kernel
    torch.ops.baraquant._force_int8_kernel("")


by_kernel = pytest.mark.parametrize("forced", (*GENERIC, *ON_HOPPER), indirect=True)


def aligned_cases(kernel: str) -> list[Grouped]:
    """What the kernel takes, in shapes of one tile and of several."""
    dtypes = [d for d in cases.FLOAT_DTYPES if d != torch.float64 or kernel in GENERIC]
    shapes = ((40, 64), (264, 272), (300, 1040), (129, 528))
    found = []
    for seed, (sizes, (n, k)) in enumerate(itertools.product(SIZES, shapes)):
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


@by_kernel
def test_every_kernel(forced: str) -> None:
    for case in aligned_cases(forced):
        arguments = case.arguments()
        got = call("int8_grouped_linear", arguments, "cuda")
        assert_same_bits(got.cpu(), one_weight("int8_grouped_linear", arguments), str(case))


@by_kernel
def test_rows_that_begin_anywhere(forced: str) -> None:
    """K that is no multiple of 16, and unsigned inputs: Hopper's kernels get copies."""
    for seed, dtype in itertools.product(range(3), (torch.int8, torch.uint8)):
        case = Grouped("one_of_many_rows", 83 + seed, 131 + seed, dtype, zero_point="token")
        arguments = case.arguments()
        got = call("int8_grouped_linear", arguments, "cuda")
        assert_same_bits(got.cpu(), one_weight("int8_grouped_linear", arguments), str(case))


@by_kernel
def test_offsets_out_of_order_stay_inside(forced: str) -> None:
    """They count as the nearest that ascend and lie inside."""
    arguments = Grouped("uneven", 40, 64).arguments()
    for bad in ([50, 20, 90, -7, 2**31 - 1, 3], [-5, 500, 1, 1, 1, 1], [10**9] * 6, [-1] * 6):
        arguments["offsets"] = torch.tensor(bad, dtype=torch.int32)
        expected = reference.int8_grouped_linear(**arguments)
        got = call("int8_grouped_linear", arguments, "cuda")
        assert_same_bits(got.cpu(), expected, f"{bad}")


@by_kernel
def test_graph_with_new_offsets(forced: str) -> None:
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
