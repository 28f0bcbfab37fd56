# SPDX-License-Identifier: BSD-3-Clause
"""Prints each test with its values, as JSON in the last line: a program for `test_short_run.py`."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.processes import ROOT


class Recorder:
    """Keeps what the collection ended with."""

    def __init__(self) -> None:
        self.tests: list[dict[str, object]] = []
        self.left_out: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """What the file itself marks, before the selection marks more."""
        if item.get_closest_marker("exhaustive"):
            self.left_out.add(item.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from tests.support.short_run.selection import COSTLY, axes, facets, is_short, parameters

        for item in session.items:
            values = {name: facets(item, name) for axis in axes(item) for name in axis}
            for name, found in values.items():
                own = [parameters(item)[name]] if found is None else found
                values[name] = sorted(map(str, own))
            self.tests.append(
                {
                    "name": item.nodeid.partition("[")[0].removeprefix("tests/"),
                    "short": is_short(item),
                    "costly": any(map(item.get_closest_marker, COSTLY)),
                    "exhaustive": item.nodeid in self.left_out,
                    "values": values,
                }
            )


if __name__ == "__main__":
    recorder = Recorder()
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider"]
    folders = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
    if pytest.main([*options, *folders], plugins=[recorder]) != pytest.ExitCode.OK:
        sys.exit("the tests cannot be collected")
    print(json.dumps(recorder.tests))
