# SPDX-License-Identifier: BSD-3-Clause
"""Reports that ``print`` shows as a table."""

from __future__ import annotations

import sys


class Table:
    """A report with rows; :mod:`rich` shows it by a method ``__rich__`` of the subclass."""

    def rows(self) -> list[tuple[str, ...]]:
        """Return a name and a text for each row, and what is shown in brackets if not empty."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the last line."""
        raise NotImplementedError

    def headline(self) -> str:
        """Return what a reader must not miss, as the first line; empty: there is no such line."""
        return ""

    def __str__(self) -> str:
        """Return a table; if rich is installed, on a terminal with frames."""
        if sys.stdout is not None and sys.stdout.isatty():
            try:
                return self._framed()
            except ImportError:
                pass
        rows = self.rows()
        width = max((len(row[0]) for row in rows), default=0)
        lines = [
            f"{name:<{width}}  {text}{''.join(f' ({part})' for part in parts if part)}"
            for name, text, *parts in rows
        ]
        headline = self.headline()
        return "\n".join([*([headline] if headline else []), *lines, self.summary()])

    def _framed(self) -> str:
        from rich.console import Console

        console = Console()
        with console.capture() as capture:
            console.print(self)
        text: str = capture.get()
        return text.rstrip("\n")
