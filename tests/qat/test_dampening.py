# SPDX-License-Identifier: BSD-3-Clause
"""The dampening loss: its value by hand, its gradient, and every kind of layer."""

import pytest
import torch
from torch import nn

import baraquant
from baraquant import PerGroup, QuantConfig, TensorConfig
from baraquant.qat import convert_, dampening_loss, prepare_

CONFIGS = {
    "W4A16": baraquant.W4A16(8),
    "W4A8": baraquant.W4A8(8),
    "W8A8": baraquant.W8A8(),
    "3 bits, zero points": QuantConfig(TensorConfig(3, PerGroup(8), symmetric=False)),
    "learned": QuantConfig(TensorConfig(2, PerGroup(8), learned=True)),
    "learned factors": baraquant.W4A8(8, learned=True),
    "observed": QuantConfig(TensorConfig(4, PerGroup(8), dynamic=False)),
    "ternary": QuantConfig(TensorConfig(2, ternary=True)),
    "rotated": baraquant.W4A8(None, rotate=8),
}


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv1d(8, 16, 3), nn.ConvTranspose1d(16, 8, 3), nn.Flatten(), nn.Linear(32, 8)
    return nn.Sequential(*layers).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_and_its_gradient_are_those_of_the_rounding_error(
    name: str, dtype: torch.dtype
) -> None:
    prepared = model(dtype)
    prepare_(prepared, CONFIGS[name])
    x = torch.randn(2, 8, 4, dtype=dtype)
    prepared(x)  # sets what has a first batch
    state = {key: value.clone() for key, value in prepared.state_dict().items()}
    loss = dampening_loss(prepared)
    loss.backward()
    for key, value in prepared.state_dict().items():  # nothing is observed
        assert torch.equal(value, state[key]), key
    layers = [m for m in prepared.modules() if hasattr(m, "weight_fake_quant")]
    expected = []
    for layer in layers:
        weight = layer.float_weight().detach()
        rounded = layer.eval().fake_quantized_weight().detach()
        error, total = weight.float() - rounded.float(), weight.float().square().sum()
        expected.append(error.square().sum() / total)
        gradient = layer._parameters["weight"].grad.float()
        wanted = 2 * error / total / len(layers)
        assert torch.allclose(gradient, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4)
        assert all(p.grad is None for p in layer.weight_fake_quant.parameters())
    assert loss.dtype == torch.float32 and loss.item() > 0
    assert torch.allclose(loss, torch.stack(expected).mean(), rtol=1e-2)


def test_descending_it_moves_weights_to_the_grid() -> None:
    prepared = nn.Sequential(nn.Linear(16, 4))
    prepare_(prepared, QuantConfig(TensorConfig(3, PerGroup(8), learned=True)))
    prepared(torch.randn(2, 16))
    before, optimizer = dampening_loss(prepared), torch.optim.SGD(prepared.parameters(), 0.5)
    for _ in range(20):
        optimizer.zero_grad()
        dampening_loss(prepared).backward()
        optimizer.step()
    assert dampening_loss(prepared) < 0.01 * before


def test_what_is_not_prepared_is_an_error() -> None:
    floats = model()
    for wrong in (floats, nn.Identity()):
        with pytest.raises(
            ValueError, match=r"expected a model prepared by baraquant.qat.prepare_"
        ):
            dampening_loss(wrong)
    with pytest.raises(TypeError, match=r"baraquant.qat.dampening_loss"):
        dampening_loss([floats])
    prepare_(floats, baraquant.W4A16(8))
    assert dampening_loss(floats) > 0
    convert_(floats)
    with pytest.raises(ValueError, match="has no prepared layer"):
        dampening_loss(floats)
