# SPDX-License-Identifier: BSD-3-Clause
"""Each scheme by its name on a whole model, and the two ways to find a scale of few bits."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import (
    AWQ,
    GPTQ,
    W2A8,
    W2A16,
    W3A8,
    W3A16,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    SmoothQuant,
    W8A8Static,
    ops,
)
from baraquant.configs import OBSERVERS, TRAINING_OBSERVERS, Config, QuantConfig, TensorConfig
from baraquant.qat import convert_, prepare_
from tests.support.checks.stored import assert_stored
from tests.support.models.outlier_models import SCHEMES, Block, batches, relative_error, seeded
from tests.support.models.training_models import LEARNED
from tests.support.schemes import tensor
from tests.workflow.every_family import LINEAR, PARTS, TOKENS, EveryFamily

PRESETS: dict[str, QuantConfig] = {
    "W8A8": W8A8(),
    "W8A8 asymmetric": W8A8(symmetric=False),
    "W8A8Static": W8A8Static(),
    "W8A8Static asymmetric": W8A8Static(symmetric=False),
    "W8A8Static percentile": W8A8Static("percentile"),
    "W8A8Static mse": W8A8Static("mse", symmetric=False),
    "W8A16": W8A16(),
    "W4A16": W4A16(4),
    "W4A16 asymmetric": W4A16(8, symmetric=False),
    "W4A16 per channel": W4A16(None, scale_rule="max"),
    "W4A8": W4A8(4, group_factors=False),
    "W4A8 asymmetric": W4A8(8, symmetric=False, scale_rule="max", group_factors=False),
    "W4A8 per channel": W4A8(None),
    "W3A16": W3A16(8),
    "W2A16": W2A16(4),
    "W3A8 factors": W3A8(4),
    "W2A8 factors": W2A8(4),
}
ALGORITHMS: dict[str, Config] = {
    "SmoothQuant": SmoothQuant(0.5),
    "SmoothQuant static": SmoothQuant(0.5, W8A8Static("mse")),
    "AWQ": AWQ(W4A16(8), steps=4),
    "GPTQ": GPTQ(W8A8()),
    "GPTQ static": GPTQ(W8A8Static()),
    "GPTQ few bits": GPTQ(W4A16(8)),
}
# What training alone does.
TRAINED: dict[str, QuantConfig] = {
    "learned": LEARNED,
    "learned factors": W4A8(4, learned=True),
    "moving average": W8A8Static("moving_average", symmetric=False),
    "three bits": QuantConfig(TensorConfig(3, symmetric=False)),
    "ternary": QuantConfig(TensorConfig(2, ternary=True), TensorConfig(8, "per_token")),
    "ternary of tensors": QuantConfig(TensorConfig(2, "per_tensor", ternary=True),
        TensorConfig(8, "per_tensor"), conv_inputs=True),
}  # fmt: skip
ROTATED = {
    f"{name} rotated": dataclasses.replace(config, rotate=16)
    for name, config in (PRESETS | TRAINED).items()
}
PLAIN_AND_ROTATED = [*PRESETS, *(name for name in ROTATED if name.split(" rotated")[0] in PRESETS)]
SHORT = ("W8A8", "W8A8Static mse", "W4A16", "learned", "learned factors")
SOME_SHORT = [
    pytest.param(name, marks=[] if name in SHORT else [pytest.mark.exhaustive])
    for name in PRESETS | TRAINED | ROTATED
]


def needed(config: Config) -> dict[str, Any]:
    needs_data = isinstance(config, baraquant.Algorithm) or config.is_static
    return {"calibration": [TOKENS]} if needs_data else {}


def assert_whole(report: Any, name: str) -> None:
    """Every layer is taken, and the linear ones alone are rotated."""
    assert set(report.changed) == PARTS and not report.left_out
    rotated = {path for path, text in report.changed.items() if "rotate=" in text}
    assert rotated == (LINEAR if "rotated" in name else set())


@pytest.mark.parametrize("name", [*PLAIN_AND_ROTATED, *ALGORITHMS])
def test_quantized_and_stored(name: str, tmp_path: Path) -> None:
    config = (PRESETS | ALGORITHMS | ROTATED)[name]
    model = seeded(EveryFamily)
    wanted = model(TOKENS)
    assert_whole(baraquant.quantize_(model, config, **needed(config)), name)
    bound = 0.06 if "8A" in name or "S" in name else 0.7 if "W2A16" in name else 0.4
    assert relative_error(model(TOKENS), wanted) < bound
    assert_stored(model, EveryFamily, TOKENS, tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", SOME_SHORT)
def test_trained_converted_and_stored(name: str, tmp_path: Path) -> None:
    config = (PRESETS | TRAINED | ROTATED)[name]
    torch.manual_seed(0)
    model = EveryFamily()
    assert_whole(prepare_(model, config, **needed(config)), name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten() % 4)
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    with torch.no_grad():  # PyTorch's own product has other bits where a weight has a gradient
        evaluated = model.eval()(TOKENS)
        assert set(convert_(model).changed) == PARTS
        assert torch.equal(model(TOKENS), evaluated)
    assert_stored(model, EveryFamily, TOKENS, tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", PLAIN_AND_ROTATED)
def test_quantized_without_a_search_is_prepared_and_converted(name: str) -> None:
    """Both ways give the same integers where the numbers alone decide.

    Without training a convolution rounds its input only if it is asked to.
    """
    plain = dataclasses.replace((PRESETS | ROTATED)[name], scale_rule="max")
    for build, data in ((Block, batches()), (EveryFamily, [TOKENS])):
        quantized, trained = seeded(build), seeded(build)
        needs = {"calibration": data} if plain.is_static else {}
        baraquant.quantize_(quantized, plain, **needs)
        prepare_(trained, dataclasses.replace(plain, conv_inputs=False), **needs)
        convert_(trained)
        for key, value in quantized.state_dict().items():
            assert torch.equal(trained.state_dict()[key], value), key
        assert torch.equal(quantized(data[0]), trained(data[0]))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_ranges_of_calibration(dtype: torch.dtype, observer: str, symmetric: bool) -> None:
    config = W8A8Static(observer, symmetric)
    data = [batch.to(dtype) for batch in batches()]
    quantized, prepared = seeded(Block).to(dtype), seeded(Block).to(dtype)
    baraquant.quantize_(quantized, config, calibration=data)
    prepare_(prepared, config, calibration=data)
    assert torch.equal(prepared(data[0]), quantized(data[0]))
    before = copy.deepcopy(prepared.state_dict())
    prepared.train()(100 * data[1])  # beyond all ranges
    follows = [
        not torch.equal(before[f"{name}.input_fake_quant.{end}"], getattr(rounder, end))
        for name in ("query", "key", "out", "up", "down")
        for end in ("min_val", "max_val")
        for rounder in [prepared.get_submodule(name).input_fake_quant]
    ]
    assert any(follows) == (observer in TRAINING_OBSERVERS)
    evaluated = prepared.eval()(data[0])
    convert_(prepared)
    assert torch.equal(prepared(data[0]), evaluated)


@pytest.mark.parametrize("symmetric", [True, False])
def test_learned_scales_start_from_calibration(symmetric: bool) -> None:
    activation = TensorConfig(8, "per_tensor", symmetric, learned=True)
    config = QuantConfig(TensorConfig(), activation, "percentile")
    quantized, prepared = seeded(Block), seeded(Block)
    baraquant.quantize_(quantized, config, calibration=batches())
    prepare_(prepared, config, calibration=batches())
    assert torch.equal(prepared(batches()[0]), quantized(batches()[0]))
    scale = prepared.up.input_fake_quant.scale
    assert torch.equal(scale.detach().reshape(()), quantized.up.act_scale.reshape(()))
    prepared.train()(batches()[1]).sum().backward()
    assert scale.grad is not None and bool(scale.grad.isfinite().all())


def test_calibration_is_not_looked_at_where_nothing_is_static() -> None:
    def fail(model: nn.Module) -> None:
        raise AssertionError("no scale needs data")

    for call in (prepare_, baraquant.quantize_):
        call(seeded(Block), W8A8(), calibration=fail)
    for config in SCHEMES:  # convolutions have floating inputs
        baraquant.quantize_(nn.Sequential(nn.Conv2d(3, 4, 3)), config, calibration=fail)


NORMAL = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))


def rounded(weight: Tensor, config: QuantConfig) -> Tensor:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    linear.weight.data.copy_(weight)
    model = nn.Sequential(linear)
    baraquant.quantize_(model, config)
    return model[0].weight.detach() * 1


@pytest.mark.parametrize(
    ("scheme", "how", "search", "largest"),
    [
        (W4A16, (32,), 0.0866, 0.0973),
        (W4A16, (128,), 0.1014, 0.118),
        (W3A16, (128,), 0.196, 0.275),
        (W2A16, (64,), 0.356, 0.457),
        (W2A16, (64, True), 0.378, 0.718),
    ],
)
def test_errors_of_normal_weights(scheme: Any, how: Any, search: float, largest: float) -> None:
    for rule, error in (("search", search), ("max", largest)):
        got = rounded(NORMAL, scheme(*how, scale_rule=rule))
        assert relative_error(got, NORMAL) == pytest.approx(error, rel=0.02)


KINDS = [
    tensor(f"int{bits} {kind} {symmetry}")
    for bits in (2, 3, 4, 7)
    for kind in ("per_tensor", "per_channel", "per_group(32)")
    for symmetry in ("symmetric", "asymmetric")
]


WEIGHTS: dict[str, Tensor] = {
    "normal": NORMAL,
    "uniform": torch.rand(16, 128, generator=torch.Generator().manual_seed(1)) - 0.2,
    "heavy": NORMAL[:16] ** 3,
    "negative": -NORMAL[:16].abs() - 1,
    "zeros": torch.zeros(4, 64),
    "rows of zeros": NORMAL[:8] * (torch.arange(8) % 2)[:, None],
    "an outlier": NORMAL[:8].index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(1e4)),
    "tiny": NORMAL[:8] * 1e-30,
    "huge": NORMAL[:8] * 1e30,
    "one number": torch.full((1, 32), -3.0),
}


@pytest.mark.parametrize("config", KINDS, ids=str)
def test_a_search_is_never_worse(config: TensorConfig) -> None:
    for name, weight in WEIGHTS.items():
        rules = (QuantConfig(config, scale_rule=rule) for rule in ("search", "max"))
        search, largest = (rounded(weight, rule) for rule in rules)
        assert bool(search.isfinite().all()), name
        errors = [float((w.double() - weight.double()).square().sum()) for w in (search, largest)]
        assert errors[0] <= errors[1] * (1 + 1e-5), name
        if "zeros" in name:
            zeros = weight.abs().amax(1) == 0
            assert not search[zeros].any()


@pytest.mark.parametrize("scheme", [W4A16, W3A16, W2A16])
def test_a_file_holds_the_bits(scheme: Any, tmp_path: Path) -> None:
    model, bits = nn.Sequential(nn.Linear(256, 64, bias=False)), scheme().weight.bits
    baraquant.quantize_(model, scheme())
    assert model[0].packed.nbytes == 64 * 256 // 2
    baraquant.save(model, tmp_path / "model.safetensors")
    size = (tmp_path / "model.safetensors").stat().st_size
    rest = sum(t.nbytes for name, t in model.state_dict().items() if name != "0.packed")
    assert size - rest - 64 * 256 * bits // 8 in range(2000)  # the header


def squared_error(bits: int, symmetric: bool, ends: Tensor, rows: Tensor) -> Tensor:
    """The error of each row with the scale for the given part of its range."""
    config = TensorConfig(bits)
    limits = config.quant_min, config.quant_max
    scale, zero_point = ops.choose_qparams_per_channel(ends, 0, *limits, symmetric=symmetric)
    found = ops.fake_quantize_per_channel(rows, scale, zero_point, 0, *limits)
    return (found - rows).square().sum(1)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_search_goes_far_enough(bits: int, symmetric: bool) -> None:
    """Of normal weights in groups of 128 it is within 1 % of the best of all narrower ranges."""
    rows = NORMAL.reshape(-1, 128)
    ends = torch.stack(torch.aminmax(rows, dim=1), dim=1)
    parts = torch.linspace(0.02, 1, 99)
    best = torch.stack([squared_error(bits, symmetric, ends * part, rows) for part in parts])
    config = QuantConfig(TensorConfig(bits, "per_group", symmetric, group_size=128))
    error = (rounded(NORMAL, config) - NORMAL).square().sum()
    assert error < 1.01 * best.amin(0).sum()


def test_eight_bits_are_not_searched() -> None:
    for rule in ("search", "max"):
        model = seeded(Block)
        baraquant.quantize_(model, QuantConfig(TensorConfig(8), scale_rule=rule))
        amax = seeded(Block).up.weight.detach().abs().amax(1)
        assert torch.equal(model.up.weight_scale, amax / 127)


OTHER_LAYERS = {
    "conv": lambda: nn.Conv2d(8, 6, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(8, 6, 3, groups=2),
    "embedding": lambda: nn.Embedding(9, 8),
}


@pytest.mark.parametrize("name", OTHER_LAYERS)
@pytest.mark.parametrize("group_size", [None, 4])
def test_a_search_for_other_layers(name: str, group_size: int | None) -> None:
    layer, errors = seeded(OTHER_LAYERS[name]), []
    for rule in ("search", "max"):
        model = nn.Sequential(copy.deepcopy(layer))
        baraquant.quantize_(model, W4A16(group_size, scale_rule=rule))
        errors.append(relative_error(model[0].weight * 1, layer.weight))
    assert errors[0] < errors[1] < 0.2
