# SPDX-License-Identifier: BSD-3-Clause
"""A progress bar on the terminal, with rich if it is installed."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from typing_extensions import Self


class ProgressBar:
    """Counts steps on standard error, and prints nothing if that is not a terminal.

    Args:
        description: What is being done.
        total: The number of steps; None if it is unknown.
        shown: Whether to show the bar.
    """

    def __init__(self, description: str, total: int | None, shown: bool = True) -> None:
        self._progress: Any = None
        if not shown:
            return
        with contextlib.suppress(ImportError):
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            console = Console(stderr=True)
            if console.is_terminal:
                self._progress = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeElapsedColumn(),
                    TimeRemainingColumn(),
                    console=console,
                )
                self._task = self._progress.add_task(description, total=total)

    def advance(self) -> None:
        """Count one step."""
        if self._progress is not None:
            self._progress.advance(self._task)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
