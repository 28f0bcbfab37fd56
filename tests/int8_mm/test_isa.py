# SPDX-License-Identifier: BSD-3-Clause
"""The products of integers on each CPU instruction set and with any number of threads.

Those of int8_mm, int8_conv, int4, weight_only and scaled. As in `tests/ops/test_cpu_isa.py`, each
runs this module as a program, which prints a digest of every result. What is right, the tests
against the oracles say.
"""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.int4.test_values import weights
from tests.scaled import test_values as scaled
from tests.support import cases
from tests.support.cases import PER_TOKEN
from tests.support.checks.int8_mm import call
from tests.support.family_cases import int8_conv as conv_cases
from tests.support.family_cases import int8_mm as int8_cases
from tests.support.family_cases.int8_mm import DEEPEST, DEEPEST_SHIFTED, VALUES, Case, integers
from tests.support.family_cases.range import characterful
from tests.support.instruction_sets import ISAS, Lines, check_same_bits, print_digests
from tests.weight_only import test_values as weight_only

Results = Iterator[tuple[object, Tensor]]


def int8_mm_results() -> Results:
    """Every option, size, extreme value and special value that the other tests know."""
    options = int8_cases.RANDOM_CASES[::2] + int8_cases.edge_cases()[::3]
    for case in options + int8_cases.one_by_one():
        yield case, call(case.op, case.arguments())
    for a, w, (n, k) in itertools.product(VALUES, VALUES, ((33, 1025), (3, 70), (130, 64))):
        case = Case((7,), n, k, torch.uint8, torch.float64, values=a)
        weight = integers((n, k), torch.int8, w, 5)
        yield f"{a} x {w}", call("int8_linear", case.arguments() | {"weight": weight})
    for depth, dtype in ((DEEPEST, torch.int8), (DEEPEST_SHIFTED, torch.uint8)):
        for values in ("lowest", "highest", "alternating"):
            case = Case((5,), 6, depth, dtype, torch.float64, values=values)
            yield values, call("int8_linear", case.arguments())
    for dtype in cases.FLOAT_DTYPES:
        special = cases.special_scales(cases.compute_dtype(dtype))
        case = Case((len(special),), len(special), 77, torch.uint8, dtype, "token", "token")
        scales = {"input_scale": special, "weight_scale": special.flip(0)}
        yield "special scales", call("int8_linear", case.arguments() | scales)
        bias = cases.special_values(dtype)
        case = Case((9,), len(bias), 21, dtype=dtype, values="sparse")
        yield "special biases", call("int8_linear", case.arguments() | {"bias": bias})
        for symmetric in (True, False):
            x = characterful((37, 259), dtype, PER_TOKEN, symmetric=symmetric)
            weight = characterful((29, 259), dtype, PER_TOKEN, seed=1).requires_grad_()
            arguments = {"input": x, "weight": weight, "symmetric": symmetric}
            yield "qat_linear", call("qat_linear", arguments)


def int8_conv_results() -> Results:
    """Every option, the largest sums, and images that several threads share."""
    made = list(enumerate(conv_cases.options()[::2]))
    largest = [(values, t) for values in ("lowest", "highest") for t in (torch.int8, torch.uint8)]
    for values, dtype in largest:
        case = conv_cases.Case(65536 // 9, 5, 1, (3, 4), (3, 3), input=dtype, values=values)
        made.append((0, case))
    for sizes in ((64, 80, 1), (150, 150, 150)):
        options = {"padding": (1,), "dtype": torch.float32, "shift": True}
        made.append((0, conv_cases.Case(*sizes, (40, 50), (3, 3), **options)))
    for seed, case in made:
        yield case, ops.int8_conv(**case.arguments(seed))


def int4_results() -> Results:
    for dtype in cases.FLOAT_DTYPES:
        for size in (2, 32, 48, 64, 128):
            columns = 416 if size % 32 == 0 else 413  # few rows are multiplied as they lie, or not
            w = weights((70, columns), dtype)
            scale, factor, zero_point = ops.choose_int4_qparams(w, size, symmetric=False)
            given = {"group_zero_point": zero_point}
            packed = ops.quantize_int4(w, scale, factor, size, **given)
            w8 = ops.expand_int4(packed, factor, size, columns, **given)
            yield from ((f"{dtype} {size}", t) for t in (scale, factor, packed, w8))
            for tokens in (1, 4, 5, 70):
                x = weights((tokens, columns), dtype, 3).nan_to_num(1, 1, 1)
                layer = ops.quantized_int4_linear
                y = layer(x, packed, scale, factor, size, **given, symmetric=False)
                yield f"{tokens} {dtype} {size}", y


def weight_only_results() -> Results:
    """Of few rows, whose kernel is the op's own."""
    for dtype, limit in weight_only.OWN_ROWS.items():
        for n, k in ((1, 1), (5, 7), (70, 413), (33, 1030), (260, 416)):
            w = integers((n, k), torch.int8, "random", n)
            b = weight_only.numbers((n,), dtype, 2)
            for s, z, size in weight_only.qparams((n, k), dtype, (None, 1, 32, 50, 128, 2000)):
                options = {"bias": None if z is None else b, "weight_zero_point": z}
                for rows in [rows for rows in (1, 2, 3, 4, 5, 17, 48) if rows <= limit]:
                    x = weight_only.numbers((rows, k), dtype, rows)
                    y = ops.weight_only_linear(x, w, s, **options, group_size=size)
                    yield f"{rows} {n} {k} {size} {dtype}", y


def scaled_results() -> Results:
    numbers, factors = scaled.numbers, scaled.factors
    for dtype in cases.FLOAT_DTYPES:
        for shape in ((65, 131), (300, 400), (7, 2064)):
            x, f, g = numbers(shape, dtype), factors(shape[1], dtype), factors(shape[0], dtype)
            for random in (None, (3, 4)):
                r = scaled.state(random)
                found = ops.scaled_quantize_per_token(x, f, random=r)
                found += ops.scaled_quantize_transposed(x, g, random=r)
                yield from ((f"{shape} {random}", t) for t in found)
        for symmetric in (True, False):
            tensors = (numbers(s, dtype, i) for i, s in enumerate(((90, 75), (33, 75), (90, 33))))
            x, w, dy = (t.nan_to_num(1, 1, 1).requires_grad_() for t in tensors)
            y = ops.qat_linear(x, w, symmetric=symmetric, backward="int8")
            for gradient in torch.autograd.grad(y, (x, w), dy):
                yield f"gradient {dtype} {symmetric}", gradient


FAMILIES = {
    int8_mm_results: 500,
    int8_conv_results: 100,
    int4_results: 150,
    weight_only_results: 600,
    scaled_results: 90,
}


def results() -> Results:
    for family, least in FAMILIES.items():
        found = [(f"{family.__name__} {name}", tensor) for name, tensor in family()]
        assert len(found) >= least
        yield from found


# The short run has the one that most machines without AVX-512 use.
SHORT = {"avx2": pytest.mark.smoke}


@pytest.mark.process
@pytest.mark.parametrize("isa", [pytest.param(isa, marks=SHORT.get(isa, ())) for isa in ISAS])
def test_same_bits(isa: str, lines_of: Lines) -> None:
    check_same_bits(isa, lines_of, more_than=sum(FAMILIES.values()))


@pytest.mark.process
@pytest.mark.parametrize("threads", (1, 3))
def test_same_bits_with_any_number_of_threads(threads: int, lines_of: Lines) -> None:
    assert lines_of(None, threads) == lines_of(None)


if __name__ == "__main__":
    print_digests(results())
