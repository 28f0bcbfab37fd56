# SPDX-License-Identifier: BSD-3-Clause
"""A few hundred hostile calls in processes of their own; `make asan` makes thousands."""

import sys

import pytest

from tests.support.processes import run

HOSTILE = (sys.executable, "-m", "tests.ops.hostile")


@pytest.mark.process
def test_each_call_keeps_its_promise() -> None:
    done = run(*HOSTILE, "400", "--first", "100000", "--processes", "1")
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "hostile calls: passed" in done.stdout


@pytest.mark.process
def test_a_death_is_told_and_the_rest_is_done() -> None:
    done = run(*HOSTILE, "40", "--first", "100000", "--processes", "2", "--die-in", "100007")
    assert done.returncode == 1
    assert "in call 100007: python -m tests.ops.hostile --only 100007" in done.stdout
    assert "hostile calls: FAILED" in done.stdout
    assert "hostile calls: 36 in" in done.stdout  # what the dead process counted is lost
