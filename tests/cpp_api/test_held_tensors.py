# SPDX-License-Identifier: BSD-3-Clause
"""The modules of C++ hold nothing derived from their tensors, and nothing of a replaced model."""

from pathlib import Path

import pytest

from tests.support.libtorch import STRICT, build_program, run_program

pytestmark = pytest.mark.process


def test_what_modules_hold(tmp_path: Path) -> None:
    build_program(Path(__file__).with_name("held_tensors.cpp"), tmp_path / "held", *STRICT)
    lines = [line.split("\t") for line in run_program(tmp_path / "held").splitlines()]
    assert len(lines) > 30
    assert [name for _, name, result in lines if result != "right"] == []
