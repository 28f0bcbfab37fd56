# SPDX-License-Identifier: BSD-3-Clause
"""Prepared and converted models in the hands of PyTorch's tools, and inputs of odd shapes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from baraquant import W8A8, load_, save
from baraquant.qat import convert_, prepare_
from tests.support.models import training_models, user_models

pytestmark = pytest.mark.usefixtures("one_thread")
one_thread = user_models.one_thread

BUILDS: dict[str, Callable[[], nn.Module]] = {"llama": user_models.Llama, "gpt": user_models.GPT}


def run_once(name: str, scheme: str, *, is_converted: bool, seed: int = 0) -> nn.Module:
    """A model that has seen a batch, in evaluation."""
    torch.manual_seed(seed)
    model = BUILDS[name]()
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


class Listed(nn.Module):
    """Its layers are registered one by one, and called out of a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8), nn.Linear(8, 4)]
        for position, layer in enumerate(self.layers):
            self.add_module(str(position), layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_in_a_plain_list(tmp_path: Path) -> None:
    """What the list holds is what is called: quantized, prepared, converted and loaded."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Listed()), torch.randn(3, 8)
    before = model(x)
    prepare_(model, W8A8())
    prepared = model.eval()(x)
    assert not torch.equal(prepared, before)
    convert_(model)
    assert torch.equal(model(x), prepared)
    save(model, path := tmp_path / "model.safetensors")
    for target in (nn.Sequential(Listed()), lambda: nn.Sequential(Listed())):
        assert torch.equal(load_(target, path)(x), prepared)
