# SPDX-License-Identifier: BSD-3-Clause
"""Writes the C++ functions of the public ops, csrc/api/ops/*.h, out of the registered schemas.

    python scripts/cpp_headers.py            write them; `make format` then breaks the lines
    python scripts/cpp_headers.py --check    exit with 1 if they are stale, line breaks aside

The comments come from the docstrings of `baraquant.ops`: what C++ users read is what Python users
read. Needs the built package.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "csrc" / "api" / "ops"
FAMILIES = {
    "affine": "quantize, dequantize and fake_quantize with given scales and zero points",
    "range": "scales and zero points from the range of the data",
    "fused": "norms, activations and a rotation of vectors, and the same quantized",
    "int4": "weights of four bits, and their products",
    "int8_mm": "products of integers",
    "int8_conv": "the convolution of integers",
    "scaled": "scaled quantization, transposes and random states, for a backward of integers",
    "weight_only": "the product of a floating input and a weight of integers",
    "backward": "the gradients of the affine ops, for programs that call them by hand",
}

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
        arguments = []
        for part in match[3].split(", "):
            if part == "*":
                continue
            typed, _, name = part.partition(" ")
            name, _, default = name.partition("=")
            typed = re.sub(r"\(\w+!?\)", "", typed)
            arguments.append(Argument(typed, name, default or None))
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


def sections(docstring: str) -> dict[str, str]:
    """The sections of a docstring by title; what stands before the first has the title ""."""
    parts = re.split(r"^(\w+):\n", docstring.strip() + "\n", flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def items(section: str) -> Iterator[tuple[str, str]]:
    """The entries `name: text` of a section, each text in one line."""
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(section).strip()):
        name, _, text = entry.partition(":")
        yield name.strip(), " ".join(text.split())


def comment(docstring: str, names: set[str]) -> list[str]:
    """The lines of a Doxygen comment."""
    found = sections(docstring)
    lines: list[str] = []

    def add(text: str, hanging: str = "") -> None:
        words = textwrap.wrap(
            text, 96, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
        )
        lines.extend(words or [""])

    for index, paragraph in enumerate(found[""].strip().split("\n\n")):
        if index:
            add("")
        add(plain(" ".join(paragraph.split())))
    add("")
    for name, text in items(found.get("Args", "")):
        if name in names:
            add(f"@param {name} {plain(text)}", "    ")
    if "Returns" in found:
        add(f"@return {plain(' '.join(found['Returns'].split()))}", "    ")
    for name, text in items(found.get("Raises", "")):
        add(f"@throws {plain(name)} {plain(text)}", "    ")
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


def header(family: str) -> str:
    """The text of a header."""
    import importlib

    import torch

    module = importlib.import_module(f"baraquant.ops.{family}")
    inner = "baraquant::backward" if family == "backward" else "baraquant"
    lines = [
        "// SPDX-License-Identifier: BSD-3-Clause",
        "// Written by scripts/cpp_headers.py out of the registered schemas: do not edit.",
        f"/// @file\n/// {FAMILIES[family][0].upper()}{FAMILIES[family][1:]}.",
        "#pragma once",
        "",
        '#include "find.h"',
        "",
        f"namespace {inner} {{",
        "",
    ]
    names = [n for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__]
    public = [name for name in names if hasattr(torch.ops.baraquant, name) and name[0] != "_"]
    for name in public:
        packet = getattr(torch.ops.baraquant, name)
        for overload in packet.overloads():
            schema = Schema.parse(str(getattr(packet, overload)._schema))
            given = {argument.name for argument in schema.arguments}
            if overload == "default":
                lines += comment(getattr(module, name).__doc__, given)
            else:
                lines.append(f"/// {OVERLOADS[overload]}")
            lines += [declaration(schema), ""]
    return "\n".join([*lines, f"}}  // namespace {inner}", ""])


def same(a: str, b: str) -> bool:
    """Whether two texts differ by white space alone."""
    return "".join(a.split()) == "".join(b.split())


def main() -> int:
    """Write the headers, or compare them."""
    sys.path.insert(0, str(ROOT))  # the package in the source tree
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if a header is stale")
    check = parser.parse_args().check
    stale = []
    for family in FAMILIES:
        path, text = FOLDER / f"{family}.h", header(family)
        if not path.exists() or not same(path.read_text(), text):
            stale.append(path.name)
            if not check:
                FOLDER.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if check and stale:
        print(f"stale: {', '.join(stale)}; run python scripts/cpp_headers.py")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
