# SPDX-License-Identifier: BSD-3-Clause
"""What a report says: shares, bytes, what stays floating, rows; and how it is shown."""

import copy
import io
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import baraquant
from baraquant import W4A16, W8A8, W8A16, QuantConfig, TensorConfig
from baraquant.qat import convert_, prepare_
from baraquant.workflow.report import OTHERS, ROOT, Report
from tests.support.models.training_models import TiedHead

WHAT = (
    "FakeQuantizedLinear(weight=int8 per_channel symmetric dynamic, input=float): "
    "stores integers and computes in floating point"
)
STATE = 7 * 4 + 1  # bytes of a fake quantizer's scheme and switch


class Model(nn.Module):
    """30 + 3 × 12 + 8 numbers in weights, 3 × 4 in biases and 2 × 4 in a norm: 94."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3, max_norm=1.0)
        self.blocks = nn.ModuleList([nn.Linear(3, 4) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2, bias=False)


def test_shares() -> None:
    report = prepare_(Model(), W8A16(), lambda module, name: name != "blocks.1")
    assert report.total_parameters == 94
    assert report.parameters == {
        "table": 30, "blocks.0": 12, "blocks.1": 12, "blocks.2": 12, "head": 8,
    }  # fmt: skip
    assert report.share == (12 + 12 + 8) / 94
    assert list(report.floating.items()) == [("table", 30), ("blocks.1", 12), (OTHERS, 20)]


def test_rows_and_text() -> None:
    report = prepare_(Model(), {"head": None, "*": W8A16()})
    assert report.rows() == [
        ("blocks.* (3)", WHAT, "38.3 %"),
        ("table", "left out: its max_norm rewrites the weight", "31.9 %"),
        ("head", "left out: its configuration is None", "8.5 %"),
    ]
    assert str(report).splitlines() == [
        "31.9 % of the parameters stay floating: table: its max_norm rewrites the weight",
        f"blocks.* (3)  {WHAT} (38.3 %)",
        "table         left out: its max_norm rewrites the weight (31.9 %)",
        "head          left out: its configuration is None (8.5 %)",
        "3 changed, 2 left out; 38.3 % of 94 parameters in integers, 0.0 % of multiply-adds of "
        f"weights by integers; 376 B before, {376 + 3 * STATE} B now",
    ]
    assert report.summary() == str(report).splitlines()[-1]


class ByEinsum(nn.Module):
    """Products of parameters that no layer holds, as in XLNet."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.randn(8, 2, features))
        self.out = nn.Linear(8, 8, bias=False)


STAYS = "% of the parameters and {} % of multiply-adds of weights stay floating: odd{}"
ODD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "einsum": (lambda: nn.ModuleList([ByEinsum(4), ByEinsum(4)]),
        "33.3 " + STAYS.format(40.0, ".* (2): there is no quantized form of ByEinsum for q")),
    "parametrized": (lambda: parametrizations.orthogonal(nn.LSTM(8, 8, 1, False), "weight_hh_l0"),
        "80.0 " + STAYS.format(88.9, ": its weight_hh_l0 is computed by a parametrization or a "
        "hook")),
    "little": (lambda: nn.Embedding(2, 4, max_norm=1.0), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_the_first_line_says_what_stays_floating(name: str) -> None:
    """From a tenth on, and only what nobody asked for."""
    odd, line = ODD[name]

    def build() -> nn.Module:
        body = nn.Linear(8, 8, bias=False)
        return nn.ModuleDict({"odd": odd(), "body": body, "rows": nn.Embedding(8, 8)})

    for call in (baraquant.quantize_, prepare_):
        report = call(model := build(), W8A16())
        assert report.headline() == line
        assert str(report).splitlines()[0].startswith(line or "body")
    assert ("it was not prepared" in convert_(model).headline()) == (line != "")
    asked = prepare_(build(), W8A16(), lambda module, name: name == "rows")
    assert "body" in asked.left_out and "body" not in asked.headline()


def test_what_is_grouped() -> None:
    """Paths that differ in numbers alone, where all fared alike."""
    names = ["a.0.x", "a.1.x", "a.10.x", "a.2.y", "b3.x", "b4.x", "7", "8"]
    report = Report(dict.fromkeys(names, "A") | {"a.3.x": "B"}, {"9": "A reason"})
    rows = [(name, what) for name, what, _ in report.rows()]
    assert rows[:5] == [(name, "A") for name in ("a.*.x (3)", "a.2.y", "b3.x", "b4.x", "* (2)")]
    assert rows[5:] == [("a.3.x", "B"), ("9", "left out: A reason")]


def test_the_model_itself_and_nothing() -> None:
    assert Report({}, {"": "why"}).rows() == [(ROOT, "left out: why", "")]
    assert str(Report()) == "0 changed, 0 left out" and Report().share == 0.0
    assert Report().floating == {} and Report().reasons() == ""


def test_bytes() -> None:
    """Parameters and buffers; memory that is shared counts once."""
    model = Model()
    model.register_buffer("mask", torch.zeros(7, dtype=torch.bool), persistent=False)
    report = baraquant.quantize_(model, W8A16())
    before = 94 * 4 + 7
    # Of each layer: an int8 for each weight, a float32 for each output channel.
    after = before - 3 * (3 * 12 - 4 * 4) - (3 * 8 - 2 * 4)
    assert (report.bytes_before, report.bytes_after) == (before, after)
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16))
    assert baraquant.quantize_(model, W4A16(4)).bytes_before == 2 * 72
    # Learned scales, and the state of each of the 4 quantizers, are what training adds; they are no
    # parameters of the model's own. A learned one also counts batches, and notes zeros.
    model = Model()
    report = prepare_(model, QuantConfig(TensorConfig(4, learned=True)))
    assert report.bytes_after == report.bytes_before + 4 * (3 * 4 + 2) + 4 * (8 + 1 + STATE)
    assert report.total_parameters == 94 == convert_(model).total_parameters


@pytest.mark.parametrize("config", [W8A8(), W4A16(4)], ids=str)
def test_tied_weights_count_once(config: QuantConfig) -> None:
    model, floating = TiedHead(10, 8), TiedHead(10, 8)
    del model.body
    scales = 10 * (1 if config == W8A8() else 2)
    for call in (prepare_, lambda model, _: convert_(model)):
        report = call(model, config)
        assert report.total_parameters == 80 and report.share == 1.0
        assert report.parameters == {"table": 80, "head": 0}
    assert report.bytes_before == 320 + (3 if config == W8A8() else 2) * STATE
    assert report.bytes_after == 80 + 4 * scales
    floating.body.bias = None
    report = prepare_(floating, {"body": config})
    assert report.share == 64 / 144 and report.floating == {"table": 80, "head": 0}


def test_parts_of_what_was_unpacked() -> None:
    cells = {"recurrent": nn.LSTM(8, 4, bidirectional=True), "cell": nn.GRUCell(8, 4)}
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), **cells})
    build = lambda: copy.deepcopy(model)  # noqa: E731
    total = sum(parameter.numel() for parameter in model.parameters())
    weights = 4 * 64 + 2 * (16 * 8 + 16 * 4) + 12 * 8 + 12 * 4
    report = baraquant.quantize_(build(), W8A8())
    assert report.total_parameters == total and report.share == weights / total
    assert len(report.changed) == 4 + 4 + 2 and report.floating == {OTHERS: total - weights}
    report = baraquant.quantize_(build(), {"cell": W8A8()})
    assert report.floating == {
        "recurrent": 2 * (16 * 8 + 16 * 4), "attention": 256, OTHERS: total - weights
    }  # fmt: skip
    assert list(report.floating) == ["recurrent", "attention", OTHERS]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_has_no_numbers_yet() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    report = prepare_(model, W8A8())
    assert report.total_parameters == 20 and list(report.left_out) == ["0"]
    with torch.device("meta"):
        model = Model()
    report = prepare_(model, W8A8())
    assert report.total_parameters == 94 and report.bytes_before == 376


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    report = prepare_(Model(), W8A16())
    plain = str(report)
    monkeypatch.setenv("COLUMNS", "120")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    shown = str(report)
    assert shown != plain and "┃" in shown and "blocks.* (3)" in shown
    assert "what they are now" in shown and "46.8 % of 94 parameters" in " ".join(shown.split())
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert str(report) == plain
    monkeypatch.setattr(sys, "stdout", None)  # as under pythonw
    assert str(report) == plain


def test_brackets_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason may hold what rich would take for a style."""
    console = pytest.importorskip("rich.console")
    report = Report({"a": "Layer [bold]"}, {"b": "it has [red]paint[/red]"})
    out = console.Console(file=io.StringIO(), width=100)
    out.print(report)
    assert "Layer [bold]" in out.file.getvalue() and "[red]paint[/red]" in out.file.getvalue()
