# SPDX-License-Identifier: BSD-3-Clause
"""``prepare_`` starts where ``quantize_`` ends: at the integers of an algorithm, or stored ones."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import baraquant
from baraquant import AWQ, GPTQ, W4A8, W4A16, W8A8, W8A16, QuantConfig, SmoothQuant, W8A8Static
from baraquant.nn import LearnedFakeQuantize
from baraquant.qat import convert_, prepare_, teacher
from tests.support.checks.refused import refused
from tests.support.models.every_layer import same
from tests.support.models.outlier_models import Block, Tied, seeded
from tests.support.schemes import all_described, described
from tests.support.tiny_transformers.build import build, outputs
from tests.support.tiny_transformers.models import TINY
from tests.workflow.every_family import TOKENS, EveryFamily
from tests.workflow.registered_layer import forgotten

__all__ = ["forgotten"]  # a fixture

PREPARE = "baraquant.qat.prepare_: "
WEIGHTS = {
    "W4A16": W4A16(8),
    "W4A16 channels": W4A16(None),
    "W4A16 asymmetric": W4A16(8, symmetric=False),
    "W4A16 max": W4A16(8, scale_rule="max"),
    "W4A16 bfloat16": W4A16(8, scale_dtype="bfloat16"),
    "W8A16": W8A16(),
    **all_described("int2 per_group(8) asymmetric", "int3"),
}
SCHEMES = {
    **WEIGHTS,
    "W4A8": W4A8(8),
    "W4A8 asymmetric": W4A8(8, symmetric=False),
    "W4A8 int8": W4A8(8, backward="int8"),
    "W4A8 groups": W4A8(8, group_factors=False),
    "W8A8": W8A8(),
    "W8A8Static": W8A8Static(symmetric=False, conv_inputs=True),
    "rotated": W4A16(8, rotate=8),
    "rotated W8A8": W8A8(rotate=16),
    **all_described("int4 per_tensor", "int4 learned, int8 per_tensor learned"),
}
ALGORITHMS: dict[str, Any] = {
    **{f"GPTQ {name}": GPTQ(scheme) for name, scheme in SCHEMES.items()},
    "GPTQ in order": GPTQ(W4A16(8), act_order=True),
    **{f"AWQ {name}": AWQ(scheme) for name, scheme in WEIGHTS.items()},
}
DTYPES = [torch.float32, torch.bfloat16]
Call = Callable[[nn.Module], Any]


class Chain(nn.Module):
    """Linear layers before linear layers, which divide their outputs for AWQ."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.value, self.out = Block(), nn.Linear(16, 16), nn.Linear(16, 16)
        with torch.no_grad():
            self.value.weight[3] *= 30

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.value(self.block(x)))


def batches(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = torch.Generator().manual_seed(1)
    return [torch.randn(32, 16, generator=made).to(dtype) for _ in range(3)]


def assert_starts(call: Call, served: nn.Module, prepared: nn.Module) -> None:
    """The prepared model has the logits of the served one, and becomes it."""
    with torch.no_grad():
        expected, got = call(served), call(prepared.eval())
        convert_(prepared)
        again = call(prepared)
    assert torch.equal(got, expected) and torch.equal(again, expected)
    assert same(prepared, served)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_starts_the_training(name: str, dtype: torch.dtype) -> None:
    algorithm, data = ALGORITHMS[name], batches(dtype)
    model = seeded(Chain).to(dtype)
    served, prepared = copy.deepcopy(model), copy.deepcopy(model)
    told = baraquant.quantize_(served, algorithm, calibration=data)
    kept = [prepared.block.up.weight, prepared.out.weight]
    report = prepare_(prepared, algorithm, calibration=data)
    assert prepared.block.up._parameters["weight"] is kept[0]  # for optimizers made before
    assert all(
        ("GPTQ" in what) == ("GPTQ" in told.changed[p]) for p, what in report.changed.items()
    )
    again = copy.deepcopy(served)
    assert_starts(lambda model: model(data[0]), served, prepared)
    report = prepare_(again, algorithm.config)
    assert all(what.endswith("it holds the stored integers") for what in report.changed.values())
    assert report.share == pytest.approx(prepare_(model, algorithm.config).share)
    assert_starts(lambda model: model(data[0]), served, again)


def test_the_float_weights_stay_near() -> None:
    """A value moves into the cell of its integer, and no farther."""
    model, data = seeded(Chain), batches()
    served, prepared = copy.deepcopy(model), copy.deepcopy(model)
    prepare_(prepared, GPTQ(W4A16(None)), calibration=data)
    for name, layer in prepared.named_modules():
        if isinstance(layer, baraquant.nn.FakeQuantizedLinear):
            before, after = model.get_submodule(name).weight, layer._parameters["weight"]
            step = layer.weight_fake_quant.scale[:, None]
            outside = (before - layer.fake_quantized_weight()).abs() - step / 2
            moved = (after - before).abs()
            assert (moved <= outside.clamp_min(0) + 1e-5 * step).all() and (moved > 0).any()
    baraquant.quantize_(served, GPTQ(W4A16(None)), calibration=data)
    with torch.no_grad():
        expected, rounded = model(data[0]), prepared.eval()(data[0])
        with teacher(prepared):
            taught = prepared(data[0])
    error = [float((one - expected).square().mean()) for one in (taught, rounded)]
    assert error[0] < 0.7 * error[1]


@pytest.mark.parametrize(
    "name", ["GPTQ W4A16", "GPTQ W4A8", "GPTQ rotated", "AWQ W4A16 asymmetric"]
)
def test_a_step_moves_weights_and_scales(name: str) -> None:
    model, data = seeded(Chain), batches()
    prepare_(model, ALGORITHMS[name], calibration=data)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()(data[0]).square().mean().backward()
    optimizer.step()
    moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert {"out.weight", "out.weight_fake_quant.scale"} <= moved
    assert ("out.weight_fake_quant.zero_point" in moved) == ("asymmetric" in name)
    assert convert_(model).changed


FAMILY_SCHEMES = ("W4A16", "W4A16 asymmetric", "W4A8", "W8A8", "W8A8Static")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FAMILY_SCHEMES)
def test_every_family(name: str, dtype: torch.dtype) -> None:
    model = seeded(EveryFamily).to(dtype)
    served, prepared, scheme = copy.deepcopy(model), copy.deepcopy(model), SCHEMES[name]
    algorithm = GPTQ(scheme)
    baraquant.quantize_(served, algorithm, calibration=[TOKENS])
    report = prepare_(prepared, algorithm, calibration=[TOKENS])
    assert report.changed["conv"].endswith("; rounded to nearest, as GPTQ is for linear layers")
    assert ", GPTQ" in report.changed["attention.q_proj"] and "learned" in report.changed["table"]
    again = copy.deepcopy(served)
    assert_starts(lambda model: model(TOKENS), served, prepared)
    prepare_(again, scheme)
    assert_starts(lambda model: model(TOKENS), served, again)


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gpt2", "gemma", "qwen3_moe"])
def test_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    model, inputs = build(name), TINY[name].inputs()
    served, prepared = copy.deepcopy(model), copy.deepcopy(model)
    calibration = lambda model: outputs(model, inputs)  # noqa: E731
    baraquant.quantize_(served, GPTQ(W4A16(16)), calibration=calibration)
    prepare_(prepared, GPTQ(W4A16(16)), calibration=calibration)
    again = copy.deepcopy(served)
    first = lambda model: outputs(model, inputs)[0]  # noqa: E731
    assert_starts(first, served, prepared)
    report = prepare_(again, W4A16(16))
    experts = [why for path, why in report.left_out.items() if path.endswith("experts")]
    assert bool(experts) == ("moe" in name)
    assert all("QuantizedExperts, from which no training starts" in why for why in experts)
    assert_starts(first, served, again)


@pytest.mark.parametrize("name", ["W4A16", "int4 per_tensor", "W4A16 channels"])
def test_tied_weights_stay_tied(name: str) -> None:
    model = seeded(Tied)
    tokens = torch.arange(12).reshape(2, 6)
    baraquant.quantize_(model, SCHEMES[name])
    again = copy.deepcopy(model)
    prepare_(again, SCHEMES[name])
    parameters, table = again.head._parameters, again.embedding._parameters
    assert parameters["weight"] is table["weight"]
    assert again.head.weight_fake_quant is again.embedding.weight_fake_quant
    assert again.second is again.first
    assert_starts(lambda model: model(tokens), model, again)


def test_a_part_that_floats_is_prepared_as_ever(tmp_path: Path) -> None:
    data, scheme = batches(), W8A8Static("mse")
    model = seeded(Chain)
    baraquant.quantize_(model, {"block.*": scheme}, calibration=data)
    baraquant.save(model, tmp_path / "model")
    loaded = baraquant.load_(seeded(Chain), tmp_path / "model").eval()
    refused(prepare_, f"{PREPARE}.*value: expected calibration data", copy.deepcopy(loaded), scheme)
    report = prepare_(loaded, scheme, calibration=data)
    assert "stored" in report.changed["block.up"] and "stored" not in report.changed["out"]
    assert not loaded.block.up.input_fake_quant.observer_enabled
    baraquant.quantize_(model, {"value": scheme, "out": scheme}, calibration=data)
    assert_starts(lambda model: model(data[0]), model, loaded)


def test_merged_layers_leave_their_group() -> None:
    model, x = seeded(Block), batches()[0]
    baraquant.quantize_(model, W4A16(8))
    expected = model(x)
    assert baraquant.merge_linears_(model).changed
    prepare_(model, W4A16(8), filter_fn=lambda module, name: name != "key")
    assert torch.equal(model.eval()(x), expected)
    with torch.no_grad():
        model.query._parameters["weight"].zero_()
    assert not torch.equal(model(x), expected)


@pytest.mark.parametrize("master", ["bfloat16", "float16"])
def test_a_master_rounds_the_scales(master: str) -> None:
    model, data = seeded(Chain), batches()
    served, scheme = copy.deepcopy(model), W4A16(8, master=master)
    baraquant.quantize_(served, GPTQ(scheme), calibration=data)
    report = prepare_(model, GPTQ(scheme), calibration=data)
    assert f"; its scales are rounded to {master}" in report.changed["out"]
    integers, scale, _ = model.out.quantized_weight()
    assert torch.equal(integers, served.out.qweight)
    assert torch.equal(scale, served.out.weight_scale.to(getattr(torch, master)).float())


MISFITS: dict[str, tuple[QuantConfig, QuantConfig, str]] = {
    "bits": (W4A16(8), described("int3 per_group(8)"), r"int4 per_group\(8\) symmetric"),
    "group": (W4A16(8), W4A16(4), r"int4 per_group\(8\) .*got .*per_group\(4\)"),
    "size": (W4A16(None), W4A16(24), "int4 per_channel .*got .*expected group_size to divide"),
    "zero point": (W4A16(8, False), W4A16(8), r"int4 per_group\(8\) asymmetric"),
    "factors": (W4A8(8), W4A8(8, group_factors=False), "factors, input=int8 per_token"),
    "input": (W8A8(), W8A16(), "int8 per_channel symmetric dynamic, input=int8 per_token"),
    "static": (W8A8Static(), W8A8(), "input=int8 per_tensor symmetric static"),
    "rotation": (W8A8(rotate=8), W8A8(), "rotate=8"),
    "backward": (W8A8(), W8A8(backward="int8"), "backward='float', but got 'int8': learned"),
    "ternary": (described("int2"), described("int2 ternary"), "scales can be learned"),
    "scale": (W4A16(None), described("int4 per_tensor"), "int4 per_channel"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_configuration_has_to_fit(name: str) -> None:
    stored, given, message = MISFITS[name]
    model, data = seeded(Chain), batches()
    baraquant.quantize_(model, stored, calibration=data)
    before, modules = copy.deepcopy(model), list(model.modules())
    refused(prepare_, rf"{PREPARE}block\.query: .*{message}", model, given, calibration=data)
    assert same(model, before) and list(model.modules()) == modules


def test_what_no_training_starts_from() -> None:
    model, data = seeded(Block, pre_norm=False), batches()
    report = baraquant.quantize_(model, SmoothQuant(), calibration=data)
    inside = [path for path, what in report.changed.items() if "in its input" in what]
    left = prepare_(model, W8A8()).left_out
    assert inside and set(left) == set(inside)
    assert all("it divides its input" in why for why in left.values())
    refused(prepare_, "SmoothQuant: .*may divide its input", model, SmoothQuant(), calibration=data)
    for algorithm, message in (
        (GPTQ(W8A8(backward="int8")), "expected backward='float'"),
        (GPTQ(described("int2 ternary")), "expected weights whose scales can be learned"),
    ):
        refused(prepare_, f"{PREPARE}.*{message}", seeded(Block), algorithm, calibration=data)
    refused(prepare_, "expected calibration data for GPTQ", seeded(Block), GPTQ(W4A16(8)))


def test_layers_that_a_pass_leaves_alone() -> None:
    data, model = batches(), seeded(Chain)
    model.lone = nn.Linear(16, 16)
    weight_norm(model.value)
    report = prepare_(model, GPTQ(W4A16(8)), calibration=data)
    assert "; rounded to nearest, as PyTorch computes its weight" in report.changed["value"]
    assert "; rounded to nearest, as the calibration data does" in report.changed["lone"]
    twin = nn.Sequential(copy.deepcopy(model.lone))
    assert isinstance(twin[0].weight_fake_quant, LearnedFakeQuantize)
    plain = nn.Sequential(nn.Linear(16, 16))
    plain[0].load_state_dict({"weight": model.lone._parameters["weight"], "bias": model.lone.bias})
    baraquant.quantize_(plain, W4A16(8))
    convert_(twin)
    assert same(twin, plain)


@pytest.mark.parametrize("name", ["GPTQ rotated", "AWQ W4A16"])
def test_an_error_leaves_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes: in the runs, while weights are written, in the last step."""
    data = batches()
    places = {
        "baraquant.workflow.prepare.start": 3,
        "baraquant.workflow.prepare.swap": 0,
        "baraquant.workflow.prepare.completed": 0,
        "baraquant.workflow.prepare.plan_passes": 0,
    }
    for place, calls in places.items():
        model = seeded(Chain)
        before, modules = copy.deepcopy(model), list(model.modules())
        left = [calls]
        module, _, attribute = place.rpartition(".")
        own = getattr(__import__(module, fromlist=[attribute]), attribute)

        def fails(*args: Any, left: Any = left, own: Any = own, **kwargs: Any) -> Any:
            left[0] -= 1
            result = own(*args, **kwargs)
            if left[0] < 0:
                raise KeyboardInterrupt
            return result

        with monkeypatch.context() as patched:
            patched.setattr(place, fails)
            with pytest.raises(KeyboardInterrupt):
                prepare_(model, ALGORITHMS[name], calibration=data)
        assert same(model, before) and list(model.modules()) == modules


@dataclass(frozen=True)
class Halve(baraquant.Algorithm):
    scheme: ClassVar[str] = "halve in a test of starts"

    config: QuantConfig


class HalvePass(baraquant.Pass):
    needs_calibration = False

    def plan(self, *args: Any) -> None:
        pass

    def apply(self, name: str, weight: Tensor) -> Tensor:
        return weight / 2

    def describe(self, path: str) -> str:
        return ", halved"


@pytest.mark.usefixtures("forgotten")
def test_an_algorithm_of_a_user() -> None:
    baraquant.register_pass(Halve, HalvePass)
    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ConvTranspose1d(4, 4, 3), nn.Flatten())
    served, x = copy.deepcopy(model).eval(), torch.randn(2, 4, 9)
    baraquant.quantize_(served, Halve(W4A16(4)))
    report = prepare_(model, Halve(W4A16(4)))
    assert re.search("symmetric learned.*, halved$", report.changed["0"])
    assert_starts(lambda model: model(x), served, model)


RULES = [
    replace(scheme, scale_rule=rule) for scheme in SCHEMES.values() for rule in ("max", "lattice")
]


@pytest.mark.parametrize("scheme", [*SCHEMES.values(), *RULES], ids=str)
def test_learned_scales_start_as_quantize_finds_them(scheme: QuantConfig) -> None:
    """At the preparation, and at the first batch of a model that had no data then."""
    if scheme.backward != "float":
        scheme = scheme.with_float_backward()
    learned, data = scheme.with_learned_scales(), batches()
    calibration = data if scheme.is_static else None
    for dtype in (torch.float32, torch.bfloat16):
        served, x = seeded(Block).to(dtype), data[0].to(dtype)
        given = None if calibration is None else [one.to(dtype) for one in calibration]
        prepared, state = copy.deepcopy(served), copy.deepcopy(served.state_dict())
        baraquant.quantize_(served, scheme, calibration=given)
        prepare_(prepared, learned, calibration=given)
        assert_starts(lambda model, x=x: model(x), copy.deepcopy(served), prepared)
        if scheme.is_static or scheme.rotate:
            continue
        with torch.device("meta"):
            late = Block().to(dtype)
        prepare_(late, learned)
        late.to_empty(device="cpu").load_state_dict(state, strict=False)
        late.train()(x)
        assert_starts(lambda model, x=x: model(x), served, late)


def test_names_of_learned_schemes() -> None:
    assert W4A16(8, learned=True) == W4A16(8).with_learned_scales()
    assert W4A8(8, learned=True) == W4A8(8).with_learned_scales()
