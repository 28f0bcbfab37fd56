# SPDX-License-Identifier: BSD-3-Clause
"""``sensitivity``: its errors are those of the layers that are served, and its choices fit."""

import copy
import json
import math
import struct
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import (
    AWQ,
    GPTQ,
    W2A8,
    W3A16,
    W4A8,
    W4A16,
    W8A8,
    Sensitivity,
    SmoothQuant,
    W8A8Static,
)
from baraquant.configs import QuantConfig, TensorConfig
from tests.support.models.outlier_models import Block, Tied, batches, seeded, tokens, unchanged
from tests.workflow.every_family import PARTS, TOKENS, EveryFamily

TWO = {"W4": W4A16(16), "W8": W8A8()}
CONFIGS = TWO | {"static": W8A8Static(), "W4A8": W4A8(None), "factors": W4A8(8, group_factors=True)}


def measured(model, configs=TWO, data=None, **kwargs):
    data = batches() if data is None else data
    return baraquant.sensitivity(model, configs, data, progress=False, **kwargs)


def data_bytes(path):
    content = path.read_bytes()
    return len(content) - 8 - struct.unpack("<Q", content[:8])[0]


@torch.no_grad()
def by_hand(model, path, config, data):
    """The error of one layer, made by quantize_ of that layer alone."""
    calls, other = [], copy.deepcopy(model)
    layer = model.get_submodule(path)
    handle = layer.register_forward_hook(lambda m, args, out: calls.append((args, out)))
    for batch in data:
        model(batch)
    handle.remove()
    baraquant.quantize_(other, {path: config}, calibration=data, progress=False)
    new = other.get_submodule(path)
    lost = sum((new(*args) - out).double().square().sum() for args, out in calls)
    return float(lost / sum(out.double().square().sum() for _, out in calls))


def test_errors_are_those_of_the_layers_that_are_served(device):
    model = seeded(Block).to(device)
    data = [batch.to(device) for batch in batches()]
    original = copy.deepcopy(model)
    report = measured(model, CONFIGS, data)
    assert unchanged(model, original)
    assert [layer.path for layer in report.layers] == ["query", "key", "out", "up", "down"]
    for layer in report.layers:
        assert list(layer.errors) == list(layer.bytes) == list(CONFIGS) and not layer.refused
        for name, error in layer.errors.items():
            assert error == pytest.approx(by_hand(model, layer.path, CONFIGS[name], data), rel=1e-5)


def test_every_kind_of_layer():
    model = seeded(EveryFamily).train()
    original = copy.deepcopy(model)
    report = measured(model, [W8A8(), W4A16(None)], [TOKENS])
    assert unchanged(model, original)
    assert {layer.path for layer in report.layers} == PARTS
    choice = report.choose(bits=8.5)
    baraquant.quantize_(copy.deepcopy(model), choice)
    baraquant.qat.prepare_(copy.deepcopy(model), choice)


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("build, data", [(Block, batches()), (Tied, tokens())], ids=["b", "t"])
def test_the_file_has_the_bytes_that_were_promised(build, data, floating, tmp_path):
    model = seeded(build)
    model.register_buffer("table", torch.arange(5.0), persistent=False)
    report = measured(model, CONFIGS, data)
    for bits in (8.0, 9.0, 10.0, 11.0, 20.0):
        choice = report.choose(bits=bits, floating=floating)
        assert choice.bits <= bits and choice.bound <= choice.error
        assert report.choose(choice.bytes, floating=floating) == choice
        quantized = copy.deepcopy(model)
        baraquant.quantize_(quantized, choice, calibration=data, progress=False)
        baraquant.save(quantized, tmp_path / "file")
        assert data_bytes(tmp_path / "file") == choice.bytes
        baraquant.qat.prepare_(copy.deepcopy(model), choice)


def test_shared_layers_and_tied_weights_get_one_configuration():
    report = measured(seeded(Tied), TWO, tokens())
    groups = {layer.path: layer.group for layer in report.layers}
    assert groups["embedding"] == groups["head"] and len(set(groups.values())) == 6
    rows = {layer.path: layer for layer in report.layers}
    assert rows["first.query"].paths == ("first.query", "second.query")
    assert rows["head"].parameters == 0 and rows["head"].float_bytes == 0
    choice = report.choose(bits=8.0)
    assert choice["first.up"] == choice["second.up"]
    assert choice["embedding"] == choice["head"]


class Partly(nn.Module):
    """It calls one layer, reads the weight of another, and has a third that nothing fits."""

    def __init__(self):
        super().__init__()
        self.called, self.read = nn.Linear(16, 16), nn.Linear(16, 16)
        self.odd = nn.Linear(16, 7)
        self.bilinear = nn.Bilinear(7, 7, 3)

    def forward(self, x):
        y = self.odd(self.called(x) @ self.read.weight)
        return self.bilinear(y, y)


def test_layers_that_are_not_measured_stay_floating(tmp_path):
    model = seeded(Partly)
    report = measured(model, [W4A16(16)], filter_fn=lambda module, name: name != "odd")
    assert report.left_out == {
        "read": "the calibration data does not reach it",
        "odd": "filter_fn",
        "bilinear": "there is no quantized form of Bilinear",
    }
    choice = report.choose(bits=16)
    assert choice == {"called": W4A16(16)}
    quantized = copy.deepcopy(model)
    assert list(baraquant.quantize_(quantized, choice).changed) == ["called"]
    baraquant.save(quantized, tmp_path / "file")
    assert data_bytes(tmp_path / "file") == choice.bytes
    assert "are ||y_q - y||^2 / ||y||^2; called makes 100 % of those of" in str(report)
    assert "left out: filter_fn" in str(report)


def test_what_a_configuration_does_not_fit():
    model = nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 16))
    report = measured(model, {"g16": W4A16(16), "W8": W8A8()})
    assert list(report.layers[0].errors) == ["g16", "W8"]
    assert list(report.layers[1].errors) == ["W8"]
    assert "16" in report.layers[1].refused["g16"]
    # The two together take what both take, and with groups alone the second one stays floating.
    both = measured(model, {"g16": W4A16(16), "W8": W8A8()}, together=[["*"], ["0", "1"]])
    assert set(both.choose(bits=12).values()) == {W8A8()}
    alone = measured(model, [W4A16(16)])
    assert list(alone.choose(bits=12)) == ["0"] and "does not fit" in alone.left_out["1"]
    with pytest.raises(ValueError, match=r"0: expected a layer .* no configuration fits all"):
        measured(model, [W4A16(16)], together=[["0", "1"]])


def test_together():
    model = nn.Sequential(seeded(Block), seeded(Block))
    report = measured(model, TWO, together=[["*.query", "*.key"]])
    groups = {layer.path: layer.group for layer in report.layers}
    assert groups["0.query"] == groups["0.key"] != groups["1.query"] == groups["1.key"]
    assert len(set(groups.values())) == 8
    for bits in (8.0, 9.0, 10.0, 11.0):
        choice = report.choose(bits=bits)
        assert all(choice[f"{n}.query"] == choice[f"{n}.key"] for n in (0, 1))


def test_a_layer_that_is_not_reached_follows_its_group():
    model = seeded(Partly)
    both = ["called", "read"]
    report = measured(model, TWO, filter_fn=lambda module, name: name in both, together=[both])
    assert report.layers[1].errors == {} and "unknown" in str(report)
    choice = report.choose(bits=30)
    assert choice == {"called": W8A8(), "read": W8A8()}
    baraquant.quantize_(model, choice)


def test_batches_with_a_nan():
    good, bad = batches(), batches()
    bad.insert(1, torch.full((2, 5, 16), math.nan))
    model = seeded(Block)
    with pytest.warns(UserWarning, match=r"^baraquant.sensitivity: inputs with a NaN"):
        report = measured(model, TWO, bad)
    assert report == measured(model, TWO, good)
    with pytest.raises(ValueError, match="sensitivity: query: expected finite calibration data"):
        measured(model, TWO, bad[1:2])


def test_a_configuration_whose_output_is_not_finite():
    model = nn.Sequential(nn.Linear(16, 1, bias=False)).to(torch.float16)
    model[0].weight.data.fill_(0.4)
    model[0].weight.data[0, 0] = 0.6
    data = [torch.full((1, 16), 9000.0, dtype=torch.float16)]
    coarse = QuantConfig(TensorConfig(2), scale_rule="max")
    report = measured(model, {"W2": coarse, "W8": baraquant.W8A16()}, data)
    (layer,) = report.layers
    assert layer.errors.keys() == {"W8"} and layer.refused == {"W2": "its output is not finite"}
    assert report.choose(bits=30) == {"0": baraquant.W8A16()}
    with pytest.raises(ValueError, match=r"0: expected a layer .* its output is not finite"):
        measured(model, {"W2": coarse}, data)


def test_an_output_of_zeros():
    zero = nn.Sequential(nn.Linear(16, 4, bias=False))
    nn.init.zeros_(zero[0].weight)
    assert measured(zero).layers[0].errors == {"W4": 0.0, "W8": 0.0}


def test_hooks_of_the_model_are_called_once_for_each_batch():
    calls = []
    model = seeded(Block)
    model.query.register_forward_pre_hook(lambda module, args: calls.append("in"))
    model.query.register_forward_hook(lambda module, args, out: calls.append("out") or 3 * out)
    report = measured(model)
    assert calls == ["in", "out"] * 3
    assert report.layers[0].errors == measured(seeded(Block)).layers[0].errors


def test_each_run_and_each_choice_is_the_same():
    model = seeded(Block)
    one, other = measured(model, CONFIGS), measured(model, CONFIGS)
    assert one == other and one.choose(bits=9) == other.choose(bits=9)
    assert Sensitivity.from_dict(json.loads(json.dumps(one.to_dict(), allow_nan=False))) == one
    with pytest.raises(ValueError, match="from_dict: expected a dictionary of to_dict"):
        Sensitivity.from_dict({"format": "baraquant.sensitivity", "version": 2})


LIES = {
    "other_bytes": [(-1, "expected other_bytes"), (1.0, "expected other_bytes")],
    "of": [([], "expected of to be str"), ("x", "expected of to be layer or output")],
    "configs": [([], "expected configs to be"), ({"a": {}}, "configs: a: QuantConfig: expected")],
    "left_out": [({"a": 1}, "expected left_out to be")],
    "layers": [({}, "expected layers"), ([{}], "layers: 0: expected path, paths, kind")],
    "more": [(1, "expected format, version, configs, layers, left_out, other_bytes, of, but")],
}
LIES_OF_LAYERS = {
    "errors": [
        *(({"a": error}, "expected errors to be") for error in (-1.0, math.nan, math.inf, None)),
        ({"b": 1.0}, "expected bytes, errors and refused of the configs"),
        ([], r"expected errors to be dict\[str, float\], but got \[\]"),
    ],
    "bytes": [({"a": -1}, "expected bytes to"), ({}, "bytes for each error")],
    "group": [(-1, "expected group to"), (True, "expected group to")],
    "parameters": [(2**63, "expected parameters to")],
    "path": [("x", "expected path to be one of its paths"), (3, "expected path to be")],
    "paths": [([], "expected path to be one of its paths"), ("x", "expected paths to be")],
}


def test_what_a_dictionary_is_refused_for():
    whole = measured(seeded(Block), {"a": W8A8()}).to_dict()
    one = {**whole["layers"][0]}
    cases = [(whole | {key: value}, text) for key, lies in LIES.items() for value, text in lies]
    cases += [
        (whole | {"layers": [one | {key: value}]}, f"layers: 0: .*{text}")
        for key, lies in LIES_OF_LAYERS.items()
        for value, text in lies
    ]
    for data, text in cases:
        with pytest.raises(ValueError, match=f"^baraquant.Sensitivity.from_dict: .*{text}"):
            Sensitivity.from_dict(data)


def test_names_of_a_list():
    wanted = {
        "W8A8": W8A8(),
        "W8A8 #2": W8A8(symmetric=False),
        "W8A8 static": W8A8Static(),
        "W4A16 g16": W4A16(16),
        "W4A16 g16 asymmetric rotate 16": W4A16(16, symmetric=False, rotate=16),
        "W3A16 g8": W3A16(8),
        "W2A8 g8 asymmetric factors": W2A8(8),
    }
    assert measured(seeded(Block), [*wanted.values()]).configs == wanted


def test_paths_with_wildcards():
    model = nn.ModuleDict({"a*": nn.Linear(16, 16), "a[b]": nn.Linear(16, 16)})
    report = measured(model, TWO, lambda net: [layer(torch.ones(1, 16)) for layer in net.values()])
    choice = report.choose(bits=30)
    assert list(choice) == ["a[*]", "a[[]b]"]
    assert list(baraquant.quantize_(model, choice).changed) == ["a*", "a[b]"]


def test_the_table_is_aligned():
    lines = str(measured(seeded(Block))).splitlines()
    assert len(lines) == 7 and len({len(line) for line in lines[:6]}) == 1
    assert lines[0].split() == ["layer", "kind", "weights", "float", "bytes", "W4", "W8"]
    choice = str(measured(seeded(Block)).choose(bits=9)).splitlines()
    assert len(choice) == 6 and "(the least)" in choice[-1]
    pytest.importorskip("rich")
    from rich.console import Console

    Console(quiet=True).print(measured(seeded(Block)))


def test_the_plot(tmp_path, monkeypatch):
    report = measured(seeded(Block))
    with pytest.raises(TypeError, match=r"plot: expected choice to be .* but got list"):
        report.plot(tmp_path / "a.png", [])
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match=r"Sensitivity.plot: .* pip install matplotlib"):
            report.plot(tmp_path / "a.png")
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "a.png")
    report.plot(tmp_path / "b.svg", report.choose(bits=9, floating=True))
    assert (tmp_path / "a.png").stat().st_size > 0
    assert "W4" in (tmp_path / "b.svg").read_text() or (tmp_path / "b.svg").stat().st_size > 0


def test_budgets():
    report = measured(seeded(Block))
    smallest = report.other_bytes + sum(layer.bytes["W4"] for layer in report.layers)
    message = rf"choose: expected budget_bytes to be at least {smallest}, of which"
    with pytest.raises(ValueError, match=message):
        report.choose(smallest - 1)
    choice = report.choose(smallest)
    assert set(choice.values()) == {W4A16(16)} and choice.bytes == smallest
    assert set(report.choose(10**9).values()) == {W8A8()}
    assert set(report.choose(10**9, floating=True).values()) == {None}
    with pytest.raises(ValueError, match=r"choose: expected bits to be at least (\S+), but") as e:
        report.choose(bits=2.5)
    least = float(str(e.value).split("at least ")[1].split(",")[0])
    assert report.choose(bits=least) == choice


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.attention = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2)
        self.head, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)
        self.lstm.weight_ih_l0.data[3, 3] = 60.0

    def forward(self, x: torch.Tensor, seen: list[int] | None = None) -> Any:
        if seen is not None:
            assert not seen  # a call that changes its inputs can be repeated
            seen.append(1)
        y = self.lstm(x)[0]
        return {"y": self.head(self.attention(y, y, y)[0] + y), "mask": x > 0}


def data() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 5, 8, generator=generator) for _ in range(2)]


@torch.no_grad()
@pytest.mark.parametrize("scheme", [W8A8(), W8A8Static(), W4A16(8)], ids=str)
def test_it_is_the_error_of_the_model_with_one_layer_quantized(scheme: Any) -> None:
    model = seeded(Gated)
    before = {name: id(module) for name, module in model.named_modules()}
    found = measured(model, {"q": scheme}, data(), of="output")
    assert {name: id(module) for name, module in model.named_modules()} == before
    assert all("forward" not in vars(module) for module in model.modules())
    assert found.left_out == {"unused": "the calibration data does not reach it"}
    wanted = [model(x)["y"] for x in data()]
    for layer in found.layers:
        quantized, pairs = copy.deepcopy(model), zip(data(), wanted, strict=True)
        baraquant.quantize_(quantized, {layer.path: scheme}, calibration=data(), progress=False)
        error = sum((quantized(x)["y"] - y).square().sum() for x, y in pairs)
        expected = float(error / sum(y.square().sum() for y in wanted))
        assert layer.errors["q"] == pytest.approx(expected, rel=1e-4, abs=1e-12), layer.path


def test_the_worst_comes_first_and_is_named() -> None:
    found = measured(seeded(Gated), [W8A8()], data(), of="output")
    errors = {layer.path: layer.errors["W8A8"] for layer in found.layers}
    path, share, name = found.worst() or ("", 0.0, "")
    assert path == max(errors, key=lambda one: errors[one]) == "lstm.cells.l0.ih"
    assert share == pytest.approx(errors[path] / sum(errors.values())) and name == "W8A8"
    assert found.rows()[1][0] == path
    assert f"of the model's output; {path} makes" in found.summary()
    assert found.choose(bits=40, floating=True).error <= sum(errors.values())
    assert baraquant.Sensitivity.from_dict(found.to_dict()) == found


def test_functions_and_calls_that_change_their_inputs() -> None:
    model, xs = seeded(Gated), data()
    by_list = measured(model, [W8A8()], xs, of="output")
    seen = [(x, []) for x in xs]
    call = lambda m: [m(x, seen=one) for x, one in seen]  # noqa: E731
    by_call = measured(model, [W8A8()], call, of="output")
    assert by_list.layers == by_call.layers and all(one == [1] for _, one in seen)


def run_a_part(model):
    model.up(torch.ones(1, 16))


CHOOSING, INFINITE = nn.Sequential(nn.Linear(16, 8), nn.Flatten()), seeded(Block)
CHOOSING.register_forward_hook(lambda module, args, output: output.argmax(-1))
nn.init.constant_(INFINITE.up.weight[:1, :1], math.inf)
GONE = {"configs": [W8A8Static()], "calibration": iter(batches())}


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        ({"of": "model"}, ValueError, "expected of to be 'layer' or 'output', but got 'model'"),
        ({"of": "output", "calibration": run_a_part}, ValueError, "to call the model itself"),
        ({"of": "output", "model": CHOOSING}, ValueError, "to return floating tensors"),
        ({"model": INFINITE}, ValueError, "up: expected a finite weight"),
        ({"configs": W8A8()}, TypeError, "expected configs to be a list .* but got QuantConfig"),
        ({"configs": "W8A8"}, TypeError, "expected configs to be a list .* but got str"),
        ({"configs": []}, ValueError, "expected configs to have a configuration, but it is empty"),
        ({"configs": [W8A8]}, TypeError, r"the function W8A8; write W8A8\(\)"),
        ({"configs": [W8A8(), None]}, TypeError, "to hold QuantConfig, but got NoneType"),
        ({"configs": [W8A8(), W8A8()]}, ValueError, "expected different configurations"),
        ({"configs": [SmoothQuant()]}, ValueError, "a calibration of its own .* for the whole"),
        ({"configs": [AWQ(W4A16())]}, ValueError, "changes the layers before: measure weight="),
        ({"configs": [GPTQ(W4A16())]}, ValueError, "follows the layers before"),
        ({"configs": {"float": W8A8()}}, ValueError, "'float', which stands for a layer as it is"),
        ({"configs": {"": W8A8()}}, ValueError, "expected the name of a configuration, but got ''"),
        ({"configs": {3: W8A8()}}, TypeError, "the keys of configs to be names, but got 3"),
        ({"model": 3}, TypeError, "expected model to be a Module, but got int"),
        ({"model": nn.Linear(16, 2)}, ValueError, r"itself; wrap it in nn\.Sequential"),
        ({"model": nn.Sequential(nn.ReLU())}, ValueError, "expected a model with a Linear"),
        ({"calibration": torch.ones(2)}, TypeError, "an iterable of batches, but got one Tensor"),
        ({"calibration": 3}, TypeError, "expected calibration to be .* but got int"),
        ({"calibration": []}, ValueError, "expected calibration data, but got no batch"),
        ({"filter_fn": "query"}, TypeError, "expected filter_fn to be a function"),
        ({"filter_fn": lambda module, name: False}, ValueError, "has none .*filter_fn"),
        ({"together": "query"}, TypeError, "together to be a list of lists .* but got str"),
        ({"together": ["query"]}, TypeError, "together .* but an entry is a str"),
        ({"together": [[]]}, ValueError, "together .* but an entry is empty"),
        ({"together": [[nn.Linear]]}, TypeError, "together .* but a pattern is a type"),
        ({"together": [["q_proj"]]}, ValueError, "'q_proj' of together to match .* query, key"),
        (GONE, ValueError, r"gone through 2 times for static inputs \(W8A8 static\)"),
    ],
)
def test_what_it_refuses(arguments, kind, message):
    given = {"model": seeded(Block), "configs": TWO, "calibration": batches(), **arguments}
    with pytest.raises(kind, match=f"^baraquant.sensitivity: .*{message}"):
        baraquant.sensitivity(**given, progress=False)
    if "model" not in arguments:
        assert unchanged(given["model"], seeded(Block))


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        ({}, ValueError, "expected either budget_bytes or bits, but got neither"),
        ({"budget_bytes": 10**6, "bits": 4}, ValueError, "but got both"),
        ({"budget_bytes": 1e6}, TypeError, "expected budget_bytes to be an int, but got float"),
        ({"budget_bytes": True}, TypeError, "expected budget_bytes to be an int, but got bool"),
        ({"budget_bytes": -1}, ValueError, "expected budget_bytes to be at least"),
        ({"bits": "4"}, TypeError, "expected bits to be a number, but got str"),
        ({"bits": math.nan}, ValueError, "expected bits to be finite, but got nan"),
        ({"bits": 9, "floating": 1}, TypeError, "expected floating to be a bool, but got int"),
    ],
)
def test_what_a_choice_refuses(arguments, kind, message):
    with pytest.raises(kind, match=f"^baraquant.Sensitivity.choose: .*{message}"):
        measured(seeded(Block)).choose(**arguments)
