# SPDX-License-Identifier: BSD-3-Clause
"""Subclasses of Linear and Embedding keep a forward that calls their parent's when swapped.

One that writes the parent's formula out becomes the parent's; what computes another stays floating.
"""

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baraquant
from baraquant import W4A8, W4A16, W8A8, QuantConfig, SmoothQuant, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support.checks.refused import refused
from tests.support.checks.stored import assert_stored
from tests.support.models.outlier_models import relative_error, seeded
from tests.support.models.training_models import train
from tests.support.schemes import described


class Times(nn.Embedding):
    """Gemma's."""

    def __init__(self, rows: int, size: int, factor: float = 3.0) -> None:
        super().__init__(rows, size, padding_idx=1)
        self.factor = factor
        self.register_buffer("scale", torch.tensor(factor), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.scale.to(self.weight.dtype)


class Plus(nn.Embedding):
    """Positions that are learned, with an offset, as BART's, and a row to add."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__(rows + 2, size)
        self.offset, self.row = 2, nn.Parameter(torch.randn(size))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input + self.offset) + self.row


class LoRA(nn.Linear):
    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        down, up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        self.adapter = nn.Sequential(down, up)
        self.alpha = 0.5

    def forward(self, input: Tensor) -> Tensor:
        y = F.linear(super().forward(input), torch.eye(self.out_features).to(input))
        return y + self.alpha * self.adapter(input)


class Around(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.before, self.after = nn.LayerNorm(inputs), nn.Dropout(0.1)
        self.register_buffer("mask", (torch.arange(outputs) % 3 > 0).float())

    def forward(self, input: Tensor, factor: float = 1.0) -> Tensor:
        y = super().forward(self.before(input)) * self.mask
        return self.after(y) * factor


class Model(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.words, self.places = Times(11, 8), Plus(6, 8)
        self.lora, self.around = LoRA(8, 16), Around(16, 8)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(x + self.around(torch.relu(self.lora(x)), factor=0.5))


Tied, Wider = functools.partial(Model, tied=True), functools.partial(LoRA, rank=3)
SUBCLASSES = {"words": Times, "places": Plus, "lora": LoRA, "around": Around}
MODELS: dict[str, Callable[[], nn.Module]] = {"untied": Model, "tied": Tied}
by_model = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
TOKENS = torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(0))
SCHEMES: dict[str, QuantConfig] = {
    "w8a8": W8A8(),
    "static": W8A8Static(symmetric=False),
    "rotated w8a8": W8A8(rotate=8),
    "w4a16": W4A16(4),
    "w4a8": W4A8(None),
    "learned": described("int4 learned, int8 per_tensor learned"),
}


def quantized(build: Any, scheme: str, dtype: torch.dtype = torch.float32) -> Any:
    model, config = seeded(build).to(dtype), SCHEMES[scheme]
    baraquant.quantize_(model, config, calibration=[TOKENS] if config.is_static else None)
    return model


@by_model
@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [(s, torch.float32) for s in SCHEMES] + [("w8a8", torch.float64), ("w8a8", torch.bfloat16)],
)
def test_quantized(scheme: str, dtype: torch.dtype, build: Callable[[], nn.Module]) -> None:
    wanted = seeded(build).to(dtype)(TOKENS)
    model = quantized(build, scheme, dtype)
    got = model(TOKENS)
    assert got.dtype == dtype
    assert relative_error(got, wanted) < (0.05 if "8a8" in scheme else 0.5)
    for name, kind in SUBCLASSES.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, kind) and isinstance(layer, baraquant.nn.HoldsIntegers)
        assert type(layer).__name__.endswith(f"Of{kind.__name__}")
        assert "weight" not in dict(layer.named_parameters())
    assert model.words.factor == 3.0 and model.places.offset == 2 and model.lora.alpha == 0.5
    if build is Tied:
        assert model.head.qweight is model.words.qweight


@by_model
@pytest.mark.parametrize("scheme", SCHEMES)
def test_trained_and_converted(scheme: str, build: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = seeded(build).train()
    parameters = list(model.parameters())
    report = prepare_(model, SCHEMES[scheme])
    reason = "it is a part of lora, beside the weight of that layer"
    assert report.left_out == {"lora.adapter.0": reason, "lora.adapter.1": reason}
    assert {id(p) for p in model.parameters()} >= {id(p) for p in parameters}
    train(model, TOKENS, TOKENS, TOKENS, lr=1e-2)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in parameters)
    with torch.no_grad():
        evaluated = model.eval()(TOKENS)
        again = copy.deepcopy(model)
        assert torch.equal(again(TOKENS), evaluated)
        assert torch.equal(pickle.loads(pickle.dumps(model))(TOKENS), evaluated)
        convert_(model)
        convert_(again)
        assert torch.equal(model(TOKENS), evaluated) and torch.equal(again(TOKENS), evaluated)
        model.words.scale.fill_(2.0)  # of no state dict
        model.around.mask[4] = 0.25
        model.lora.adapter[1].weight.fill_(0.75)
        loaded = assert_stored(model, build, TOKENS, tmp_path / "a")
        loaded.append(baraquant.load_(again, tmp_path / "a"))
        assert torch.equal(again(TOKENS), model(TOKENS))
    if build is Tied:
        assert all(one.head.qweight is one.words.qweight for one in loaded)


class Without(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (nn.Linear, r"lora: expected a module with \['adapter'\] beside .* the model's has \[\]"),
        (Without, r"lora: expected a module with \['adapter'\] beside .* the model's has \[\]"),
        (Wider, r"lora\.adapter\.0\.weight: expected torch\.float32 \[3, 8\] as in the model"),
    ],
)
def test_a_file_of_another_subclass(kind: Any, message: str, tmp_path: Path) -> None:
    baraquant.save(quantized(Model, "w8a8"), tmp_path / "a")
    other = seeded(Model).train()
    other.lora = kind(8, 16)
    refused(baraquant.load_, message, other, tmp_path / "a")


def test_smoothed() -> None:
    """The factors go to where the parent's forward is: Around's input is normed first."""
    model = seeded(Model)
    model.lora.weight.data[3] *= 20
    wanted = model(TOKENS)
    report = baraquant.quantize_(model, SmoothQuant(0.5), calibration=[TOKENS])
    assert {"lora", "around"} <= set(report.changed)
    assert relative_error(model(TOKENS), wanted) < 0.05


class Counts(nn.Linear):
    """The trial is on a copy: what a forward counts is not counted."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input) + torch.rand(())


def test_the_trial_leaves_no_trace() -> None:
    model = nn.Sequential(Counts())
    state = torch.get_rng_state()
    prepare_(model, W8A8())
    assert model[0].calls == 0 and torch.equal(torch.get_rng_state(), state)
    model(torch.ones(2, 4))
    assert model[0].calls == 1


class WrittenOut(nn.Linear):
    """Falcon's linear layer: the parent's formula, written out."""

    def forward(self, input: Tensor) -> Tensor:
        hidden = input @ self.weight.T
        return hidden if self.bias is None else hidden + self.bias


def test_the_parents_formula_written_out_is_the_parents(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(WrittenOut(8, 8), nn.ReLU(), WrittenOut(8, 4, bias=False))
    float_model, x = copy.deepcopy(model), torch.randn(3, 8)
    wanted = model(x)
    prepare_(model, W8A8())
    model(x).sum().backward()
    evaluated = model.eval()(x)
    assert set(convert_(model).changed.values()) == {"QuantizedLinear"}
    assert torch.equal(model(x), evaluated)
    assert (evaluated - wanted).norm() < 0.03 * wanted.norm()
    baraquant.save(model, tmp_path / "a")
    for into in (float_model, lambda: copy.deepcopy(float_model)):
        assert torch.equal(baraquant.load_(into, tmp_path / "a")(x), evaluated)


class Scaled(nn.Linear):
    """The parent's formula in one module, and another one in the next."""

    def __init__(self, factor: object) -> None:
        super().__init__(8, 8)
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        factor = self.factor if isinstance(self.factor, float) else self.factor[0]
        return input @ self.weight.T * factor + self.bias


@pytest.mark.parametrize("wrap", [float, lambda number: torch.tensor([number])])
def test_the_formula_is_a_matter_of_the_module(wrap: Callable[[float], object]) -> None:
    model = nn.Sequential(Scaled(wrap(1.0)), Scaled(wrap(2.0)), Scaled(wrap(1.0)))
    report = baraquant.quantize_(model, W8A8())
    assert report.left_out == {"1": "Scaled has a forward of its own"}
    assert set(report.changed) == {"0", "2"}


class Unused(WrittenOut):
    """The parent's formula, with a buffer that nothing reads."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()))


@pytest.mark.parametrize(("kind", "name"), [(LoRA, "OfLoRA"), (Around, "OfAround"), (Unused, "")])
def test_a_module_on_the_meta_device_is_told_as_one_with_data(kind: Any, name: str) -> None:
    with torch.device("meta"):
        without = kind(8, 8)
    for module in (kind(8, 8), without, kind(8, 8).to("meta")):
        model = nn.Sequential(module)
        prepare_(model, W8A8())
        assert type(model[0]).__name__ == f"FakeQuantizedLinear{name}"
