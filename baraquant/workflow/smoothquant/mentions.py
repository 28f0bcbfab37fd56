# SPDX-License-Identifier: BSD-3-Clause
"""Whether the code of a class uses one of its modules in other places than the call that ran.

One rule: the code may name the module once, in the call that ran, and may bind what the call gives
to plain local names alone. A second place is another use, such as that of another method. An
attribute, an item of a dictionary or a name within an expression can be read anywhere. Code whose
source is not known may do anything. A place is excused that excludes the call, by an attribute of
the module, if it binds local names alone and its branch returns nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

_LIBRARIES = ("torch", "baraquant", "builtins", "typing", "abc")
_KEEPS = (ast.NamedExpr, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Lambda, ast.Yield)
_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CALLS = ("forward", "__call__")


def other_use(
    owner: nn.Module, producer: nn.Module, code: CodeType, line: int, *, is_part: bool
) -> bool:
    """Return whether other calls may use a module, as far as the code of its owner shows.

    Args:
        owner: The module whose function called it.
        producer: The module.
        code: That function.
        line: The line of the call.
        is_part: Whether the owner is a part of a repeated block. Its function may bind what the
            module gives in several places, since only the block reads what it returns.
    """
    function = _parsed(code)
    if function is None:
        return True
    tree, first = function
    statement = _statement_at(tree, line - first + 1)
    if statement is None or _is_kept(statement):
        return True
    path = next((name for name, one in owner.named_modules() if one is producer), "")
    *parents, name = path.split(".")
    index = name if name.isdigit() else None
    if index is not None:
        name = next((one for one in reversed(parents) if not one.isdigit()), "")
    if not name:
        return False
    codes = {code}
    try:
        for one in {type(owner), type(owner.get_submodule(".".join(parents)))}:
            codes |= {*_codes_of(one)}
    except _UnknownError:
        return True
    here, elsewhere = 0, 0
    of_call: frozenset[tuple[str, bool]] = frozenset()
    local: list[frozenset[tuple[str, bool]]] = []  # conditions of other places that keep nothing
    for other in codes:
        parsed = _parsed(other)
        if parsed is None:
            return True
        for node, tests in _mentions(parsed[0], name, index):
            if other is code and statement.lineno <= node.lineno <= _end(statement):
                here, of_call = here + 1, tests
            elif other is code and _stays_local(parsed[0], node.lineno):
                local.append(tests)
            else:
                elsewhere += 1
    if is_part:
        here += len(local)
    else:
        elsewhere += sum(not _exclude(of_call, tests) for tests in local)
    return elsewhere > (here == 0) or (here > 1 and not is_part) or here + elsewhere == 0


class _UnknownError(Exception):
    """The source of a class is not known."""


def _codes_of(kind: type) -> Iterator[CodeType]:
    """Yield the code of each function of a class and of its bases, but for those of PyTorch."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for value in vars(base).values():
            yield from _codes_within(value, set())


def _codes_within(value: Any, seen: set[int]) -> Iterator[CodeType]:
    """Yield the code of a function and of those that decorators hide."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if inspect.isbuiltin(value) or type(value).__name__ == "cython_function_or_method":
        raise _UnknownError
    if isinstance(value, FunctionType):
        yield value.__code__
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            if isinstance(content, FunctionType):
                yield from _codes_within(content, seen)
    for name in ("__func__", "fget", "fset", "func", "__wrapped__"):
        inner = inspect.getattr_static(value, name, None)
        if inner is not None and not isinstance(value, type):
            yield from _codes_within(getattr(value, name), seen)


@functools.lru_cache(maxsize=1024)
def _parsed(code: CodeType) -> tuple[ast.AST, int] | None:
    """Return the tree of a function and the number of its first line; None: no source."""
    try:
        lines, first = inspect.getsourcelines(code)
        return ast.parse(textwrap.dedent("".join(lines))), max(first, 1)
    except (OSError, TypeError, SyntaxError):
        return None


def _mentions(
    node: ast.AST, name: str, index: str | None, tests: frozenset[tuple[str, bool]] = frozenset()
) -> Iterator[tuple[ast.expr, frozenset[tuple[str, bool]]]]:
    """Yield each place that reads a module, with the conditions that it stands under."""
    for child in ast.iter_child_nodes(node):
        if _is_other_item(child, name, index) or _is_parameter(child, name):
            continue
        if _reads(child, name):
            assert isinstance(child, ast.expr)
            yield child, tests
        inner = tests
        if isinstance(node, (ast.If, ast.IfExp)) and child is not node.test:
            first = node.body if isinstance(node, ast.If) else [node.body]
            inner = tests | {_test(node.test, child in first)}
        yield from _mentions(child, name, index, inner)


def _reads(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        named = node.args[1] if len(node.args) > 1 else None
        return not isinstance(named, ast.Constant) or named.value == name
    return isinstance(node, ast.Subscript) and _constant(node.slice) == name


def _is_parameter(node: ast.AST, name: str) -> bool:
    """Return whether this reads an attribute of the module itself, such as its weight."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr not in _CALLS
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == name
    )


def _is_other_item(node: ast.AST, name: str, index: str | None) -> bool:
    """Return whether this reads another item of the list that holds the module."""
    if index is None or not isinstance(node, ast.Subscript):
        return False
    of_list = isinstance(node.value, ast.Attribute) and node.value.attr == name
    at = _constant(node.slice)
    return of_list and type(at) is int and at >= 0 and str(at) != index


def _constant(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _test(test: ast.expr, is_true: bool) -> tuple[str, bool]:
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, is_true = test.operand, not is_true
    return ast.unparse(test), is_true


def _exclude(one: frozenset[tuple[str, bool]], other: frozenset[tuple[str, bool]]) -> bool:
    """Return whether two places never run in one model: by what it was made with, not by a mode."""
    return any(
        test.startswith("self.") and test[5:].isidentifier() and test != "self.training"
        for test, is_true in one
        if (test, not is_true) in other
    )


def _statement_at(tree: ast.AST, line: int) -> ast.stmt | None:
    """Return the innermost statement of a line."""
    on_line = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= _end(node)
    ]
    return min(on_line, key=lambda one: _end(one) - one.lineno, default=None)


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _stays_local(tree: ast.AST, line: int) -> bool:
    """Return whether a line only binds local names, in no branch that returns something itself."""
    statement = _statement_at(tree, line)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or _is_kept(statement):
        return False
    sides = (
        side
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for side in (node.body, node.orelse)
        if side and side[0].lineno <= line <= _end(side[-1])
    )
    ends = (ast.Return, ast.Yield, ast.YieldFrom)
    return not any(
        isinstance(node, ends) for side in sides for one in side for node in ast.walk(one)
    )


def _is_kept(statement: ast.stmt) -> bool:
    """Return whether a statement may keep what it computes elsewhere than in local names."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        stored = (part for target in targets for part in ast.walk(target))
        if any(isinstance(part, (ast.Attribute, ast.Subscript)) for part in stored):
            return True
        value = statement.value
    elif isinstance(statement, (ast.Return, ast.Expr)):
        value = statement.value
    else:
        return not isinstance(statement, (ast.If, ast.For, ast.With))
    return value is not None and _keeps(value)


def _keeps(value: ast.AST) -> bool:
    """Return whether an expression keeps the result of a call within it."""
    for node in ast.walk(value):
        if isinstance(node, (ast.NamedExpr, *_LOOPS, ast.Lambda)):
            return True
        if isinstance(node, _KEEPS) and any(isinstance(one, ast.Call) for one in ast.walk(node)):
            return True
    return False
