# SPDX-License-Identifier: BSD-3-Clause
"""What pytest is told here beyond its own options: `--part K/N`."""

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


def register(config: pytest.Config, no_cuda: str | None) -> None:
    """Adds the hooks; `no_cuda` says why CUDA cannot be tested here, None where it can."""
    config.pluginmanager.register(Selection(no_cuda, parse_part(config.option.part)))
