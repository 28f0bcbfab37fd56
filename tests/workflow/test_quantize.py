# SPDX-License-Identifier: BSD-3-Clause
"""What `quantize_` makes of models, what it refuses, and warnings that are errors."""

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import baraquant
from baraquant import AWQ, GPTQ, W4A16, W8A8, W8A16, SmoothQuant, W8A8Static, quantize_
from baraquant.nn import QuantizedEmbedding
from baraquant.qat import prepare_
from tests.support.checks.refused import refused
from tests.support.models import outlier_models
from tests.support.models.every_layer import same
from tests.support.models.outlier_models import Block, Tied, batches, relative_error, seeded, tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "config", [*outlier_models.SCHEMES, AWQ(W8A16(), 4), GPTQ(W8A8())], ids=str
)
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
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
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
    nn.init.uniform_(norm.weight, 0.1, 20)
    conv.weight.data.copy_(plain.weight.t())
    conv.bias.data.copy_(plain.bias)
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


CALIBRATED = [*outlier_models.CALIBRATED, AWQ(W4A16(8), steps=2), GPTQ(W8A8())]
by_config = pytest.mark.parametrize("config", CALIBRATED, ids=str)


@pytest.mark.parametrize(
    ("call", "config"),
    [
        *((quantize_, config) for config in CALIBRATED),
        *((prepare_, W8A8Static(observer)) for observer in ("percentile", "mse")),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_bad_calibration_leaves_the_model_alone(call, config):
    model = seeded(Block).train()
    poisoned = [x.fill_(math.nan) for x in batches()]

    def fails(given, message, kind=ValueError):
        refused(call, message, model, config, calibration=given, error=kind)

    is_named = isinstance(config, (SmoothQuant, AWQ, GPTQ))
    what = type(config).__name__ if is_named else "a static input"
    what = what if call is quantize_ else f"the observer '{config.observer}'"
    fails(None, f"expected calibration data for {what}, but got None")
    fails([], "expected calibration data, but got no batch")
    fails(lambda m: None, "query: expected the calibration data to reach the module")
    fails([torch.zeros(0, 5, 16)], "query: expected the calibration data to reach the module")
    name = call.__name__
    fails(poisoned, f"{name}: query: expected finite calibration data, but every batch gives")
    fails(lambda m: [m(x) for x in poisoned], "query: expected finite calibration data")
    fails(3, "expected calibration to be an iterable", TypeError)
    fails([torch.randn(2, 5, 7)], "normalized_shape", RuntimeError)


@pytest.mark.parametrize(
    ("config", "runs"),
    [
        (SmoothQuant("search"), "2 times"),
        (SmoothQuant(0.5, W8A8Static("mse")), "2 times"),
        (SmoothQuant("search", W8A8Static("percentile")), "3 times"),
        (AWQ(W4A16(8)), "several times for AWQ"),
        (GPTQ(W8A8()), "several times for GPTQ"),
        (GPTQ(W8A8Static()), "several times for GPTQ"),
    ],
    ids=str,
)
def test_data_that_is_gone_after_one_run(config, runs):
    message = f"data that can be gone through {runs}"
    refused(baraquant.quantize_, message, seeded(Block), config, calibration=iter(batches()))
    for once in (SmoothQuant(0.5), SmoothQuant(0.5, W8A8Static())):
        baraquant.quantize_(seeded(Block), once, calibration=iter(batches()))


@by_config
def test_a_poisoned_batch_is_left_out(config):
    """The model is that of the other batches, and the warning names the layers."""
    clean, poisoned = batches(), batches()
    poisoned.insert(1, torch.full_like(clean[0], math.nan))
    model, expected = seeded(Block).eval(), seeded(Block).eval()
    with pytest.warns(UserWarning, match=r"^baraquant.quantize_: inputs with .* query \(1\), "):
        baraquant.quantize_(model, config, calibration=poisoned)
    baraquant.quantize_(expected, config, calibration=clean)
    assert torch.equal(model(clean[0]), expected(clean[0]))


@by_config
def test_batches_with_labels(config):
    pairs = [(x, torch.zeros(len(x), dtype=torch.int64)) for x in batches()]
    loader = torch.utils.data.DataLoader(pairs, batch_size=None)
    model = seeded(Block)
    original = copy.deepcopy(model)
    message = (
        r"quantize_: batch 0: expected the batch, a (tuple|list) of 2, to be the arguments of "
        r"Block, but model\(\*batch\) raised: .*positional.* pass a function"
    )
    wrong = functools.partial(refused, baraquant.quantize_, error=TypeError)
    assert isinstance(wrong(message, model, config, calibration=loader).__cause__, TypeError)
    named = [{"input": x, "labels": y} for x, y in pairs]
    message = r"a dict of 2, .* model\(\*\*batch\) raised: .*labels"
    wrong(message, model, config, calibration=named)

    def run(model):  # what the message tells to pass
        for x, _ in loader:
            model(x)

    wanted, model = original, model.train()
    baraquant.quantize_(model, config, calibration=run)
    baraquant.quantize_(wanted, config, calibration=batches())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert same(model, wanted)


def test_other_errors_of_the_model_are_its_own():
    model = nn.Sequential(nn.Linear(16, 4))
    for data in (["text"], [(torch.ones(2, 16),), (1, 2)]):
        with pytest.raises(TypeError) as raised:
            baraquant.quantize_(model, W8A8Static(), calibration=data)
        assert raised.value.__cause__ is None and "batch 0" not in str(raised.value)


@by_config
def test_a_layer_that_no_data_reaches_is_named(config):
    model = nn.ModuleDict({"used": nn.Linear(8, 8), "unused": nn.Linear(8, 8)})
    model.forward = lambda x: model["used"](x)
    original, data = copy.deepcopy(model), [torch.randn(3, 8)]
    message = r": unused: .* it saw no input; leave it out with filter"
    only = {"calibration": data, "filter_fn": lambda _, name: name == "unused"}
    refused(baraquant.quantize_, message, model, config, **only)
    report = baraquant.quantize_(model, config, calibration=data)
    assert report.changed["unused"].endswith("as the calibration data does not reach it")
    assert "reach" not in report.changed["used"]
    wanted = F.linear(data[0], original["unused"].weight, original["unused"].bias)
    assert (model["unused"](data[0]) - wanted).norm() < 0.2 * wanted.norm()


BLOCK_SPOILT = [*batches(), torch.full_like(batches()[0], torch.nan)]
SMOOTHED = SmoothQuant(0.5, W8A8Static(conv_inputs=True))
# The message, the tool, what it is given, and the calibration data.
WARNING: dict[str, tuple[str, Callable[..., Any], Any, Any]] = {
    "not smoothed": ("SmoothQuant to smooth a layer", quantize_, {nn.Conv1d: SMOOTHED}, batches()),
    "not finite": ("a NaN or an infinity", quantize_, W8A8Static(), BLOCK_SPOILT),
    "not finite in training": ("a NaN or an infinity", prepare_, W8A8Static(), BLOCK_SPOILT),
    "damping": ("which was used", quantize_, {"*down": GPTQ(W4A16(8), damping=0)},
        [torch.ones(1, 16)]),
    "filter": ("filter_fn to leave out", quantize_, W8A8(), None),
    "filter in training": ("filter_fn to leave out", prepare_, W8A8(), None),
}  # fmt: skip


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm = nn.Conv1d(16, 16, 1), nn.LSTM(16, 16)
        self.attention, self.block = nn.MultiheadAttention(16, 2), Block()

    def forward(self, x: torch.Tensor) -> Any:
        y = self.lstm(self.conv(x.mT).mT)[0] if x.dim() == 3 else self.lstm(x)[0]
        return self.block(self.attention(y, y, y)[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", WARNING)
def test_the_model_is_as_it_was(name: str) -> None:
    message, call, config, given = WARNING[name]
    more = {"filter_fn": lambda module, path: True} if "filter" in name else {}
    model = Packed()
    modules = dict(model.named_modules())
    refused(call, message, model, config, calibration=given, error=UserWarning, **more)
    assert dict(model.named_modules()) == modules
