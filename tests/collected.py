# SPDX-License-Identifier: BSD-3-Clause
"""Prints as JSON, in its last line, each test of this folder with its values: a script for `test_selection.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


class Recorder:
    """Keeps what the collection ended with."""

    def __init__(self) -> None:
        self.tests: list[dict[str, object]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from selection import COSTLY, axes, facets, is_short, parameters

        for item in session.items:
            values = {name: facets(item, name) for axis in axes(item) for name in axis}
            for name, found in values.items():
                values[name] = sorted(map(str, found or [parameters(item)[name]]))
            self.tests.append(
                {
                    "name": item.nodeid.partition("[")[0].removeprefix("tests/"),
                    "short": is_short(item),
                    "costly": [mark for mark in COSTLY if item.get_closest_marker(mark)],
                    "values": values,
                }
            )


if __name__ == "__main__":
    recorder = Recorder()
    folder = str(Path(__file__).parent)
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider"]
    if pytest.main([*options, folder], plugins=[recorder]) != pytest.ExitCode.OK:
        sys.exit("the tests cannot be collected")
    print(json.dumps(recorder.tests))
