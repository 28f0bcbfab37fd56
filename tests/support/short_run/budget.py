# SPDX-License-Identifier: BSD-3-Clause
"""Says what the short run costs, beside its budget, both counted in CPU time.

It is that of the tests' processes and of those that they wait for, not wall time. `--budget M` says
how many minutes each of two processes (or of as many as there are) should take for its start, which
collects the tests, and for the tests of the short run. A run of all tests compares these with the
same budget, one of several parts with its share. A run beyond the budget does not fail: neighbours
on a busy machine make the same work costlier, by slower caches and shared cores.
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
    """The hooks that measure, add up and report.

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

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.limit:
            return
        write = terminalreporter.write_line
        share = f" in {self.parts} parts" if self.parts > 1 else ""
        write(f"the short run{share}: {self.total:.0f} of {self.limit:.0f} core-seconds")
        if self.exceeded:
            write("the short run is over its budget. The costliest of its tests:", yellow=True)
            for nodeid, seconds in self.spent.most_common(10):
                write(f"{seconds:8.1f} s  {nodeid}")
            write("Unless the machine is busy or slow: CONTRIBUTING.md says what is exhaustive.")
