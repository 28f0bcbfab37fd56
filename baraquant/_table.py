# SPDX-License-Identifier: BSD-3-Clause
"""Reports that ``print`` shows as a table, and lists in messages."""

from __future__ import annotations

import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar


def some(names: Sequence[str], most: int) -> str:
    """Return the first names of a list, and how many there are besides."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def shown(value: Any, most: int = 80) -> str:
    """Return the start of ``repr(value)``; the rest of a long value is not formatted at all."""
    text = _SHORT.repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_line(text: str, most: int = 900) -> str:
    """Return a message in one line of bounded length; names of a file may be anything."""
    for _ in range(2):  # the second time what escapes have added
        if len(text) > most:
            text = f"{text[: most // 2 - 10]}...{text[10 - most // 2 :]}"
        text = re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text)
    return text


class placed:  # noqa: N801
    """Put places that are not empty before the message of a ValueError or a TypeError.

    Not a generator: contextlib's frame and the first error would hold each other, and the model.
    """

    def __init__(self, *places: str) -> None:
        self._places = places

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (ValueError, TypeError)):
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(": ".join([*filter(None, self._places), str(error)])) from error


class Table:
    """A report with rows, which ``print`` and :mod:`rich` show.

    Attributes:
        titles: The titles of the columns; those after the second are of numbers.
    """

    titles: ClassVar[tuple[str, ...]] = ()

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

    def __rich__(self) -> Any:
        """Return a table for :mod:`rich`."""
        return self._rich(self.titles, self.rows())

    def _rich(self, titles: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Any:
        from rich.table import Table as RichTable
        from rich.text import Text  # in which brackets are no markup

        headline = self.headline()
        table = RichTable(title=Text(headline) if headline else None, caption=Text(self.summary()))
        for index, title in enumerate(titles):
            table.add_column(Text(title), justify="left" if index < 2 else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        return table

    def _framed(self) -> str:
        from rich.console import Console

        console = Console()
        with console.capture() as capture:
            console.print(self)
        text: str = capture.get()
        return text.rstrip("\n")
