# SPDX-License-Identifier: BSD-3-Clause
"""What holds of the wrong calls of every family: they have a type and words, on Meta the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

from tests.support.bad_arguments.affine import DEVICE, not_plain


class BadCalls:
    """The tests that the families have in common. Each has a subclass that names its ops."""

    OPS: ClassVar[Sequence[Any]]
    PAIRS: ClassVar[Sequence[tuple[Any, Any]]]  # an op, and a wrong call of it
    LEAST = 12  # wrong calls of an op

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each test is for one op."""
        metafunc.parametrize("op", self.OPS, ids=str)

    def check_result(self, op: Any, result: Any, device: str) -> None:
        """Whether a right call returns what it should."""

    def wrong_calls(self, op: Any) -> list[Any]:
        """The wrong calls of an op."""
        return [bad for other, bad in self.PAIRS if other == op]

    def test_right_arguments_are_taken(self, op: Any, any_device: str) -> None:
        """So that each wrong call below is wrong in one way only."""
        self.check_result(op, op(op.arguments(any_device)), any_device)

    def test_at_least_twelve_bad_cases(self, op: Any) -> None:
        assert len(self.wrong_calls(op)) >= self.LEAST

    def test_type_and_words(self, op: Any, any_device: str) -> None:
        check_messages(op, self.wrong_calls(op), any_device)

    def test_meta_says_the_same(self, op: Any) -> None:
        check_meta(op, self.wrong_calls(op), but=DEVICE)


class BadCallsAndOtherKinds(BadCalls):
    """With tensors that are not plain, which each argument refuses."""

    def test_tensors_of_other_kinds(self, op: Any) -> None:
        check_other_kinds(op)


def check_messages(op: Any, bad_cases: Sequence[Any], device: str) -> None:
    """Each bad case of an op: the exception's type; op, argument, expectation and what came."""
    failures = []
    for bad in bad_cases:
        if not bad.applies(op):
            continue
        try:
            message, pattern = bad.call(op, device)
        except BaseException as error:  # pytest.raises fails with an exception that is none
            failures.append(f"{bad}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if not re.match(pattern, message, re.DOTALL):
            failures.append(f"{bad}: {message!r} does not match {pattern!r}")
    assert not failures, "\n".join(failures)


def check_meta(op: Any, bad_cases: Sequence[Any], but: str) -> None:
    """The same message for a tensor on the meta device; `but`: the label of cases left out."""
    for bad in bad_cases:
        if bad.applies(op) and bad.label != but:
            assert bad.call(op, "cpu") == bad.call(op, "meta"), str(bad)


def check_other_kinds(op: Any) -> None:
    """Nested, quantized and sparse tensors: each argument is named."""
    for name, value in op.arguments("cpu").items():
        if not isinstance(value, torch.Tensor):
            continue
        for kind, make in not_plain(value).items():
            with pytest.raises(TypeError) as raised:
                op(op.arguments("cpu") | {name: make()})
            pattern = rf"^baraquant::{op.name}: expected {name} to be a (plain|dense)"
            assert re.match(pattern, str(raised.value)), f"{kind}: {raised.value}"
