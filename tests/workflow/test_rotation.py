# SPDX-License-Identifier: BSD-3-Clause
"""``rotate=`` for whole models: which layers are rotated, and when."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import nn as bnn
from baraquant import ops
from baraquant.qat import convert_, prepare_
from tests.workflow.rotated_models import SCHEMES, W8, block, inputs, quantized


def test_which_blocks_and_what_the_reports_say() -> None:
    config, model = baraquant.W8A8(rotate=32), block()
    blocks = {"up": ", rotate=32", "down": ", rotate=32", "head": ", rotate=8", "odd": ""}
    plain = str(baraquant.W8A8())
    report = prepare_(model, config)
    assert report.changed == {
        name: f"FakeQuantizedLinear({plain}{text})" for name, text in blocks.items()
    }
    converted = {name: f"QuantizedLinear{text}" for name, text in blocks.items()}
    assert convert_(model).changed == converted
    assert baraquant.quantize_(block(), config).changed == converted
    assert str(model.head).endswith(", rotate=8)") and "rotate" not in str(model.odd)


@pytest.mark.exhaustive
def test_layers_without_a_bias() -> None:
    model = nn.Sequential(nn.Linear(32, 16, bias=False), nn.Linear(16, 8, bias=False))
    report = baraquant.quantize_(model, W8)
    assert set(report.changed.values()) == {"QuantizedLinear, rotate=16"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", SCHEMES)
def test_prepare_train_and_convert(scheme: str) -> None:
    """The parameters stay the same objects, so an optimizer from before trains them."""
    model, wanted = block(), block()(inputs()).detach()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    prepare_(model, SCHEMES[scheme], calibration=[inputs()], progress=False)
    assert all(dict(model.named_parameters())[name] is p for name, p in parameters.items())
    losses = []
    for step in range(6):
        y = model(inputs())
        if step == 0:
            limit = 0.25 if "w4" in scheme else 0.05
            assert (y - wanted).norm() < limit * wanted.norm()
        loss = (y - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    evaluated = model.eval()(inputs())
    weights = [layer.weight.detach().clone() for layer in (model.up, model.head, model.odd)]
    convert_(model)
    assert torch.equal(model(inputs()), evaluated)
    assert all(map(torch.equal, weights, (model.up.weight, model.head.weight, model.odd.weight)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8_asymmetric", "static", "w8a16", "per_tensor"])
def test_quantized_at_once_is_prepared_and_converted(scheme: str) -> None:
    model = block()
    prepare_(model, SCHEMES[scheme], calibration=[inputs()], progress=False)
    convert_(model.eval())
    assert torch.equal(quantized(scheme)(inputs()), model(inputs()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_float_weights_are_not_touched_by_quantize(scheme: str) -> None:
    model = block()
    parameters = list(model.parameters())
    baraquant.quantize_(model, SCHEMES[scheme], calibration=[inputs()], progress=False)
    assert all(map(torch.equal, parameters, block().parameters()))


FAILURES: dict[str, Any] = {
    "no match": lambda model: prepare_(model, {"up": W8, "nowhere": W8}),
    "misfit of a named layer": lambda model: prepare_(
        model, {"up": W8, "odd": baraquant.W4A16(4, rotate=16)}
    ),
    "bad data": lambda model: prepare_(
        model, SCHEMES["static"], calibration=[inputs() * float("nan")]
    ),
    "no data": lambda model: prepare_(model, SCHEMES["static_mse"]),
    "infinite weight": lambda model: baraquant.quantize_(
        model, {"up": W8, "down": baraquant.W8A8(scale_dtype="float16", rotate=16)}
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAILURES)
def test_an_error_leaves_the_model_as_it_was(name: str) -> None:
    model = block()
    if name == "infinite weight":
        model.down.weight.data[0] = 1e8
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"^baraquant\.q"):
        FAILURES[name](model)
    assert str(model) == str(before)
    assert all(map(torch.equal, model.parameters(), before.parameters()))


class Tied(nn.Module):
    """An embedding with its output layer, two layers of one weight, and a layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, 32), nn.Linear(32, 20, bias=False)
        self.out.weight = self.table.weight
        self.one, self.two, self.own = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.two.weight = self.one.weight
        self.again = self.own

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.again(self.own(self.two(self.one(self.table(tokens)))))
        y: Tensor = self.out(x)
        return y


@pytest.mark.exhaustive
@pytest.mark.parametrize("trains", [True, False])
def test_shared_weights_are_not_rotated(trains: bool) -> None:
    torch.manual_seed(0)
    model, tokens = Tied().eval(), torch.arange(20).reshape(4, 5)
    wanted = model(tokens).detach()
    report = prepare_(model, W8) if trains else baraquant.quantize_(model, W8)
    rotated = [name for name, text in report.changed.items() if "rotate=16" in text]
    assert rotated == ["own"] and set(report.changed) == {"table", "out", "one", "two", "own"}
    assert model.again is model.own
    if trains:
        assert model.out._parameters["weight"] is model.table._parameters["weight"]
        assert model.two._parameters["weight"] is model.one._parameters["weight"]
        convert_(model)
    assert model.two.qweight is model.one.qweight
    assert (model(tokens) - wanted).norm() < 0.05 * wanted.norm()


class Kinds(nn.Module):
    """A layer of every kind with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(20, 32), nn.Conv1d(32, 32, 3, padding=1)
        self.back = nn.ConvTranspose1d(32, 32, 3, padding=1)
        self.lstm, self.cell = nn.LSTM(32, 32, batch_first=True), nn.GRUCell(32, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.linear = nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.back(self.conv(self.table(tokens).mT)).mT
        x, _ = self.lstm(x)
        x, _ = self.attention(x, x, x)
        y: Tensor = self.linear(x + self.cell(x[:, 0])[:, None])
        return y


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["prepare", "quantize"])
def test_only_linear_layers_are_rotated(how: str) -> None:
    torch.manual_seed(0)
    model, tokens = Kinds().eval(), torch.arange(20).reshape(4, 5)
    wanted = model(tokens).detach()
    run = prepare_ if how == "prepare" else baraquant.quantize_
    report = run(model, W8)
    rotated = {name for name, text in report.changed.items() if "rotate=16" in text}
    parts = {f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    assert rotated == parts | {"linear"}
    assert not any("rotate" in text for text in report.left_out.values())
    others = {"table", "conv", "back", "cell.ih", "cell.hh", "lstm.cells.l0.ih", "lstm.cells.l0.hh"}
    assert others <= report.changed.keys()
    assert (model(tokens) - wanted).norm() < 0.1 * wanted.norm()
    if how == "prepare":
        evaluated = model(tokens).detach()
        convert_(model)
        torch.testing.assert_close(model(tokens), evaluated, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_other_layers_take_the_configuration_by_themselves() -> None:
    conv = bnn.FakeQuantizedConv1d(8, 8, 3, config=W8)
    table = bnn.FakeQuantizedEmbedding(8, 8, config=W8)
    assert conv.config.rotate is None and table.config.rotate is None
    assert "rotate" not in str(conv) + str(table)


@pytest.mark.exhaustive
@pytest.mark.parametrize("observer", ["min_max", "percentile", "mse"])
def test_calibration_sees_the_rotated_input(observer: str) -> None:
    config = baraquant.W8A8Static(observer, rotate=32)
    rotated, plain = nn.Sequential(nn.Linear(32, 8)), nn.Sequential(nn.Linear(32, 8))
    baraquant.quantize_(rotated, config, calibration=[inputs(), inputs(2)], progress=False)
    turned = [ops.hadamard(inputs(seed), 32) for seed in (1, 2)]
    baraquant.quantize_(plain, config.with_rotation(0), calibration=turned, progress=False)
    assert torch.equal(rotated[0].act_scale, plain[0].act_scale)
    prepared = nn.Sequential(nn.Linear(32, 8))
    prepare_(prepared, config, calibration=[inputs(), inputs(2)], progress=False)
    assert torch.equal(prepared.eval()[0].input_fake_quant.scale, plain[0].act_scale)
    if observer == "min_max":
        widest = max(one.abs().max() for one in turned)
        assert rotated[0].act_scale == widest / 127


@pytest.mark.exhaustive
def test_a_layer_that_the_data_does_not_reach() -> None:
    """Its input stays floating, and is rotated all the same."""
    model = block()
    model.extra = nn.Linear(32, 4)
    wanted = model.extra(inputs()).detach()
    report = baraquant.quantize_(model, SCHEMES["static"], calibration=[inputs()], progress=False)
    assert report.changed["extra"].startswith("WeightOnlyLinear, rotate=32; its input stays")
    assert (model.extra(inputs()) - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.exhaustive
@pytest.mark.parametrize("alpha", [0.5, "search"])
def test_a_smoothing_folds_into_a_rotated_layer(alpha: Any) -> None:
    """The rows of a rotated weight are divided as those of another."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
    model[0].weight.data[3] *= 30  # channel 3 of the second layer's input
    wanted = model(inputs()).detach()
    schemes = {"0": W8, "1": baraquant.SmoothQuant(alpha)}
    report = baraquant.quantize_(model, schemes, calibration=[inputs()], progress=False)
    assert report.changed["0"] == "QuantizedLinear, rotate=16"
    assert report.changed["1"].endswith("folded into 0")
    assert (model(inputs()) - wanted).norm() < 0.02 * wanted.norm()


class Scaled(nn.Linear):
    """A subclass whose forward calls the parent's."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@pytest.mark.exhaustive
def test_a_subclass_and_hooks() -> None:
    torch.manual_seed(0)
    model, seen = nn.Sequential(Scaled(32, 8)), []
    model[0].register_forward_hook(lambda layer, args, y: seen.append(args[0].clone()))
    wanted = model(inputs()).detach()
    prepare_(model, W8)
    assert model[0].rotate == 16 and type(model[0]).__name__ == "FakeQuantizedLinearOfScaled"
    assert (model(inputs()) - wanted).norm() < 0.05 * wanted.norm()
    evaluated = model.eval()(inputs())
    convert_(model)
    assert torch.equal(model(inputs()), evaluated)
    assert all(torch.equal(one, inputs()) for one in seen), "a hook sees the input of the layer"


class Reads(nn.Module):
    """A parent that computes with the weight of its child."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.to(self.a.weight.dtype), self.a.weight, self.a.bias)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["w8a8", "w4a16", "w8a16"])
def test_a_parent_that_reads_the_weight(scheme: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Reads())
    wanted = model(inputs()).detach()
    prepare_(model, SCHEMES[scheme])
    y = model(inputs())
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)  # in training: the float weight
    y.sum().backward()
    x_sums = inputs().reshape(-1, 32).sum(0).expand(16, 32)
    parameter = model[0].a._parameters["weight"]
    torch.testing.assert_close(parameter.grad, ops.hadamard(x_sums.contiguous(), model[0].a.rotate))
    evaluated = model.eval()(inputs())
    convert_(model)
    assert torch.equal(model(inputs()), evaluated)
    limit = 0.15 if "w4" in scheme else 0.02
    assert (evaluated - wanted).norm() < limit * wanted.norm()
