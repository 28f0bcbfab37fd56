# SPDX-License-Identifier: BSD-3-Clause
"""The modules and the workflow of C++: Python's bits, Python's state dicts, Python's errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import QuantConfig
from tests.support.libtorch import STRICT, build_program, run_program
from tests.support.processes import MadeOnce

pytestmark = [pytest.mark.process, pytest.mark.smoke]
Printed = dict[str, list[list[str]]]  # on each device, as fields of lines


class Made:
    """A configuration or options as C++ spells them: a call of a method sets that field."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, **fields: Any) -> None:
        self.make, self.arguments, self.fields = make, arguments, fields

    def __getattr__(self, name: str) -> Callable[..., Made]:
        def set_field(*values: Any) -> Made:
            fields = dict(zip((name, "rounding"), values, strict=False))  # check() sets none
            return Made(self.make, *self.arguments, **self.fields, **fields)

        return set_field

    def made(self) -> Any:
        fields = {name: made(value) for name, value in self.fields.items()}
        return self.make(*map(made, self.arguments), **fields)


def made(value: Any) -> Any:
    return value.made() if isinstance(value, Made) else value


def few_bits(scheme: str, *given: Any, **fields: Any) -> QuantConfig:
    """W4A8 and its like with the arguments of C++, which all have positions."""
    names = ("group_size", "symmetric", "scale_rule", "group_factors", "learned")
    made: QuantConfig = getattr(baraquant, scheme)(
        **dict(zip(names, given, strict=False)), **fields
    )
    return made


def as_python(text: str) -> str:
    """An expression of C++ as one of Python."""
    text = re.sub(r"\b(?:baraquant|std)::", "", text).replace("->", ".")
    words = {"true": "True", "false": "False", "nullopt": "None"}
    text = re.sub(r"\b(?:true|false|nullopt)\b", lambda match: words[match[0]], text)
    return re.sub(r"{([\d, ]+)}", r"[\1]", text)


def names_of_the_header() -> tuple[dict[str, Any], dict[str, str]]:
    """What an expression may name, with the functions of module_configs.h; its configurations."""
    text = Path(__file__).with_name("module_configs.h").read_text().partition("namespace {")[2]
    presets = (
        "QuantConfig",
        "TensorConfig",
        "W8A8",
        "W8A8Static",
        "W8A16",
        "W4A16",
        "W3A16",
        "W2A16",
    )
    names: dict[str, Any] = {name: getattr(baraquant, name) for name in baraquant.__all__}
    names |= {name: partial(Made, names[name]) for name in presets}
    for scheme in ("W4A8", "W3A8", "W2A8"):
        names[scheme] = partial(Made, partial(few_bits, scheme))
    function = r"^TensorConfig (\w+)\((.*?)\) {\s+return (.*?);"
    for name, given, result in re.findall(function, text, re.M | re.S):
        parameters = [one.rpartition(" ")[2] for one in given.split(" = ")[0].split(", ")]
        default = "=True" * given.endswith(" = true")
        source = f"lambda {', '.join(parameters)}{default}: ({as_python(result)})"
        names[name] = eval(source, names)
    return names, dict(re.findall(r'^    {"(\w+)",\s+(.*?)},$', text, re.M | re.S))


NAMES, FOUND = names_of_the_header()
CONFIGS = {name: eval(f"({as_python(one)})", NAMES).made() for name, one in FOUND.items()}
MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "mlp": lambda: [nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8)],
    "text": lambda: [nn.Embedding(20, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 8)],
    "conv": lambda: [
        *(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()),
        nn.Conv2d(8, 8, 3, stride=2, groups=2, padding=1, padding_mode="reflect"),
        nn.Conv2d(8, 8, (2, 3), padding="same", dilation=2, bias=False),
        *(nn.Flatten(), nn.Linear(8 * 4 * 4, 8)),
    ],
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
    network = nn.Sequential(*MODELS[model]()).to(device, getattr(torch, dtype))
    inputs = {f"input{i}": INPUTS[model]().to(device) for i in range(3)}
    for name, value in inputs.items():
        if value.is_floating_point():
            inputs[name] = value.to(getattr(torch, dtype))
    return network, inputs


@pytest.fixture(scope="module")
def folder(made_once: MadeOnce) -> Path:
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
def printed(folder: Path) -> Printed:
    texts = {device: (folder / device / "printed").read_text() for device in DEVICES}
    return {key: [line.split("\t") for line in text.splitlines()] for key, text in texts.items()}


def states(model: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor.clone() for name, tensor in model.state_dict().items()}


def gradient(name: str, model: nn.Module, input: Tensor) -> dict[str, Tensor]:
    if not input.is_floating_point():
        return {}
    leaf = input.clone().requires_grad_()
    model(leaf).square().sum().backward()
    assert leaf.grad is not None
    return {f"gradient of {name}": leaf.grad}


def trained(
    model: nn.Sequential, inputs: dict[str, Tensor], config: QuantConfig
) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    """What the program does in training, in Python."""
    is_calibrated = config.observer in ("percentile", "mse")
    data = [inputs["input1"], inputs["input2"]] if is_calibrated else None
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
    results |= gradient("prepared", model, inputs["input0"])
    reports["converted"] = baraquant.qat.convert_(model).changed
    results["converted"] = results["cloned again"] = model(inputs["input0"])
    results |= gradient("converted", model, inputs["input0"])
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


def exhaustive(device: str, model: str, config: str, dtype: str) -> list[pytest.MarkDecorator]:
    return [] if (model, dtype) == ("mlp", "float32") else [pytest.mark.exhaustive]


@pytest.mark.parametrize(
    ("device", "model", "config", "dtype"),
    [pytest.param(*case, marks=exhaustive(*case)) for case in CASES],
)
def test_the_bits_and_the_state_dicts_are_pythons(
    device: str, model: str, config: str, dtype: str, folder: Path, printed: Printed
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


@pytest.mark.parametrize("device", DEVICES)
def test_the_output_follows_every_change_of_the_tensors(device: str, printed: Printed) -> None:
    """Sums, panels and what else a layer derives from its integers: copied into, or replaced."""
    lines = [line[1:] for line in printed[device] if line[0] == "replaced"]
    assert len(lines) == 4 * sum(case[0] == device for case in CASES)
    assert [line for line in lines if line[-1] != "1"] == []


def filled(features: int, value: float) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(features, features))
    nn.init.constant_(model[0].weight, value)
    return model


def of_options(make: Callable[..., Any]) -> Callable[..., Any]:
    """A module of C++, which takes its arguments as an object, of the module of Python."""
    none = Made(make)
    return lambda given=none, *_: Made(make, *given.arguments, **given.fields).made()


def names_of_wrong_calls() -> dict[str, Any]:
    names = {name: of_options(getattr(baraquant.nn, name)) for name in baraquant.nn.__all__}
    with_options = (*names, "Dequantized", "Embedding", "Conv2d")
    names |= {f"{name}Options": partial(Made, None) for name in with_options}
    names |= NAMES | {"Given": names["FakeQuantizeOptions"]}
    names["Packed"] = lambda *given: Made(None, *given[:2], in_features=given[2])
    names["Factors"] = lambda size, shape: Made(None, size, shape=shape)
    for call in (baraquant.quantize_, baraquant.qat.prepare_, baraquant.qat.convert_):
        names[call.__name__] = lambda *given, call=call: call(*map(made, given))
    names |= {"ones": torch.ones, "kInt": torch.int32, "kHalf": torch.float16}
    names |= {"SCALE": torch.ones(3), "INT8": torch.ones(3, 4, dtype=torch.int8)}
    names |= {"BYTES": torch.ones(3, 2, dtype=torch.uint8), "RELU": nn.Sequential(nn.ReLU())}
    names |= {"LINEAR": filled(4, 0.5), "LARGE": filled(2, 1e8), "BROKEN": filled(2, float("nan"))}
    names["PREPARED"] = filled(4, 0.5)
    baraquant.qat.prepare_(names["PREPARED"], baraquant.W8A8Static())
    unknown = baraquant.nn.LearnedFakeQuantizeInt4(2, shape=[2, 2])
    return names | {"UNKNOWN": unknown.eval()}


def test_the_errors_have_pythons_type_and_text(printed: Printed) -> None:
    wrong = [line[1:] for line in printed["cpu"] if line[0] == "error"]
    assert len(wrong) >= 65
    names = names_of_wrong_calls()
    for call, *got in wrong:
        with pytest.raises(Exception) as caught:
            made(eval(as_python(call), names))
        assert got == [type(caught.value).__name__, str(caught.value)], call


def test_what_cpp_alone_has(printed: Printed) -> None:
    checks = {line[1]: line[2] for line in printed["cpu"] if line[0] == "check"}
    assert len(checks) >= 10 + 3 * len(CONFIGS)
    assert set(checks.values()) == {"right"}, checks
