# SPDX-License-Identifier: BSD-3-Clause
"""Targets of compressed-tensors: which modules they mean, whatever a folder says."""

import re

import pytest
from torch import nn

from baraquant.export.compressed_tensors.targets import Expression, Targets

EXPRESSIONS = (
    ".*lm_head", r"model\.layers\.\d+\.mlp\.experts\.\d+\.", "^(?!.*visual).*$", "a{0}b?",
    r".*\.(q|k|v)_proj$", "(?:a|ab)(c|bcd)(d*)", r"[^.]+\.x{2,3}", r"\bfoo\b.*", "a*?b", "(a|b)*c",
    r"x\Z", r"\w+\W\d", "(?=a)a.", r"[\d_]+$", r"(?!lm)(?:.*)\.w", "", "(|a)+b", r"\Babc", "[^a-c]",
    "(?P<name>a+)b", "(a{2}){2}", "(a?){3}b", r"[\w.]*?_proj", "^^a$$", r"\S+\s", "x|y|",
)  # fmt: skip
FOR_EVER = ["(.*)*!", ".*" * 50 + "!", "(a|a)*!", "((a*b*)*c*)*!", "(x+x+)+y"]
PATHS = (
    "", "a", "b", "ab", "abc", "abcd", "aaab", "aaaa", "xx", "a.xx", "a.xxx", "foo", "foo.bar", "y",
    "lm_head", "model.lm_head", "model.layers.12.mlp.experts.3.up_proj", "visual.q_proj", "a b",
    "model.layers.0.self_attn.q_proj", "model.visual.x", "a.w", "lm.w", "12_3", "é.ü", "a\nb", "_",
)  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_match_as_in_python(text: str) -> None:
    expression = Expression(text)
    for path in PATHS:
        assert expression.matches(path) == bool(re.match(text, path)), path


@pytest.mark.parametrize("text", FOR_EVER)
def test_expressions_for_which_python_needs_for_ever(text: str) -> None:
    expression = Expression(text)
    assert not any(expression.matches(start * 200) for start in "ax")


UNREAD = ("(?i)a", "(?i:a)", r"(a)\1", "(?<=a)b", "((((a*)*)*)*)*")
REFUSED = dict.fromkeys(UNREAD, "not an expression that baraquant reads") | {
    "(": "not an expression: missing",
    "a{5,2}": "not an expression: min repeat",
    "(" * 20_000: "not an expression",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_expressions_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]) as caught:
        Targets([(f"re:{text}", 0)])
    assert len(str(caught.value)) < 300


def test_too_many_expressions() -> None:
    with pytest.raises(ValueError, match="expected expressions of at most 65536 characters in all"):
        Targets((f"re:{number}", 0) for number in range(10_000))


def test_the_kind_that_matches_most_exactly_decides() -> None:
    names = ("Module", "Linear", "re:.*a", "re:a", "a", "a")
    targets = Targets((name, number) for number, name in enumerate(names))
    found = {path: targets.find(path, nn.Linear(1, 1)) for path in ("a", "ba", "b")}
    assert found == {"a": [4], "ba": [2], "b": [0]}
    assert Targets([("Linear", 1)]).find("b", nn.LayerNorm(1)) == []
