# SPDX-License-Identifier: BSD-3-Clause
"""Every call of C++ that changes a model changes it as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.libtorch import STRICT, build_program, run_program

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def faulty(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    def build(folder: Path) -> None:
        source = Path(__file__).with_name("transaction.cpp")
        build_program(source, folder / "transaction", *STRICT)

    return made_once("cpp_transaction", build) / "transaction"


# The ops and the allocations of memory of each call that fail.
@pytest.mark.parametrize(
    ("ops", "memory"),
    [
        pytest.param(10, 10, id="some", marks=pytest.mark.smoke),
        pytest.param(200, 60, id="many", marks=pytest.mark.exhaustive),
    ],
)
def test_faults(ops: int, memory: int, faulty: Path, tmp_path: Path) -> None:
    printed = run_program(faulty, tmp_path / "model", str(ops), str(memory))
    lines = [line.split("\t") for line in printed.splitlines()]
    assert len(lines) == 28 and sum(int(total) for *_, total, _ in lines) > 50_000
    assert [line for line in lines if line[-1] != "right"] == []
