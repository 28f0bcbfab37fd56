# SPDX-License-Identifier: BSD-3-Clause
"""Schemas and docstrings of the ops as C++: the headers of csrc/api/ops, for scripts/ops.py."""

from __future__ import annotations

import itertools
import re
import textwrap
from dataclasses import dataclass

from op_texts import ERRORS, Texts

# The types of a schema, as parameters of a C++ function.
PARAMETERS = {
    "Tensor": "const at::Tensor&",
    "Tensor?": "const std::optional<at::Tensor>&",
    "int": "int64_t",
    "int?": "std::optional<int64_t>",
    "SymInt": "c10::SymInt",
    "SymInt?": "std::optional<c10::SymInt>",
    "int[1]": "at::IntArrayRef",
    "float": "double",
    "float?": "std::optional<double>",
    "bool": "bool",
    "bool?": "std::optional<bool>",
    "str": "std::string_view",
    "ScalarType": "at::ScalarType",
    "ScalarType?": "std::optional<at::ScalarType>",
}
DEFAULTS = {"None": "std::nullopt", "True": "true", "False": "false"}
OVERLOADS = {
    "residual": "The same of input + residual, which is returned as well, after the other results.",
    "scale_tensor": "The same; the scale is a tensor and the zero point a number.",
    "number": "The same; the scale is a number and the zero point a number.",
}
DTYPES = {"int8": "at::kChar", "float": "at::kFloat", "1": "at::kChar", "6": "at::kFloat"}


@dataclass(frozen=True)
class Argument:
    """One argument of a schema."""

    type: str
    name: str
    default: str | None
    keyword: bool = False

    @property
    def parameter(self) -> str:
        """The parameter of a declaration."""
        text = f"{PARAMETERS[self.type]} {self.name}"
        if self.default is None:
            return text
        default = DEFAULTS.get(self.default, self.default).strip("[]")
        return f"{text} = {DTYPES.get(default, default) if 'ScalarType' in self.type else default}"


@dataclass(frozen=True)
class Schema:
    """An overload of an op."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: str

    @staticmethod
    def parse(text: str) -> Schema:
        """Read the text of a registered schema."""
        match = re.fullmatch(r"baraquant::(\w+)\.?(\w*)\((.*)\) -> (.*)", text)
        assert match is not None, text
        arguments: list[Argument] = []
        keyword = False
        for part in match[3].split(", "):
            if part == "*":
                keyword = True
                continue
            typed, _, name = part.partition(" ")
            name, _, default = name.partition("=")
            typed = re.sub(r"\(\w+!?\)", "", typed)
            arguments.append(Argument(typed, name, default or None, keyword))
        count = match[4].count("Tensor")
        tuple_of = f"std::tuple<{', '.join(['at::Tensor'] * count)}>"
        returns = {0: "void", 1: "at::Tensor"}.get(count, tuple_of)
        return Schema(match[1], match[2], tuple(arguments), returns)


def plain(text: str) -> str:
    """Text of a docstring, as a C++ comment says it."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"\1", text.replace("``", "`"))
    text = re.sub(r"\bbaraquant\.ops\.(backward\.)?", "", text)
    for python, cpp in {"None": "std::nullopt", "True": "true", "False": "false"}.items():
        text = re.sub(rf"\b{python}\b", cpp, text)
    return re.sub(r"(?<!::)\b(Value|Type|Index|NotImplemented)Error\b", r"c10::\1Error", text)


def comment(texts: Texts, family: str, name: str, given: list[str]) -> list[str]:
    """The lines of a Doxygen comment of an op, with these arguments."""
    lines: list[str] = []

    def add(entry: str, start: str = "", hanging: str = "    ") -> None:
        wrapper = textwrap.TextWrapper(96, "", hanging)
        wrapper.break_long_words = wrapper.break_on_hyphens = False
        text = texts.text(family, name, entry).replace(" \\\n", " ")
        for paragraph in filter(None, re.split(r"\n\s*\n", text)):
            lines.extend(wrapper.wrap(plain(f"{start}{' '.join(paragraph.split())}")))
            lines.extend([] if start else [""])

    add("Summary", hanging="")
    add("Formula", hanging="")
    for argument in given:
        add(argument, f"@param {argument} ")
    add("Returns", "@return ")
    for error in ERRORS:
        add(error, f"@throws {error} ")
    return [f"/// {line}".rstrip() for line in lines]


def declaration(schema: Schema) -> str:
    """A function."""
    types = ", ".join(PARAMETERS[a.type] for a in schema.arguments)
    values = ", ".join(
        f"std::move({a.name})" if a.type.startswith("SymInt") else a.name for a in schema.arguments
    )
    parameters = ", ".join(a.parameter for a in schema.arguments)
    returned = "" if schema.returns == "void" else "return "
    return (
        f"inline {schema.returns} {schema.name}({parameters}) {{\n"
        f"  static const auto op = api::find<{schema.returns}({types})>"
        f'("{schema.name}", "{schema.overload}");\n'
        f"  {returned}op.call({values});\n"
        "}"
    )


def header(texts: Texts, family: str, title: str, ops: list[list[Schema]]) -> str:
    """The text of a header below its first two lines, from the overloads of its ops."""
    inner = "baraquant::backward" if family == "backward" else "baraquant"
    lines = [f"/// @file\n/// {title}"]
    lines += ["#pragma once", "", '#include "find.h"', "", f"namespace {inner} {{", ""]
    for schema in itertools.chain(*ops):
        given = [argument.name for argument in schema.arguments]
        if schema.overload:
            lines.append(f"/// {OVERLOADS[schema.overload]}")
        else:
            lines += comment(texts, family, schema.name, given)
        lines += [declaration(schema), ""]
    return "\n".join([*lines, f"}}  // namespace {inner}", ""])
