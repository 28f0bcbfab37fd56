# SPDX-License-Identifier: BSD-3-Clause
"""`reconstruct_`: what it gains, what it leaves as it was, and the bits of what it makes."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import GPTQ, W4A8, W4A16, W8A8, QuantConfig, TensorConfig, W8A8Static
from tests.support.checks.refused import refused
from tests.support.models.outlier_models import unchanged
from tests.support.schemes import described
from tests.workflow.reconstruction.models import error, made, outputs, reconstructed

ROTATED = QuantConfig(TensorConfig(4), TensorConfig(8, "per_token"), rotate=16)
SCHEMES: dict[str, QuantConfig] = {
    "W4A16": W4A16(8),
    "three bits": described("int3 per_group(8) asymmetric"),
    "two bits": described("int2 per_channel"),
    "per tensor": described("int4 per_tensor"),
    "W8A8": W8A8(backward="int8"),
    "static": W8A8Static(conv_inputs=True),
    "learned input": described("int4 per_channel learned, int8 per_tensor learned"),
    "W4A8": W4A8(8),
    "W4A8 asymmetric": W4A8(8, False),
    "ternary": described("int2 per_channel ternary, int8 per_token"),
    "ternary groups": described("int2 per_group(8) ternary"),
    "rotated": ROTATED,
    "static weight": W4A16(8, scale_dtype="bfloat16", master="bfloat16"),
}


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("name", ["mlp", "llama"])
def test_its_error_is_below_that_of_nearest_and_of_gptq(name: str, bits: int) -> None:
    model, batches = made(name, count=16)
    config, fresh = (
        QuantConfig(TensorConfig(bits, "per_group", group_size=16)),
        made(name, 24)[1][16:],
    )
    wanted = outputs(model, fresh)
    errors: dict[str, float] = {}
    for how in (config, GPTQ(config)):
        own = copy.deepcopy(model)
        baraquant.quantize_(own, how, calibration=batches, progress=False)
        errors[type(how).__name__] = error(own, wanted, fresh)
    own, report = reconstructed(model, config, batches, steps=150)
    assert error(own, wanted, fresh) < min(errors.values())
    assert all(after < before for before, after in report.errors.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["convolutions", "text"])
def test_the_converted_model_has_the_bits_of_the_prepared_one(
    name: str, scheme: str, dtype: torch.dtype
) -> None:
    model, batches = made(name, dtype=dtype)
    prepared, report = reconstructed(model, SCHEMES[scheme], batches, convert=False)
    converted, other = reconstructed(model, SCHEMES[scheme], iter(batches))
    assert other.errors == report.errors and report.errors
    assert all(after <= before for before, after in report.errors.values())
    wanted = outputs(prepared, batches)
    baraquant.qat.convert_(prepared)
    for own in (prepared, converted):
        assert all(map(torch.equal, outputs(own, batches), wanted))


def test_only_what_is_learned_changes() -> None:
    model, batches = made("convolutions")
    model[3].train()
    model[0].weight.requires_grad_(False)
    model.eval()[3][0].train()
    state = torch.get_rng_state(), random.getstate()
    own, _ = reconstructed(model, W4A16(4), batches, convert=False)
    assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]
    assert all(p.grad is None for p in own.parameters())
    assert [m.training for m in own[3][0].children()] == [
        m.training for m in model[3][0].children()
    ]
    assert [block.calls for block in own[3]] == [0, 0]
    now, flags = (
        dict(own.named_parameters()),
        {n: p.requires_grad for n, p in model.named_parameters()},
    )
    assert {name: now[name].requires_grad for name in flags} == flags
    for name, value in model.state_dict().items():
        is_learned = name.rpartition(".")[0] in {"3.0.first", "3.0.second", "3.1.first"} | {
            "3.1.second", "4", "6"
        }  # fmt: skip
        assert is_learned or torch.equal(own.state_dict()[name], value), name
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in own.modules())


def test_a_block_that_learns_nothing_better_keeps_its_start() -> None:
    model, batches = made("mlp")
    own, report = reconstructed(model, W4A16(16), batches, lr=50.0, steps=3)
    assert all(before == after for before, after in report.errors.values())
    nearest = copy.deepcopy(model)
    baraquant.quantize_(nearest, W4A16(16))
    assert all(map(torch.equal, outputs(own, batches), outputs(nearest, batches)))


def test_the_report_says_what_is_not_learned() -> None:
    model, batches = made("unusual")
    _, report = reconstructed(model, W4A16(8), batches)
    assert [*report.errors] == ["plain"]
    for path, text in {
        "plain": ", reconstructed",
        "twice": "it is called 2 times in a run",
        "never": "the calibration data does not reach it",
        "computed": "its weight is computed",
        "tied": "other modules share its weight",
    }.items():
        assert text in report.changed[path]
    assert "block plain" in str(report)


def test_training_goes_on_with_the_scales_alone() -> None:
    model, batches = made("mlp")
    own, _ = reconstructed(model, W4A16(16), batches, convert=False)
    frozen = baraquant.qat.freeze_weights(own)
    own(batches[0]).sum().backward()
    assert own[0].weight_fake_quant.scale.grad is not None and own[0].weight.grad is None
    frozen.thaw()
    baraquant.qat.convert_(own)


@pytest.mark.parametrize("convert", [True, False])
def test_an_error_leaves_the_model_as_it_was(
    convert: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batches = made("convolutions")
    original, forward, calls = copy.deepcopy(model), nn.Flatten.forward, []

    def fails(self: nn.Module, x: Any) -> Any:
        calls.append(x)
        if len(calls) > 5 * len(batches):  # the blocks before have learned
            raise KeyboardInterrupt
        return forward(self, x)

    monkeypatch.setattr(nn.Flatten, "forward", fails)
    with pytest.raises(KeyboardInterrupt):
        baraquant.reconstruct_(
            model, ROTATED, calibration=batches, steps=4, convert=convert, progress=False
        )
    assert unchanged(model, original)


class _Loader:
    """Runs the model more often in each call than in the one before."""

    runs = 0

    def __call__(self, model: nn.Module) -> None:
        self.runs += 1
        for _ in range(self.runs):
            model(torch.ones(2, 32))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"calibration": []}, "expected calibration data, but got no batch"),
        ({"calibration": lambda model: None}, "to reach the module, but it saw no input"),
        ({"calibration": _Loader()}, "runs the model in the same way each time"),
        ({"blocks": "layers.*"}, "'layers.*' matches none"),
        ({"steps": 0}, "steps to be at least 1"),
        ({"lr": 0.0}, "lr to be a finite number above 0"),
        ({"cache_bytes": -1}, "cache_bytes to be at least 0"),
        ({"filter_fn": lambda module, name: False}, "expected a model with a Linear"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(next(iter(value))),
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    model, batches = made("mlp")
    options = {"calibration": batches, "progress": False, "steps": 2, **options}
    refused(baraquant.reconstruct_, message, model, W4A16(16), **options)


def test_types_that_are_refused() -> None:
    model, batches = made("mlp")
    for options in ({"steps": 1.5}, {"seed": None}, {"blocks": [3]}, {"calibration": batches[0]}):
        options = {"calibration": batches, "progress": False, **options}
        refused(baraquant.reconstruct_, "expected", model, W4A16(16), error=TypeError, **options)
    baraquant.qat.prepare_(model, W4A16(16))
    options = {"calibration": batches, "progress": False}
    refused(baraquant.reconstruct_, "without prepared layers", model, W4A16(16), **options)
