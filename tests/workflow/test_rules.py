# SPDX-License-Identifier: BSD-3-Clause
"""Dictionaries of configurations: which layer gets which, what is refused, and what is said."""

import warnings
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import W4A8, W4A16, W8A8, W8A16, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from baraquant.qat import prepare_
from baraquant.workflow.report import FILTERED, FLOATING, UNMATCHED
from tests.support.checks.refused import refused
from tests.support.models.outlier_models import Block, batches, relative_error, seeded
from tests.support.models.training_models import TiedHead


class Special(nn.Linear):
    pass


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16), Special(16, 16)])
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.recurrent = nn.LSTM(16, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = torch.tanh(block(x))
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.recurrent(x)[0])


TOKENS = torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(0))
LINEARS = ["blocks.0", "blocks.1", "blocks.2"]
ATTENTION = [f"attention.{name}_proj" for name in ("q", "k", "v", "out")]
RECURRENT = ["recurrent.cells.l0.ih", "recurrent.cells.l0.hh"]
ALL = ["table", *LINEARS, *ATTENTION, *RECURRENT, "head"]
SIX = QuantConfig(TensorConfig(6), TensorConfig(8, "per_token"))
UNFIT = W4A16(group_size=5)

by_call = pytest.mark.parametrize("call", [baraquant.quantize_, prepare_])


def widths(model: nn.Module) -> dict[str, int]:
    """How many bits the weight of each layer has; layers that stay floating are not there."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, baraquant.nn.QuantizesWeight):
            found[name] = module.config.weight.bits
        elif isinstance(module, baraquant.nn.HoldsIntegers):
            found[name] = module.weight_bits
    return found


FITTING: dict[str, tuple[Any, dict[str, int]]] = {
    "all": ({"*": W8A8()}, dict.fromkeys(ALL, 8)),
    "a pattern": ({"blocks.*": W8A8()}, dict.fromkeys(LINEARS, 8)),
    "a path": ({"head": W4A8(4, group_factors=False)}, {"head": 4}),
    "a set of letters": ({"blocks.[02]": W8A8()}, {"blocks.0": 8, "blocks.2": 8}),
    "one letter": ({"blocks.?": SIX}, dict.fromkeys(LINEARS, 6)),
    "the first of two": ({"blocks.1": SIX, "blocks.*": W8A8()},
        {"blocks.0": 8, "blocks.1": 6, "blocks.2": 8}),
    "a first that takes all": ({"*": SIX, "head": W8A8()}, dict.fromkeys(ALL, 6)),
    "a type": ({nn.Embedding: W4A16(4)}, {"table": 4}),
    "a subclass first": ({Special: SIX, nn.Linear: W8A8(), nn.Embedding: None},
        dict.fromkeys([*LINEARS[:2], *ATTENTION, *RECURRENT, "head"], 8) | {"blocks.2": 6}),
    "any module": ({nn.Module: W8A8()}, dict.fromkeys(ALL, 8)),
    "none": ({"blocks.*": None, "*": W8A8()}, dict.fromkeys({*ALL} - {*LINEARS}, 8)),
    "an attention": ({nn.MultiheadAttention: SIX}, dict.fromkeys(ATTENTION, 6)),
    "an attention by its path": ({"attention": SIX}, dict.fromkeys(ATTENTION, 6)),
    "parts of an attention": ({"*.[qk]_proj": SIX, "attention": None, "head": W8A8()},
        {"attention.q_proj": 6, "attention.k_proj": 6, "head": 8}),
    "an LSTM": ({nn.LSTM: SIX, nn.Linear: None, "table": W8A8()},
        {**dict.fromkeys(RECURRENT, 6), "table": 8}),
    "parts of an LSTM": ({"recurrent.*.hh": SIX, "recurrent": W8A8()},
        {"recurrent.cells.l0.ih": 8, "recurrent.cells.l0.hh": 6}),
    "no LSTM": ({nn.LSTM: None, "*": W8A8()}, dict.fromkeys({*ALL} - {*RECURRENT}, 8)),
    "another mapping": (MappingProxyType({"head": W8A8()}), {"head": 8}),
}  # fmt: skip


@by_call
@pytest.mark.parametrize("name", FITTING)
def test_who_gets_what(name: str, call: Any) -> None:
    rules, expected = FITTING[name]
    model = seeded(Model)
    wanted = model(TOKENS)
    report = call(model, rules)
    assert widths(model) == expected and set(report.changed) == set(expected)
    assert set(report.left_out.values()) <= {UNMATCHED, FLOATING}
    assert relative_error(model(TOKENS), wanted) < 0.3
    for kind, path, parts in (
        (nn.MultiheadAttention, "attention", ATTENTION),
        (nn.LSTM, "recurrent", RECURRENT),
    ):
        is_packed = not any(part in expected for part in parts)
        assert (type(model.get_submodule(path)) is kind) == is_packed
        assert (path in report.left_out) == is_packed, "a whole that stays is one row"


@by_call
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"*": W8A8(), "decoder.*": SIX}, r"the pattern 'decoder\.\*' to match a layer, but it"),
        ({"Head": W8A8(), "*": SIX}, "the pattern 'Head' to match a layer"),
        ({nn.Conv2d: W8A8(), "*": SIX}, "expected Conv2d to match a layer"),
        ({nn.LayerNorm: None, "*": SIX}, "expected LayerNorm to match a layer"),
        ({"recurrent.*.l1.*": None, "*": SIX}, r"'recurrent\.\*\.l1\.\*' to match a layer"),
    ],
)
def test_what_matches_nothing(rules: Any, message: str, call: Any) -> None:
    refused(call, message + r".* matches none of .*blocks\.0.* and \d+ more", seeded(Model), rules)


@by_call
@pytest.mark.parametrize("path", ["table", "blocks.1", "attention.v_proj", "recurrent.cells.l0.hh"])
def test_a_path_whose_layer_cannot_be_taken(path: str, call: Any) -> None:
    message = rf"_: {path}: expected a layer that .*per_group\(5\).* fits, but the configuration "
    refused(call, message + "does not fit: .*got 5", seeded(Model), {path: UNFIT, "*": W8A8()})
    # A pattern only asks for what there is.
    report = call(model := seeded(Model), {f"{path}*": UNFIT, "*": W8A8()})
    assert set(report.left_out) == {path} and path not in widths(model)
    whole = path.partition(".")[0]  # an attention, of which a part cannot be taken
    if whole in ("attention", "recurrent"):
        message = rf"{whole}\.\S+: expected a layer that"
        refused(call, message, seeded(Model), {whole: UNFIT, "*": W8A8()})


def biased() -> nn.Module:
    odd = nn.MultiheadAttention(8, 2, add_bias_kv=True)
    return nn.ModuleDict({"odd": odd, "head": nn.Linear(8, 8)})


@by_call
def test_a_whole_that_cannot_be_unpacked(call: Any) -> None:
    reason = "there is no quantized form of add_bias_kv and add_zero_attn"
    message = f"_: odd: expected a layer that .* fits, but {reason}"
    refused(call, message, biased(), {"odd": SIX, "*": W8A8()})
    for key in ("o*", nn.MultiheadAttention):
        report = call(biased(), {key: SIX, "*": W8A8()})
        assert report.left_out == {"odd": reason} and list(report.changed) == ["head"]
        report = call(biased(), {key: None, "*": W8A8()})
        assert report.left_out == {"odd": FLOATING}
    assert call(biased(), {"head": W8A8()}).left_out == {"odd": UNMATCHED}


@by_call
def test_two_rules_for_one_weight(call: Any) -> None:
    for other in (W8A16(), W4A8(4, group_factors=False), W4A16(None), W4A8(None, scale_rule="max")):
        rules = {nn.Embedding: W4A8(None), "*": other}
        if other == W4A16(None):  # inputs may differ
            model = TiedHead()
            call(model, rules)
            assert widths(model) == {"table": 4, "body": 4, "head": 4}
            continue
        message = "head: expected one configuration for a weight that table and head share"
        refused(call, f"{message}, but table gets (.*) and head gets (?!\\1$)", TiedHead(), rules)


@by_call
def test_one_of_two_that_share_a_weight_stays_floating(call: Any) -> None:
    for rules in ({"head": None, "*": W8A8()}, {"table": W8A8()}):
        model = TiedHead()
        weight = model.head.weight
        report = call(model, rules)
        assert "table" in report.changed and "head" in report.left_out
        assert model.head.weight is weight


@by_call
def test_a_path_that_a_tie_keeps_floating(call: Any) -> None:
    message = "_: head: expected a layer that .* fits, but its weight is also that of table"
    refused(call, message, TiedHead(max_norm=1.0), {"head": SIX, "*": W8A8()})
    report = call(TiedHead(max_norm=1.0), {"h*": SIX, "*": W8A8()})
    assert list(report.changed) == ["body"]


@by_call
def test_two_rules_for_one_module(call: Any) -> None:
    layer, attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2)
    for shared in (layer, attention, nn.Sequential(layer)):
        below, plain = nn.ModuleDict({"c": shared}), nn.Linear(8, 8)
        model = nn.ModuleDict({"a": shared, "b": below, "d": plain})
        message = r"_: a.*: expected one configuration for a shared .*, but a\S* gets .* and b\.c"
        refused(call, message, model, {"a*": SIX, "*": W8A8()})
        refused(call, message, model, {"a*": None, "*": W8A8()})
        refused(call, message, model, {"b.*": SIX, "d": SIX})
        call(model, {"[ab]*": SIX, "*": W8A8()})
        assert set(widths(model).values()) == {6, 8} and model["a"] is model["b"]["c"]


@by_call
def test_with_a_filter(call: Any) -> None:
    asked = []

    def keep(module: nn.Module, name: str) -> bool:
        asked.append(name)
        return name not in ("blocks.0", "attention", "head")

    rules = {nn.MultiheadAttention: SIX, "blocks.0": UNFIT, "head": W8A8(), "*": SIX}
    report = call(seeded(Model), rules, filter_fn=keep)
    assert report.left_out == dict.fromkeys(["blocks.0", "attention", "head"], FILTERED)
    assert set(report.changed) == {"table", *LINEARS[1:], *RECURRENT}
    assert set(asked) == {"table", *LINEARS, "attention", "recurrent", "head", *RECURRENT}
    assert len(asked) == len(set(asked))


@by_call
@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({}, ValueError, "expected configurations, but got an empty dictionary"),
        ({3: W8A8()}, TypeError, "expected a pattern of paths or a type of modules .* got 3"),
        ({int: W8A8()}, TypeError, "a type of modules for a key, but got <class 'int'>"),
        ({None: W8A8()}, TypeError, "for a key, but got None"),
        ({"head": W8A8}, TypeError, r"'head': .* but got the function W8A8; write W8A8\(\)"),
        ({"head": {"*": W8A8()}}, TypeError, "'head': expected config to be .* but got dict"),
        ({"*": W8A8(), nn.Linear: 8}, TypeError, r"nn\S*Linear\S*: expected config .* but got int"),
        ({"*": None}, ValueError, r"has none \(table: its configuration is None; blocks\.0: its"),
        ({"nobody": W8A8()}, ValueError, "the pattern 'nobody' to match a layer"),
    ],
)
def test_what_is_no_dictionary_of_configurations(
    rules: Any, error: type[Exception], message: str, call: Any
) -> None:
    refused(call, message, seeded(Model), rules, error=error)


def test_smoothing_of_a_part() -> None:
    """The smoothed part is as if it were alone, the rest as without it."""
    data, smooth, four = batches(), SmoothQuant(0.5, W8A8Static()), W4A8(None)
    rules = {"up": smooth, "down": smooth, "*": four}
    model, alone, rest = (seeded(Block) for _ in range(3))
    expected = model(data[0])
    report = baraquant.quantize_(model, rules, calibration=data)
    folded, names = "StaticQuantizedLinear, alpha 0.5 folded into ", {"up", "down"}
    others = dict.fromkeys(("query", "key", "out"), "QuantizedLinear")
    assert report.changed == others | {"up": f"{folded}norm2", "down": f"{folded}up"}
    baraquant.quantize_(alone, smooth, calibration=data, filter_fn=lambda _, name: name in names)
    baraquant.quantize_(rest, four, filter_fn=lambda _, name: name not in names)
    for name, value in model.state_dict().items():
        other = alone if name.split(".")[0] in {*names, "norm2"} else rest
        assert torch.equal(value, other.state_dict()[name]), name
    assert relative_error(model(data[0]), expected) < 0.2


def test_several_observers_in_one_run() -> None:
    runs = []

    def run(model: nn.Module) -> None:
        runs.append(1)
        for batch in batches():
            model(batch)

    kinds = {"query": "min_max", "key": "moving_average", "out": "min_max", "*": "moving_average"}
    rules = {name: W8A8Static(kind) for name, kind in kinds.items()}
    model = seeded(Block)
    baraquant.quantize_(model, rules, calibration=run)
    assert len(runs) == 1
    for name in ("query", "key", "out", "up"):
        alone = seeded(Block)
        baraquant.quantize_(alone, W8A8Static(kinds.get(name, kinds["*"])), calibration=batches())
        got, wanted = model.get_submodule(name), alone.get_submodule(name)
        assert torch.equal(got.act_scale, wanted.act_scale)


BEFORE = "a key before it matches each of its layers; the first match counts: move it to the front"
TAKES_NONE = "to quantize a layer, but all of its layers stay floating"
USELESS: dict[str, tuple[Any, str]] = {
    "None after all": ({"*": SIX, "head": None},
        f"the pattern 'head' to leave out a layer, but {BEFORE}"),
    "after all": ({"*": SIX, "head": W8A8()},
        f"the pattern 'head' to decide on a layer, but {BEFORE}"),
    "the same": ({"blocks.*": SIX, "*": W8A8(), nn.Linear: SIX},
        f"Linear to decide on a layer, but {BEFORE}"),
    "a rest of nothing": ({nn.Linear: SIX, nn.Embedding: SIX, "*": W8A8()},
        rf"the pattern '\*' to decide on a layer, but {BEFORE}"),
    "parts and a whole": ({"recurrent.*": SIX, nn.LSTM: W8A8(), "*": SIX},
        f"LSTM to decide on a layer, but {BEFORE}"),
    "takes none": ({"blocks.*": UNFIT, "*": W8A8()},
        rf"the pattern 'blocks\.\*' {TAKES_NONE} \(blocks\.0: the configuration does not fit: "),
    "a type that takes none": ({nn.Embedding: UNFIT, "*": W8A8()},
        rf"Embedding {TAKES_NONE} \(table: the configuration"),
    "takes no part": ({nn.LSTM: UNFIT, "*": W8A8()},
        rf"LSTM {TAKES_NONE} \(recurrent\.cells\.l0\.ih: the config"),
}  # fmt: skip


@by_call
@pytest.mark.parametrize("name", USELESS)
def test_a_key_that_decides_nothing_is_said_before_anything_changes(name: str, call: Any) -> None:
    rules, message = USELESS[name]
    with pytest.warns(UserWarning, match=f"_: expected {message}") as found:
        call(seeded(Model), rules)
    assert len(found) == 1 and found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(call, message, seeded(Model), rules, error=UserWarning)


@by_call
def test_a_key_all_of_whose_layers_the_filter_refuses(call: Any) -> None:
    with pytest.warns(UserWarning, match=rf"'head' {TAKES_NONE} \(head: filter_fn\)"):
        call(seeded(Model), {"head": SIX, "*": W8A8()}, filter_fn=lambda _, name: name != "head")


@by_call
@pytest.mark.filterwarnings("error")
def test_keys_that_decide_are_not_said(call: Any) -> None:
    rules = {
        "blocks.0": None, nn.Embedding: W4A16(4), nn.MultiheadAttention: SIX, "*.ih": SIX,
        nn.LSTM: W8A8(), "blocks.*": SIX, "head": W8A8(),
    }  # fmt: skip
    call(seeded(Model), rules)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True)
        self.gru, self.cell = nn.GRU(8, 8), nn.LSTMCell(8, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.tied = self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.gru(self.lstm(x)[0][..., :8])[0]
        y = self.attention(y, y, y)[0]
        return self.head(torch.stack([self.cell(one)[0] for one in y]))


@by_call
def test_each_part_can_be_left_out(call: Any) -> None:
    every = set(call(Packed(), W8A8()).changed)
    assert {"lstm.cells.l0.ih", "cell.ih", "attention.out_proj"} <= every
    for name in every:
        model = Packed()
        out = ("tied", "head") if name in ("tied", "head") else (name,)
        report = call(model, W8A8(), filter_fn=lambda _, path, out=out: path not in out)
        assert set(report.changed) == every - {name}
        assert report.left_out[name] == FILTERED
        assert isinstance(model.get_submodule(name), nn.Linear)
        model(torch.randn(3, 2, 8))


@by_call
@pytest.mark.parametrize("whole", ["lstm", "gru", "cell", "attention"])
def test_the_whole_or_all_of_its_parts(call: Any, whole: str) -> None:
    for out in (lambda name: name == whole, lambda name: name.startswith(f"{whole}.")):
        model = Packed()
        report = call(model, W8A8(), filter_fn=lambda _, name, out=out: not out(name))
        assert not any(name.startswith(whole) for name in report.changed)
        assert set(report.left_out) == {whole} and report.left_out[whole] == FILTERED
        assert type(model.get_submodule(whole)).__module__.startswith("torch.")


def test_sensitivity_asks_for_parts() -> None:
    keep = lambda module, name: name != "lstm.cells.l0.ih"  # noqa: E731
    found = baraquant.sensitivity(Packed(), [W8A8()], [torch.randn(3, 2, 8)], filter_fn=keep)
    assert found.left_out["lstm.cells.l0.ih"] == FILTERED
    assert "lstm.cells.l0.hh" in {layer.path for layer in found.layers}


@by_call
def test_a_filter_that_leaves_nothing_out_is_said(call: Any) -> None:
    with pytest.warns(UserWarning, match="expected filter_fn to leave out a layer, but it takes"):
        call(Packed(), W8A8(), filter_fn=lambda _, name: name != "lstm.cells.0.ih")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(Packed(), W8A8(), filter_fn=lambda _, name: name != "lstm.cells.l0.ih")
        call(Packed(), W8A8())


def test_fused_ops_too() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    with pytest.warns(UserWarning, match="use_fused_ops_: expected filter_fn to leave out"):
        baraquant.use_fused_ops_(model, lambda module, name: name != "norm")
