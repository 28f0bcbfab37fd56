# SPDX-License-Identifier: BSD-3-Clause
"""`prepare_` and `convert_` of what they cannot take: clear errors, with paths, and no change."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.weight_norm import weight_norm

from baraquant import W8A8, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support.models import training_models
from tests.support.models.training_models import data, linear_model

PREPARE, CONVERT = "baraquant.qat.prepare_: ", "baraquant.qat.convert_: "


def kinds(model: nn.Module) -> dict[str, type]:
    return {name: type(module) for name, module in model.named_modules()}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear_model() for _ in range(2)])


@pytest.mark.parametrize(
    "config",
    [
        QuantConfig(TensorConfig(4, "per_group", group_size=8)),
        QuantConfig(TensorConfig(4), TensorConfig(8, "per_group", group_size=8)),
    ],
    ids=["weight", "activation"],
)
def test_group_size_that_does_not_fit(config: QuantConfig) -> None:
    model = Encoder()
    before = kinds(model)
    reason = "expected group_size to divide in_features (12), but got 8"
    message = rf".* has none \(layers\.0\.2: the configuration does not fit: {re.escape(reason)}"
    with pytest.raises(ValueError, match=f"^{PREPARE}{message}"):
        prepare_(model, config, lambda module, name: name == "layers.0.2")
    assert kinds(model) == before, "all or nothing"
    report = prepare_(model, config)
    assert len(report.changed) == 4 and "layers.0.2" not in report.changed
    assert report.left_out["layers.0.2"].endswith(reason)


def test_group_size_of_an_embedding_and_of_attention() -> None:
    config = QuantConfig(TensorConfig(4, "per_group", group_size=8))
    with pytest.raises(ValueError, match=r"0: .* fit: expected group_size to divide embedding_dim"):
        prepare_(nn.Sequential(nn.Embedding(5, 12)), config)
    model = nn.Sequential(nn.MultiheadAttention(12, 2))
    message = ".*0: the configuration does not fit: expected group_size to divide in_feat"
    with pytest.raises(ValueError, match=PREPARE + message):
        prepare_(model, config)


@pytest.mark.parametrize(("symmetric", "most"), [(True, 131071), (False, 65536)])
def test_rows_too_long_for_exact_sums(symmetric: bool, most: int) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(most + 1, 2))
        prepare_(nn.Sequential(nn.Linear(most, 2)), W8A8(symmetric))
    with pytest.raises(ValueError, match=f"0: .* fit: expected in_features to be at most {most} "):
        prepare_(model, W8A8(symmetric))
    prepare_(model, QuantConfig(TensorConfig()))  # computes in floating point


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (W8A8, TypeError, r"a QuantConfig, but got the function W8A8; write W8A8\(\)"),
        (SmoothQuant, TypeError, r"but got the class SmoothQuant; write SmoothQuant\(\)"),
        (QuantConfig, TypeError, r"but got the class QuantConfig; write QuantConfig\(\.\.\.\)"),
        (int, TypeError, "but got the class int$"),
        ("w8a8", TypeError, "expected config to be a QuantConfig, but got str"),
        (None, TypeError, "expected config to be .*, but got NoneType"),
        (TensorConfig(), TypeError, "but got TensorConfig"),
        (SmoothQuant(), ValueError, "SmoothQuant needs calibration: use baraquant.quantize_"),
        ({"*": SmoothQuant()}, ValueError, r"'\*': .* SmoothQuant needs calibration: use"),
        (
            W8A8Static("mse"),
            ValueError,
            "0: expected calibration data for the observer 'mse', but got None; training by itself "
            "follows min_max and moving_average",
        ),
        (W8A8Static("percentile"), ValueError, "0: expected .* for the observer 'percentile'"),
    ],
)
def test_other_configurations(config: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{PREPARE}.*{message}"):
        prepare_(linear_model(), config)


def test_nothing_to_prepare() -> None:
    message = f"^{PREPARE}expected a model with a Linear, .* but Sequential has none"
    with pytest.raises(ValueError, match=message + "$"):
        prepare_(nn.Sequential(nn.ReLU(), nn.LayerNorm(4)), W8A8())
    reason = r" \(0: there is no quantized form of Bilinear\)"
    with pytest.raises(ValueError, match=message + reason):
        prepare_(nn.Sequential(nn.Bilinear(4, 4, 4)), W8A8())
    with pytest.raises(ValueError, match=message + r" \(0: filter_fn; 2: filter_fn; 4: filter_fn"):
        prepare_(linear_model(), W8A8(), lambda module, name: False)


def test_twice() -> None:
    model = linear_model()
    prepare_(model, W8A8())
    with pytest.raises(ValueError, match=f"{PREPARE}expected a float model, .* prepared already"):
        prepare_(model, W8A8())
    convert_(model)
    with pytest.raises(ValueError, match=f"{PREPARE}expected a float model, .* converted already"):
        prepare_(model, W8A8())
    with pytest.raises(ValueError, match=f"{CONVERT}expected a prepared .* is converted already"):
        convert_(model)


def test_the_rest_can_be_prepared_later() -> None:
    model = linear_model()
    prepare_(model, W8A8(), lambda module, name: name == "0")
    report = prepare_(model, QuantConfig(TensorConfig(4)))
    assert list(report.changed) == ["2", "4"]
    assert report.left_out == {"0": "it is prepared already"}


def test_convert_before_prepare() -> None:
    message = "expected a model prepared by baraquant.qat.prepare_, but Sequential has no prepared"
    with pytest.raises(ValueError, match=CONVERT + message):
        convert_(linear_model())


@pytest.mark.parametrize("config", [training_models.STATIC, training_models.LEARNED])
def test_convert_before_any_data(config: QuantConfig) -> None:
    model = Encoder()
    prepare_(model, config)
    before = kinds(model)
    message = r"layers\.0\.0: expected the range of its input to be known, but it has seen no data"
    with pytest.raises(ValueError, match=CONVERT + message):
        convert_(model)
    assert kinds(model) == before


@pytest.mark.parametrize("config", [training_models.STATIC, training_models.LEARNED])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_convert_after_data_that_is_not_finite(config: QuantConfig, value: float) -> None:
    model = linear_model()
    prepare_(model, config)
    x = data(4, 16)
    x[1, 2] = value
    model(x)
    message = "0: expected the range of its input to be known, but .* 1 batch .*NaN or infinity"
    with pytest.raises(ValueError, match=CONVERT + message):
        convert_(model)


@pytest.mark.parametrize("scheme", training_models.SCHEMES)
def test_convert_of_weights_that_are_not_finite(scheme: str) -> None:
    model = linear_model()
    prepare_(model, training_models.SCHEMES[scheme])
    model(data(4, 16))
    with torch.no_grad():
        model[2].weight[1, 1] = float("nan")
        for _, parameter in model[2].weight_fake_quant.named_parameters():
            parameter[1] = float("nan")
    if scheme == "static":
        model.train()(data(4, 16))
    message = "2: expected the scale of the weight to be finite"
    with pytest.raises(ValueError, match=CONVERT + message):
        convert_(model)


@pytest.mark.parametrize("caller", [prepare_, convert_], ids=["prepare_", "convert_"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_what_is_no_model(caller) -> None:
    more = (W8A8(),) if caller is prepare_ else ()
    name = PREPARE if caller is prepare_ else CONVERT
    with pytest.raises(TypeError, match=f"{name}expected model to be a Module, but got list"):
        caller([nn.Linear(2, 2)], *more)
    scripted = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.Linear(2, 2))
    with pytest.raises(TypeError, match=f"{name}0: expected a model in Python, but got Recursive"):
        caller(scripted, *more)
    wrapped = nn.Sequential(nn.DataParallel(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=f"{name}0: expected a model before it is wrapped"):
        caller(wrapped, *more)


def test_a_layer_alone() -> None:
    message = "expected a model that contains the layers to swap, but got a Linear itself"
    with pytest.raises(ValueError, match=PREPARE + message):
        prepare_(nn.Linear(4, 4), W8A8())


def test_filter_of_two_minds() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    message = "0: expected filter_fn to say the same of one shared module, but it took 0 and ref"
    with pytest.raises(ValueError, match=PREPARE + message):
        prepare_(model, W8A8(), lambda module, name: name == "0")


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * 2, self.bias)


class OwnTransposed(nn.ConvTranspose2d):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * 2


class OwnLSTM(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class SameLinear(nn.Linear):
    pass


LEFT_OUT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "own": (lambda: OwnLinear(4, 4), "OwnLinear has a forward of its own"),
    "parametrized": (
        lambda: parametrizations.weight_norm(nn.Bilinear(4, 4, 4)),
        "its weight is computed by a parametrization",
    ),
    "hooked": (
        lambda: prune.identity(weight_norm(nn.Linear(4, 4)), "weight_v"),
        "its weight is computed by a hook",
    ),
    "lazy": (lambda: nn.LazyLinear(4), "its shape is not known yet: run a batch first"),
    "norm": (lambda: nn.Embedding(4, 4, max_norm=1.0), "its max_norm rewrites the weight"),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "its weight is torch.complex64"),
    "bilinear": (lambda: nn.Bilinear(4, 4, 4), "there is no quantized form of Bilinear"),
    "bag": (lambda: nn.EmbeddingBag(4, 4), "there is no quantized form of EmbeddingBag"),
    "transposed": (lambda: OwnTransposed(4, 4, 3), "OwnTransposed has a forward of its own"),
    "lstm": (lambda: OwnLSTM(4, 4), "OwnLSTM has a forward of its own"),
    "bias_kv": (
        lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True),
        "there is no quantized form of add_bias_kv and add_zero_attn",
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out(name: str) -> None:
    build, reason = LEFT_OUT[name]
    module = build()
    model = nn.ModuleDict({"inner": nn.ModuleList([module]), "plain": SameLinear(4, 4)})
    report = prepare_(model, W8A8())
    assert list(report.changed) == ["plain"], "a subclass without a forward of its own"
    assert report.left_out == {"inner.0": reason}
    assert model["inner"][0] is module
