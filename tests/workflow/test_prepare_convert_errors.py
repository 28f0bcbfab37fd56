# SPDX-License-Identifier: BSD-3-Clause
"""What `quantize_`, `prepare_` and `convert_` refuse: errors with paths, and no change."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import AWQ, GPTQ, W4A16, W8A8, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support.checks.refused import refused
from tests.support.models import training_models
from tests.support.models.training_models import data, linear_model
from tests.support.schemes import described

PREPARE = "^baraquant.qat.prepare_: "
CALLS = {"prepare_": (prepare_, PREPARE)}
CALLS["quantize_"] = (baraquant.quantize_, "^baraquant.quantize_: ")
CONVERT = "^baraquant.qat.convert_: "
MSE = "0: .* 'mse', but got None; training by itself follows min_max and mov"
by_call = pytest.mark.parametrize(("call", "name"), CALLS.values(), ids=CALLS)


def encoder() -> nn.Module:
    return nn.ModuleDict({"layers": nn.ModuleList([linear_model() for _ in range(2)])})


@by_call
@pytest.mark.parametrize("config", ["int4 per_group(8)", "int4, int8 per_group(8)"])
def test_group_size_that_does_not_fit(config: Any, call: Any, name: str) -> None:
    """It leaves out the layer, but is an error for one that the caller named alone."""
    model, config = encoder(), described(config)
    reason = "expected group_size to divide in_features (12), but got 8"
    message = rf".* has none \(layers\.0\.2: the configuration does not fit: {re.escape(reason)}"
    refused(call, name + message, model, config, filter_fn=lambda _, path: path == "layers.0.2")
    report = call(model, config, filter_fn=lambda _, path: path != "layers.1.0")
    assert len(report.changed) == 3 and report.left_out["layers.1.0"] == "filter_fn"
    for path in ("layers.0.2", "layers.1.2"):
        assert report.left_out[path].endswith(reason)
        assert type(model.get_submodule(path)) is nn.Linear


@by_call
@pytest.mark.parametrize(("symmetric", "most"), [(True, 131071), (False, 65536)])
def test_rows_too_long_for_exact_sums(symmetric: bool, most: int, call: Any, name: str) -> None:
    model = nn.ModuleDict({"long": nn.Linear(most + 1, 1), "body": nn.Linear(16, 16)})
    reason = (
        f"the configuration does not fit: expected in_features to be at most {most} "
        f"for an exact int32 product.*, but got {most + 1}"
    )
    message, only = f".* has none .long: {reason}", {"filter_fn": lambda _, path: path == "long"}
    refused(call, name + message, model, W8A8(symmetric), **only)
    report = call(model, W8A8(symmetric))
    assert set(report.changed) == {"body"} and re.fullmatch(reason, report.left_out["long"])
    call(nn.Sequential(nn.Linear(most, 2)), W8A8(symmetric))
    call(nn.Sequential(nn.Linear(most + 1, 2)), QuantConfig(TensorConfig()))  # of floats


@by_call
@pytest.mark.parametrize(
    ("config", "got"),
    [
        (W8A8, r"the function W8A8; write W8A8\(\)"),
        (W4A16, r"the function W4A16; write W4A16\(\)"),
        (SmoothQuant, r"the class SmoothQuant; write SmoothQuant\(\)"),
        (GPTQ, r"the class GPTQ; write GPTQ\(\.\.\.\)"),
        (QuantConfig, r"the class QuantConfig; write QuantConfig\(\.\.\.\)"),
        (int, "the class int"),
        ("w8a8", "str"),
        (["w8a8"], "list"),
        (None, "NoneType"),
        (TensorConfig(), "TensorConfig"),
    ],
)
def test_what_is_no_scheme(config: object, got: str, call: Any, name: str) -> None:
    message = f"expected config to be a QuantConfig, but got {got}$"
    refused(call, name + message, linear_model(), config, error=TypeError)
    if config is not None:  # in a dictionary None leaves layers floating
        rules = {"0": W8A8(), "*": config}
        refused(call, rf"{name}'\*': {message}", linear_model(), rules, error=TypeError)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SmoothQuant(), "SmoothQuant: .*may divide its input; use baraquant.quantize_"),
        (AWQ(W4A16()), "expected calibration data for AWQ, but got None"),
        (GPTQ(W8A8()), "expected calibration data for GPTQ, but got None"),
        ({"*": SmoothQuant()}, r"'\*': SmoothQuant: .*may divide its input; use"),
        (W8A8Static("mse"), MSE),
        (W8A8Static("percentile"), "0: expected calibration data for the observer 'percentile'"),
    ],
    ids=str,
)
def test_what_training_cannot_follow(config: object, message: str) -> None:
    refused(prepare_, f"{PREPARE}.*{message}", linear_model(), config)


@by_call
def test_a_model_without_a_layer_to_quantize(call: Any, name: str) -> None:
    message = name + "expected a model with a Linear, Conv1d.* but Sequential has none"
    refused(call, message + "$", nn.Sequential(nn.ReLU(), nn.LayerNorm(4)), W8A8())
    reason = r" \(0: there is no quantized form of Bilinear\)"
    refused(call, message + reason, nn.Sequential(nn.Bilinear(4, 4, 4)), W8A8())
    reason = r" \(0: filter_fn; 2: filter_fn; 4: filter_fn"
    refused(call, message + reason, linear_model(), W8A8(), filter_fn=lambda *_: False)


@by_call
def test_twice(call: Any, name: str) -> None:
    model = linear_model()
    prepare_(model, W8A8())
    refused(call, name + "expected a float model, .* prepared already", model, W8A8())
    convert_(model)
    if call is not prepare_:  # training starts at integers
        refused(call, name + "expected a float model, .* converted already", model, W8A8())
    refused(convert_, CONVERT + "expected a prepared .* is converted already", model)


@by_call
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_what_is_no_model(call: Any, name: str) -> None:
    for caller, prefix, more in ((call, name, [W8A8()]), (convert_, CONVERT, [])):
        message = f"{prefix}expected model to be a Module, but got list"
        with pytest.raises(TypeError, match=message):
            caller([nn.Linear(2, 2)], *more)
        scripted = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.Linear(2, 2))
        with pytest.raises(TypeError, match=f"{prefix}0: expected a model in Python, but got Rec"):
            caller(scripted, *more)
        wrapped = nn.Sequential(nn.DataParallel(nn.Linear(2, 2)))
        refused(caller, prefix + "0: expected a model before it is wrapped", wrapped, *more)


@by_call
@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Embedding(4, 4), nn.Conv2d(3, 4, 3)])
def test_a_layer_alone(layer: nn.Module, call: Any, name: str) -> None:
    kind = type(layer).__name__
    message = f"expected a model that contains the layers to swap, but got a {kind} itself; wrap it"
    refused(call, name + message, layer, W8A8())


@by_call
def test_a_layer_compiled_by_itself(call: Any, name: str) -> None:
    layer = nn.Linear(8, 8)
    model = nn.Sequential(torch.compile(layer, backend="eager"), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=rf"{name}0\._orig_mod: expected a Linear that is not "):
        call(model, W8A8())
    assert model[0]._orig_mod is layer and type(model[1]) is nn.Linear


def test_weights_that_quantization_cannot_read() -> None:
    for value in (float("nan"), float("inf")):
        model = linear_model()
        model[2].weight.data[1, 1] = value
        with pytest.raises(ValueError, match=r"^baraquant.quantize_: 2: expected a finite weight"):
            baraquant.quantize_(model, W8A8())
        assert all(not hasattr(layer, "qweight") for layer in model)
    with torch.device("meta"):
        model = linear_model()
    with pytest.raises(ValueError, match="0: expected a weight with data, but it is on"):
        baraquant.quantize_(model, W8A8())


@by_call
@pytest.mark.parametrize("filter_fn", ["query", 0, ["query"]])
def test_what_is_no_filter(filter_fn: Any, call: Any, name: str) -> None:
    message = f"{name}expected filter_fn to be a function .*{type(filter_fn).__name__}$"
    refused(call, message, linear_model(), W8A8(), filter_fn=filter_fn, error=TypeError)


@by_call
def test_a_filter_that_raises(call: Any, name: str) -> None:
    def broken(module: nn.Module, path: str) -> bool:
        if path == "2":
            raise KeyError(path)
        return True

    refused(call, "2", linear_model(), W8A8(), filter_fn=broken, error=KeyError)


@by_call
def test_a_filter_of_two_minds(call: Any, name: str) -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    message = "0: expected filter_fn to say the same of one shared module, but it took 0 and ref"
    refused(call, name + message, model, W8A8(), filter_fn=lambda _, path: path == "0")


def test_convert_before_prepare() -> None:
    message = "expected a model prepared by baraquant.qat.prepare_, but Sequential has no prepared"
    refused(convert_, CONVERT + message, linear_model())


@pytest.mark.parametrize("config", [training_models.STATIC, training_models.LEARNED])
@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_convert_without_finite_data(config: QuantConfig, value: float | None) -> None:
    model = encoder()
    prepare_(model, config)
    before = dict(model.named_modules())
    seen = "it has seen no data"
    if value is not None:
        x = data(4, 16)
        x[1, 2] = value
        model.layers[0](x)
        seen = ".* 1 batch .*NaN or infinity"
    message = rf"layers\.0\.0: expected the range of its input to be known, but {seen}"
    with pytest.raises(ValueError, match=CONVERT + message):
        convert_(model)
    assert dict(model.named_modules()) == before


@pytest.mark.parametrize("scheme", training_models.SCHEMES)
def test_convert_of_weights_that_are_not_finite(scheme: str) -> None:
    model = linear_model()
    prepare_(model, training_models.SCHEMES[scheme])
    model(data(4, 16))
    model[2].weight.data[1, 1] = float("nan")
    for parameter in model[2].weight_fake_quant.parameters():
        parameter.data[1] = float("nan")
    if scheme == "static":
        model.train()(data(4, 16))
    message = "2: expected the scale of the weight to be finite"
    with pytest.raises(ValueError, match=CONVERT + message):
        convert_(model)
