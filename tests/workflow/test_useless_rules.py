# SPDX-License-Identifier: BSD-3-Clause
"""Keys of a dictionary of configurations that decide nothing are said."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from baraquant import W4A16, W8A8
from tests.support.models.outlier_models import seeded, unchanged
from tests.workflow import test_rules
from tests.workflow.test_rules import SIX, UNFIT, Model, by_call

BEFORE = "a key before it matches each of its layers; the first match counts: move it to the front"
TAKES_NONE = "to quantize a layer, but all of its layers stay floating"
USELESS: dict[str, tuple[Any, str]] = {
    "None after all": (
        {"*": SIX, "head": None}, f"the pattern 'head' to leave out a layer, but {BEFORE}"
    ),
    "after all": (
        {"*": SIX, "head": W8A8()}, f"the pattern 'head' to decide on a layer, but {BEFORE}"
    ),
    "the same": (
        {"blocks.*": SIX, "*": W8A8(), nn.Linear: SIX}, f"Linear to decide on a layer, but {BEFORE}"
    ),
    "a rest of nothing": (
        {nn.Linear: SIX, nn.Embedding: SIX, "*": W8A8()},
        rf"the pattern '\*' to decide on a layer, but {BEFORE}",
    ),
    "parts and a whole": (
        {"recurrent.*": SIX, nn.LSTM: W8A8(), "*": SIX}, f"LSTM to decide on a layer, but {BEFORE}"
    ),
    "takes none": (
        {"blocks.*": UNFIT, "*": W8A8()},
        rf"the pattern 'blocks\.\*' {TAKES_NONE} \(blocks\.0: the configuration does not fit: ",
    ),
    "a type that takes none": (
        {nn.Embedding: UNFIT, "*": W8A8()}, rf"Embedding {TAKES_NONE} \(table: the configuration"
    ),
    "takes no part": (
        {nn.LSTM: UNFIT, "*": W8A8()}, rf"LSTM {TAKES_NONE} \(recurrent\.cells\.l0\.ih: the config"
    ),
}  # fmt: skip


@by_call
@pytest.mark.parametrize("name", USELESS)
def test_a_key_that_decides_nothing_is_said_before_anything_changes(
    name: str, call: Callable[..., Any]
) -> None:
    rules, message = USELESS[name]
    with pytest.warns(UserWarning, match=f"_: expected {message}") as found:
        call(seeded(Model), rules)
    assert len(found) == 1 and found[0].filename == test_rules.__file__
    model = seeded(Model)
    original = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            call(model, rules)
    assert unchanged(model, original)


@by_call
def test_a_key_all_of_whose_layers_the_filter_refuses(call: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match=rf"'head' {TAKES_NONE} \(head: filter_fn\)"):
        call(seeded(Model), {"head": SIX, "*": W8A8()}, filter_fn=lambda _, name: name != "head")


@by_call
def test_keys_that_decide_are_not_said(call: Callable[..., Any]) -> None:
    rules = {
        "blocks.0": None, nn.Embedding: W4A16(4), nn.MultiheadAttention: SIX, "*.ih": SIX,
        nn.LSTM: W8A8(), "blocks.*": SIX, "head": W8A8(),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(seeded(Model), rules)
