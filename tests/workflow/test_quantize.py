# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_``: which modules it changes, and into what."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import baraquant
from baraquant import W8A8, SmoothQuant, W8A8Static, ops
from baraquant.nn import QuantizedEmbedding, QuantizedLinear, StaticQuantizedLinear
from tests.support.models.outlier_models import (
    CALIBRATED,
    SCHEMES,
    Block,
    Tied,
    batches,
    relative_error,
    seeded,
    tokens,
    unchanged,
)


@pytest.mark.parametrize("config", SCHEMES, ids=str)
def test_a_block_comes_out_close(config):
    model, data = seeded(Block), batches()
    expected = model(data[0])
    report = baraquant.quantize_(model, config, calibration=data)
    assert set(report.changed) == {"query", "key", "out", "up", "down"}
    assert relative_error(model(data[0]), expected) < 0.08
    scheme = config.activation if isinstance(config, SmoothQuant) else config
    kind = StaticQuantizedLinear if scheme.is_static else QuantizedLinear
    for name in report.changed:
        layer = getattr(model, name)
        assert type(layer) is kind and layer.symmetric == scheme.activation.symmetric
        assert layer.qweight.dtype == torch.int8 and not layer.training
    assert type(model.norm1) is nn.LayerNorm


def test_w8a8_is_the_op_of_the_quantized_weight():
    model, x = seeded(Block), batches()[0]
    layer = copy.deepcopy(model.query)
    baraquant.quantize_(model, W8A8())
    weight, scale, _ = ops.dynamic_range_quantize_per_channel(layer.weight.detach(), 0)
    assert torch.equal(model.query.qweight, weight)
    assert torch.equal(model.query.weight_scale, scale)
    expected = ops.quantized_linear(x, weight, scale, layer.bias.detach())
    assert torch.equal(model.query(x), expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_w8a8_static_is_the_op_with_the_scale_of_all_data(symmetric):
    model, data = nn.Sequential(seeded(nn.Linear, 16, 8)), batches()
    linear = model[0]
    baraquant.quantize_(model, W8A8Static(symmetric=symmetric), calibration=data)
    scale, zero_point = ops.choose_qparams_per_tensor(torch.cat(data), symmetric=symmetric)
    assert torch.equal(model[0].act_scale, scale)
    if symmetric:
        assert model[0].act_zero_point is None
    else:
        assert torch.equal(model[0].act_zero_point, zero_point)
    weight, weight_scale, _ = ops.dynamic_range_quantize_per_channel(linear.weight.detach(), 0)
    expected = ops.smoothquant_linear(
        ops.quantize_per_tensor(data[1], scale, zero_point),
        weight,
        weight_scale,
        scale,
        linear.bias.detach(),
        act_zero_point=None if symmetric else zero_point,
    )
    assert torch.equal(model[0](data[1]), expected)


@pytest.mark.parametrize("config", SCHEMES, ids=str)
def test_embeddings_tied_weights_and_shared_modules(config):
    model, data = seeded(Tied), tokens()
    expected = model(data[0])
    report = baraquant.quantize_(model, config, calibration=data)
    assert type(model.embedding) is QuantizedEmbedding and model.embedding.padding_idx == 0
    assert model.first is model.second and type(model.first.query) is not nn.Linear
    assert not any(name.startswith("second") for name in report.changed)
    assert model.head.qweight.data_ptr() == model.embedding.qweight.data_ptr()
    assert model.head.weight_scale.data_ptr() == model.embedding.weight_scale.data_ptr()
    assert relative_error(model(data[0]), expected) < 0.1
    assert torch.equal(model.embedding(torch.tensor([0])), torch.zeros(1, 16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", SCHEMES, ids=str)
def test_models_of_other_dtypes(dtype, config):
    model = seeded(Tied).to(dtype)
    expected = model(tokens()[0])
    baraquant.quantize_(model, config, calibration=tokens())
    got = model(tokens()[0])
    assert got.dtype == dtype and relative_error(got, expected) < 0.1


def test_a_model_on_several_dtypes():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = nn.Linear(16, 16).bfloat16(), nn.Linear(16, 4)

        def forward(self, x):
            return self.high(self.low(x.bfloat16()).float())

    for config in SCHEMES:
        model = seeded(Mixed)
        expected = model(batches()[0])
        baraquant.quantize_(model, config, calibration=batches())
        got = model(batches()[0])
        assert got.dtype == torch.float32 and relative_error(got, expected) < 0.05


def test_the_filter_is_asked_once_and_obeyed():
    asked = []

    def keep_out(module, name):
        asked.append((type(module), name))
        return name not in ("out", "up")

    model = seeded(Block)
    before = copy.deepcopy(model)
    report = baraquant.quantize_(model, SmoothQuant(), calibration=batches(), filter_fn=keep_out)
    names = ["query", "key", "out", "up", "down"]
    assert asked == [(nn.Linear, name) for name in names]
    assert set(report.changed) == {"query", "key", "down"}
    assert report.left_out == {"out": "filter_fn", "up": "filter_fn"}
    assert torch.equal(model.out.weight, before.out.weight)
    # up is followed by down, which is smoothed: a float layer can take that too.
    assert report.changed["down"] == "QuantizedLinear, alpha 0.5 folded into up"
    assert not torch.equal(model.up.weight, before.up.weight)
    assert relative_error(model(batches()[0]), before(batches()[0])) < 0.05


class Own(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight * 2, self.bias)


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def test_what_cannot_be_quantized_is_reported_with_the_reason():
    model = nn.ModuleDict(
        OrderedDict(
            plain=nn.Linear(4, 4),
            own=Own(4, 4),
            doubled=Doubled(4, 4),
            normed=nn.utils.parametrizations.weight_norm(nn.Bilinear(4, 4, 4)),
            lazy=nn.LazyLinear(3),
            conv=nn.Conv3d(2, 2, 3),
            up=nn.ConvTranspose2d(2, 2, 3),
            bilinear=nn.Bilinear(2, 2, 3),
            attention=nn.MultiheadAttention(4, 2, add_bias_kv=True),
            done=nn.Sequential(QuantizedLinear(torch.ones(2, 2).to(torch.int8), torch.ones(2))),
            prepared=baraquant.nn.FakeQuantizedLinear(4, 4, config=W8A8()),
            embedding=nn.Embedding(3, 4, max_norm=1.0),
            bag=nn.EmbeddingBag(3, 4),
            rnn=nn.LSTM(4, 4),
        )
    )
    report = baraquant.quantize_(model, W8A8())
    assert report.changed == {
        "plain": "QuantizedLinear",
        "doubled": "QuantizedLinearOfDoubled",
        "conv": "QuantizedConv3d",
        "up": "QuantizedConvTranspose2d",
        "rnn.cells.l0.ih": "QuantizedLinear",
        "rnn.cells.l0.hh": "QuantizedLinear",
    }
    assert {name: reason.split(":")[0] for name, reason in report.left_out.items()} == {
        "own": "Own has a forward of its own",
        "normed": "its weight is computed by a parametrization",
        "lazy": "its shape is not known yet",
        "bilinear": "there is no quantized form of Bilinear",
        "attention": "there is no quantized form of add_bias_kv and add_zero_attn",
        "done.0": "it is converted already",
        "prepared": "it is prepared already",
        "embedding": "its max_norm rewrites the weight",
        "bag": "there is no quantized form of EmbeddingBag",
    }
    table = str(report)
    assert "own              left out: Own has a forward of its own" in table
    assert "\n6 changed, 9 left out; " in table


@pytest.mark.parametrize("config", [W8A8(), SmoothQuant(0.5, W8A8Static())], ids=str)
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_of_pytorch(norm_first, config):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    data = batches()
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = model(data[0]), model(data[0], src_key_padding_mask=mask)
        report = baraquant.quantize_(model, config, calibration=data)
        parts = ["linear1", "linear2", *(f"self_attn.{p}_proj" for p in ("q", "k", "v", "out"))]
        assert set(report.changed) == {f"layers.{i}.{part}" for i in (0, 1) for part in parts}
        assert not report.left_out
        folded = "folded into layers.0.norm1" in report.changed["layers.0.self_attn.k_proj"]
        assert folded == (norm_first and isinstance(config, SmoothQuant))
        for x, y in zip(
            (model(data[0]), model(data[0], src_key_padding_mask=mask)), expected, strict=True
        ):
            real = ~mask if y is expected[1] else torch.ones_like(mask)
            assert relative_error(x[real], y[real]) < 0.05


def test_an_attention_comes_back_where_quantization_fails():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    original = copy.deepcopy(model)
    attention, flag = model.layers[0].self_attn, model.layers[0].activation_relu_or_gelu
    assert flag == 1 and model.use_nested_tensor
    with pytest.raises(ValueError, match="got no batch"):
        baraquant.quantize_(model, W8A8Static(), calibration=[])
    assert model.layers[0].self_attn is attention
    assert model.layers[0].activation_relu_or_gelu == flag and model.use_nested_tensor
    assert unchanged(model, original)


def test_the_filter_is_asked_for_an_attention_and_then_for_its_parts():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    asked = []

    def is_linear(module, name):
        asked.append(name)
        return "linear" in name

    for kind, filter_fn in [
        (nn.MultiheadAttention, is_linear),
        (baraquant.nn.MultiheadAttention, lambda m, name: is_linear(m, name) or "attn" in name),
    ]:
        model = nn.Sequential(copy.deepcopy(layer))
        baraquant.quantize_(model, W8A8(), filter_fn=filter_fn)
        assert type(model[0].self_attn) is kind
    parts = [f"0.self_attn.{name}" for name in ("k_proj", "out_proj", "q_proj", "v_proj")]
    wholes = ["0.linear1", "0.linear2", "0.self_attn"]
    assert sorted(asked) == sorted([*wholes, *wholes, *parts])


def test_copies_and_hooks():
    model = nn.Sequential(nn.Linear(16, 4))
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    baraquant.quantize_(model, SmoothQuant(0.5, W8A8Static()), calibration=batches())
    x = batches()[0]
    assert torch.equal(copy.deepcopy(model)(x), model(x)) and len(calls) > 1
    assert str(model).count("StaticQuantizedLinear(in_features=16, out_features=4") == 1


@pytest.mark.parametrize("config", CALIBRATED, ids=str)
def test_a_linear_without_inputs_or_outputs_is_left_out(config):
    model = nn.Sequential(
        nn.Linear(16, 0), nn.ReLU(), nn.Linear(0, 16), nn.Linear(16, 4), nn.LayerNorm(4)
    )
    expected = model(batches()[0])
    report = baraquant.quantize_(model, config, calibration=batches())
    assert set(report.changed) == {"3"} and set(report.left_out) == {"0", "2"}
    assert all("its weight has no elements" in reason for reason in report.left_out.values())
    assert relative_error(model(batches()[0]), expected) < 0.08
    last = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 0))
    assert set(baraquant.quantize_(last, config, calibration=batches()).changed) == {"0"}
    assert last(batches()[0]).shape == (*batches()[0].shape[:-1], 0)
    with pytest.raises(ValueError, match=r"has none .*its weight has no elements"):
        baraquant.quantize_(nn.Sequential(nn.Linear(16, 0)), config, calibration=batches())


def test_the_example_of_the_docstring(tmp_path, monkeypatch):
    from tests.support.docstrings import run_examples

    monkeypatch.chdir(tmp_path)
    run_examples(baraquant.quantize_, "quantize_")
    run_examples(baraquant.save, "save")
    run_examples(baraquant.load_, "load_")
