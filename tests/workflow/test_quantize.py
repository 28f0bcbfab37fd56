# SPDX-License-Identifier: BSD-3-Clause
"""``quantize_``: which modules it changes, and into what."""

import copy

import pytest
import torch
from torch import nn

import baraquant
from baraquant import AWQ, GPTQ, W4A16, W8A8, W8A16, SmoothQuant, W8A8Static, ops
from baraquant.nn import QuantizedEmbedding
from tests.support.checks.refused import refused
from tests.support.models.outlier_models import (
    SCHEMES,
    Block,
    Tied,
    batches,
    relative_error,
    seeded,
    tokens,
)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", [*SCHEMES, AWQ(W8A16(), 4), GPTQ(W8A8())], ids=str)
def test_embeddings_tied_weights_and_shared_modules(config, dtype):
    model, data = seeded(Tied).to(dtype), tokens()
    expected = model(data[0])
    report = baraquant.quantize_(model, config, calibration=data)
    assert type(model.embedding) is QuantizedEmbedding and model.embedding.padding_idx == 0
    assert model.first is model.second and type(model.first.query) is not nn.Linear
    assert not any(name.startswith("second") for name in report.changed)
    assert model.head.qweight.data_ptr() == model.embedding.qweight.data_ptr()
    assert model.head.weight_scale.data_ptr() == model.embedding.weight_scale.data_ptr()
    assert "alpha" not in report.changed["head"]
    if isinstance(config, (AWQ, GPTQ)):
        assert report.changed["head"].endswith(", as other modules share its weight")
        name = type(config).__name__
        assert report.changed["embedding"].endswith(f", as {name} is for linear layers")
        assert f", {name}" in report.changed["first.query"]
    got = model(data[0])
    assert got.dtype == dtype and relative_error(got, expected) < 0.1
    assert torch.equal(model.embedding(torch.tensor([0])), torch.zeros(1, 16, dtype=dtype))


def test_an_attention_comes_back_where_quantization_fails():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    attention, flag = model.layers[0].self_attn, model.layers[0].activation_relu_or_gelu
    assert flag == 1 and model.use_nested_tensor
    refused(baraquant.quantize_, "got no batch", model, W8A8Static(), calibration=[])
    assert model.layers[0].self_attn is attention
    assert model.layers[0].activation_relu_or_gelu == flag and model.use_nested_tensor


@pytest.mark.parametrize(
    "config", [SmoothQuant(0.5), AWQ(W4A16(8)), GPTQ(W4A16(8)), W8A8()], ids=str
)
def test_the_conv1d_of_transformers_is_a_linear_layer(config):
    utils = pytest.importorskip("transformers.pytorch_utils")
    norm, plain, conv = nn.LayerNorm(16), nn.Linear(16, 8), utils.Conv1D(8, 16)
    with torch.no_grad():
        nn.init.uniform_(norm.weight, 0.1, 20)
        conv.weight.copy_(plain.weight.t())
        conv.bias.copy_(plain.bias)
    models = [nn.Sequential(copy.deepcopy(norm), layer).eval() for layer in (plain, conv)]
    reports = [baraquant.quantize_(model, config, calibration=batches()) for model in models]
    assert reports[0].changed == reports[1].changed
    assert torch.equal(models[0][1].qweight, models[1][1].qweight) and models[1][1].transposed
    assert torch.equal(models[0](batches()[0]), models[1](batches()[0]))


def test_the_first_parameter_of_a_layer_is_floating():
    """Much code asks it for the dtype of a model."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Conv2d(8, 8, 1)).bfloat16()
    baraquant.quantize_(model, W8A8())
    assert [next(layer.parameters()).dtype for layer in model] == [torch.bfloat16] * 2
