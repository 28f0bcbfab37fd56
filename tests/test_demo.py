# SPDX-License-Identifier: BSD-3-Clause
"""The demo runs to its end on a small budget, and what it stores is what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from rich.console import Console
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import int8_layers
import qat_deploy
import qat_digits
import qat_report
import quantized_layers
from baraquant import ops
from qat_deploy import Deployment
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
    assert "13 of 13 networks give bit for bit" in " ".join(text.split())
    report = json.loads((out / "qat_digits.json").read_text())
    assert report["conclusion"] in " ".join(text.split())
    assert len(report["runs"]) == len(report["summary"]) == 13
    schemes = [run["widths"]["inputs"] for run in report["runs"]]
    assert {scheme: schemes.count(scheme) for scheme in schemes} == {
        "learned": 9,
        "symmetric": 2,
        "asymmetric": 2,
    }
    assert all(run["integers_equal"] for run in report["runs"])
    assert (out / "qat_digits.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((out / "models").glob("w*.safetensors"))) == 13


@pytest.mark.slow
def test_demo_deploys(demo: tuple[str, Path]) -> None:
    """Float, quantized and trained: as accurate, a quarter of the bytes, training's very logits."""
    text, out = demo
    report = json.loads((out / "qat_digits.json").read_text())
    (deployment,) = report["deployments"]
    assert deployment["logits_equal"] is True
    assert report["deployed"] in " ".join(text.split())
    assert "the logits of 1 of 1 networks are bit for bit those of training" in report["deployed"]
    accuracy, size = deployment["accuracy"], deployment["tensor_bytes"]
    for key, name in qat_deploy.NETWORKS.items():
        row = [name.replace(", ", r", "), rf"{accuracy[key]:.1f} ± 0.0", f"{size[key]:,}"]
        assert len(re.findall(" +".join(map(re.escape, row)), text)) == 1
        assert deployment["one_image"][key] > 0 and deployment["all_images"][key] > 0
        assert accuracy[key] > 94
    hidden = qat_deploy.HIDDEN
    weights, channels = 64 * hidden + hidden**2 + hidden * 10, 2 * hidden + 10
    assert size == {
        "float": 4 * (weights + channels),
        **dict.fromkeys(("ptq", "qat"), weights + 8 * channels),
    }
    for key in ("ptq", "qat"):
        stored = safetensors.torch.load_file(out / "models" / f"int8-{key}-seed0.safetensors")
        dtypes = {name: tensor.dtype for name, tensor in stored.items()}
        assert len(dtypes) == 9
        assert all(dtypes[f"{i}.weight"] == torch.int8 for i in range(3))
        assert sum(tensor.nbytes for tensor in stored.values()) == size[key]


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


@pytest.mark.slow
def test_demo_compares_ranges(demo: tuple[str, Path]) -> None:
    """With two bits the inputs miss the half of a symmetric grid."""
    text, out = demo
    report = json.loads((out / "qat_digits.json").read_text())
    accuracy = {
        (s["widths"]["inputs"], s["widths"]["input_bits"]): s["accuracy"]
        for s in report["summary"]
        if s["widths"]["weight_bits"] == 4 and s["widths"]["group_size"] is None
    }
    for way in ("ptq_max", "ptq", "qat"):
        symmetric, asymmetric = accuracy["symmetric", 2][way], accuracy["asymmetric", 2][way]
        assert asymmetric[0] > symmetric[0] + 3
    for scheme in ("symmetric", "asymmetric"):
        mean, spread = accuracy[scheme, 2]["qat"]
        row = rf"4 / 2 +{scheme} .* {mean:.1f} ± {spread:.1f} +5,520 "
        assert len(re.findall(row, text)) == 1


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
    linear, x = nn.Linear(8, 3), torch.rand(16, 8)
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
    plain_output = nn.functional.linear(inputs, weight, layer.bias)
    assert torch.equal(plain_output, output)
    plain = torch.autograd.grad(plain_output.square().sum(), (weight_scale, input_scale))
    torch.testing.assert_close(damped[0], plain[0] * ((group_size or 8) * 3) ** -0.5)
    torch.testing.assert_close(damped[1], plain[1] * (8 * 15) ** -0.5)


@pytest.mark.parametrize("inputs", quantized_layers.INPUT_SCHEMES)
@pytest.mark.parametrize("group_size", [None, 4])
def test_stored_integers_give_the_same_bits(
    inputs: str, group_size: int | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    floats = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.rand(16, 8)
    widths = Widths(3, 5, group_size, inputs)
    network = quantized_layers.quantize_network(floats, x, widths)
    path = tmp_path / "network.safetensors"
    quantized_layers.save(network, path)
    loaded = quantized_layers.load(path)
    assert torch.equal(loaded(x), network(x))
    assert not torch.equal(network(x), floats(x))
    for layer in (loaded[0], loaded[2]):
        assert layer.widths == widths and layer.weight.dtype == torch.int8
        assert (layer.input_scale is None) == (inputs != "learned")


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_a_symmetric_grid_costs_a_bit(bits: int) -> None:
    """Where no input is negative: one bit more gives it the steps of the asymmetric one."""
    torch.manual_seed(0)
    linear, x = nn.Linear(8, 3), torch.rand(16, 8)

    def outputs(input_bits: int, inputs: str) -> torch.Tensor:
        return QuantLinear(linear, x, Widths(8, input_bits, None, inputs))(x)

    assert torch.equal(outputs(bits + 1, "symmetric"), outputs(bits, "asymmetric"))
    assert not torch.equal(outputs(bits, "symmetric"), outputs(bits, "asymmetric"))


def test_each_image_has_its_own_range() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(8, 3), torch.rand(16, 8)
    for inputs, alone in (("learned", False), ("symmetric", True), ("asymmetric", True)):
        layer = QuantLinear(linear, x, Widths(8, 4, None, inputs))
        bright = torch.cat([x[:1], 100 * x[1:]])
        far = QuantLinear(linear, bright, Widths(8, 4, None, inputs))
        assert torch.equal(layer(x)[0], far(bright)[0]) is alone


@pytest.fixture
def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 17), nn.ReLU(), nn.Linear(17, 3))


def test_deployed_integers_give_the_logits_of_training(
    perceptron: nn.Sequential, tmp_path: Path
) -> None:
    """After steps of training, in every batch, and against the op itself."""
    x = torch.rand(16, 9)
    network = int8_layers.trainable(perceptron)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    before = network(x).detach()
    for _ in range(3):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()
    expected = network(x).detach()
    assert expected.square().sum() < before.square().sum() / 2
    int8_layers.save(network, tmp_path / "network.safetensors")
    loaded = int8_layers.load(tmp_path / "network.safetensors")
    assert torch.equal(loaded(x), expected)
    for i in range(len(x)):
        assert torch.equal(loaded(x[i : i + 1]), expected[i : i + 1])
    assert not torch.equal(expected, nn.Sequential(*_float_twins(network))(x))
    assert {name for name, _ in loaded.named_buffers()} == set(loaded.state_dict())
    assert not list(loaded.parameters())
    for layer in (loaded[0], loaded[2]):
        assert layer.weight.dtype == torch.int8 and layer.weight_scale.dtype == torch.float32


def _float_twins(network: nn.Sequential) -> Iterator[nn.Module]:
    """The same weights, without any quantization."""
    for layer in network:
        if not isinstance(layer, nn.Linear):
            yield layer
            continue
        twin = nn.Linear(layer.in_features, layer.out_features)
        twin.load_state_dict(layer.state_dict())
        yield twin


def test_a_float_network_is_quantized_after_training(
    perceptron: nn.Sequential, tmp_path: Path
) -> None:
    x = torch.rand(16, 9)
    int8_layers.save(perceptron, tmp_path / "network.safetensors")
    y = int8_layers.load(tmp_path / "network.safetensors")(x)
    assert torch.equal(y, int8_layers.trainable(perceptron)(x))
    assert 0 < (y - perceptron(x)).abs().max() < 0.02


def test_latencies_take_turns() -> None:
    order = []

    class Layer(nn.Module):
        def __init__(self, name: str, seconds: float) -> None:
            super().__init__()
            self.name, self.seconds = name, seconds

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            order.append(self.name)
            time.sleep(self.seconds)
            return x

    networks = {"a": Layer("a", 0.002), "b": Layer("b", 0.01)}
    seconds = qat_deploy.latencies(networks, torch.zeros(1, 4))
    assert 0.002 <= seconds["a"] < 0.01 <= seconds["b"]
    assert order == ["a", "a", "b", "b"] * (len(order) // 4)


def test_deployment_follows_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    def deployment(seed: int, qat: float, seconds: float) -> Deployment:
        accuracy = {"float": 98.0, "ptq": 97.0, "qat": qat}
        times = {"float": 2e-3, "ptq": 1e-3, "qat": seconds}
        sizes = {"float": 400, "ptq": 100, "qat": 100}
        return Deployment(seed, accuracy, sizes, times, times, 540, logits_equal=seed != 2)

    seeds = [deployment(0, 97.5, 1e-3), deployment(1, 98.5, 4e-4), deployment(2, 98, 5e-4)]
    assert qat_deploy.conclude_deployments(seeds) == (
        "Deployed on integer products, the wide network recognizes 98.0 % (float32: 98.0 %), in "
        "1/4.0 of the bytes and 0.25 of the time for 540 images; the logits of 2 of 3 networks "
        "are bit for bit those of training."
    )
    qat_deploy.print_deployments(seeds, Console(width=100))
    table = " ".join(capsys.readouterr().out.split())
    assert "float32 98.0 ± 0.0 400 2,000 2,000 1.0x" in table
    assert "int8, QAT 98.0 ± 0.5 100 500 500 4.0x" in table


def test_options_choose_what_is_trained() -> None:
    main, compared = qat_digits.plan(qat_digits.parse_args([]))
    assert len(main) == 16 and len(compared) == 12 and len({*main, *compared}) == 26
    assert {widths.inputs for widths in main} == {"learned"}
    main, compared = qat_digits.plan(qat_digits.parse_args(["--inputs", "asymmetric"]))
    assert len(main) == 16 and compared == []
    assert {widths.inputs for widths in main} == {"asymmetric"}
    both = ["--quick", "--inputs", "symmetric", "asymmetric", "symmetric"]
    main, compared = qat_digits.plan(qat_digits.parse_args(both))
    assert len(main) == 8 and len(compared) == 4
    assert [widths.inputs for widths in compared] == ["symmetric", "asymmetric"] * 2
    with pytest.raises(SystemExit):
        qat_digits.parse_args(["--inputs", "static"])


@pytest.mark.slow
def test_one_scheme_makes_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--seeds", "1", "--epochs", "1", "--float-epochs", "1"]
    threads = torch.get_num_threads()
    try:
        qat_digits.main(["--quick", *budget, "--inputs", "symmetric", "--out", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    text = " ".join(capsys.readouterr().out.split())
    assert "8 of 8 networks give bit for bit" in text
    assert text.count("Digits: test accuracy") == 1 and "By the scale" not in text
    assert json.loads((tmp_path / "qat_digits.json").read_text())["conclusion"] in text
    assert (tmp_path / "qat_digits.png").exists()


def summary(
    bits: int, qat: float, ptq: float, input_bits: int = 8, inputs: str = "learned"
) -> Summary:
    accuracy = {"float": (97.0, 0.0), "qat": (qat, 0.0), "ptq": (ptq, 0.0), "ptq_max": (50.0, 0.0)}
    return Summary(Widths(bits, input_bits, None, inputs), accuracy, 100)


def test_conclusion_follows_the_numbers() -> None:
    kept = qat_report.conclude([summary(4, 97, 96.5), summary(3, 96.2, 90), summary(2, 80, 40)])
    assert "down to 3-bit weights" in kept
    assert "keeps it down to 4-bit weights" in kept
    assert "At no width" in qat_report.conclude([summary(4, 90, 90)])
    assert qat_report.conclude([summary(4, 97, 90)]).endswith("keeps it at no width.")
    assert qat_report.conclude([summary(4, 97, 97)]).endswith("keeps it there too.")


def test_comparison_follows_the_numbers() -> None:
    def scheme(inputs: str, *qat: float) -> list[Summary]:
        return [summary(4, a, 0, b, inputs) for a, b in zip(qat, (8, 4, 2), strict=True)]

    lists = [scheme("learned", 97, 96.5, 95), scheme("symmetric", 90, 90, 90)]
    lists += [scheme("asymmetric", 97, 97, 96.25)]
    assert qat_report.compare([s for own in lists for s in own]) == (
        "With 4-bit weights, training keeps it down to 4-bit inputs with learned scales (96.5 %), "
        "at no width with symmetric ones for each image and down to 2-bit inputs with asymmetric "
        "ones for each image (96.2 %)."
    )
    assert qat_report.compare([]) == ""
