# SPDX-License-Identifier: BSD-3-Clause
"""The typed functions of C++: fresh, compiled strictly, with Python's bits and Python's errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import toolchain
from baraquant import ops
from tests.support.libtorch import STRICT, build_program, clang_only, compile_only, run, run_program

API = toolchain.CSRC / "api"


def test_the_headers_are_those_of_the_schemas() -> None:
    checked = run(sys.executable, toolchain.ROOT / "scripts" / "ops.py", "--check")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.process
@pytest.mark.parametrize("check", [compile_only, clang_only], ids=["g++", "clang"])
@pytest.mark.parametrize("header", sorted(p.relative_to(API) for p in API.rglob("*.h")), ids=str)
def test_a_header_compiles_alone(header: Path, check: Callable[..., None], tmp_path: Path) -> None:
    source = tmp_path / "alone.cpp"
    source.write_text(f'#include "{header}"\n')
    check(source, *STRICT, f"-I{API}", f"-I{toolchain.CSRC}")


@pytest.mark.process
@pytest.mark.parametrize("check", [compile_only, clang_only], ids=["g++", "clang"])
def test_the_check_of_headers_notices_a_warning(check: Callable[..., None], tmp_path: Path) -> None:
    source = tmp_path / "narrow.cpp"
    source.write_text("int narrow(long x) { return x; }\n")
    check(source)
    with pytest.raises(AssertionError, match="onver"):
        check(source, *STRICT)


@pytest.fixture(scope="module")
def printed(made_once: Callable[[str, Callable[[Path], None]], Path]) -> list[list[str]]:
    """The lines of the program, built against the installed headers."""

    def build(folder: Path) -> None:
        build_program(Path(__file__).with_name("ops.cpp"), folder / "ops", *STRICT)

    folder = made_once("cpp_api", build)
    return [line.split("\t") for line in run_program(folder / "ops").splitlines()]


def numbers(*shape: int, begin: float = -4.0) -> Tensor:
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count, dtype=torch.float32) * 0.37 + begin).view(shape)


X, SCALE = numbers(4, 8), torch.tensor([0.5])
SCALES, TOKENS = numbers(4, begin=0.25), numbers(4, 1, begin=0.25)
GROUPS, ZEROS = numbers(4, 2, begin=0.25), torch.tensor([-3, 0, 2, 5], dtype=torch.int32)
BIAS, WEIGHT = numbers(3), numbers(3, 8, begin=-2)
CHANNELS = ops.quantize_per_channel(X, SCALES, ZEROS, 0)
ROWS, ROW_SCALES, _ = ops.dynamic_range_quantize_per_token(X)
W, SW, _ = ops.dynamic_range_quantize_per_channel(WEIGHT, 0)
LINE, KERNELS = ROWS.reshape(1, 2, -1), W.reshape(3, 2, 4)
FLOATS = numbers(3, 8, begin=-12)
INT4 = ops.choose_int4_qparams(FLOATS, 4, symmetric=False)
PACKED = ops.quantize_int4(FLOATS, *INT4[:2], 4, group_zero_point=INT4[2])
INTEGERS = torch.arange(-12, 12, dtype=torch.int8).view(3, 8)
COLUMNS = ops.scaled_quantize_transposed(X, torch.arange(1.0, 5.0), random=torch.tensor([1, 2]))
LEARNED = SCALES.clone().requires_grad_()
DTYPES = {
    "Float": torch.float32,
    "Half": torch.float16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Int": torch.int32,
    "Long": torch.int64,
}


def gradients() -> tuple[Tensor, ...]:
    x = X.clone().requires_grad_()
    y = ops.fake_quantize_per_channel(x, LEARNED, ZEROS, 0, -8, 7)
    return torch.autograd.grad(y.sum(), (x, LEARNED))


def backward_qparams() -> tuple[Tensor, ...]:
    dy = torch.ones_like(X)
    return ops.backward.fake_quantize_per_channel_backward_qparams(dy, X, SCALES, ZEROS, 0, -8, 7)


def integer_backward() -> tuple[Tensor, Tensor]:
    """Random numbers, and a gradient that is rounded by them."""
    torch.manual_seed(3)
    drawn, leaf = ops.draw_random(X, 2)[1:], X.clone().requires_grad_()
    y = ops.qat_linear(leaf, WEIGHT, BIAS, backward="int8", rounding="stochastic")
    return drawn, torch.autograd.grad(y.sum(), leaf)[0]


def in_python(call: str) -> Any:
    return eval(call, vars(ops) | globals())


@pytest.mark.process
def test_the_results_have_pythons_bits(printed: list[list[str]]) -> None:
    results = [line[1:] for line in printed if line[0] == "result"]
    assert len(results) >= 45
    for call, dtype, *values in results:
        wanted = in_python(call)
        assert DTYPES[dtype] == wanted.dtype, call
        found = torch.tensor([float.fromhex(v) for v in values], dtype=torch.float64)
        assert torch.equal(found, wanted.detach().double().flatten()), call


@pytest.mark.process
def test_the_errors_have_pythons_type_and_text(printed: list[list[str]]) -> None:
    """Of each kind; what each op refuses, its own tests show."""
    wrong = [line[1:] for line in printed if line[0] == "error"]
    assert len(wrong) >= 12
    for call, *got in wrong:
        with pytest.raises(Exception) as caught:
            in_python(call)
        assert got == [type(caught.value).__name__, str(caught.value)], call
