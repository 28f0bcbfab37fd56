# SPDX-License-Identifier: BSD-3-Clause
"""The structure of the house in numbers, held against a committed budget.

    house.py            print the numbers
    house.py --check    fail where one is above scripts/house.json (part of `make lint`)
    house.py --write    commit to the numbers as they are

    lines        of code, texts of ops and tables by top folder, without what a program wrote
    op           the largest number of files that name one op
    pairs        folders of csrc that include each other
    circles      circles of folders of csrc, and of modules of baraquant (late imports count)
    crossings    imports of an underscored module of another folder
    includes     which folder of csrc includes which: a new arrow has to be meant
    rooms        ops that are registered in a file whose name does not say so

A change that raises a number raises the budget in the same commit, and says why.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUDGET = Path(__file__).with_suffix(".json")
FOLDERS = ("baraquant", "csrc", "scripts", "tests", "benchmarks", "examples")
PRODUCT = ("baraquant", "csrc", "scripts")
CODE = (".py", ".pyi", ".cpp", ".h", ".cuh", ".cu", ".txt", ".ini")
BUILT = {"include", "share", "__pycache__"}
WRITTEN = "Written by scripts/"  # in one of the first two lines of a file that a program wrote
SLACK = 1.005  # lines may grow this much before the budget speaks
# What may be registered in a file of csrc, by its name: keys of the dispatcher, and schemas.
ROOMS = {
    "schema.cpp": {"schemas", "CompositeImplicitAutograd"},
    "autograd.cpp": {"Autograd", "ADInplaceOrView", "FuncTorchVmapMode"},
    "autocast.cpp": {"AutocastCPU", "AutocastCUDA"},
    "dispatch.cpp": {"CPU", "CUDA", "Meta", "DEVICES"},
    "lazy_values.cpp": {"Conjugate", "Negative", "ZeroTensor"},
    "kernels.cpp": {"schemas"},  # of private ops, with which tests choose a kernel
    "kernels.cu": {"schemas"},
}
Graph = dict[str, set[str]]


def sources(folder: str, suffixes: tuple[str, ...] = CODE) -> Iterator[Path]:
    """The files of a top folder that somebody wrote."""
    for path in sorted((ROOT / folder).rglob("*")):
        inside = path.relative_to(ROOT / folder).parts
        if path.suffix in suffixes and not BUILT.intersection(inside[:-1]) and path.is_file():
            yield path


def by_hand(text: str) -> bool:
    return not any(WRITTEN in line for line in text.splitlines()[:2])


def lines() -> dict[str, int]:
    texts = {folder: [path.read_text() for path in sources(folder)] for folder in FOLDERS}
    return {
        folder: sum(text.count("\n") for text in found if by_hand(text))
        for folder, found in texts.items()
    }


def files_of_an_op() -> tuple[str, int]:
    """The op that most files name, and how many these are."""
    schemas = "".join(path.read_text() for path in (ROOT / "csrc").glob("*/schema.cpp"))
    found = re.findall(r'"([a-z][\w*]*)\(Tensor', schemas)
    ops = {name.replace("*", "channel") for name in found}
    named: Counter[str] = Counter()
    for folder in (*FOLDERS, "docs"):
        for path in sources(folder, (*CODE, ".md", ".rst")):
            named.update(ops & set(re.findall(r"\w+", path.read_text())))
    return max(named.items(), key=lambda one: one[1])


def includes() -> Graph:
    """For each folder of csrc, the others that its files include."""
    graph: Graph = defaultdict(set)
    for path in sources("csrc"):
        own = path.relative_to(ROOT / "csrc").parts[0]
        for name in re.findall(r'^#include "(\w+/.+)"', path.read_text(), re.M):
            other = name.partition("/")[0]
            if other != own and (ROOT / "csrc" / name).exists():
                graph[own].add(other)
    return dict(graph)


def misplaced() -> list[str]:
    """What a file of csrc registers, though its name says that something else is there."""
    found = set()
    for path in sources("csrc"):
        pattern = r"^(?:TORCH_LIBRARY\w*\(baraquant, |BARAQUANT_REGISTER_)(\w+)"
        registered = re.findall(pattern, path.read_text(), re.M)
        keys = {"schemas" if key == "m" else key for key in registered}
        name = path.relative_to(ROOT)
        found |= {f"{name}: {key}" for key in keys - ROOMS.get(path.name, set())}
    return sorted(found)


def imports() -> tuple[Graph, list[str]]:
    """Which module of baraquant imports which, and the imports that cross into a private one.

    What is imported for types alone makes no circle.
    """
    paths = {path: module_name(path) for path in sources("baraquant", (".py",))}
    modules = set(paths.values())
    graph: Graph = defaultdict(set)
    crossings = []
    for path, name in paths.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        for target, for_types in imported(ast.parse(path.read_text()), package, modules):
            folder, _, last = target.rpartition(".")
            if last.startswith("_") and last != "_C" and not f"{package}.".startswith(f"{folder}."):
                crossings.append(f"{name} -> {target}")
            if not for_types and target != name:
                graph[name].add(target)
    return dict(graph), sorted(set(crossings))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, package: str, modules: set[str]) -> Iterator[tuple[str, bool]]:
    """The modules that a file of a package imports, and whether for types alone."""
    for_types = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        names: Iterable[str] = ()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            within = [f"{source}.{a.name}" for a in node.names if a.name != "_C"]  # compiled
            names = [name if name in modules else source for name in within]
        yield from ((name, id(node) in for_types) for name in names if name in modules)


def circles(graph: Graph) -> list[list[str]]:
    """The sets of nodes that reach each other."""
    reached: Graph = {}
    for node in graph:
        new, reached[node] = {node}, set()
        while new := {one for n in new for one in graph.get(n, ())} - reached[node]:
            reached[node] |= new
    rings = {frozenset(n for n in reached[a] if a in reached.get(n, ())) for a in graph}
    return sorted(sorted(ring) for ring in rings if len(ring) > 1)


def numbers() -> dict[str, Any]:
    counted, folders = lines(), includes()
    modules, crossings = imports()
    op, files = files_of_an_op()
    pairs = {tuple(sorted((a, b))) for a in folders for b in folders[a] if a in folders.get(b, ())}
    return {
        "lines": counted | {"product": sum(counted[folder] for folder in PRODUCT)},
        "op": [op, files],
        "pairs": sorted(map(list, pairs)),
        "circles": circles(folders) + circles(modules),
        "crossings": crossings,
        "includes": {folder: sorted(folders[folder]) for folder in sorted(folders)},
        "rooms": misplaced(),
    }


def above(now: dict[str, Any], budget: dict[str, Any]) -> list[str]:
    """What is above the budget."""
    found = [
        f"{folder}: {count} lines, at most {budget['lines'].get(folder, 0)} are allowed"
        for folder, count in now["lines"].items()
        if count > SLACK * budget["lines"].get(folder, 0)
    ]
    for name in ("pairs", "circles", "crossings", "rooms"):
        found += [f"{name}: {one} is new" for one in now[name] if one not in budget.get(name, ())]
    (op, files), (_, allowed) = now["op"], budget["op"]
    if files > allowed:
        found.append(f"op: {op} stands in {files} files, at most {allowed} may name one")
    found += [
        f"includes: csrc/{folder} includes {other}, which {BUDGET.name} does not list"
        for folder, others in now["includes"].items()
        for other in others
        if other not in budget["includes"].get(folder, ())
    ]
    return found


def problems() -> list[str]:
    """What is above the committed budget now."""
    return [f"house: {one}" for one in above(numbers(), json.loads(BUDGET.read_text()))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail above the committed budget")
    parser.add_argument("--write", action="store_true", help="make these numbers the budget")
    options = parser.parse_args()
    if options.check:
        found = problems()
        print("".join(f"{problem}\n" for problem in found), end="")
        return 1 if found else 0
    now = numbers()
    if options.write:
        BUDGET.write_text(json.dumps(now, indent=1) + "\n")
    for name, value in now.items():
        count = f"{len(value)}: " if isinstance(value, list) and name != "op" else ""
        print(f"{name:10} {count}{json.dumps(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
