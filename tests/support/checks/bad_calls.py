# SPDX-License-Identifier: BSD-3-Clause
"""What holds of the wrong calls of every family: they have a type and words, on Meta the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from tests.support.bad_arguments.affine import not_plain


def check_messages(op: Any, bad_cases: Iterable[Any], device: str) -> None:
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


def check_meta(op: Any, bad_cases: Iterable[Any], but: str) -> None:
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
