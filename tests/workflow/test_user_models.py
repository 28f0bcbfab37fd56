# SPDX-License-Identifier: BSD-3-Clause
"""Whole models as users have them: trained, converted, stored, loaded, with the same bits.

Also in the hands of PyTorch's tools, and with inputs of odd shapes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import baraquant
from baraquant import QuantConfig, TensorConfig
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


def run_once(name: str, scheme: str, *, is_converted: bool, seed: int = 0) -> nn.Module:
    """A model that has seen a batch, in evaluation."""
    torch.manual_seed(seed)
    model = MODELS[name][0]()
    prepare_(model, training_models.SCHEMES[scheme])
    model(user_models.tokens(2, 5, seed=seed + 1))
    if is_converted:
        convert_(model)
    return model.eval()


@pytest.mark.parametrize("is_converted", [False, True], ids=["prepared", "converted"])
@pytest.mark.parametrize(("name", "scheme"), [("gpt", "learned"), ("llama", "w8a8")])
def test_tools(name: str, scheme: str, is_converted: bool, tmp_path: Path) -> None:
    model, x = run_once(name, scheme, is_converted=is_converted), user_models.tokens(2, 5)
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)
        # safetensors' own functions: plain tensors, and ties that they can see.
        safetensors.torch.save_model(model, tmp_path / "model")
        other = run_once(name, scheme, is_converted=is_converted, seed=7)
        assert not torch.equal(other(x), expected)
        safetensors.torch.load_model(other, tmp_path / "model")
        assert torch.equal(other(x), expected)
    with torch.inference_mode():
        assert torch.equal(model(x), expected)


SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "no_rows": lambda: torch.empty(0, 16),
    "no_tokens": lambda: torch.empty(2, 0, 16),
    "vector": lambda: user_models.floats(16),
    "five_dimensions": lambda: user_models.floats(2, 1, 3, 2, 16),
    "transposed": lambda: user_models.floats(16, 7).T,
    "every_other": lambda: user_models.floats(7, 32)[:, ::2],
    "expanded": lambda: user_models.floats(1, 16).expand(5, 16),
    "permuted": lambda: user_models.floats(2, 16, 3, 5).permute(0, 2, 3, 1),
    "zeros": lambda: torch.zeros(3, 16),
    "huge": lambda: user_models.floats(4, 16) * 3e37,
    "tiny": lambda: user_models.floats(4, 16) * 1e-40,
    **{
        name: lambda value=value: user_models.floats(4, 16).index_fill(1, torch.tensor(3), value)
        for name, value in SPECIAL.items()
    },
}


@pytest.mark.parametrize("scheme", training_models.SCHEMES)
def test_inputs_of_every_shape(scheme: str) -> None:
    model = training_models.linear_model()
    prepare_(model, training_models.SCHEMES[scheme])
    model(user_models.floats(6, 16))
    converted = copy.deepcopy(model).eval()
    convert_(converted)
    for name, make in INPUTS.items():
        x = make()
        with torch.no_grad():
            prepared, served = model.eval()(x), converted(x)
        assert served.shape == (*x.shape[:-1], 4), name
        for got in (prepared, converted(x.contiguous())):
            assert torch.equal(got.isnan(), served.isnan()), name
            assert torch.equal(got.nan_to_num(), served.nan_to_num()), name
        trained = copy.deepcopy(model).train()
        trained(x).sum().backward()
        gradients = [parameter.grad for parameter in trained.parameters()]
        assert all(gradient is not None for gradient in gradients), name
        if x.numel() == 0:
            assert not any(gradient.any() for gradient in gradients), name
            assert trained.eval()(user_models.floats(3, 16)).isfinite().all(), name
