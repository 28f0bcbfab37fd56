# SPDX-License-Identifier: BSD-3-Clause
"""Writes what follows from the schemas of the ops and from their texts, csrc/*/ops.txt.

    python scripts/ops.py            write it; `make format` then breaks the lines
    python scripts/ops.py --check    exit with 1 if something is stale, white space aside

Written are the C++ functions, csrc/api/ops/*.h; the Python functions, baraquant/ops/*.py, with
their docstrings; the lists of names in baraquant/reference/_ops.py, csrc/api/ops.h and docs/api;
sections of docs/ops.md; the table of what torch.vmap may batch; and tests/FAMILY/__init__.py. A new
family is found by its texts. Needs the built library, but not that the package can be imported.
scripts/op_texts.py explains the texts.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import op_texts

ROOT = Path(__file__).resolve().parent.parent
# The types of a schema, in Python and in C++.
TYPES = {
    "Tensor": ("Tensor", "at::Tensor"),
    "int": ("int", "int64_t"),
    "SymInt": ("int", "c10::SymInt"),
    "int[1]": ("int | Sequence[int]", "at::IntArrayRef"),
    "float": ("float", "double"),
    "bool": ("bool", "bool"),
    "str": ("str", "std::string_view"),
    "ScalarType": ("torch.dtype", "at::ScalarType"),
}
INSTANCES = {"float": "(int, float)", "int": "int"}  # what stands for a tensor in an overload
DTYPES = {"1": ("torch.int8", "at::kChar"), "6": ("torch.float32", "at::kFloat")}
CPP_DEFAULTS = {"None": "std::nullopt", "True": "true", "False": "false"}
OVERLOADS = {
    "residual": "The same of input + residual, which is returned as well, after the other results.",
    "scale_tensor": "The same; the scale is a tensor and the zero point a number.",
    "number": "The same; the scale is a number and the zero point a number.",
}
LICENCE = "SPDX-License-Identifier: BSD-3-Clause"
WRITTEN = "Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit."
HEAD = f"# {LICENCE}\n# {WRITTEN}\n"


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
        text = f"{_cpp_type(self.type)} {self.name}"
        if self.default is None:
            return text
        if self.type == "ScalarType":
            return f"{text} = {DTYPES[self.default][1]}"
        return f"{text} = {CPP_DEFAULTS.get(self.default, self.default).strip('[]')}"


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


class Op:
    """A public op: its overloads, the default one first, and its docstring."""

    def __init__(self, texts: op_texts.Texts, family: str, schemas: list[Schema]) -> None:
        self.texts, self.family = texts, family
        self.name = schemas[0].name
        self.default, *self.others = schemas
        # In the order of the arguments that tell the overloads apart.
        self.cases = sorted(self.others, key=lambda one: one.arguments.index(self.telling(one)))
        self.doc = texts.docstring(family, self.name, [a.name for a in self.union()])

    def entry(self, name: str) -> str | None:
        """An entry of the op's text."""
        return self.texts.get(self.family, self.name, name)

    def telling(self, other: Schema) -> Argument:
        """The first argument by which an overload differs from the default one."""
        known = set(map(_plain, self.default.arguments))
        return next(argument for argument in other.arguments if _plain(argument) not in known)

    def union(self) -> list[Argument]:
        """The arguments of all overloads."""
        longest = max([self.default, *self.others], key=lambda schema: len(schema.arguments))
        return list(longest.arguments)

    def type_of(self, name: str) -> str:
        """The Python type of an argument, in all overloads."""
        found: dict[str, None] = {}
        for schema in (self.default, *self.others):
            types = [_python_type(a.type) for a in schema.arguments if a.name == name] or ["None"]
            found |= dict.fromkeys(types[0].split(" | "))
        return " | ".join(sorted(found, key=lambda one: one == "None"))

    def signature(self, returned: str, only: dict[str, str] | None = None) -> str:
        """`def name(...) -> ...`; `only` replaces some parameters."""
        own = {a.name for a in self.default.arguments}
        parameters, is_keyword = [], False
        for argument in self.union():
            if argument.keyword and not is_keyword:
                parameters.append("*")
                is_keyword = True
            default = None if argument.default is None else _python_default(argument)
            default = "None" if argument.name not in own else default
            parameter = f"{argument.name}: {self.type_of(argument.name)}"
            parameter += "" if default is None else f" = {default}"
            parameters.append((only or {}).get(argument.name, parameter))
        return f"def {self.name}({', '.join(parameters)}) -> {returned}:"

    def function(self) -> str:
        """The Python function."""
        results = list(dict.fromkeys(_python_result(s) for s in (self.default, *self.others)))
        lines = []
        if len(results) > 1:
            for schema in (self.default, *self.others):
                extra = {a.name for a in self.union()} - {a.name for a in self.default.arguments}
                of = "None = None" if schema is self.default else "Tensor"
                stub = self.signature(_python_result(schema), {n: f"{n}: {of}" for n in extra})
                lines += ["@overload", f"{stub} ..."]
        lines += ["@operator", self.signature(" | ".join(results))]
        lines += ['    """' + self.doc[0]]
        lines += [f"    {line}".rstrip() for line in self.doc[1:]] + ['    """']
        for other in self.cases:
            telling = self.telling(other)
            is_extra = telling.name not in {a.name for a in self.default.arguments}
            test = f"isinstance({telling.name}, {INSTANCES.get(telling.type.strip('?'), '')})"
            lines.append(f"    if {f'{telling.name} is not None' if is_extra else test}:")
            lines += [f"        {line}" for line in _call(other)]
        lines += [f"    {line}" for line in _call(self.default)]
        return "\n".join(lines)


def _plain(argument: Argument) -> tuple[str, str]:
    return argument.name, argument.type.strip("?")


def _python_type(text: str) -> str:
    return TYPES[text.strip("?")][0] + (" | None" if text.endswith("?") else "")


def _cpp_type(text: str) -> str:
    own = TYPES[text.strip("?")][1]
    value = f"std::optional<{own}>" if text.endswith("?") else own
    return f"const {value}&" if own == "at::Tensor" else value


def _python_default(argument: Argument) -> str:
    default = (argument.default or "").strip("[]")
    return DTYPES[default][0] if argument.type == "ScalarType" else default


def _python_result(schema: Schema) -> str:
    tensors = ["Tensor"] * schema.returns.count("at::Tensor")
    return f"tuple[{', '.join(tensors)}]" if len(tensors) > 1 else "".join(tensors) or "None"


def _call(schema: Schema) -> list[str]:
    given = [f"{a.name}={a.name}" if a.keyword else a.name for a in schema.arguments]
    call = f"torch.ops.baraquant.{schema.name}.{schema.overload or 'default'}({', '.join(given)})"
    result = _python_result(schema)
    if result == "None":
        return [call]
    name = f"result_{schema.overload}" if schema.overload else "result"
    return [f"{name}: {result} = {call}", f"return {name}"]


# ---- The C++ functions ---------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text of a docstring, as a C++ comment says it."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"\1", text.replace("``", "`"))
    text = re.sub(r"\bbaraquant\.ops\.(backward\.)?", "", text)
    for python, cpp in {"None": "std::nullopt", "True": "true", "False": "false"}.items():
        text = re.sub(rf"\b{python}\b", cpp, text)
    return re.sub(r"(?<!::)\b(Value|Type|Index|NotImplemented)Error\b", r"c10::\1Error", text)


def comment(texts: op_texts.Texts, family: str, name: str, given: list[str]) -> list[str]:
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
    for error in op_texts.ERRORS:
        add(error, f"@throws {error} ")
    return [f"/// {line}".rstrip() for line in lines]


def declaration(schema: Schema) -> str:
    """A function."""
    values = ", ".join(
        f"std::move({a.name})" if a.type.startswith("SymInt") else a.name for a in schema.arguments
    )
    parameters = ", ".join(a.parameter for a in schema.arguments)
    overload = f', "{schema.overload}"' if schema.overload else ""
    return (
        f"inline {schema.returns} {schema.name}({parameters}) {{\n"
        f'  return api::call<{schema.returns}, "{schema.name}"{overload}>({values});\n'
        "}"
    )


def header(texts: op_texts.Texts, family: str, title: str, ops: list[list[Schema]]) -> str:
    """The text of a header below its first two lines, from the overloads of its ops."""
    inner = "baraquant::backward" if family == "backward" else "baraquant"
    lines = [f"/// @file\n/// {title}"]
    lines += ["#pragma once", "", '#include "call.h"', "", f"namespace {inner} {{", ""]
    for schema in itertools.chain(*ops):
        given = [argument.name for argument in schema.arguments]
        if schema.overload:
            lines.append(f"/// {OVERLOADS[schema.overload]}")
        else:
            lines += comment(texts, family, schema.name, given)
        lines += [declaration(schema), ""]
    return "\n".join([*lines, f"}}  // namespace {inner}", ""])


# ---- What is written ----------------------------------------------------------------------------


def registered() -> dict[str, list[Schema]]:
    """The schemas of the public ops, by name."""
    import torch

    torch.ops.load_library(str(ROOT / "baraquant" / "libbaraquant.so"))
    found: dict[str, list[Schema]] = {}
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = qualified.partition("::")
        if namespace == "baraquant" and name[0] != "_" and "." not in name:
            packet = getattr(torch.ops.baraquant, name)
            overloads = [getattr(packet, overload) for overload in packet.overloads()]
            found[name] = [Schema.parse(str(overload._schema)) for overload in overloads]
    return found


def families(texts: op_texts.Texts) -> dict[str, list[Op]]:
    """The ops of each family, in the order of their texts."""
    schemas = registered()
    order = texts.families["frame"].first.entries["families"].split()
    order += [family for family in texts.families if family not in (*order, "frame")]
    found = {
        family: [
            Op(texts, family, schemas.pop(name))
            for name in texts.families[family].blocks
            if name in schemas
        ]
        for family in order
    }
    if schemas:
        raise SystemExit(f"no text in csrc/*/ops.txt for {', '.join(schemas)}")
    return found


def title(texts: op_texts.Texts, family: str) -> str:
    """What a family is, as a sentence."""
    text = texts.text(family, "", "Title")
    return f"{text[0].upper()}{text[1:]}."


def module(texts: op_texts.Texts, family: str, ops: list[Op]) -> str:
    """baraquant/ops/FAMILY.py."""
    functions = "\n\n\n".join(op.function() for op in ops)
    imports = "import torch\nfrom torch import Tensor\n\nfrom ._operator import operator\n"
    if "@overload" in functions:
        imports = f"from typing import overload\n\n{imports}"
    if "Sequence[" in functions:
        imports = f"from collections.abc import Sequence\n\n{imports}"
    names = exported([op.name for op in ops])
    return f'{HEAD}"""{title(texts, family)}"""\n\n{imports}\n{names}\n\n{functions}\n'


def exported(names: Iterable[str]) -> str:
    """`__all__`."""
    return "__all__ = [\n" + "".join(f'    "{name}",\n' for name in sorted(names)) + "]\n"


def package(texts: op_texts.Texts, ops: dict[str, list[Op]]) -> str:
    """baraquant/ops/__init__.py."""
    rows = [
        [cell.strip() for cell in line.split("|", 1)]
        for family in ops
        for line in op_texts.verbatim(texts.families[family].first.entries.get("Rows", ""))
    ]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    rule = "  ".join("=" * width for width in widths)
    table = [rule, *(f"{name:{widths[0]}}  {text}" for name, text in rows), rule]
    paragraphs = (texts.get("frame", "package", "Doc") or "").split("\n\n")
    doc = "\n\n".join(
        "\n".join(table if p.strip() == "$table" else op_texts.wrapped(p, width=100))
        for p in paragraphs
    )
    own = {family: [op.name for op in ops[family]] for family in ops if family != "backward"}
    return (
        f'{HEAD}"""{doc}\n"""\n\nfrom . import backward as backward\n{imported(own)}\n'
        f"{exported(itertools.chain(*own.values()))}"
    )


def imported(modules: dict[str, list[str]]) -> str:
    """The imports of names from modules."""
    lines = (f"from .{name} import {', '.join(sorted(modules[name]))}" for name in sorted(modules))
    return "".join(f"{line}\n" for line in lines)


def reference(texts: op_texts.Texts, ops: dict[str, list[Op]]) -> str:
    """baraquant/reference/_ops.py."""
    modules: dict[str, list[str]] = {}
    made = []  # of a rule for any granularity
    for family in ops:
        folder = texts.families[family].path.parent.name
        for name in (op.name for op in ops[family]):
            rule = re.sub("_per_(tensor|channel|token|group)", "", name)
            if rule != name and folder in ("affine", "range"):
                made.append((name, f'{name} = per_granularity("{name}", {folder}.{rule})\n'))
            else:
                modules.setdefault(folder, []).append(name)
    names = exported([*itertools.chain(*modules.values()), *(name for name, _ in made)])
    imports = "from . import affine, range\nfrom ._functions import per_granularity\n"
    return (
        f'{HEAD}"""The ops of the reference."""\n\n{imports}{imported(modules)}\n{names}\n'
        + "".join(line for _, line in made)
    )


def vmap_table(ops: dict[str, list[Op]]) -> str:
    """baraquant/_vmap/table.py."""
    batched: dict[str, list[str]] = {}
    words: dict[str, list[str]] = {"elementwise": [], "refused": []}
    for family, found in ops.items():
        for op in found:
            vmap = op.entry("Vmap")
            tensors = [one.name for one in op.union() if "Tensor" in str(one.type)]
            if vmap == "elementwise" and len(tensors) > 1:
                several = f"expected one tensor for Vmap: elementwise, but got {', '.join(tensors)}"
                raise SystemExit(f"{op.name}: {several}; write refused")
            if vmap in words:
                words[vmap].append(op.name)
            elif vmap is not None:
                named = () if vmap == "nothing" else tuple(vmap.replace(",", "").split())
                batched.setdefault(family, []).append(f"{op.name!r}: {named!r}")
    rows = "".join(f"    {f!r}: {{{', '.join(batched[f])}}},\n" for f in batched).replace("'", '"')
    elementwise, refused = (
        "".join(f'    "{name}",\n' for name in names) for names in words.values()
    )
    doc = "What torch.vmap may batch.\n\nThe other ops call core ops, which have rules.\n"
    return (
        f'{HEAD}"""{doc}"""\n\n'
        "# The arguments that may be batched, for each op of a family.\n"
        f"BATCHED: dict[str, dict[str, tuple[str, ...]]] = {{\n{rows}}}\n\n"
        "# Ops of one tensor that take each element by itself: a batch is only more of them.\n"
        f"ELEMENTWISE: tuple[str, ...] = (\n{elementwise})\n\n"
        "# Ops that refuse any batch.\n"
        f"REFUSED = (\n{refused})\n"
    )


def page(ops: list[Op]) -> Iterator[str]:
    """The headings and functions of a page of docs/api."""
    heading = None
    for op in ops:
        own = op.texts.families[op.family].blocks[op.name].heading
        if own != heading:
            heading = own
            yield f"\n{heading}\n{'-' * len(heading)}\n"
        yield f".. autofunction:: {op.name}"


def blocks(texts: op_texts.Texts, ops: dict[str, list[Op]]) -> dict[str, str]:
    """What stands between the marks of a page that is otherwise written by hand."""
    public = [op for family, found in ops.items() if family != "backward" for op in found]
    listed = "\n\n".join(
        f".. function:: {op.name}\n\n"
        + "\n".join(op_texts.wrapped(op.entry("Reference") or op.doc[0], "   ", "   ", 100))
        for found in ops.values()
        for op in found
    )
    headers = "\n\n".join(
        f"ops/{family}.h\n{'~' * len(f'ops/{family}.h')}\n\n.. cpp-header:: ops/{family}.h"
        for family in ops
    )
    sections = (texts.families[family].first.entries.get("Page", "") for family in ops)
    return {
        "docs/ops.md": "\n\n".join("\n".join(op_texts.verbatim(s)) for s in sections if s),
        "docs/api/ops.rst": "\n".join(page(public)).lstrip("\n"),
        "docs/api/ops_backward.rst": "\n".join(page(ops["backward"])).lstrip("\n"),
        "docs/api/reference.rst": re.sub(r":func:(`\w+`)", r"`\1`", listed),
        "docs/api/cpp.rst": headers,
    }


def outputs() -> dict[Path, str]:
    """The text of each written file."""
    texts = op_texts.Texts(ROOT / "csrc")
    ops = families(texts)
    found = {
        "baraquant/ops/__init__.py": package(texts, ops),
        "baraquant/reference/_ops.py": reference(texts, ops),
        "baraquant/_vmap/table.py": vmap_table(ops),
    }
    for family, own in ops.items():
        found[f"baraquant/ops/{family}.py"] = module(texts, family, own)
        overloads = [[op.default, *op.others] for op in own]
        text = header(texts, family, title(texts, family), overloads)
        found[f"csrc/api/ops/{family}.h"] = f"// {LICENCE}\n// {WRITTEN}\n{text}"
        found[f"tests/{texts.families[family].path.parent.name}/__init__.py"] = f"# {LICENCE}\n"
    for name, block in blocks(texts, ops).items():
        mark = "<!-- {} -->" if name.endswith(".md") else ".. {}"
        begin = mark.format("written by scripts/ops.py")
        found[name] = _between(name, begin, mark.format("end"), f"\n{block}\n\n")
    includes = "".join(f'#include "ops/{family}.h"\n' for family in sorted(ops))
    mark = "// Written by scripts/ops.py:"
    found["csrc/api/ops.h"] = _between("csrc/api/ops.h", mark, "", includes)
    return {ROOT / name: text for name, text in found.items()}


def _between(name: str, begin: str, end: str, block: str) -> str:
    """A file that is written by hand but for what stands between two lines."""
    before, _, rest = (ROOT / name).read_text().partition(f"{begin}\n")
    after = f"{end}\n{rest.partition(f'{end}{chr(10)}')[2]}" if end else ""
    return f"{before}{begin}\n{block}{after}"


def same(path: Path, text: str) -> bool:
    """Whether a file has a text, but for what a formatter changes."""
    if not path.exists():
        return False
    if path.suffix == ".py":
        return ast.dump(ast.parse(path.read_text())) == ast.dump(ast.parse(text))
    return "".join(path.read_text().split()) == "".join(text.split())


def stale(written: dict[Path, str], program: str) -> list[str]:
    """A line for each file that is not as a program writes it, white space aside."""
    return [
        f"{path.relative_to(ROOT)}: stale; run python scripts/{program}"
        for path, text in written.items()
        if not same(path, text)
    ]


def write_or_check(written: dict[Path, str], program: str) -> int:
    """Write the files, or compare them: the command line of a program that writes."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a file is stale")
    if parser.parse_args().check:
        found = stale(written, program)
        print("".join(f"{line}\n" for line in found), end="")
        return int(bool(found))
    for path, text in written.items():
        if not same(path, text):  # the others need not be compiled anew
            path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(write_or_check(outputs(), Path(__file__).name))
