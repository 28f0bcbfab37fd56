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
NAMES = {
    "Float": torch.float32,
    "Half": torch.float16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Int": torch.int32,
    "Long": torch.int64,
}


def results() -> dict[str, Tensor]:
    """What the program computes, in Python."""
    q = ops.quantize_per_channel(X, SCALES, ZEROS, 0)
    x, scales = X.clone().requires_grad_(), SCALES.clone().requires_grad_()
    ops.fake_quantize_per_channel(x, scales, ZEROS, 0, -8, 7).sum().backward()
    assert x.grad is not None and scales.grad is not None
    dx, ds, dz = ops.backward.fake_quantize_per_channel_backward_qparams(
        torch.ones_like(X), X, SCALES, ZEROS, 0, -8, 7
    )
    chosen = ops.choose_qparams_per_channel(X, 0, -8, 7, symmetric=False)
    rows, row_scales, _ = ops.dynamic_range_quantize_per_token(X)
    weight = numbers(3, 8, begin=-2)
    w, sw, _ = ops.dynamic_range_quantize_per_channel(weight, 0)
    line = rows.reshape(1, 2, -1)
    return {
        "quantize tensor": ops.quantize_per_tensor(X, SCALE, None),
        "quantize number": ops.quantize_per_tensor(X, 0.5, 3),
        "quantize scale tensor": ops.quantize_per_tensor(X, SCALE, 3, -8, 7),
        "quantize uint8": ops.quantize_per_channel(
            X, SCALES, ZEROS + 128, 0, 0, 255, dtype=torch.uint8
        ),
        "quantize channel": q,
        "dequantize channel": ops.dequantize_per_channel(q, SCALES, ZEROS, 0),
        "fake_quantize channel": ops.fake_quantize_per_channel(X, SCALES, ZEROS, 0, -8, 7),
        "fake_quantize token": ops.fake_quantize_per_token(X, TOKENS, None),
        "fake_quantize group": ops.fake_quantize_per_group(X, GROUPS, None, 4, -1, -8, 7),
        "gradient of the input": x.grad,
        "gradient of the scale": scales.grad,
        "backward input": dx,
        "backward scale": ds,
        "backward zero point": dz,
        "choose scale": chosen[0],
        "choose zero point": chosen[1],
        "dynamic integers": rows,
        "dynamic scales": row_scales,
        "dynamic_fake_quantize": ops.dynamic_fake_quantize_per_group(X, 4),
        "observed low": X.min(),
        "observed high": X.max(),
        "int8_linear": ops.int8_linear(rows, w, row_scales, sw),
        "int8_product": ops.int8_product(rows, w),
        "rescale_product": ops.int8_linear(rows, w, row_scales, sw),
        "int8_conv": ops.int8_conv(line, w.reshape(3, 2, 4), SCALE, sw),
        "int8_conv options": ops.int8_conv(
            line,
            w.reshape(3, 2, 4),
            SCALE,
            sw,
            numbers(3),
            input_zero_point=torch.tensor(3),
            stride=2,
            padding=3,
            dtype=torch.float16,
        ),
        "quantized_linear": ops.quantized_linear(X, w, sw),
        "smoothquant_linear": ops.smoothquant_linear(rows, w, sw, 0.5),
        "static_quantized_linear": ops.static_quantized_linear(X, w, sw, SCALE),
        "qat_linear": ops.qat_linear(X, weight, numbers(3)),
        **integer_backward(weight),
        **four_bits(rows, row_scales),
        **weight_only(),
    }


def four_bits(q: Tensor, s: Tensor) -> dict[str, Tensor]:
    w = numbers(3, 8, begin=-12)
    scale, factor, zero_point = ops.choose_int4_qparams(w, 4, symmetric=False)
    z = {"group_zero_point": zero_point}
    packed = ops.quantize_int4(w, scale, factor, 4, **z)
    w8 = ops.expand_int4(packed, factor, 4, 8, **z)
    static = ops.static_quantized_int4_linear(X, packed, scale, factor, 4, SCALE)
    return {
        "int4 scale": scale,
        "int4 factor": factor,
        "int4 zero point": zero_point,
        "int4 packed": packed,
        "int4 expanded": w8,
        "int4 repacked": ops.pack_int4(w8),
        "int4_linear": ops.int4_linear(q, packed, s, scale, factor, 4),
        "quantized_int4_linear": ops.quantized_int4_linear(
            X, packed, scale, factor, 4, numbers(3), **z
        ),
        "static_quantized_int4_linear": static,
    }


def weight_only() -> dict[str, Tensor]:
    w = torch.arange(-12, 12, dtype=torch.int8).view(3, 8)
    given = {"weight_zero_point": torch.arange(6).view(3, 2), "group_size": 4}
    return {
        "weight_only_linear": ops.weight_only_linear(X, w, numbers(3)),
        "weight_only_linear of groups": ops.weight_only_linear(
            X, w, numbers(3, 2), numbers(3), **given
        ),
    }


def integer_backward(weight: Tensor) -> dict[str, Tensor]:
    rows, row_scales = ops.scaled_quantize_per_token(X, torch.arange(1.0, 9.0))
    random = torch.tensor([1, 2])
    columns, scales = ops.scaled_quantize_transposed(X, torch.arange(1.0, 5.0), random=random)
    torch.manual_seed(3)
    drawn, leaf = ops.draw_random(X, 2)[1:], X.detach().clone().requires_grad_()
    options = {"backward": "int8", "rounding": "stochastic"}
    ops.qat_linear(leaf, weight, numbers(3), **options).sum().backward()
    return {
        "scaled rows": rows,
        "scaled row scales": row_scales,
        "scaled columns": columns,
        "scaled column scales": scales,
        "transpose_int8": ops.transpose_int8(columns),
        "draw_random": drawn,
        "gradient from integers": leaf.grad,
    }


def errors() -> dict[str, Callable[[], Any]]:
    """The wrong calls of the program, in Python."""
    integers, weight = torch.ones(4, 8, dtype=torch.int8), torch.ones(3, 8, dtype=torch.int8)
    learned = SCALES.clone().requires_grad_()
    return {
        "scale shape": lambda: ops.fake_quantize_per_channel(X, SCALE, None, 0),
        "axis": lambda: ops.quantize_per_channel(X, SCALES, None, 2),
        "range": lambda: ops.quantize_per_tensor(X, 0.5, 0, 7, -8),
        "number": lambda: ops.quantize_per_tensor(X, -1.0, 0),
        "zero point": lambda: ops.quantize_per_tensor(X, 0.5, 200),
        "dtype": lambda: ops.quantize_per_tensor(X, 0.5, 0, -8, 7, dtype=torch.int16),
        "input dtype": lambda: ops.fake_quantize_per_tensor(integers, 0.5, 0),
        "group": lambda: ops.fake_quantize_per_group(X, GROUPS, None, 0),
        "sparse": lambda: ops.choose_qparams_per_tensor(X.to_sparse()),
        "symmetric": lambda: ops.dynamic_fake_quantize_per_tensor(X, 0, 1),
        "depth": lambda: ops.int8_linear(integers, weight[:, :4], TOKENS, SCALES),
        "weight": lambda: ops.quantized_linear(X, X, SCALES),
        "factor": lambda: ops.scaled_quantize_per_token(X, torch.ones(7)),
        "random": lambda: ops.scaled_quantize_per_token(X, torch.ones(8), random=torch.ones(2)),
        "bytes": lambda: ops.transpose_int8(X),
        "floating weight": lambda: ops.weight_only_linear(X, X, SCALES),
        "count": lambda: ops.draw_random(X, 0),
        "backward": lambda: ops.qat_linear(X, numbers(3, 8, begin=-2), backward="int4"),
        "learned": lambda: ops.quantize_per_channel(
            X, learned, None, 0, -8, 7, dtype=torch.float32
        ),
    }


@pytest.mark.process
def test_the_results_have_pythons_bits(printed: list[list[str]]) -> None:
    wanted = results()
    got = {line[1]: line[2:] for line in printed if line[0] == "result"}
    assert got.keys() == wanted.keys()
    for name, (dtype, *values) in got.items():
        assert NAMES[dtype] == wanted[name].dtype, name
        found = torch.tensor([float.fromhex(v) for v in values], dtype=torch.float64)
        assert torch.equal(found, wanted[name].detach().double().flatten()), name


@pytest.mark.process
def test_the_errors_have_pythons_type_and_text(printed: list[list[str]]) -> None:
    got = {line[1]: line[2:] for line in printed if line[0] == "error"}
    wrong = errors()
    assert got.keys() == wrong.keys() and len(wrong) >= 12
    for name, call in wrong.items():
        with pytest.raises(Exception) as caught:
            call()
        assert got[name] == [type(caught.value).__name__, str(caught.value)], name
