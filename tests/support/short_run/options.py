# SPDX-License-Identifier: BSD-3-Clause
"""What pytest is told here beyond its own options, `--part K/N`, and says beyond its own lines."""

import pytest

from tests.support.short_run.selection import Selection


def parse_part(text: str) -> tuple[int, int]:
    """`2/4` as (2, 4)."""
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--part: expected K/N with 1 <= K <= N, but got {text!r}")
    return int(part), int(parts)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("baraquant")
    group.addoption("--part", default="1/1", metavar="K/N", help="run one of N parts of the tests")


class Failures:
    """Names each failure at once: a run that is stopped from outside has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.plugins.get_plugin("terminalreporter")  # None in xdist's processes
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid}\n{report.longreprtext[-1000:]}")


def register(config: pytest.Config, no_cuda: str | None) -> None:
    """Adds the hooks; `no_cuda` says why CUDA cannot be tested here, None where it can."""
    config.pluginmanager.register(Selection(no_cuda, parse_part(config.option.part)))
    config.pluginmanager.register(Failures(config))
