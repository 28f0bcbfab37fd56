# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_``: which modules it changes, into what, and what it refuses."""

import copy
import math
from collections import OrderedDict

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8, FakeQuantConfig, QATConfig, SmoothQuant, W8A8Static, ops
from baraquant.nn import QuantizedEmbedding, QuantizedLinear, SmoothQuantLinear
from workflow_models import Block, Tied, batches, relative_error, seeded, tokens

SCHEMES = [
    W8A8(),
    W8A8(symmetric=False),
    W8A8Static(),
    W8A8Static("moving_average"),
    W8A8Static("percentile", symmetric=False),
    W8A8Static("mse"),
    SmoothQuant(),
    SmoothQuant(0.6, W8A8Static(symmetric=False)),
]
CALIBRATED = [config for config in SCHEMES if not isinstance(config, W8A8)]


def unchanged(model, original):
    """Whether a model has the modules and the bits of another."""
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]
    for (name, value), expected in zip(
        model.state_dict().items(), original.state_dict().values(), strict=True
    ):
        assert torch.equal(value, expected), name
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert [m.training for m in model.modules()] == [m.training for m in original.modules()]
    return True


@pytest.mark.parametrize("config", SCHEMES, ids=str)
def test_a_block_comes_out_close(config):
    model, data = seeded(Block), batches()
    expected = model(data[0])
    report = baraquant.quantize_(model, config, data)
    assert set(report.changed) == {"query", "key", "out", "up", "down"}
    assert relative_error(model(data[0]), expected) < 0.08
    static = config.activation if isinstance(config, SmoothQuant) else config
    kind = SmoothQuantLinear if isinstance(static, W8A8Static) else QuantizedLinear
    for name in report.changed:
        layer = getattr(model, name)
        assert type(layer) is kind and layer.symmetric == static.symmetric
        assert layer.weight.dtype == torch.int8 and not layer.training
    assert type(model.norm1) is nn.LayerNorm


def test_w8a8_is_the_op_of_the_quantized_weight():
    model, x = seeded(Block), batches()[0]
    layer = copy.deepcopy(model.query)
    baraquant.quantize_(model, W8A8())
    weight, scale, _ = ops.dynamic_range_quantize_per_channel(layer.weight.detach(), 0)
    assert torch.equal(model.query.weight, weight)
    assert torch.equal(model.query.weight_scale, scale)
    expected = ops.quantized_linear(x, weight, scale, layer.bias.detach())
    assert torch.equal(model.query(x), expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_w8a8_static_is_the_op_with_the_scale_of_all_data(symmetric):
    model, data = nn.Sequential(seeded(nn.Linear, 16, 8)), batches()
    linear = model[0]
    baraquant.quantize_(model, W8A8Static(symmetric=symmetric), data)
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
    report = baraquant.quantize_(model, config, data)
    assert type(model.embedding) is QuantizedEmbedding and model.embedding.padding_idx == 0
    assert model.first is model.second and type(model.first.query) is not nn.Linear
    assert not any(name.startswith("second") for name in report.changed)
    assert model.head.weight.data_ptr() == model.embedding.weight.data_ptr()
    assert model.head.weight_scale.data_ptr() == model.embedding.weight_scale.data_ptr()
    assert relative_error(model(data[0]), expected) < 0.1
    assert torch.equal(model.embedding(torch.tensor([0])), torch.zeros(1, 16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", SCHEMES, ids=str)
def test_models_of_other_dtypes(dtype, config):
    model = seeded(Tied).to(dtype)
    expected = model(tokens()[0])
    baraquant.quantize_(model, config, tokens())
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
        baraquant.quantize_(model, config, batches())
        got = model(batches()[0])
        assert got.dtype == torch.float32 and relative_error(got, expected) < 0.05


def test_the_filter_is_asked_once_and_obeyed():
    asked = []

    def keep_out(module, name):
        asked.append((type(module), name))
        return name not in ("out", "up")

    model = seeded(Block)
    before = copy.deepcopy(model)
    report = baraquant.quantize_(model, SmoothQuant(), batches(), keep_out)
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
        return super().forward(x) * 2


def test_what_cannot_be_quantized_is_reported_with_the_reason():
    model = nn.ModuleDict(
        OrderedDict(
            plain=nn.Linear(4, 4),
            own=Own(4, 4),
            normed=nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            lazy=nn.LazyLinear(3),
            conv=nn.Conv2d(2, 2, 3),
            attention=nn.MultiheadAttention(4, 2, add_bias_kv=True),
            done=nn.Sequential(QuantizedLinear(torch.ones(2, 2).to(torch.int8), torch.ones(2))),
            prepared=baraquant.nn.QATLinear(4, 4, config=W8A8()),
            embedding=nn.Embedding(3, 4, max_norm=1.0),
            bag=nn.EmbeddingBag(3, 4),
            rnn=nn.LSTM(4, 4),
        )
    )
    report = baraquant.quantize_(model, W8A8())
    assert set(report.changed) == {"plain"}
    assert {name: reason.split(":")[0] for name, reason in report.left_out.items()} == {
        "own": "Own has a forward of its own",
        "normed": "its weight is computed by a parametrization",
        "lazy": "its shape is not known yet",
        "conv": "a convolution computes in floating point; baraquant.qat stores it as integers",
        "attention": "there is no quantized form of add_bias_kv and add_zero_attn",
        "done.0": "it is quantized already",
        "prepared": "it is prepared for training; convert it with baraquant.qat.convert_",
        "embedding": "max_norm changes its weight",
        "bag": "there is no quantized form of EmbeddingBag",
        "rnn": "there is no quantized form of LSTM",
    }
    table = str(report)
    assert "own        left out: Own has a forward of its own" in table
    assert table.endswith("1 changed, 10 left out")


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
        report = baraquant.quantize_(model, config, data)
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
        baraquant.quantize_(model, W8A8Static(), [])
    assert model.layers[0].self_attn is attention
    assert model.layers[0].activation_relu_or_gelu == flag and model.use_nested_tensor
    assert unchanged(model, original)


def test_the_filter_is_asked_for_an_attention_as_a_whole():
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
    assert asked == ["0.self_attn", "0.linear1", "0.linear2"] * 2


def test_copies_and_hooks():
    model = nn.Sequential(nn.Linear(16, 4))
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    baraquant.quantize_(model, SmoothQuant(0.5, W8A8Static()), batches())
    x = batches()[0]
    assert torch.equal(copy.deepcopy(model)(x), model(x)) and len(calls) > 1
    assert str(model).count("SmoothQuantLinear(in_features=16, out_features=4") == 1


@pytest.mark.parametrize("config", SCHEMES, ids=str)
@pytest.mark.parametrize("empty", [nn.ReLU(), nn.Sequential(nn.Conv1d(2, 2, 1), nn.Dropout())])
def test_a_model_without_a_layer_to_quantize(empty, config):
    with pytest.raises(ValueError, match=r"quantize_: expected a model with a Linear or Embedding"):
        baraquant.quantize_(empty, config, batches())
    model = seeded(Block)
    original = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"Block has none \(query: filter_fn; key: filter_fn"):
        baraquant.quantize_(model, config, batches(), lambda module, name: False)
    assert unchanged(model, original)


def test_a_layer_by_itself():
    for layer in (nn.Linear(4, 4), nn.Embedding(4, 4)):
        with pytest.raises(ValueError, match=r"itself; wrap it in nn\.Sequential"):
            baraquant.quantize_(layer, W8A8())


@pytest.mark.parametrize(
    "config",
    [None, "w8a8", W8A8, {"scheme": "w8a8"}, FakeQuantConfig(), QATConfig(FakeQuantConfig())],
)
def test_what_is_no_scheme(config):
    with pytest.raises(TypeError, match="expected config to be W8A8, W8A8Static or SmoothQuant"):
        baraquant.quantize_(seeded(Block), config, batches())


def test_what_is_no_model():
    with pytest.raises(TypeError, match="expected model to be a Module, but got str"):
        baraquant.quantize_("model", W8A8())
    with pytest.raises(TypeError, match="expected a model in Python"):
        baraquant.quantize_(torch.jit.trace(seeded(Block), batches()[0]), W8A8())


@pytest.mark.parametrize("config", CALIBRATED, ids=str)
def test_bad_calibration_leaves_the_model_alone(config):
    model = seeded(Block).train()
    original = copy.deepcopy(model)
    poisoned = batches()
    poisoned[1][0, 0, 0] = math.nan

    def fails(given, message, kind=ValueError):
        with pytest.raises(kind, match=message):
            baraquant.quantize_(model, config, given)
        assert unchanged(model, original)

    fails(None, f"expected calibration data for {type(config).__name__}, but got None")
    fails([], "expected calibration data, but got no batch")
    fails(lambda m: None, "query: expected the calibration data to reach the module")
    fails(poisoned, "quantize_: query: expected finite calibration data, but batch 1 gives")
    fails(lambda m: [m(x) for x in poisoned], "query: expected finite calibration data")
    fails(3, "expected calibration to be an iterable", TypeError)
    fails([torch.randn(2, 5, 7)], "normalized_shape", RuntimeError)


@pytest.mark.parametrize("config", CALIBRATED, ids=str)
def test_a_layer_that_no_data_reaches_is_named(config):
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model.forward = lambda x: model["used"](x)
    with pytest.raises(ValueError, match=r": unused: .* it saw no input; leave it out with filter"):
        baraquant.quantize_(model, config, [torch.randn(3, 4)])
    baraquant.quantize_(model, config, [torch.randn(3, 4)], lambda _, name: name == "used")
    assert type(model["used"]) is not nn.Linear and type(model["unused"]) is nn.Linear


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_named(value):
    model = seeded(Block)
    with torch.no_grad():
        model.up.weight[3, 4] = value
    original = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"quantize_: up: expected a finite weight"):
        baraquant.quantize_(model, W8A8())
    assert type(model.query) is type(original.query)


@pytest.mark.parametrize("features, symmetric", [(131_072, True), (65_537, False)])
def test_a_layer_too_wide_for_the_sums_is_named(features, symmetric):
    model = nn.Sequential(nn.Linear(features, 1), nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"quantize_: 0: expected in_features of at most"):
        baraquant.quantize_(model, W8A8(symmetric=symmetric))
    report = baraquant.quantize_(
        model, W8A8(symmetric=symmetric), filter_fn=lambda m, name: name == "1"
    )
    assert set(report.changed) == {"1"}


def test_a_model_on_the_meta_device():
    with torch.device("meta"):
        model = Block()
    with pytest.raises(ValueError, match="query: expected a weight with data, but it is on"):
        baraquant.quantize_(model, W8A8())


def test_a_second_time_finds_nothing():
    model = seeded(Block)
    baraquant.quantize_(model, W8A8())
    with pytest.raises(ValueError, match="expected a model with a Linear or Embedding"):
        baraquant.quantize_(model, W8A8())


def test_the_example_of_the_docstring(tmp_path, monkeypatch):
    from test_ops_docs import run_examples

    monkeypatch.chdir(tmp_path)
    run_examples(baraquant.quantize_, "quantize_")
    run_examples(baraquant.save, "save")
    run_examples(baraquant.load, "load")
