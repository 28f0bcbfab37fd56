# SPDX-License-Identifier: BSD-3-Clause
"""The modules and the workflow of C++: Python's bits, Python's state dicts, Python's errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import PerChannel, PerGroup, PerTensor, PerToken, QuantConfig, TensorConfig
from tests.support.libtorch import STRICT, build_program, run_program

pytestmark = [pytest.mark.process, pytest.mark.smoke]


def activation(symmetric: bool = True) -> TensorConfig:
    return TensorConfig(8, PerTensor(), symmetric, dynamic=False)


def learned(bits: int, granularity: Any, symmetric: bool) -> TensorConfig:
    return TensorConfig(bits, granularity, symmetric, learned=True)


def factors(size: int, symmetric: bool) -> TensorConfig:
    return TensorConfig(4, PerGroup(size), symmetric, group_factors=True)


CONFIGS = {
    "w8a8": baraquant.W8A8(),
    "w8a8_asymmetric": baraquant.W8A8(False),
    "static": baraquant.W8A8Static(),
    "static_average": baraquant.W8A8Static("moving_average", False),
    "static_percentile": baraquant.W8A8Static("percentile"),
    "static_mse": baraquant.W8A8Static("mse", False),
    "w8a16": baraquant.W8A16(),
    "w4a16": baraquant.W4A16(4),
    "w4a16_asymmetric": baraquant.W4A16(4, False),
    "w4a8": baraquant.W4A8(None),
    "w4a8_groups": baraquant.W4A8(4, True, "max", group_factors=False),
    "factors": baraquant.W4A8(4, group_factors=True),
    "factors_max": baraquant.W4A8(8, False, "max", group_factors=True, backward="int8"),
    "factors_rotated": baraquant.W4A8(4, False, group_factors=True, rotate=8),
    "factors_static": QuantConfig(factors(4, True), activation(False), "moving_average"),
    "factors_per_tensor": QuantConfig(factors(2, False), TensorConfig(7, PerTensor())),
    "factors_learned": baraquant.W4A8(4, learned=True),
    "factors_learned_max": baraquant.W4A8(8, False, "max", learned=True, backward="int8"),
    "factors_learned_rotated": baraquant.W4A8(2, False, learned=True, rotate=8),
    "factors_learned_static": QuantConfig(
        replace(factors(4, False), dynamic=None, learned=True), learned(8, PerTensor(), False)
    ),
    "per_tensor": QuantConfig(TensorConfig(6, PerTensor()), TensorConfig(7, PerTensor())),
    "groups_of_inputs": QuantConfig(TensorConfig(8), TensorConfig(8, PerGroup(4))),
    "learned": QuantConfig(learned(4, PerChannel(), True), learned(8, PerTensor(), True)),
    "learned_asymmetric": QuantConfig(
        learned(4, PerGroup(4), False), learned(8, PerTensor(), False)
    ),
    "observed_weights": QuantConfig(TensorConfig(4, PerGroup(4), dynamic=False), activation(False)),
    "bfloat16_w8a8": baraquant.W8A8(scale_dtype="bfloat16"),
    "bfloat16_search": baraquant.W4A16(4, scale_dtype="bfloat16"),
    "float16_search": baraquant.W4A16(4, False, scale_dtype="float16"),
    "float16_max": baraquant.W4A8(None, False, "max", scale_dtype="float16"),
    "bfloat16_tensor": QuantConfig(
        TensorConfig(6, PerTensor(), symmetric=False), scale_dtype="bfloat16"
    ),
    "bfloat16_learned": QuantConfig(learned(4, PerChannel(), True), scale_dtype="bfloat16"),
    "float16_learned": QuantConfig(learned(4, PerGroup(4), False), scale_dtype="float16"),
    "bfloat16_observed": QuantConfig(
        TensorConfig(4, PerGroup(4), symmetric=False, dynamic=False), scale_dtype="bfloat16"
    ),
    "float16_observed": QuantConfig(TensorConfig(8, dynamic=False), scale_dtype="float16"),
    "conv_inputs": baraquant.W8A8Static(symmetric=False, scale_dtype="float16", conv_inputs=True),
    "conv_inputs_dynamic": QuantConfig(
        TensorConfig(8), TensorConfig(8, PerTensor(), symmetric=False), conv_inputs=True
    ),
    "conv_inputs_learned": QuantConfig(
        TensorConfig(8), learned(8, PerTensor(), False), conv_inputs=True
    ),
    "conv_inputs_off": baraquant.W8A8Static(conv_inputs=False),
    "int8_backward": baraquant.W8A8(backward="int8"),
    "int8_backward_asymmetric": baraquant.W8A8(False, backward="int8"),
    "int8_input_backward": baraquant.W4A8(None, backward="int8_input"),
    "rotated": baraquant.W8A8(rotate=8),
    "rotated_asymmetric": baraquant.W8A8(False, rotate=256),
    "rotated_static": baraquant.W8A8Static("moving_average", False, rotate=4),
    "rotated_mse": baraquant.W8A8Static("mse", rotate=64),
    "rotated_groups": baraquant.W4A16(4, False, rotate=8),
    "rotated_search": baraquant.W4A8(None, rotate=8),
    "rotated_groups_of_inputs": QuantConfig(
        TensorConfig(8), TensorConfig(8, PerGroup(4)), rotate=16
    ),
    "rotated_per_tensor": QuantConfig(
        TensorConfig(6, PerTensor()), TensorConfig(7, PerTensor()), rotate=16
    ),
    "rotated_learned": QuantConfig(
        learned(4, PerGroup(4), False), learned(8, PerTensor(), False), rotate=8
    ),
    "rotated_observed": QuantConfig(
        TensorConfig(4, PerGroup(4), dynamic=False), activation(False), rotate=8
    ),
    "rotated_backward": baraquant.W8A8(backward="int8", rotate=4),
    "master": baraquant.W8A8(master="bfloat16"),
    "master_static": baraquant.W8A8Static(symmetric=False, master="float16", rotate=4),
    "master_search": baraquant.W4A16(4, False, master="bfloat16"),
    "master_factors": baraquant.W4A8(4, master="bfloat16"),
    "master_learned": QuantConfig(
        learned(4, PerGroup(4), False), learned(8, PerTensor(), False), master="float16"
    ),
    "master_factors_learned": baraquant.W4A8(4, False, "max", learned=True, master="bfloat16"),
}
MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8)),
    "text": lambda: nn.Sequential(
        nn.Embedding(20, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 8)
    ),
    "conv": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2, padding=1, padding_mode="reflect"),
        nn.Conv2d(8, 8, (2, 3), padding="same", dilation=2, bias=False),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 8),
    ),
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "mlp": lambda: torch.randn(5, 16),
    "text": lambda: torch.randint(0, 20, (3, 7)),
    "conv": lambda: torch.randn(2, 4, 8, 8),
}
# Every configuration with every model in float32, and with one model in the other dtypes. On CUDA
# PyTorch's convolutions may take another algorithm in each process.
CASES = [
    *(("cpu", model, config, "float32") for model, config in itertools.product(MODELS, CONFIGS)),
    *(("cpu", "mlp", config, dtype) for config in CONFIGS for dtype in ("bfloat16", "float64")),
    *(("cuda", model, config, "float32") for model in ("mlp", "text") for config in CONFIGS),
]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CASES = [case for case in CASES if case[0] in DEVICES]


def given(device: str, model: str, dtype: str) -> tuple[nn.Sequential, dict[str, Tensor]]:
    """The float model of a case, and its inputs."""
    torch.manual_seed(len(model))
    network = MODELS[model]().to(device, getattr(torch, dtype))
    inputs = {f"input{i}": INPUTS[model]().to(device) for i in range(3)}
    for name, value in inputs.items():
        if value.is_floating_point():
            inputs[name] = value.to(getattr(torch, dtype))
    return network, inputs


@pytest.fixture(scope="module")
def folder(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The results of the program for every case, and what it printed."""

    def build(folder: Path) -> None:
        source = Path(__file__).with_name("modules.cpp")
        build_program(source, folder / "modules", *STRICT)
        for device, model, config, dtype in CASES:
            network, inputs = given("cpu", model, dtype)
            (folder / device).mkdir(exist_ok=True)
            tensors = dict(network.state_dict()) | inputs
            torch.save(tensors, folder / device / f"{model}.{config}.{dtype}.in")
        for device in DEVICES:
            printed = run_program(folder / "modules", folder / device, device)
            (folder / device / "printed").write_text(printed)

    return made_once("cpp_modules", build)


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, list[list[str]]]:
    """What it printed on each device, as fields of lines."""
    texts = {device: (folder / device / "printed").read_text() for device in DEVICES}
    return {key: [line.split("\t") for line in text.splitlines()] for key, text in texts.items()}


def states(model: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor.clone() for name, tensor in model.state_dict().items()}


def gradient(model: nn.Module, input: Tensor) -> dict[str, Tensor]:
    if not input.is_floating_point():
        return {}
    leaf = input.clone().requires_grad_()
    model(leaf).square().sum().backward()
    assert leaf.grad is not None
    return {"": leaf.grad}


def trained(
    model: nn.Sequential, inputs: dict[str, Tensor], config: QuantConfig
) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    """What the program does in training, in Python."""
    data = (
        [inputs["input1"], inputs["input2"]] if config.observer in ("percentile", "mse") else None
    )
    prepared = baraquant.qat.prepare_(model, config, calibration=data, progress=False)
    reports = {"prepared": prepared.changed}
    results = states(model, "prepared.")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(3):
        optimizer.zero_grad()
        output = model(inputs[f"input{step}"])
        results[f"output{step}"] = output
        output.square().mean().backward()
        optimizer.step()
    model.eval()
    results["evaluated"] = results["cloned"] = model(inputs["input0"])
    results |= states(model, "trained.")
    for value in gradient(model, inputs["input0"]).values():
        results["gradient of prepared"] = value
    reports["converted"] = baraquant.qat.convert_(model).changed
    results["converted"] = results["cloned again"] = model(inputs["input0"])
    for value in gradient(model, inputs["input0"]).values():
        results["gradient of converted"] = value
    results |= states(model, "converted.")
    if results["evaluated"].dtype == torch.float32:
        input = inputs["input0"]
        model.to(torch.bfloat16)
        results["in bfloat16"] = model(input.bfloat16() if input.is_floating_point() else input)
    return results, reports


def quantized(
    model: nn.Sequential, inputs: dict[str, Tensor], config: QuantConfig
) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    """What the program does without training, in Python."""
    data = [inputs["input1"], inputs["input2"]]
    report = baraquant.quantize_(model, config, calibration=data, progress=False)
    model.eval()
    results = {"quantized": model(inputs["input0"])} | states(model, "quantized.")
    return results, {"quantized": report.changed}


@pytest.mark.parametrize(
    ("device", "model", "config", "dtype"),
    [
        pytest.param(
            *case, marks=[] if case[1::2] == ("mlp", "float32") else pytest.mark.exhaustive
        )
        for case in CASES
    ],
)
def test_the_bits_and_the_state_dicts_are_pythons(
    device: str,
    model: str,
    config: str,
    dtype: str,
    folder: Path,
    printed: dict[str, list[list[str]]],
) -> None:
    name = f"{model}.{config}.{dtype}"
    # Our own program has written it, with the types of a dictionary of LibTorch.
    got = torch.load(folder / device / f"{name}.out", weights_only=False)
    wanted: dict[str, Tensor] = {}
    reports: dict[str, dict[str, str]] = {}
    for steps in (trained, quantized):
        network, inputs = given(device, model, dtype)
        results, report = steps(network, inputs, CONFIGS[config])
        wanted |= results
        reports |= report
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert got[key].dtype == value.dtype, key
        assert torch.equal(got[key].nan_to_num(7.0), value.detach().nan_to_num(7.0)), key
    lines = [line[2:] for line in printed[device] if line[:2] == ["report", name]]
    for what, changed in reports.items():
        assert {path: text for kind, path, text in lines if kind == what} == changed


def errors() -> dict[str, Callable[[], Any]]:
    """The wrong calls of the program, in Python."""
    fake, bnn = baraquant.nn.FakeQuantize, baraquant.nn
    int8, scale = torch.ones(3, 4, dtype=torch.int8), torch.ones(3)
    packed, bytes_ = bnn.WeightOnlyInt4Linear, torch.ones(3, 2, dtype=torch.uint8)
    relu, linear = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Linear(4, 4))
    broken, unseen = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(4, 4))
    nn.init.constant_(broken[0].weight, float("nan"))
    large = nn.Sequential(nn.Linear(2, 2))
    nn.init.constant_(large[0].weight, 1e8)
    baraquant.qat.prepare_(unseen, baraquant.W8A8Static())
    return {
        "mode": lambda: fake(mode="running"),
        "no scale": lambda: fake(),
        "number": lambda: fake(-0.5),
        "granularity": lambda: fake(mode="dynamic", granularity="per_row"),
        "no axis": lambda: fake(mode="dynamic", granularity="per_channel"),
        "scale dtype": lambda: fake(int8),
        "zero point": lambda: fake(0.5, torch.ones(2, dtype=torch.int32)),
        "observed": lambda: fake(mode="observed", granularity="per_token"),
        "average": lambda: fake(mode="observed", averaging_constant=1.5),
        "learned": lambda: bnn.LearnedFakeQuantize(quant_min=-8, quant_max=0),
        "not initialized": lambda: bnn.LearnedFakeQuantize().round(torch.ones(2)),
        "no qparams": lambda: fake(mode="dynamic").calculate_qparams(),
        "no observer": lambda: fake(0.5).enable_observer(),
        "groups": lambda: bnn.FakeQuantizedLinear(6, 4, config=baraquant.W4A16(4)),
        "depth": lambda: bnn.FakeQuantizedLinear(131072, 1),
        "max_norm": lambda: bnn.FakeQuantizedEmbedding(4, 4, max_norm=1.5),
        "weight dtype": lambda: bnn.QuantizedLinear(int8.int(), scale),
        "scale shape": lambda: bnn.QuantizedLinear(int8, torch.ones(4)),
        "bits": lambda: bnn.QuantizedLinear(int8, scale, bits=9),
        "static scale": lambda: bnn.StaticQuantizedLinear(int8, scale, torch.ones(2)),
        "groups of integers": lambda: bnn.WeightOnlyLinear(int8, scale, group_size=2),
        "packed dtype": lambda: packed(int8, scale, in_features=7),
        "packed shape": lambda: packed(bytes_, scale, in_features=5),
        "packed features": lambda: packed(bytes_, scale, in_features=-1),
        "packed bits": lambda: packed(bytes_, scale, in_features=4, weight_bits=5),
        "packed groups": lambda: packed(bytes_, scale, in_features=4, group_size=2),
        "packed zero point": lambda: packed(
            bytes_, scale, in_features=4, weight_zero_point=torch.ones(2, dtype=torch.int32)
        ),
        "packed bias": lambda: packed(bytes_, scale, torch.ones(2), in_features=4),
        "dimensions": lambda: bnn.QuantizedConv2d(int8, scale),
        "config bits": lambda: QuantConfig(TensorConfig(9)),
        "config token": lambda: QuantConfig(TensorConfig(8, PerToken())),
        "config learned": lambda: TensorConfig(learned=True, dynamic=True),
        "config observer": lambda: baraquant.W8A8Static("median"),
        "config scale dtype": lambda: baraquant.W8A8(scale_dtype="half"),
        "config backward": lambda: baraquant.W8A8(backward="int4"),
        "config rounding": lambda: baraquant.W8A8(backward="int8", rounding="up"),
        "config float rounding": lambda: baraquant.W8A8(rounding="stochastic"),
        "config float products": lambda: replace(baraquant.W8A8Static(), backward="int8"),
        "config rounded scales": lambda: baraquant.W8A8(
            backward="int8_input", scale_dtype="bfloat16"
        ),
        "config rotate": lambda: baraquant.W8A8(rotate=12),
        "block": lambda: bnn.QuantizedLinear(int8, scale, rotate=8),
        "block of groups": lambda: bnn.WeightOnlyLinear(int8, scale, rotate=3),
        "rotated and smooth": lambda: bnn.QuantizedLinear(
            int8, scale, smooth=torch.ones(4), rotate=4
        ),
        "config conv inputs": lambda: QuantConfig(
            TensorConfig(8), TensorConfig(8, PerToken()), conv_inputs=True
        ),
        "config conv floats": lambda: QuantConfig(TensorConfig(8), conv_inputs=True),
        "quantizer scale dtype": lambda: fake(0.5, scale_dtype="float64"),
        "learned scale dtype": lambda: bnn.LearnedFakeQuantize(scale_dtype="float64"),
        "learned factors of odd groups": lambda: bnn.LearnedFakeQuantizeInt4(3, shape=[2, 2]),
        "learned factors shape": lambda: bnn.LearnedFakeQuantizeInt4(2, shape=[2]),
        "learned factors rule": lambda: bnn.LearnedFakeQuantizeInt4(
            2, shape=[2, 2], scale_rule="mean"
        ),
        "learned factors dtype": lambda: bnn.LearnedFakeQuantizeInt4(
            2, shape=[2, 2], dtype=torch.float16
        ),
        "learned factors of a weight": lambda: bnn.LearnedFakeQuantizeInt4(
            2, shape=[2, 2]
        ).initialize(torch.ones(2, 6)),
        "learned factors not known": lambda: (
            bnn.LearnedFakeQuantizeInt4(2, shape=[2, 2]).eval().round(torch.ones(2, 4))
        ),
        "config observed factors": lambda: TensorConfig(
            4, PerGroup(8), dynamic=False, group_factors=True
        ),
        "config learned factors": lambda: baraquant.W4A8(None, learned=True, group_factors=True),
        "large scale": lambda: baraquant.quantize_(large, baraquant.W8A8(scale_dtype="float16")),
        "nothing": lambda: baraquant.qat.prepare_(relu, baraquant.W8A8()),
        "not prepared": lambda: baraquant.qat.convert_(relu),
        "no calibration": lambda: baraquant.quantize_(linear, baraquant.W8A8Static()),
        "no data for mse": lambda: baraquant.qat.prepare_(linear, baraquant.W8A8Static("mse")),
        "misfit": lambda: baraquant.qat.prepare_(linear, baraquant.W4A16(3)),
        "not finite": lambda: baraquant.quantize_(broken, baraquant.W8A8()),
        "unseen": lambda: baraquant.qat.convert_(unseen),
        "twice": lambda: baraquant.qat.prepare_(unseen, baraquant.W8A8()),
        "quantized when prepared": lambda: baraquant.quantize_(unseen, baraquant.W8A8()),
    }


@pytest.mark.parametrize("device", DEVICES)
def test_the_output_follows_every_change_of_the_tensors(
    device: str, printed: dict[str, list[list[str]]]
) -> None:
    """Sums, panels and what else a layer derives from its integers: copied into, or replaced."""
    lines = [line[1:] for line in printed[device] if line[0] == "replaced"]
    assert len(lines) == 3 * sum(case[0] == device for case in CASES)
    assert [line for line in lines if line[-1] != "1"] == []


def test_the_errors_have_pythons_type_and_text(printed: dict[str, list[list[str]]]) -> None:
    got = {line[1]: line[2:] for line in printed["cpu"] if line[0] == "error"}
    wrong = errors()
    assert got.keys() == wrong.keys() and len(wrong) >= 18
    for name, call in wrong.items():
        with pytest.raises(Exception) as caught:
            call()
        assert got[name] == [type(caught.value).__name__, str(caught.value)], name


def test_what_cpp_alone_has(printed: dict[str, list[list[str]]]) -> None:
    checks = {line[1]: line[2] for line in printed["cpu"] if line[0] == "check"}
    assert len(checks) >= 10
    assert set(checks.values()) == {"right"}, checks
