# SPDX-License-Identifier: BSD-3-Clause
"""Writes the C++ side of baraquant/workflow/layers.json: how each class of layers is stored.

    python scripts/layer_table.py            write it; `make format` then breaks the lines
    python scripts/layer_table.py --check    exit with 1 if something is stale, white space aside

Written are, for the classes that C++ has, the options of their constructors,
csrc/api/nn/layer_options.h; those of all classes as one struct, csrc/nn/given.h; and the forms in
which files hold them, csrc/files/form_table.cpp.
baraquant/workflow/served.py explains the table.

The options of quantizers and norms, which the table does not have, are the arguments of Python's
classes, with their defaults and what the docstrings say of them.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ops import LICENCE, ROOT, plain, stale, write_or_check

PROGRAM = Path(__file__).name
LAYERS = ("Linear", "Embedding", "Conv2d")  # of which C++ has the classes
WRITTEN = "Written by scripts/layer_table.py out of layers.json and baraquant/nn: do not edit."
HEAD = f"// {LICENCE}\n// {WRITTEN}\n"
SHARED = dict.fromkeys(("WeightOnlyLinear", "QuantizedConv2d"), "DequantizedOptions")
# The linear layers that C++ makes of a base alone: that, and the module of Python's class.
SERVED = {
    "StaticQuantizedLinear": ("StaticInput<Int8Linear>", "linear"),
    "QuantizedInt4Linear": ("DynamicInput<Int4Linear>", "linear"),
    "StaticQuantizedInt4Linear": ("StaticInput<Int4Linear>", "linear"),
    "WeightOnlyLinear": ("FloatingLinear", "weight_only"),
    "WeightOnlyInt4Linear": ("FloatingLinear", "weight_only"),
}
CONV = "torch::nn::Conv2dOptions"  # has some options of a convolution
OF_CONV = {
    "groups": "int64_t",
    "padding_mode": "torch::nn::detail::conv_padding_mode_t",
    "stride": "torch::ExpandingArray<2>",
    "padding": "torch::nn::detail::conv_padding_t<2>",
    "dilation": "torch::ExpandingArray<2>",
}
TYPES = {
    "tensor": "torch::Tensor",
    "bool": "bool",
    "index": "std::optional<int64_t>",
    "name": "std::string",
    "mode": "std::string",
    "dtype": "torch::Dtype",
    "rounder": "std::shared_ptr<FakeQuantizeImpl>",
    # Those of Python's classes.
    "str": "std::string",
    "int": "int64_t",
    "float": "double",
    "Tensor | None": "torch::Tensor",
    "Tensor | float | None": "Scale",
    "Tensor | int | None": "ZeroPoint",
    "Sequence[int]": "std::vector<int64_t>",
    "torch.dtype": "torch::Dtype",
    "torch.device | str | None": "std::optional<torch::Device>",
}
TYPES |= {f"{n} | None": f"std::optional<{TYPES[n]}>" for n in ("bool", "str", "int", "float")}
ALIASES = {
    "Scale": "std::variant<std::monostate, double, torch::Tensor>",
    "ZeroPoint": "std::variant<std::monostate, int64_t, torch::Tensor>",
}
# How a text about an argument calls None, if it is no std::nullopt.
NONE = {"Tensor | None": "undefined", "Tensor | int | None": "nothing"}
# The classes of which Python says the options: the module, and arguments that C++ lacks.
CLASSES = {
    "FakeQuantize": ["shared/fake_quantize"],
    "LearnedFakeQuantize": ["training/learned"],
    "FakeQuantizeInt4": ["training/int4"],
    "LearnedFakeQuantizeInt4": ["training/learned_int4"],
    "RMSNorm": ["fused", "device", "dtype"],
    "LayerNorm": ["fused", "device", "dtype"],
}
TABLE = json.loads((ROOT / "baraquant" / "workflow" / "layers.json").read_text())
LIMITS = {
    f"{maybe}{name}": (*limits, bool(maybe))
    for maybe in ("", "maybe_")
    for name, limits in TABLE["limits"].items()
}
TYPES |= {n: "std::optional<int64_t>" if maybe else "int64_t" for n, (*_, maybe) in LIMITS.items()}


@dataclass(frozen=True)
class Argument:
    """A tensor or a plain argument of a class."""

    name: str
    kind: str
    required: bool
    default: Any = None
    text: str = ""

    @property
    def type(self) -> str:
        """The type of a member of the options."""
        is_optional = self.kind == "dtype" and self.default is None
        return f"std::optional<{TYPES[self.kind]}>" if is_optional else TYPES[self.kind]

    @property
    def initial(self) -> str:
        """What follows the member's declaration."""
        if self.default is None:
            return ""
        if isinstance(self.default, tuple):
            return f" = {{{', '.join(map(str, self.default))}}}"
        is_dtype = self.kind in ("dtype", "torch.dtype")
        return f" = {f'torch::k{self.default.title()}' if is_dtype else json.dumps(self.default)}"


@dataclass(frozen=True)
class Class:
    """A class of layers, or what rounds an input."""

    name: str
    layer: str
    tensors: dict[str, bool]
    kinds: dict[str, list[Any]]
    sizes: list[str]

    @property
    def options(self) -> str:
        """The struct of the constructor's arguments."""
        return SHARED.get(self.name, f"{self.name}Options")

    @property
    def arguments(self) -> list[Argument]:
        """The members of that struct, the required ones first."""
        found = [Argument(name, "tensor", required) for name, required in self.tensors.items()]
        found += [
            Argument(name, kind, not default, *default)
            for name, (kind, *default) in self.kinds.items()
            if name != "transposed" and not self.is_of_conv(name)
        ]
        return sorted(found, key=lambda argument: not argument.required)

    def is_of_conv(self, name: str) -> bool:
        """Whether PyTorch's options of a convolution have an argument."""
        return self.layer == "Conv2d" and name in OF_CONV

    def reader(self, name: str) -> str:
        """An option as JSON, of a module `layer`."""
        if name == "transposed":  # no layer is a Conv1D of transformers
            return "false"
        value = f"layer.{name}()"
        if name == "input_fake_quant":
            value = f"layer.{name}"
        elif self.name == "FakeQuantize":
            value = f"layer.options.{name}()"
        elif self.is_of_conv(name):
            value = f"layer.conv.{name}()"
        return f"{'above_zero' if self.kinds[name][0] == 'maybe_size' else 'json_of'}({value})"

    def made(self, value: Callable[[Argument], str]) -> str:
        """The options, each with a value."""
        required = ", ".join(value(one) for one in self.arguments if one.required)
        rest = "".join(f".{one.name}({value(one)})" for one in self.arguments if not one.required)
        return f"{self.options}({required}){rest}"


KEPT = "Whether the buffers include what only a training needs; copies for inference have less."
OWN = {"FakeQuantize": [Argument("keeps_state", "bool", False, True, KEPT)]}  # in C++ alone


def classes() -> Iterator[Class]:
    """The classes that C++ has."""
    for layer in LAYERS:
        for name in TABLE["layers"][layer]:
            entry = TABLE["classes"][name]
            entry = TABLE["classes"][entry] if isinstance(entry, str) else entry
            yield Class(name, layer, entry["tensors"], entry["options"], entry["sizes"])


def of_python(name: str, module: str) -> tuple[ast.ClassDef, str]:
    """A class of Python, and its docstring."""
    tree = ast.parse((ROOT / "baraquant" / "nn" / f"{module}.py").read_text())
    own = next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
    return own, ast.get_docstring(own) or ""


def constructor(name: str, module: str, lacks: list[str]) -> Iterator[Argument]:
    """The arguments of the constructor of a class of Python."""
    own, doc = of_python(name, module)
    made = next(one for one in own.body if getattr(one, "name", "") == "__init__")
    assert isinstance(made, ast.FunctionDef)
    said = doc.partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", said, re.MULTILINE)
    texts = {argument: " ".join(text.split()) for argument, text in entries}
    given, defaults = made.args, [ast.unparse(one) for one in made.args.defaults]
    values: list[str | None] = [None] * (len(given.args) - len(defaults)) + defaults
    values += [None if one is None else ast.unparse(one) for one in given.kw_defaults]
    for argument, value in zip(given.args + given.kwonlyargs, values, strict=True):
        if argument.arg not in ("self", *lacks):
            kind = ast.unparse(argument.annotation or ast.Constant(None))
            default = value and value.removeprefix("torch.")
            default = default if kind == "torch.dtype" else ast.literal_eval(default or "None")
            text = re.sub(r"\bNone\b", NONE.get(kind, "None"), texts[argument.arg])
            yield Argument(argument.arg, kind, value is None, default, _cpp(text))


def _cpp(text: str) -> str:
    """A text of Python as C++ says it."""
    return re.sub(r"\bbaraquant\.(?=[A-Z])", "", plain(text))


def struct(names: list[str], options: str, arguments: list[Argument]) -> Iterator[str]:
    """The struct of the options of some classes."""
    yield f"/// Options of {' and '.join(names)}."
    yield f"struct BARAQUANT_API {options} {{"
    yield from (f"using {a.type} = {ALIASES[a.type]};" for a in arguments if a.type in ALIASES)
    if required := [argument for argument in arguments if argument.required]:
        moved = ", ".join(
            f"{a.name}_({a.name if a.type == 'int64_t' else f'std::move({a.name})'})"
            for a in required
        )
        remark = "" if len(required) > 1 else "  // NOLINT: as torch::nn's options"
        yield f"/// What has no default.\n{options}("
        yield f"{', '.join(f'{a.type} {a.name}' for a in required)}){remark}\n: {moved} {{}}"
    for a in arguments:
        yield from textwrap.wrap(a.text, 96, initial_indent="/// ", subsequent_indent="/// ")
        yield f"TORCH_ARG({a.type}, {a.name}){a.initial};"
    yield "};\n"


def structs(found: list[Class]) -> Iterator[str]:
    """The structs of options."""
    texts = TABLE["texts"]
    yield "class FakeQuantizeImpl;\n"
    for name, (module, *lacks) in CLASSES.items():
        arguments = [*constructor(name, module, lacks), *OWN.get(name, ())]
        yield from struct([name], f"{name}Options", arguments)
    for options in dict.fromkeys(one.options for one in found):
        own = [one for one in found if one.options == options]
        arguments = [
            replace(one, text=texts.get(f"{own[0].name}.{one.name}", texts[one.name]))
            for one in own[0].arguments
        ]
        yield from struct([one.name for one in own], options, arguments)


def declared() -> Iterator[str]:
    """The linear layers that are one of their base and a name."""
    for name, (base, module) in SERVED.items():
        options = SHARED.get(name, f"{name}Options")
        _, doc = of_python(name, f"inference/{module}")
        yield f"/// {_cpp(doc.splitlines()[0])}\n///"
        yield "/// @throws c10::ValueError A shape, width or granularity does not fit."
        yield "/// @throws c10::TypeError A dtype does not fit."
        yield f"class BARAQUANT_API {name}Impl : public {base} {{\n public:"
        yield f"explicit {name}Impl(const {options}& options);"
        yield f"explicit {name}Impl(const Given& given);"
        yield f"BARAQUANT_CLONES\n}};\nTORCH_MODULE({name});\n"


def givens(found: list[Class]) -> Iterator[str]:
    """The struct that holds the options of any of these layers, and the list of its fields."""
    types: dict[str, str] = {}
    for a in (argument for one in found for argument in one.arguments):
        is_plain = TYPES[a.kind] in ("int64_t", TYPES["dtype"])
        types[a.name] = f"std::optional<{TYPES[a.kind]}>" if is_plain else TYPES[a.kind]
    yield "// The options of any of these layers; what a layer does not have is undefined or false."
    yield "struct Given {"
    for kind in dict.fromkeys(types.values()):
        yield f"{kind} {', '.join(f'{name}{{}}' for name in types if types[name] == kind)};"
    yield "};\n"
    yield "// Calls X with the name of each.\n// clang-format off"
    every = textwrap.wrap(" ".join(f"X({name})" for name in types), 94)
    yield " \\\n  ".join(["#define BARAQUANT_ARGUMENTS(X)", *every])
    yield "// clang-format on\n"


def _stored(argument: Argument) -> str:
    if argument.kind == "tensor":
        return f'tensor_of(tensors, "{argument.name}")'
    if argument.kind == "rounder":
        return "rounder_of(options, tensors)"
    return f'value_of<{TYPES[argument.kind]}>(options, "{argument.name}")'


def forms(found: list[Class], rounder: Class) -> Iterator[str]:
    """The constants and functions of csrc/files/form_table.cpp."""
    used = {kind for one in (*found, rounder) for kind, *_ in one.kinds.values()}
    for kind in (kind for kind in LIMITS if kind in used):
        least, most, maybe = LIMITS[kind]
        words = f"a whole number in [{least}, {most}]{' or null' if maybe else ''}"
        check = f"is_whole<{least}, {most}, {json.dumps(maybe)}>"
        yield f'constinit const Kind {_constant(kind)} = {{{check}, "{words}"}};'
    rules = ", ".join(f'{{"{n}", "{d}", "{v}"}}' for n, (d, v) in TABLE["stored"].items())
    yield "\nconst std::vector<TensorRule>& tensor_rules() {"
    yield f"static const std::vector<TensorRule> all = {{{rules}}};\nreturn all;\n}}\n"
    yield "const std::vector<Form>& form_table() {\nstatic const std::vector<Form> all = {"
    for one in found:
        tensors = ", ".join(f'{{"{n}", {json.dumps(r)}}}' for n, r in one.tensors.items())
        made = f"nn::{one.made(_stored)}"
        if one.layer == "Conv2d":
            of_conv = (f'.{n}(value_of<{t}>(options, "{n}"))' for n, t in OF_CONV.items())
            made += f", {CONV}(1, 1, 1){''.join(of_conv)}"
        yield f'{{"{one.name}", "{one.layer}", {{{_options(one)}}}, {{{tensors}}},'
        yield f"is<nn::{one.name}Impl>,"
        yield "[](const torch::nn::Module& module) -> Options {"
        yield f"const auto& layer = dynamic_cast<const nn::{one.name}Impl&>(module);"
        yield f"return {{{_read(one)}}}; }},"
        yield "[](const Options& options, const Tensors& tensors) -> "
        yield "std::shared_ptr<torch::nn::Module> {"
        yield f"return std::make_shared<nn::{one.name}Impl>({made}); }}}},"
    yield "};\nreturn all;\n}\n"
    yield "const std::vector<Option>& rounder_table() {"
    yield f"static const std::vector<Option> all = {{{_options(rounder)}}};\nreturn all;\n}}\n"
    yield "Options read_rounder(const nn::FakeQuantizeImpl& layer) {"
    yield f"return {{{_read(rounder)}}};\n}}\n"
    yield "nn::FakeQuantizeOptions rounder_options(const Options& options) {"
    yield f"return nn::{rounder.made(_stored)};\n}}\n"


def sizes(found: list[Class]) -> Iterator[str]:
    """The function that reads the sizes of a float or converted layer."""
    floats = {one.layer: one for one in found}.items()
    ways = [(f"torch::nn::{layer}Impl", "options.", one.sizes) for layer, one in floats]
    own = {"Conv2d": "conv."}
    ways += [(f"nn::{one.name}Impl", own.get(one.layer, ""), one.sizes) for one in found]
    yield "Sizes sizes_of_layer(const torch::nn::Module& module) {"
    for kind, place, names in ways:
        read = ", ".join(f'{{"{name}", json_of(layer->{place}{name}())}}' for name in names)
        yield f"if (const auto* layer = dynamic_cast<const {kind}*>(&module)) {{"
        yield f"return {{{read}}};\n}}"
    yield "return {};\n}\n"


def _options(one: Class) -> str:
    kinds = {name: _constant(kind) for name, (kind, *_) in one.kinds.items()}
    return ", ".join(f'{{"{name}", {kind}}}' for name, kind in kinds.items())


def _constant(kind: str) -> str:
    return f"k{kind.title().replace('_', '')}"


def _read(one: Class) -> str:
    return ", ".join(f'{{"{name}", {one.reader(name)}}}' for name in one.kinds)


def outputs() -> dict[Path, str]:
    """The text of each written file."""
    found = list(classes())
    rounder = Class("FakeQuantize", "", {}, TABLE["rounder"]["options"], [])
    standard = ("memory", "optional", "string", "utility", "variant", "vector")
    written = {
        "csrc/api/nn/layer_options.h": (
            "/// @file\n/// The options of modules.\n#pragma once\n\n#include <torch/arg.h>\n\n"
            + "".join(f"#include <{name}>\n" for name in standard)
            + '\n#include "module.h"\n',
            structs(found),
        ),
        "csrc/api/nn/linear.h": (
            "/// @file\n/// Linear layers for inference.\n#pragma once\n\n"
            '#include "inference.h"\n#include "int4.h"\n',
            declared(),
        ),
        "csrc/nn/given.h": ('#pragma once\n\n#include "api/nn/layer_options.h"\n', givens(found)),
        "csrc/files/form_table.cpp": (
            '#include <torch/nn/modules.h>\n\n#include "api/nn/linear.h"\n'
            '#include "files/forms.h"\n#include "files/layers.h"\n',
            itertools.chain(forms(found, rounder), sizes(found)),
        ),
    }
    texts = {}
    for name, (head, lines) in written.items():
        body, space = "\n".join(lines), f"namespace baraquant::{Path(name).parent.name}"
        texts[ROOT / name] = f"{HEAD}{head}\n{space} {{\n\n{body}\n}}  // {space}\n"
    return texts


def problems() -> list[str]:
    """A line for each stale file."""
    return stale(outputs(), PROGRAM)


if __name__ == "__main__":
    raise SystemExit(write_or_check(outputs(), PROGRAM))
