# SPDX-License-Identifier: BSD-3-Clause
"""A training that is stopped and resumed from its state has the bits of one that was not.

A state that comes from a model that was prepared otherwise is refused, by name.
"""

import contextlib
import copy
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import baraquant
from baraquant import W4A8, W8A8, QuantConfig, W8A8Static
from baraquant import nn as bnn
from baraquant.configs import Config
from tests.nn.test_quantizer_modules import saved
from tests.support import cases
from tests.support.models.every_layer import Every
from tests.support.models.training_models import SCHEMES, activation_configs, weight_configs
from tests.support.schemes import described

CONFIGS: dict[str, Config] = {
    **SCHEMES,
    "ternary": described("int2 ternary, int8 per_token"),
    "static weight": described("int8 static, int8 per_tensor static"),
    "static groups": described(
        "int4 per_group(4) asymmetric static, int8 per_tensor asymmetric static"
    ),
    "running range": W8A8Static(),
    "factors": W4A8(4),
    "learned groups": described("int4 per_group(4) learned"),
    "rotated": W8A8(rotate=8),
    "rounded scales": described("int4", scale_dtype="bfloat16"),
    "master": W8A8(master="bfloat16"),
    "stochastic": W8A8(backward="int8", rounding="stochastic"),
}
# Every kind of weight with every kind of input, as far as they go together.
PRODUCT: dict[str, Config] = {}
for both in product(weight_configs((4,)), activation_configs()):
    with contextlib.suppress(NotImplementedError, ValueError):
        PRODUCT[str(QuantConfig(*both))] = QuantConfig(*both)
Training = tuple[nn.Module, torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(11, 8), nn.Conv1d(8, 8, 3, padding=1)
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        x = self.table(input[..., 0].long()) * input[..., 1:]
        x = self.conv(x.transpose(1, 2)).transpose(1, 2).relu()
        return self.head(self.body(x).relu())


STEPS = 6
# Observes at first, then rounds, then freezes its ranges.
PHASES = {0: bnn.disable_fake_quant, 2: bnn.enable_fake_quant, 4: bnn.disable_observer}


def batch(step: int) -> Tensor:
    generator = cases.generator(step)
    index = torch.randint(11, (3, 5, 1), generator=generator)
    numbers = torch.randn(3, 5, 8, generator=generator)
    # Only zeros in the first batch, and one number that is not finite later.
    numbers = numbers * (0.0 if step == 0 else 1.0)
    numbers[0, 0, 0] += float("inf") if step == 3 else 0.0
    return torch.cat([index, numbers], -1)


def start(config: Config) -> Training:
    torch.manual_seed(0)
    model = Net()
    baraquant.qat.prepare_(model, config, progress=False)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    outputs = []
    for step in steps:
        if step in PHASES:
            model.apply(PHASES[step])
        optimizer.zero_grad()
        output = model(batch(step))
        outputs.append(output.detach().clone())
        loss = output.square().mean()
        loss.backward()
        if loss.isfinite():  # as a gradient scaler decides
            optimizer.step()
    return outputs


def by_file(trained: Training, fresh: Training, folder: Path) -> None:
    states = torch.load(saved(torch.save, [one.state_dict() for one in trained]), weights_only=True)
    for one, state in zip(fresh, states, strict=True):
        one.load_state_dict(state)


def by_distributed_checkpoint(trained: Training, fresh: Training, folder: Path) -> None:
    names = ("model", "optimizer")
    state = dict(zip(names, get_state_dict(*trained), strict=True))
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    state = dict(zip(names, get_state_dict(*fresh), strict=True))
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    of_model, of_optimizer = state.values()
    set_state_dict(*fresh, model_state_dict=of_model, optim_state_dict=of_optimizer)


def ended(model: nn.Module) -> dict[str, Any]:
    """The state of a trained model, and what it computes."""
    found: dict[str, Any] = dict(model.state_dict())
    with torch.no_grad():
        found["evaluated"] = model.eval()(batch(1))
        baraquant.qat.convert_(model)
        found["served"] = model(batch(1))
    return found


def check(config: Config, stops: tuple[int, ...], resume: Any, folder: Path) -> None:
    """Train once; what another training resumes from each stop gives what that one gives."""
    training, outputs, resumed = start(config), [], []
    for stop, until in pairwise((*stops, STEPS)):
        outputs += run(*training, range(len(outputs), stop))
        with torch.random.fork_rng():
            fresh = start(config)
        resume(training, fresh, folder)
        resumed.append((stop, fresh, torch.get_rng_state()))
        outputs += run(*training, range(stop, until))
    random, end = torch.get_rng_state(), ended(training[0])
    for stop, fresh, state in resumed:
        torch.set_rng_state(state)
        got: dict[Any, Tensor] = dict(enumerate(run(*fresh, range(stop, STEPS)), stop))
        assert torch.equal(torch.get_rng_state(), random)
        got |= ended(fresh[0])
        wanted = dict(enumerate(outputs[stop:], stop)) | end
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


# Each is stopped while it observes, and later.
PAIRS_OF_STOPS = [(0, 3), (1, 4), (2, 5)]
# While nothing is rounded, and after that. PyTorch's tools want an optimizer's state of each
# parameter, and a scale that rounds nothing has none.
STOPS = [("w8a8", 1), ("static", 1), ("w8a8", 4), ("static", 5), ("learned", 3)]


@pytest.mark.parametrize("stops", PAIRS_OF_STOPS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_bits_of_one_that_was_not(name: str, stops: tuple[int, ...], tmp_path: Path) -> None:
    check(CONFIGS[name], stops, by_file, tmp_path)


@pytest.mark.parametrize(("name", "stop"), STOPS)
def test_distributed_checkpoints(name: str, stop: int, tmp_path: Path) -> None:
    check(CONFIGS[name], (stop,), by_distributed_checkpoint, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PRODUCT)
def test_every_configuration(name: str, tmp_path: Path) -> None:
    """Neighbours are stopped at other steps."""
    check(PRODUCT[name], PAIRS_OF_STOPS[list(PRODUCT).index(name) % 3], by_file, tmp_path)


def linear(config: Config) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8))
    baraquant.qat.prepare_(model, config, progress=False)
    model(torch.randn(4, 16))
    return model


STATIC, LEARNED = W8A8Static(), described("int8, int8 per_tensor learned")
GROUPS = [described(f"int4 per_group({size}) static") for size in (4, 8)]
WEIGHT, INPUT = "0.weight_fake_quant", "0.input_fake_quant"
OTHERS: dict[str, tuple[Config, Config, str]] = {
    "asymmetric static": (W8A8Static(symmetric=False), STATIC, INPUT),
    "symmetric static": (STATIC, W8A8Static(symmetric=False), INPUT),
    "bits of weights": (W8A8(), described("int4, int8 per_token"), WEIGHT),
    "bits of inputs": (W8A8(), described("int8, int4 per_token"), INPUT),
    "group size": (W4A8(4), W4A8(8), WEIGHT),
    "observed groups": (*GROUPS, WEIGHT),
    "granularity": (W8A8(), described("int8 per_tensor, int8 per_token"), WEIGHT),
    "learned": (LEARNED, STATIC, INPUT),
    "static": (STATIC, LEARNED, INPUT),
    "dynamic": (W8A8(), STATIC, INPUT),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_preparation_is_refused(name: str) -> None:
    source, target, path = OTHERS[name]
    state, model = linear(source).state_dict(), linear(target)
    quantizer = model.get_submodule(path)
    before = copy.deepcopy(quantizer.state_dict())
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=rf"{path}.scheme: .*, but got .*configuration"):
            model.load_state_dict(state, strict=strict)
        torch.testing.assert_close(quantizer.state_dict(), before, rtol=0, atol=0)


def test_a_state_without_the_entries() -> None:
    """As PyTorch's observers give it: it is loaded where it can have one meaning alone."""
    for config in (W8A8(), W8A8Static(symmetric=False), CONFIGS["learned"]):
        state = linear(config).state_dict()
        left_out = ("scheme", "saw_zeros")
        state = {name: t for name, t in state.items() if not name.endswith(left_out)}
        linear(config).load_state_dict(state)


def test_a_switch_that_a_state_does_not_name() -> None:
    model = linear(W8A8())
    state = {key: t for key, t in model.state_dict().items() if "fake_quant" not in key}
    model.load_state_dict(state)
    model.apply(bnn.disable_fake_quant)
    with pytest.raises(RuntimeError, match=r"Missing.*weight_fake_quant.fake_quant_enabled"):
        model.load_state_dict(state)
    assert not model[0].weight_fake_quant._rounds


def test_a_zero_point_that_a_symmetric_module_has_not() -> None:
    state = bnn.FakeQuantize(mode="observed", symmetric=False).state_dict()
    state["zero_point"].fill_(3)
    del state["scheme"]
    with pytest.raises(RuntimeError, match=r"zero_point: expected a zero point in \[0, 0\].* 3"):
        bnn.FakeQuantize(mode="observed").load_state_dict(state)


def test_memory_that_was_empty_gets_the_state() -> None:
    for config in (W8A8(), W8A8Static(), CONFIGS["learned"]):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(16, 8))
            baraquant.qat.prepare_(model, config, progress=False)
        model.to_empty(device="cpu")
        wanted = linear(config).state_dict()
        for name, tensor in model.state_dict().items():
            if name.endswith("scheme") or (config == W8A8() and name.endswith("enabled")):
                assert torch.equal(tensor, wanted[name]), name


def test_integers_take_only_integers_that_they_hold() -> None:
    model = Every().quantize()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() or name.startswith("norm."):  # PyTorch's own
            continue
        wrong = [tensor.double() + 0.7]
        if tensor.element_size() < 4:
            wrong.append(torch.full_like(tensor, 300, dtype=torch.int16))
        for other in wrong:
            with pytest.raises(RuntimeError, match=rf"{name}: expected .*, but got .*alike"):
                model.load_state_dict({name: other}, strict=False)
        assert torch.equal(model.state_dict()[name], tensor)
        model.load_state_dict({name: tensor.long()}, strict=False)
        with pytest.raises(RuntimeError, match=f"{name}: expected"):
            model.load_state_dict({name: tensor.short()}, strict=False, assign=True)
