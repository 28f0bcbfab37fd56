# SPDX-License-Identifier: BSD-3-Clause
"""Reads the documentation of the ops, csrc/*/ops.txt, and puts docstrings together.

A file has blocks, and a block has entries:

    [family scaled: frame]                  the first block: what the ops of the file share
    == Gradients from integers              a heading of the reference page, for the ops below it
    [scaled_quantize]                       a block that is no op: what several ops share
    input: $input_shape; any strides.
    [scaled_quantize_per_token: scaled_quantize]
    input_shape: ``[..., N]``

The text of an argument stands under its name, that of a section under its title (`Summary`,
`Formula`, `Returns`, `Gradient`, ...), and any other name is a word. An entry that a block does not
have is looked up in the blocks after its colon, from left to right, and then in the first block of
the op's file. `$name` is replaced by an entry, which the same lookup finds: a shared text can have
words that each op replaces.

`Vmap` names the arguments that torch.vmap may batch, the first of them `input`, or is "nothing",
"refused" or, of an op of one tensor, "elementwise"; without it the op calls core ops, which have
rules. `Reference` replaces the summary on the page of the reference. In the first block `Title` and
`Rows` say in a few words what the ops are, and `Page` is a section of docs/ops.md.

A text goes on in lines that are indented. An empty line begins a paragraph, and a backslash ends a
line that is not to be joined with the next. The lines of `Example`, `Rows` and `Page` stay as they
are; a word of an `Example` may have several.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WIDTH = 96  # of a docstring, which is indented by 4 in its function
SECTIONS = ("Args", "Returns", "Example", "Raises", "Gradient", "Rounding", "References")
ERRORS = ("ValueError", "TypeError", "IndexError", "NotImplementedError")
VERBATIM = ("Example", "Rows", "Page")


@dataclass
class Block:
    """Some entries, and the names of the blocks that have the others."""

    name: str
    parents: list[str]
    heading: str
    entries: dict[str, str] = field(default_factory=dict)


@dataclass
class Family:
    """A file: its first block, and the others by name."""

    path: Path
    first: Block
    blocks: dict[str, Block]


class Texts:
    """The blocks of all files."""

    def __init__(self, folder: Path) -> None:
        self.families = {
            family.first.name: family for family in map(read, sorted(folder.glob("*/*.txt")))
        }
        self._blocks = {
            name: block
            for family in self.families.values()
            for name, block in family.blocks.items()
        }

    def get(self, family: str, name: str, entry: str) -> str | None:
        """An entry of an op as it stands, or None."""
        for block in self._chain(family, name):
            if entry in block.entries:
                return block.entries[entry]
        return None

    def filled(self, family: str, name: str, entry: str) -> str:
        """An entry of an op with its words, line by line; "" if there is none."""

        def word(match: re.Match[str]) -> str:
            found = self.get(family, name, match[1] or match[2])
            if found is None:
                raise KeyError(f"{name}: {entry} names {match[0]}, which nothing defines")
            return re.sub(MARK, word, found.strip())

        return re.sub(MARK, word, self.get(family, name, entry) or "")

    def text(self, family: str, name: str, entry: str) -> str:
        """An entry of an op with its words, paragraph by paragraph; "" if there is none."""
        lines = [line.strip() for line in self.filled(family, name, entry).splitlines()]
        return re.sub(r"( *\\\n)+", r" \\\n", "\n".join(lines)).removesuffix(" \\").strip()

    def docstring(self, family: str, name: str, arguments: Sequence[str]) -> list[str]:
        """The lines of the docstring of an op with these arguments."""
        summary = self.text(family, name, "Summary")
        if not summary:
            raise KeyError(f"{name} has no Summary")
        lines = [*wrapped(summary), "", *wrapped(self.text(family, name, "Formula"))]
        for section in SECTIONS:
            lines += ["", f"{section}:"]
            if section == "Args":
                for argument in arguments:
                    text = self.text(family, name, argument)
                    if not text:
                        raise KeyError(f"{name}: the argument {argument} has no text")
                    lines += wrapped(f"{argument}: {text}", "    ", "        ")
            elif section == "Raises":
                for error in ERRORS:
                    if text := self.text(family, name, error):
                        lines += wrapped(f"{error}: {text}", "    ", "        ")
            elif section in VERBATIM:
                lines += verbatim(self.filled(family, name, section), "    ")
            else:
                lines += wrapped(self.text(family, name, section), "    ", "    ")
        return lines

    def _chain(self, family: str, name: str) -> Iterator[Block]:
        if name in self._blocks:
            yield from self._with_parents(self._blocks[name])
        yield from self._with_parents(self.families[family].first)

    def _with_parents(self, block: Block) -> Iterator[Block]:
        yield block
        for parent in block.parents:
            if parent not in self._blocks and parent not in self.families:
                raise KeyError(f"no file has a block [{parent}]")
            shared = self._blocks.get(parent) or self.families[parent].first
            yield from self._with_parents(shared)


MARK = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def read(path: Path) -> Family:
    """The blocks of a file."""
    blocks: list[Block] = []
    heading = entry = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.fullmatch(r"\[(?:family )?(\w+)(?:: ([\w, ]+))?\]", line):
            blocks.append(Block(match[1], (match[2] or "").replace(",", "").split(), heading))
            entry = ""
        elif line.startswith("== "):
            heading = line.removeprefix("== ")
        elif match := re.match(r"(\w+):(?: (.*))?$", line):
            entry = match[1]
            blocks[-1].entries[entry] = match[2] or ""
        elif entry and (not line or line.startswith("    ")):
            blocks[-1].entries[entry] += f"\n{line.removeprefix('    ')}"
        elif line and not line.startswith("#"):
            raise ValueError(f"{path}:{number}: neither a block nor an entry nor its text: {line}")
    return Family(path, blocks[0], {block.name: block for block in blocks[1:]})


def verbatim(text: str, indent: str = "") -> list[str]:
    """The lines of an entry that stay as they are."""
    return [f"{indent}{line}".rstrip() for line in text.strip("\n").rstrip().splitlines()]


def wrapped(text: str, indent: str = "", hanging: str = "", width: int = WIDTH) -> list[str]:
    """A text in lines; short literals are not broken."""
    wrapper = textwrap.TextWrapper(width, subsequent_indent=hanging)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if lines:
            lines.append("")
        for part in paragraph.split(" \\\n"):
            joined = " ".join(part.split())
            whole = re.sub(r"``[^`]{1,60}``", lambda m: m[0].replace(" ", "\0"), joined)
            wrapper.initial_indent = hanging if lines else indent
            lines += [line.replace("\0", " ") for line in wrapper.wrap(whole)]
    return lines
