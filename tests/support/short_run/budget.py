# SPDX-License-Identifier: BSD-3-Clause
"""Holds the short run to its budget, counted in CPU time.

It is that of the tests' processes and of those that they wait for, not wall time: a machine that
is busy with something else makes a run longer, but hardly costlier. `--budget M` says how many
minutes each of two processes (or of as many as there are) may take for its start, which collects
the tests, and for the tests of the short run. A run of all tests holds these to the same budget,
one of several parts to its share.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

MIN_PROCESSES = 2


def core_seconds() -> float:
    """The CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Budget:
    """The hooks that measure, add up and judge.

    Args:
        minutes: The budget of each process; 0 for none.
        processes: How many processes run tests.
        parts: Into how many parts the run is split.
    """

    def __init__(self, minutes: float, processes: int, parts: int) -> None:
        self.limit = 60 * minutes * max(MIN_PROCESSES, processes)
        self.parts = parts
        self.started = 0.0
        self.spent: Counter[str] = Counter()
        self.since = core_seconds()

    @property
    def total(self) -> float:
        """What a run of all short tests costs, told from this part."""
        return self.started + self.parts * self.spent.total()

    @property
    def exceeded(self) -> bool:
        return 0 < self.limit < self.total

    def pytest_collection_finish(self) -> None:
        self.started = core_seconds()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self.since = core_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        now = core_seconds()
        report.core_seconds, self.since = now - self.since, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "exhaustive" not in report.keywords:
            self.spent[report.nodeid] += getattr(report, "core_seconds", 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.started += getattr(node, "workeroutput", {}).get("started", 0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["started"] = self.started
        elif self.exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.limit:
            return
        write = terminalreporter.write_line
        share = f" in {self.parts} parts" if self.parts > 1 else ""
        write(f"the short run{share}: {self.total:.0f} of {self.limit:.0f} core-seconds")
        if self.exceeded:
            write("FAILED: the short run is over its budget. The costliest of its tests:", red=True)
            for nodeid, seconds in self.spent.most_common(10):
                write(f"{seconds:8.1f} s  {nodeid}")
            write("CONTRIBUTING.md says what to mark as exhaustive; TEST_BUDGET=0 lifts the limit.")
