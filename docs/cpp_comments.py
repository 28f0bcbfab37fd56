# SPDX-License-Identifier: BSD-3-Clause
"""Comments of the C++ headers as reStructuredText: Doxygen's commands, Markdown's backticks."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

COMMAND = re.compile(r"@(param|returns?|throws)\b *(.*)")
FIELDS = {"param": "param", "return": "returns", "returns": "returns", "throws": "throws"}


@dataclass
class Comment:
    """A comment: its text, as lines of reStructuredText, and its fields."""

    text: list[str] = field(default_factory=list)
    fields: list[tuple[str, str, str]] = field(default_factory=list)  # kind, name, text

    @property
    def parameters(self) -> set[str]:
        """The names that @param explains."""
        return {name for kind, name, _ in self.fields if kind == "param"}

    def lines(self) -> list[str]:
        """The whole comment."""
        listed = [f":{kind} {name}".rstrip() + f": {text}" for kind, name, text in self.fields]
        return [*self.text, "", *listed, ""]


def markup(text: str) -> str:
    """One paragraph: `code` becomes literal, and what reStructuredText would read is escaped."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        words = re.sub(r"([\\*|])", r"\\\1", parts[i])
        parts[i] = re.sub(r"(?<!\w)(\w+_)(?!\w)", r"``\1``", words)  # prepare_
    return "``".join(parts)


def stripped(comment: str) -> list[str]:
    """The lines without ``///``, and without the command that names the file."""
    lines = [re.sub(r"^\s*///<? ?", "", line) for line in comment.splitlines()]
    return [line.rstrip() for line in lines if line.strip() != "@file"]


def blocks(lines: list[str]) -> list[list[str]]:
    """The paragraphs; a command begins one, and code of four columns is one to its end."""
    found: list[list[str]] = [[]]
    for line in lines:
        code = bool(found[-1]) and found[-1][0].startswith("    ")
        if COMMAND.match(line) or (not code and line.startswith("    ") and not found[-1]):
            found.append([line])
        elif not line and not code:
            found.append([])
        elif code and line and not line.startswith("    "):
            found.append([line])
        else:
            found[-1].append(line)
    return [block for block in found if block]


def parse(comment: str) -> Comment:
    """Reads a comment."""
    result = Comment()
    for block in blocks(stripped(comment)):
        command = COMMAND.match(block[0])
        if command is not None:
            kind = FIELDS[command[1]]
            text = " ".join([command[2], *(line.strip() for line in block[1:])]).strip()
            name, _, rest = text.partition(" ")
            if kind == "returns":
                name, rest = "", text
            result.fields.append((kind, name, markup(rest)))
        elif block[0].startswith("    "):
            code = textwrap.dedent("\n".join(block)).rstrip().splitlines()
            result.text += [
                ".. code-block:: cpp",
                "",
                *(f"    {line}".rstrip() for line in code),
                "",
            ]
        else:
            result.text += [markup(" ".join(block)), ""]
    return result
