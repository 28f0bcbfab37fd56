# SPDX-License-Identifier: BSD-3-Clause
"""``register_pass``: an algorithm of a user's own, in ``quantize_`` and beside it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

import baraquant
from baraquant import AWQ, W4A16, W8A8, W8A16, QuantConfig, SmoothQuant, W8A8Static
from baraquant.workflow.calibration.run import Run
from baraquant.workflow.passes import Chosen
from baraquant.workflow.stream import Stream
from tests.support.checks.refused import refused
from tests.workflow.registered_layer import forgotten

__all__ = ["forgotten"]  # a fixture

SHARES = [1 - step / 20 for step in range(11)]
CONFIGS = [W4A16(None), W4A16(4, scale_rule="max"), W8A8Static(conv_inputs=True), W8A8(rotate=8)]
CONFIGS += [W8A16(master="bfloat16")]
NAMELESS = type("Nameless", (baraquant.Algorithm,), {})


class Squares:
    skipped_batches = None

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.sums: Tensor | None = None

    def observe(self, input: Tensor) -> None:
        sums = input.transpose(0, self.axis).flatten(1).square().sum(dim=1)
        self.sums = sums if self.sums is None else self.sums + sums

    def unusable(self) -> Tensor | None:
        return None if self.sums is None else ~self.sums.isfinite().all()


def clipped(weight: Tensor, squares: Tensor) -> Tensor:
    """Clip each output channel where the error of its int4 products is smallest."""
    rows = weight.flatten(1)
    importance = squares.repeat_interleave(rows.shape[1] // len(squares))
    most = rows.abs().amax(dim=1, keepdim=True)
    best, least = rows, torch.full_like(most, torch.inf)
    for share in SHARES:
        tried = rows.clamp(-share * most, share * most)
        scale = tried.abs().amax(dim=1, keepdim=True) / 7
        rounded = (tried / scale).round() * scale
        error = ((rounded - rows).square() * importance).sum(dim=1, keepdim=True)
        best, least = torch.where(error < least, tried, best), torch.minimum(error, least)
    return best.view_as(weight)


@dataclass(frozen=True)
class Clip(baraquant.Algorithm):
    scheme: ClassVar[str] = "clip in a test"

    config: QuantConfig
    fails: str = ""


class ClipPass(baraquant.Pass):
    instead = "not clipped"
    finished: ClassVar[list[set[str]]] = []

    def why_not(self, layer: Chosen) -> str | None:
        kinds = nn.Linear, nn.Conv2d
        return None if isinstance(layer.module, kinds) else "Clip is for linear layers and Conv2d"

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        watchers = {
            path: Squares(-1 if isinstance(one.module, nn.Linear) else 1)
            for path, one in layers.items()
        }
        unreached = run(watchers, "clipping")
        for path in unreached:
            layers[path].remark += "; not clipped, as the calibration data does not reach it"
        reached = watchers.keys() - set(unreached)
        self.squares = {f"{path}.weight": watchers[path].sums for path in reached}
        self.fails = {f"{path}.weight": one.config.fails for path, one in layers.items()}

    def apply(self, name: str, weight: Tensor) -> Tensor:
        if self.fails[name] == "raises":
            raise ValueError("expected something else")
        if self.fails[name] == "shape":
            return weight[:1]
        return clipped(weight, self.squares[name]) if name in self.squares else weight

    def describe(self, path: str) -> str:
        return ", clipped" if f"{path}.weight" in self.squares else ""

    def finish(self, model: nn.Module) -> None:
        self.finished.append({type(module).__name__ for module in model.modules()})


@pytest.fixture(autouse=True)
def registered(forgotten: None) -> None:
    baraquant.register_pass(Clip, ClipPass)


class Model(nn.Module):
    """Convolutions and linear layers, one of them with a computed weight, and one never called."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), weight_norm(nn.Linear(16, 8)))
        self.norm, self.head, self.unused = nn.LayerNorm(8), nn.Linear(8, 4), nn.Linear(8, 8)
        self.to(dtype).eval()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).mean(dim=(2, 3))
        return self.head(self.norm(y + self.body(y)))


CLIPPED = ("conv", "body.0", "body.2", "head")


def batches(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(1)
    sizes = torch.tensor([1, 9, 0.1], dtype=dtype)[:, None, None]
    return [torch.randn(4, 3, 6, 6, dtype=dtype) * sizes for _ in range(3)]


def clipped_by_hand(dtype: torch.dtype, data: list[Tensor]) -> nn.Module:
    """The model with float weights that are clipped after a run of its own on the data."""
    model, found = Model(dtype), {}
    for path in CLIPPED:
        layer = model.get_submodule(path)
        found[path] = Squares(1 if path == "conv" else -1)
        layer.register_forward_pre_hook(lambda _, args, one=found[path]: one.observe(args[0]))
    with torch.no_grad():
        for batch in data:
            model(batch)
        remove_parametrizations(model.body[2], "weight")
        for path in CLIPPED:
            layer = model.get_submodule(path)
            layer._forward_pre_hooks.clear()
            layer.weight = nn.Parameter(clipped(layer.weight, found[path].sums))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_bits_of_changed_weights(config: QuantConfig, dtype: torch.dtype) -> None:
    model, data = Model(dtype), batches(dtype)
    twin = clipped_by_hand(dtype, data)
    by_hand = baraquant.quantize_(twin, config, calibration=data, progress=False)
    float_weights = {name: value.clone() for name, value in model.norm.named_parameters()}
    report = baraquant.quantize_(model, Clip(config), calibration=data, progress=False)
    for path in (path for path in CLIPPED if path in report.changed):
        own = model.get_submodule(path).state_dict()
        # A static input sees the float model before, whose weights are not clipped yet.
        wanted = twin.get_submodule(path).state_dict()
        names = [name for name in own if not name.startswith(("act_", "input_fake_quant"))]
        assert names
        for name in names:
            assert torch.equal(own[name], wanted[name]), (path, name)
        assert ", clipped" in report.changed[path]
        what = report.changed[path].replace(", clipped", "")
        assert what.startswith(by_hand.changed[path].partition(",")[0])
    assert "not clipped, as the calibration data does not reach it" in report.changed["unused"]
    assert all(torch.equal(model.norm.get_parameter(n), v) for n, v in float_weights.items())
    assert ClipPass.finished[-1] >= {type(model.get_submodule(path)).__name__ for path in CLIPPED}


def test_what_a_pass_leaves_alone_is_said() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    plain = copy.deepcopy(model)
    data = [torch.randn(4, 4)]
    report = baraquant.quantize_(model, Clip(W8A8()), calibration=data, progress=False)
    baraquant.quantize_(plain, W8A8())
    shared = "QuantizedLinear; not clipped, as other modules share its weight"
    assert report.changed == {
        "0": shared,
        "1": shared,
        "2": "QuantizedConv1d; not clipped, as Clip is for linear layers and Conv2d",
        "3": "QuantizedLinear, clipped",
    }
    assert model[0].qweight is model[1].qweight
    assert torch.equal(model[0].qweight, plain[0].qweight)


def test_algorithms_stand_beside_each_other() -> None:
    """The weight of a layer that divides its output for AWQ is clipped first."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8))
    model[0].weight.data[5] *= 30
    data = [torch.randn(64, 32)]
    twin, weight = copy.deepcopy(model), model[0].weight.detach()
    squares = Squares(-1)
    squares.observe(data[0])
    twin[0].weight.data.copy_(clipped(twin[0].weight, squares.sums))
    config = {"0": Clip(W8A16()), "1": AWQ(W4A16(8)), "3": SmoothQuant(0.5)}
    report = baraquant.quantize_(model, config, calibration=data, progress=False)
    assert report.changed["0"].endswith(", clipped")
    assert ", AWQ, alpha" in report.changed["1"] and "folded into 0" in report.changed["1"]
    assert "alpha 0.5 folded into 2" in report.changed["3"]
    # A row that is divided by its factor has the same integers, but for a tie.
    with_clip, without = (
        baraquant.ops.dynamic_range_quantize_per_channel(rows, 0)[0]
        for rows in (twin[0].weight.detach(), weight)
    )
    assert (model[0].qweight != with_clip).float().mean() < 0.01
    assert (model[0].qweight != without).float().mean() > 0.3


@dataclass(frozen=True)
class Halve(baraquant.Algorithm):
    scheme: ClassVar[str] = "halve in a test"

    config: QuantConfig


class HalvePass(baraquant.Pass):
    needs_calibration = False

    def plan(self, layers: Mapping[str, Chosen], run: Run, chosen: Mapping[str, Chosen]) -> None:
        pass

    def apply(self, name: str, weight: Tensor) -> Tensor:
        return weight / 2


def test_a_pass_without_data_also_while_a_model_is_loaded() -> None:
    baraquant.register_pass(Halve, HalvePass)
    model, loaded = nn.Sequential(nn.Linear(8, 4)), nn.Sequential(nn.Linear(8, 4))
    loaded.load_state_dict(model.state_dict())
    twin = copy.deepcopy(model)
    baraquant.quantize_(model, Halve(W8A8()))
    twin[0].weight.data /= 2
    baraquant.quantize_(twin, W8A8())
    report = Stream(loaded, Halve(W8A8()), "load", lambda module, name: True).finish()
    assert report.changed == {"0": "QuantizedLinear"}
    for name, value in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
        assert torch.equal(loaded.state_dict()[name], value)
    with pytest.raises(ValueError, match="expected calibration data for a static input"):
        baraquant.quantize_(nn.Sequential(nn.Linear(8, 4)), Halve(W8A8Static()))


REFUSED = {
    "expected calibration data for Clip, but got None": (Clip(W8A8()), ValueError),
    "quantize_: conv: expected something else": (Clip(W8A8(), "raises"), ValueError),
    r"conv: expected apply of ClipPass to return a weight like the given one, float32 "
    r"\[8, 3, 3, 3\] on cpu, but got float32 \[1, 3, 3, 3\] on cpu": (
        Clip(W8A8(), "shape"), ValueError),
    "nothing is registered for Halve; call .*register_pass": (Halve(W8A8()), TypeError),
    "Clip: expected config to be a QuantConfig, .* got Clip; a layer takes one algorithm": (
        Clip(Clip(W8A8())), TypeError),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_an_error_leaves_the_model_as_it_was(message: str) -> None:
    config, kind = REFUSED[message]
    data = None if "got None" in message else batches()
    refused(baraquant.quantize_, message, Model(), config, calibration=data, error=kind)


def test_a_layer_alone_and_measuring_name_its_config() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    message = "Clip is for a whole model; use .*prepare_, or here weight=int8"
    refused(baraquant.nn.FakeQuantizedLinear.from_float, message, model[0], Clip(W8A8()))
    message = "it works on a whole model: measure weight=int8 .* Clip w"
    refused(baraquant.sensitivity, message, model, [Clip(W8A8())], [torch.randn(2, 8)])


def test_its_configuration_is_written_and_read() -> None:
    config = Clip(W4A16(32), "raises")
    assert baraquant.configs.Config.from_dict(config.to_dict()) == config


def test_a_subclass_has_the_pass_of_its_base() -> None:
    @dataclass(frozen=True)
    class Later(Clip):
        scheme: ClassVar[str] = "a later clip in a test"

    report = baraquant.quantize_(Model(), Later(W8A8()), calibration=batches(), progress=False)
    assert report.changed["head"] == "QuantizedLinear, clipped"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((Clip, ClipPass), ValueError, "Clip is registered already"),
        ((QuantConfig, ClipPass), TypeError, "a subclass of baraquant.Algorithm, but got .*Quant"),
        ((Halve, Squares), TypeError, "expected a subclass of baraquant.Pass, but got .*Squares"),
        ((Halve, baraquant.Pass), TypeError, "expected a subclass of baraquant.Pass"),
        ((Halve, HalvePass()), TypeError, "expected a subclass of baraquant.Pass, but got <"),
        ((NAMELESS, HalvePass), ValueError, "expected Nameless to have a scheme"),
    ],
)
def test_what_cannot_be_registered(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"baraquant.register_pass: .*{message}"):
        baraquant.register_pass(*arguments)
