# SPDX-License-Identifier: BSD-3-Clause
"""Whole models as users have them: trained, converted, stored, loaded, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W8A8, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support.models import training_models, user_models

pytestmark = pytest.mark.usefixtures("one_thread")
one_thread = user_models.one_thread

GROUPS = QuantConfig(
    TensorConfig(4, "per_group", False, learned=True, group_size=4),
    TensorConfig(8, "per_tensor", learned=True),
)
SCHEMES = {name: training_models.SCHEMES[name] for name in ("w8a8", "static", "learned")}
SCHEMES["groups"] = GROUPS

# What builds a model, and what makes its arguments from a seed.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]] = {
    "llama": (user_models.Llama, lambda seed: (user_models.tokens(2, 5, seed=seed),)),
    "gpt": (user_models.GPT, lambda seed: (user_models.tokens(2, 5, seed=seed),)),
    "gpt_of_conv1d": (
        lambda: user_models.GPT(conv1d=True),
        lambda seed: (user_models.tokens(2, 5, seed=seed),),
    ),
    "resnet": (user_models.ResNet, lambda seed: (user_models.floats(2, 3, 12, 12, seed=seed),)),
    "siamese": (user_models.Siamese, lambda seed: (user_models.floats(4, 16, seed=seed),)),
    "translator": (
        user_models.Translator,
        lambda seed: (
            user_models.tokens(2, 5, seed=seed),
            user_models.tokens(2, 4, seed=seed + 100),
        ),
    ),
}


def cast(arguments: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in arguments)


def seeded(build: Callable[[], nn.Module], dtype: torch.dtype, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build().to(dtype)


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        *((scheme, torch.float32) for scheme in SCHEMES),
        ("w8a8", torch.bfloat16),
        ("learned", torch.bfloat16),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_trained_converted_stored(
    name: str, scheme: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    build, arguments = MODELS[name]
    model = seeded(build, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)  # before prepare_
    report = prepare_(model, SCHEMES[scheme])
    # What is left out is said, and is all there is besides.
    weights = {
        name
        for name, module in model.named_modules()
        if isinstance(module, (user_models.Conv1D, nn.Conv2d))
        and not hasattr(module, "weight_fake_quant")
    }
    assert set(report.left_out) == weights
    for step in range(2):
        for part in range(2):  # gradients accumulate
            model(*cast(arguments(2 * step + part), dtype)).float().square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.eval()  # between the batches
        model.train()
    model.eval()
    x = cast(arguments(9), dtype)
    with torch.no_grad():
        prepared = model(*x)
    assert prepared.isfinite().all()
    convert_(model)
    assert torch.equal(model(*x), prepared)

    path = tmp_path / "model.safetensors"
    baraquant.save(model, path)
    fresh = baraquant.load_(seeded(build, dtype, seed=1), path).eval()
    assert torch.equal(fresh(*x), prepared)


@pytest.mark.parametrize("config", [W8A8(), W8A8Static("mse", False), SmoothQuant()], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_quantized_after_training(name: str, config: baraquant.configs.Config) -> None:
    build, arguments = MODELS[name]
    model = seeded(build, torch.float32).eval()
    x = arguments(9)
    with torch.no_grad():
        expected = model(*x)
    baraquant.quantize_(
        model, config, calibration=[arguments(seed) for seed in range(3)], progress=False
    )
    error = (model(*x) - expected).norm() / expected.norm()
    assert 0 < error < 0.08


@pytest.mark.parametrize("name", ["llama", "gpt", "siamese", "resnet"])
def test_training_the_same_scheme_for_no_step_is_quantization_after_it(name: str) -> None:
    build, arguments = MODELS[name]
    after, trained = seeded(build, torch.float32), seeded(build, torch.float32)
    baraquant.quantize_(after, W8A8())
    prepare_(trained, W8A8())
    convert_(trained)
    for model in (after, trained):
        model.eval()
    assert torch.equal(after(*arguments(0)), trained(*arguments(0)))
    states = after.state_dict(), trained.state_dict()
    assert states[0].keys() == states[1].keys()


def test_ties_and_shared_modules_survive() -> None:
    model = seeded(user_models.GPT, torch.float32)
    prepare_(model, W8A8())
    assert model.lm_head.weight is model.wte.weight
    convert_(model)
    assert model.lm_head.qweight.data_ptr() == model.wte.qweight.data_ptr()
    siamese = seeded(user_models.Siamese, torch.float32)
    prepare_(siamese, W8A8())
    convert_(siamese)
    assert siamese.left is siamese.right
    assert siamese.first.qweight.data_ptr() == siamese.second.qweight.data_ptr()


def test_one_dtype_for_each_part() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Linear(8, 8, dtype=torch.bfloat16)
            self.high = nn.Linear(8, 4, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.high(self.low(x).double())

    model, x = Mixed(), user_models.floats(3, 8, dtype=torch.bfloat16)
    prepare_(model, training_models.LEARNED)
    model(x).sum().backward()
    assert model.low.weight_fake_quant.scale.dtype == torch.float32
    assert model.high.weight_fake_quant.scale.dtype == torch.float64
    prepared = model.eval()(x)
    convert_(model)
    assert torch.equal(model(x), prepared)
