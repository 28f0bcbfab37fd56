# SPDX-License-Identifier: BSD-3-Clause
"""The typed functions of C++: fresh, compiled strictly, with Python's bits and Python's errors."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import toolchain
from tests.support import bad_arguments, libtorch
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import outputs
from tests.support.calls.every import EVERY_CALL
from tests.support.calls.range import OBSERVE_CALLS
from tests.support.cases import OP_NAMES
from tests.support.core_calls import Bound, Op, bound
from tests.support.libtorch import PRECOMPILED, STRICT, clang_only, compile_only, precompiled
from tests.support.processes import MadeOnce

API = toolchain.CSRC / "api"


def test_the_headers_are_those_of_the_schemas() -> None:
    checked = libtorch.run(sys.executable, toolchain.ROOT / "scripts" / "ops.py", "--check")
    assert checked.returncode == 0, checked.stdout


Check = Callable[..., None]  # of a source, by a compiler
HEADERS = sorted(path.relative_to(API) for path in API.rglob("*.h"))


def includes(header: Path) -> list[Path]:
    """What a header names; headers of ours as paths below `API`."""
    text = (API / header).read_text()
    names = map(Path, re.findall(r'^#include [<"](.*)[>"]$', text, re.MULTILINE))
    beside = [(Path(os.path.normpath(header.parent / name)), name) for name in names]
    return [path if path in HEADERS else name for path, name in beside]


def all_includes(header: Path) -> set[Path]:
    """And what those of ours name that it does."""
    found = {*includes(header)}
    return found.union(*(all_includes(name) for name in found.intersection(HEADERS)))


OPS = [header for header in HEADERS if includes(header) == [Path("ops/call.h")]]
# With these another header begins: they are compiled there, behind nothing else.
BEGUN = {name for header in HEADERS for name in includes(header)[:1]}


def check_headers(headers: list[Path], check: Check, folder: Path, *options: str | Path) -> None:
    source = folder / "headers.cpp"
    source.write_text("".join(f'#include "{header}"\n' for header in headers))
    check(source, *STRICT, f"-I{API}", f"-I{toolchain.CSRC}", *options)


@pytest.mark.process
@pytest.mark.parametrize("header", [h for h in HEADERS if h not in {*OPS, *BEGUN}], ids=str)
def test_a_header_compiles_alone(header: Path, tmp_path: Path, made_once: MadeOnce) -> None:
    """Behind the headers of torch that it names in any case, which are compiled once for all."""
    is_behind = {Path(name) for name in PRECOMPILED} <= all_includes(header)
    options = precompiled(made_once) if is_behind else ()
    check_headers([header], compile_only, tmp_path, *options)


@pytest.mark.process
def test_no_header_of_ops_leans_on_another(tmp_path: Path) -> None:
    """They compile in this order, and in that of ops.h, which compiles above."""
    assert includes(Path("ops.h")) == OPS
    check_headers(OPS[::-1], compile_only, tmp_path)


@pytest.mark.process
def test_headers_compile_with_clang(tmp_path: Path) -> None:
    check_headers(HEADERS, clang_only, tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("check", [compile_only, clang_only], ids=["g++", "clang"])
def test_the_check_of_headers_notices_a_warning(check: Check, tmp_path: Path) -> None:
    source = tmp_path / "narrow.cpp"
    source.write_text("int narrow(long x) { return x; }\n")
    check(source)
    with pytest.raises(AssertionError, match="onver"):
        check(source, *STRICT)


# --- one call of each overload, and one of each kind of error, in C++ ----------------------------

SCALAR_TYPES = {torch.float32: "kFloat", torch.float64: "kDouble", torch.float16: "kHalf"}
SCALAR_TYPES |= {torch.bfloat16: "kBFloat16", torch.int8: "kChar", torch.uint8: "kByte"}
SCALAR_TYPES |= {torch.int16: "kShort", torch.int32: "kInt", torch.int64: "kLong"}
PROGRAM = """
#include <baraquant/ops.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/serialize.h>

#include <fstream>
#include <tuple>
#include <vector>

#include "errors.h"

using Tensors = std::vector<at::Tensor>;

Tensors flat(const at::Tensor& one) { return {one}; }
template <typename... T>
Tensors flat(const std::tuple<T...>& all) {
  return std::apply([](const auto&... one) { return Tensors{one...}; }, all);
}

int main(int, char** files) {
  std::ifstream file(files[1], std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const auto given = torch::pickle_load(bytes).toGenericDict();
  const auto read = [&](const std::string& name) { return given.at(name).toTensor(); };
  c10::Dict<std::string, at::Tensor> written;
  const auto write = [&](const std::string& name, const Tensors& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      written.insert(name + std::to_string(i), tensors[i].detach().clone());
    }
  };
  const auto keep = [&](const std::string& name, const Tensors& results, const Tensors& tensors) {
    write(name + " result ", results);
    write(name + " given ", tensors);
    Tensors sums, leaves;
    for (const auto& one : results) if (one.requires_grad()) sums.push_back(one.sum());
    for (const auto& one : tensors) if (one.requires_grad()) leaves.push_back(one);
    if (!sums.empty()) write(name + " gradient ", torch::autograd::grad(sums, leaves));
  };
%s
  const auto data = torch::pickle_save(written);
  std::ofstream(files[2], std::ios::binary)
      .write(data.data(), static_cast<std::streamsize>(data.size()));
}
"""


def right_calls() -> dict[Op, dict[str, Any]]:
    """A call of each overload of each public op."""
    found: dict[Op, dict[str, Any]] = {}
    for call in (*EVERY_CALL, *OBSERVE_CALLS):
        op, given = bound(call, call.tensors((3, 4, 20)))
        found.setdefault(op, given)
    for module in bad_arguments.modules():  # draw_random, and products of groups
        for op in module.OPS:
            found.setdefault(getattr(torch.ops.baraquant, op.name).default, op.arguments("cpu"))
    for name in OP_NAMES:
        packet = getattr(torch.ops.baraquant, name)
        if "scale_tensor" in packet.overloads():
            found[packet.scale_tensor] = found[packet.default] | {"zero_point": 3}
    return found


def wrong_calls() -> Iterator[tuple[Bound, type[Exception]]]:
    """One of each family and kind of error; what each op refuses, its own tests show."""
    for module in bad_arguments.modules():
        kinds: set[type[Exception]] = set()
        for op, bad in module.PAIRS:
            given = op.arguments("cpu") | bad.also
            given[bad.argument] = bad.change(given)
            if bad.error not in kinds and not op.number and all(map(is_written, given.values())):
                kinds.add(bad.error)
                yield (getattr(torch.ops.baraquant, op.name).default, given), bad.error


def is_written(value: Any) -> bool:
    """Whether an argument can stand in the program."""
    if isinstance(value, (Tensor, torch.dtype)):
        return (value.dtype if isinstance(value, Tensor) else value) in SCALAR_TYPES
    return not isinstance(value, int) or abs(value) < 2**31


def in_cpp(op: Op, arguments: dict[str, Any], tensors: list[Tensor]) -> str:
    """The call in C++; its tensors are added to those of the program, which calls them t0, t1."""

    def literal(argument: Any) -> str:
        value = arguments.get(argument.name, argument.default_value)
        if isinstance(value, Tensor):
            tensors.append(value)
            return f"t{len(tensors) - 1}"
        if value is None:
            return "std::nullopt"
        if isinstance(value, torch.dtype):
            return f"at::{SCALAR_TYPES[value]}"
        if str(argument.real_type) == "ScalarType":  # a default, as schemas write dtypes
            return f"static_cast<at::ScalarType>({value})"
        if str(argument.real_type) == "List[int]":
            values = [value] if isinstance(value, int) else value
            return f"at::IntArrayRef{{{', '.join(map(str, values))}}}"
        return json.dumps(value)

    name = op._schema.name.replace("::", "::backward::" if "_backward" in str(op) else "::")
    return f"{name}({', '.join(map(literal, op._schema.arguments))})"


class Source:
    """The program, and the tensors that it reads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tensors: dict[str, Tensor] = {}

    def block(self, name: str, op: Op, arguments: dict[str, Any], end: str) -> None:
        tensors: list[Tensor] = []
        call = in_cpp(op, arguments, tensors)
        self.lines.append("  {\n    at::manual_seed(3);")
        for index, tensor in enumerate(tensors):
            self.tensors[f"{name} {index}"] = tensor.detach()
            learned = ".requires_grad_()" * tensor.requires_grad
            read = f'read("{name} {index}").clone(){learned}'
            self.lines.append(f"    const at::Tensor t{index} = {read};")
        names = ", ".join(f"t{index}" for index in range(len(tensors)))
        self.lines.append(f"    {end % {'call': call, 'name': name, 'tensors': names}}\n  }}")


@pytest.fixture(scope="module")
def folder(made_once: MadeOnce) -> Path:
    """With the results of the program, built against the installed headers, and what it printed."""

    def build(folder: Path) -> None:
        source = Source()
        for op, given in right_calls().items():
            end = 'keep("%(name)s", flat(%(call)s), {%(tensors)s});'
            if not op._schema.returns:
                end = '%(call)s;\n    keep("%(name)s", {}, {%(tensors)s});'
            source.block(str(op), op, given, end)
        for index, ((op, given), _) in enumerate(wrong_calls()):
            source.block(f"{index}", op, given, 'show_error("%(name)s", [&] { %(call)s; });')
        (folder / "ops.cpp").write_text(PROGRAM % "\n".join(source.lines))
        torch.save(source.tensors, folder / "in")
        options = (*STRICT, f"-I{Path(__file__).parent}", *precompiled(made_once))
        libtorch.build_program(folder / "ops.cpp", folder / "ops", *options)
        printed = libtorch.run_program(folder / "ops", folder / "in", folder / "out")
        (folder / "printed").write_text(printed)

    return made_once("cpp_api", build)


def results_of(op: Op, arguments: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
    """What the program keeps of a call."""
    torch.manual_seed(3)
    copies = {
        k: v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v
        for k, v in arguments.items()
    }
    given = [copies.get(argument.name) for argument in op._schema.arguments]
    tensors = tuple(value for value in given if isinstance(value, Tensor))
    made = op(**copies)
    found = {"result": () if made is None else outputs(made), "given": tensors}
    sums = [result.sum() for result in found["result"] if result.requires_grad]
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    return found | ({"gradient": torch.autograd.grad(sums, leaves)} if sums else {})


@pytest.mark.process
def test_the_results_have_pythons_bits(folder: Path) -> None:
    """Of every overload of every op, with the gradients of what can be learned."""
    public = {f"baraquant::{name}" for name in OP_NAMES}
    calls, wanted = right_calls(), {}
    assert {op._schema.name for op in calls} == public
    packets = [getattr(torch.ops.baraquant, name) for name in OP_NAMES]
    assert len(calls) == sum(len(packet.overloads()) for packet in packets)
    for op, given in calls.items():
        for kind, tensors in results_of(op, given).items():
            wanted |= {f"{op} {kind} {i}": tensor for i, tensor in enumerate(tensors)}
    # Our own program has written it, with the types of a dictionary of LibTorch.
    found = torch.load(folder / "out", weights_only=False)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert_same_bits(found[name], tensor.detach(), name)


@pytest.mark.process
def test_the_errors_have_pythons_type_and_text(folder: Path) -> None:
    printed = [line.split("\t")[2:] for line in (folder / "printed").read_text().splitlines()]
    kinds = set()
    for ((op, given), error), got in zip(wrong_calls(), printed, strict=True):
        with pytest.raises(error) as caught:
            op(**given)
        assert got == [error.__name__, str(caught.value)], str(op)
        kinds.add(error)
    assert kinds == {ValueError, TypeError, IndexError, NotImplementedError}
