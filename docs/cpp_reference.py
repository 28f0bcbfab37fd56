# SPDX-License-Identifier: BSD-3-Clause
"""The directive ``cpp-header``: what a header of csrc/api declares, with its comments.

    .. cpp-header:: nn/training.h

cxxheaderparser reads the header, so that no compiler and no other program is needed. Sphinx's own
domain for C++ reads the signatures again and links the types. A comment that is missing, and one
that explains a parameter that does not exist, is a warning, which ``make docs`` takes as an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cpp_comments
from cxxheaderparser.simple import ClassScope, NamespaceScope, parse_string
from cxxheaderparser.types import Function, Method
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

API = Path(__file__).resolve().parent.parent / "csrc" / "api"
ARGUMENT = "_torch_arg"  # marks a member that TORCH_ARG declares
log = logging.getLogger(__name__)


class Header:
    """A header, and the lines of its page."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = API / name
        self.text = self.path.read_text()
        self.holders = set(re.findall(r"^TORCH_MODULE\((\w+)\);", self.text, re.MULTILINE))

    def warn(self, text: str) -> None:
        """Reports what is wrong with a comment."""
        log.warning("%s: %s", self.name, text, location=(str(self.path), 1))

    def lines(self) -> list[str]:
        """The comment of the file, and everything in it."""
        about = re.search(r"^/// @file\n((?:///.*\n)*)", self.text, re.MULTILINE)
        if about is None:
            self.warn("a comment @file is missing")
        lines = cpp_comments.parse(about[1]).lines() if about else []
        # Macros of torch, of which the parser knows nothing.
        source = re.sub(r"\bBARAQUANT_API\s+", "", self.text)
        source = re.sub(r"^TORCH_MODULE\(\w+\);\n", "", source, flags=re.MULTILINE)
        # What declares the clones of a module ends its public part.
        source = re.sub(r"^#define (?:.*\\\n)+.*\n", "", source, flags=re.MULTILINE)
        source = re.sub(r"^  BARAQUANT_CLONES$", " private:", source, flags=re.MULTILINE)
        source = re.sub(r"\bTORCH_ARG\((.*), (\w+)\)", rf"\1 \2{ARGUMENT}", source)
        return [*lines, *self.of_namespace(parse_string(source).namespace, "")]

    def of_namespace(self, scope: NamespaceScope, name: str) -> Iterator[str]:
        """Aliases, classes and functions, and those of the namespaces within."""
        for alias in scope.using_alias:
            said = self.comment(alias.doxygen, f"{name}{alias.alias}")
            yield from block("type", [f"{name}{alias.alias} = {alias.type.format()}"], said)
        for found in scope.classes:
            yield from self.of_class(found, name)
        for same in by_name(scope.functions):
            yield from self.of_overloads(same, name, True)
        for inner, found in scope.namespaces.items():
            if inner not in ("api", "workflow"):  # behind the functions, not for callers
                yield from self.of_namespace(found, f"{name}{inner}::")

    def of_class(self, scope: ClassScope, namespace: str) -> Iterator[str]:
        """A class with its public members; what it only overrides is explained by its base."""
        declared = scope.class_decl
        name = declared.typename.segments[-1].format()
        said = self.comment(declared.doxygen, name)
        if name.removesuffix("Impl") in self.holders:
            holder = name.removesuffix("Impl")
            said += [f"``{holder}`` is the holder of it, a ``torch::nn::ModuleHolder``.", ""]
        # A parameter of a template has no page.
        parameters = {one.name for one in getattr(declared.template, "params", ())}
        bases = ", ".join(
            f"{base.access} {base.typename.format()}"
            for base in declared.bases
            if base.typename.format() not in parameters
        )
        signature = f"{namespace}{name}" + (f" : {bases}" if bases else "")
        for alias in scope.using_alias:
            if alias.access == "public":
                about = cpp_comments.parse(alias.doxygen).lines() if alias.doxygen else []
                said += block("type", [f"{alias.alias} = {alias.type.format()}"], about)
        methods = [method for method in scope.methods if is_shown(method)]
        for same in by_name(methods):
            said += self.of_overloads(same, "", False)
        for member in scope.fields:
            if member.access == "public" and member.name is not None:
                said += self.of_field(member, name)
        kind = "struct" if declared.classkey == "struct" else "class"
        yield from block(kind, [signature], said)

    def of_field(self, member: Any, owner: str) -> Iterator[str]:
        """A public member, or the function that TORCH_ARG makes of it."""
        said = cpp_comments.parse(member.doxygen).lines() if member.doxygen else []
        value = member.value.format() if member.value is not None else None
        if member.name.endswith(ARGUMENT):
            name = member.name.removesuffix(ARGUMENT)
            said += [f"The default is ``{value}``.", ""] if value else []
            signature = f"{owner} &{name}({member.type.format()} value)"
            yield from block("function", [signature], said)
        else:
            yield from block("member", [f"{member.type.format()} {member.name}"], said)

    def of_overloads(self, same: list[Function], scope: str, documented: bool) -> Iterator[str]:
        """Functions of one name; those without a comment belong to the one before."""
        while same:
            count = next((i for i in range(1, len(same)) if same[i].doxygen), len(same))
            together, same = same[:count], same[count:]
            name = f"{scope}{together[0].name.format()}"
            said = []
            if together[0].doxygen or documented:
                said = self.comment(together[0].doxygen, name, together)
            yield from block("function", [signature_of(f, scope) for f in together], said)

    def comment(
        self, text: str | None, name: str, functions: list[Function] | None = None
    ) -> list[str]:
        """The lines of a comment, which has to be there and to name parameters that there are."""
        if not text:
            self.warn(f"{name} has no comment")
            return []
        found = cpp_comments.parse(text)
        given = {p.name for function in functions or [] for p in function.parameters}
        for unknown in sorted(found.parameters - given):
            self.warn(f"{name} has no parameter {unknown}")
        return found.lines()


def by_name(functions: Sequence[Function]) -> list[list[Function]]:
    """The overloads of each name, in the order of the header."""
    found: dict[str, list[Function]] = {}
    for function in functions:
        found.setdefault(function.name.format(), []).append(function)
    return list(found.values())


def is_shown(method: Method) -> bool:
    """Whether a member function is for callers, and not explained where it is declared first."""
    hidden = method.destructor or method.default or method.deleted
    # What only the library can make: the struct's definition is in no header of the API.
    hidden |= any(re.search(r"\bGiven\b", p.type.format()) for p in method.parameters)
    return method.access == "public" and not hidden and bool(method.doxygen or not method.override)


def signature_of(function: Function, scope: str) -> str:
    """The declaration of a function as Sphinx reads it."""
    template = ""
    if function.template is not None:
        names = ", ".join(f"typename {parameter.name}" for parameter in function.template.params)
        template = f"template <{names}> "
    returned = f"{function.return_type.format()} " if function.return_type is not None else ""
    given = ", ".join(parameter.format() for parameter in function.parameters)
    const = " const" if isinstance(function, Method) and function.const else ""
    return f"{template}{returned}{scope}{function.name.format()}({given}){const}"


def block(kind: str, signatures: list[str], inside: list[str]) -> Iterator[str]:
    """A directive of the domain for C++."""
    head = f".. cpp:{kind}:: "
    yield head + signatures[0]
    yield from (" " * len(head) + signature for signature in signatures[1:])
    yield ""
    yield from (f"   {line}" if line else "" for line in inside)
    yield ""


class CppHeader(SphinxDirective):
    """Puts a header's declarations onto a page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The parsed lines."""
        header = Header(self.arguments[0])
        self.env.note_dependency(str(header.path))
        container = nodes.section()
        container.document = self.state.document
        lines = StringList(header.lines(), source=str(header.path.relative_to(API.parent.parent)))
        nested_parse_with_titles(self.state, lines, container)
        return container.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("cpp-header", CppHeader)
    return {"parallel_read_safe": True}
