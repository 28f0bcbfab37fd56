# SPDX-License-Identifier: BSD-3-Clause
"""A process that hangs is a failure, which says what it was."""

import pytest

import cpp_programs
from tests.support import processes


def test_a_process_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_programs, "PATIENCE", 0)
    with pytest.raises(AssertionError, match=r"does not end: \['sleep', '3600'\]"):
        processes.run("sleep", "3600")


def test_a_process_reads_nothing() -> None:
    assert processes.run("cat").returncode == 0
