# SPDX-License-Identifier: BSD-3-Clause
"""The demo runs to its end on a small budget, and what it stores is what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import qat_report
import quantized_layers
from baraquant import ops
from qat_report import Summary
from quantized_layers import QuantLinear, Widths

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="session")
def demo(made_once: Callable[[str, Callable[[Path], None]], Path]) -> tuple[str, Path]:
    """What one quick run prints, and its folder."""

    def make(out: Path) -> None:
        command = [sys.executable, "qat_digits.py", "--quick", "--seeds", "1", "--out", str(out)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            command,
            cwd=EXAMPLES,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (out / "stdout").write_text(done.stdout)

    out = made_once("demo", make)
    return (out / "stdout").read_text(), out


@pytest.mark.slow
def test_demo_prints_and_writes(demo: tuple[str, Path]) -> None:
    text, out = demo
    assert "8 of 8 networks give bit for bit" in " ".join(text.split())
    report = json.loads((out / "qat_digits.json").read_text())
    assert report["conclusion"] in " ".join(text.split())
    assert len(report["runs"]) == len(report["summary"]) == 8
    assert all(run["integers_equal"] for run in report["runs"])
    assert (out / "qat_digits.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((out / "models").glob("*.safetensors"))) == 8


@pytest.mark.slow
def test_demo_learns(demo: tuple[str, Path]) -> None:
    """Even on this budget: the digits are learned, and QAT repairs what two bits break."""
    report = json.loads((demo[1] / "qat_digits.json").read_text())
    for summary in report["summary"]:
        mean = {way: value[0] for way, value in summary["accuracy"].items()}
        assert mean["float"] > 90
        if summary["widths"]["weight_bits"] == 2:
            assert mean["qat"] > mean["ptq"] > mean["ptq_max"]
            assert mean["qat"] > mean["float"] - 3


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (4, 64), (0, 3)])
def test_packing_keeps_every_integer(bits: int, shape: tuple[int, int]) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    generator = torch.Generator().manual_seed(bits)
    integers = torch.randint(low, high + 1, shape, generator=generator).to(torch.int8)
    packed = quantized_layers.pack(integers, bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == -(-integers.numel() * bits // 8)
    assert torch.equal(quantized_layers.unpack(packed, bits, shape), integers)


def test_fitted_scale_is_no_worse_than_the_symmetric_rule() -> None:
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    rows[3] = 0

    def error(candidates: int) -> torch.Tensor:
        scale = quantized_layers.fit_scale(rows, -8, 7, candidates)
        return (ops.fake_quantize_per_token(rows, scale, None, -8, 7) - rows).square().sum(dim=1)

    rule = quantized_layers.fit_scale(rows, -8, 7, 1)
    expected = rows.abs().amax(dim=1, keepdim=True) / 7
    expected[3] = 1
    assert torch.equal(rule, expected)
    assert (error(40) <= error(1)).all()
    assert error(40).sum() < error(1).sum()


@pytest.mark.parametrize("group_size", [None, 4])
def test_gradient_of_the_scales_is_damped(group_size: int | None) -> None:
    """The hook gives the plain gradient divided by sqrt(count * quant_max)."""
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(8, 3), torch.rand(16, 8)
    layer = QuantLinear(linear, x, Widths(3, 4, group_size))
    output = layer(x)
    damped = torch.autograd.grad(output.square().sum(), (layer.weight_scale, layer.input_scale))

    weight_scale = layer.weight_scale.detach().requires_grad_()
    input_scale = layer.input_scale.detach().requires_grad_()
    inputs = ops.fake_quantize_per_tensor(x, input_scale, None, 0, 15)
    if group_size is None:
        weight = ops.fake_quantize_per_channel(layer.weight, weight_scale, None, 0, -4, 3)
    else:
        weight = ops.fake_quantize_per_group(layer.weight, weight_scale, None, group_size, 1, -4, 3)
    plain_output = torch.nn.functional.linear(inputs, weight, layer.bias)
    assert torch.equal(plain_output, output)
    plain = torch.autograd.grad(plain_output.square().sum(), (weight_scale, input_scale))
    torch.testing.assert_close(damped[0], plain[0] * ((group_size or 8) * 3) ** -0.5)
    torch.testing.assert_close(damped[1], plain[1] * (8 * 15) ** -0.5)


def summary(bits: int, qat: float, ptq: float) -> Summary:
    accuracy = {"float": (97.0, 0.0), "qat": (qat, 0.0), "ptq": (ptq, 0.0), "ptq_max": (50.0, 0.0)}
    return Summary(Widths(bits, 8), accuracy, 100)


def test_conclusion_follows_the_numbers() -> None:
    kept = qat_report.conclude([summary(4, 97, 96.5), summary(3, 96.2, 90), summary(2, 80, 40)])
    assert "down to 3-bit weights" in kept
    assert "keeps it down to 4-bit weights" in kept
    assert "At no width" in qat_report.conclude([summary(4, 90, 90)])
    assert qat_report.conclude([summary(4, 97, 90)]).endswith("keeps it at no width.")
    assert qat_report.conclude([summary(4, 97, 97)]).endswith("keeps it there too.")
