# SPDX-License-Identifier: BSD-3-Clause
"""Completes docstrings, so that what several classes share is said once.

A class's own docstring holds its first sentence, and its example if that is its own. A template
holds the rest; in it ``$`` marks the words that differ between the classes, and ``$example`` where
the example goes.
"""

import inspect
from collections.abc import Callable, Mapping
from string import Template
from typing import TypeVar

_EXAMPLE = "\n\nExample:\n"
_Class = TypeVar("_Class", bound=type)


def completed(own: str, template: str, words: Mapping[str, str]) -> str:
    """Return the whole docstring of one that stands in the source."""
    text, _, example = inspect.cleandoc(own).partition(_EXAMPLE)
    shared = Template(template.strip("\n")).substitute(words, example=f"Example:\n{example}")
    # An empty word leaves a line of spaces: something that this function does not have.
    lines = (line for line in shared.splitlines() if not line.isspace())
    return "\n".join((text, "", *lines, ""))


def documented(template: str, **words: str) -> Callable[[_Class], _Class]:
    """Complete the docstring of a class."""

    def complete(documented: _Class) -> _Class:
        documented.__doc__ = completed(documented.__doc__ or "", template, words)
        return documented

    return complete
