# SPDX-License-Identifier: BSD-3-Clause
"""The binary interface of libbaraquant.so: which symbols it has, and of which version.

That classes and exceptions cross its border, the programs of ``tests/cpp_api`` show.
"""

import re
from pathlib import Path

import pytest

import baraquant
import toolchain
from tests.support.libtorch import PACKAGE, run

COMPILER = toolchain.program_compiler().split()
# What the compiler writes before the name of a class or a function.
KINDS = re.compile(r"^(typeinfo for|typeinfo name for|vtable for|non-virtual thunk to) ")


def exported(library: Path) -> list[str]:
    """The dynamic symbols that a library defines, demangled, each with its version."""
    listed = run("nm", "-DC", "--defined-only", "--with-symbol-versions", library)
    assert listed.returncode == 0, listed.stdout
    symbols = [line.split(" ", 2)[2] for line in listed.stdout.splitlines()]
    return sorted(symbol for symbol in symbols if not symbol.startswith("BARAQUANT_"))


def marked() -> set[str]:
    """The classes and functions that the headers mark with BARAQUANT_API."""
    text = "\n".join(header.read_text() for header in toolchain.headers())
    classes = re.findall(r"\b(?:class|struct) BARAQUANT_API (\w+)", text)
    return {*classes, *re.findall(r"(?<!#define )BARAQUANT_API\b[^;{(]*?\b(\w+)\(", text)}


def scopes(symbol: str) -> list[str]:
    """The namespaces, the class and the name of a symbol of baraquant; nothing for others."""
    name = re.split(r"[(<@\[]", KINDS.sub("", symbol))[0]
    return name.split("::")[1:] if name.startswith("baraquant::") else []


@pytest.mark.smoke
def test_only_marked_symbols_are_exported() -> None:
    """No weak instance of torch's inline functions, no function of ours that is not marked."""
    symbols, names = exported(PACKAGE / "libbaraquant.so"), marked()
    record = [symbol for symbol in symbols if symbol.startswith("baraquant_build_record@")]
    assert len(record) == 1
    foreign = [s for s in symbols if s not in record and not names.intersection(scopes(s))]
    assert foreign == []
    found = {part for symbol in symbols for part in scopes(symbol)}
    assert {"build_info", "cpu_isa", "Planning"} <= found
    kinds = {match[1] for symbol in symbols if (match := KINDS.match(symbol))}
    assert len(kinds) == 4  # each pattern of the script is used


def test_the_symbols_have_the_version_of_the_interface() -> None:
    numbers = baraquant.__version__.split(".")
    version = ".".join(numbers[: 2 if numbers[0] == "0" else 1])
    symbols = exported(PACKAGE / "libbaraquant.so")
    assert [s for s in symbols if not s.endswith(f"@@BARAQUANT_{version}")] == []
    needed = run("readelf", "-V", baraquant._C.__file__ or "").stdout
    assert re.search(rf"Name: BARAQUANT_{re.escape(version)}\b", needed)


def build_library(source: Path, folder: Path, version: str) -> None:
    """Builds libbaraquant.so out of another source, with the flags and symbols of the true one."""
    library = folder / "libbaraquant.so"
    script = toolchain.version_script(version, folder)
    built = run(
        *(*COMPILER, *toolchain.CXX_FLAGS, "-fPIC", "-shared", source, "-o", library),
        *("-Wl,-soname,libbaraquant.so", f"-Wl,--version-script={script}", "-Wl,-s"),
    )
    assert built.returncode == 0, built.stdout


def test_a_program_for_another_interface_does_not_start(tmp_path: Path) -> None:
    header = f'#include "{toolchain.CSRC}/api/export.h"\nnamespace baraquant {{\n'
    calls = "int answer();\n}\nint main() { return baraquant::answer() == 42 ? 0 : 1; }\n"
    source, main = tmp_path / "answer.cpp", tmp_path / "main.cpp"
    source.write_text(header + "BARAQUANT_API int answer() { return 42; }\n}\n")
    main.write_text(header + calls)
    build_library(source, tmp_path, "0.1.0")
    program = tmp_path / "main"
    found = (f"-L{tmp_path}", "-lbaraquant", f"-Wl,-rpath,{tmp_path}")
    linked = run(*COMPILER, main, "-o", program, *found)
    assert linked.returncode == 0, linked.stdout
    assert run(program).returncode == 0
    build_library(source, tmp_path, "0.1.7")
    assert run(program).returncode == 0
    build_library(source, tmp_path, "0.2.0")
    refused = run(program)
    assert refused.returncode != 0 and "BARAQUANT_0.1" in refused.stdout
    build_library(source, tmp_path, "1.2.0")
    assert "version `BARAQUANT_0.1' not found" in run(program).stdout
