# SPDX-License-Identifier: BSD-3-Clause
"""Producers: what can divide its output for the layers after it, and who else could read that.

A norm or a linear layer divides each channel of its output in its parameters. Who reads the output
in calls that calibration did not make, the flow of the calls that were made does not show, but the
code that called the module does:

* What a function returns, its other callers can read. Here the function is that which called the
  module: a model's body that returns its last norm, or ``forward_features``.
* What a function reads under a condition, it reads in some calls alone: ``if features: return y``.

The parts of a block that is repeated, such as its attention, are no models that anyone calls
by themselves: what such a part returns, the block reads, and others read what the block returns.
The functions of PyTorch's modules are known.

Whether code uses a module elsewhere has one rule: the code may name the module once, in the call
that ran, and may bind what the call gives to plain local names alone. A second place is another
use, such as that of another method. An attribute, an item of a dictionary or a name within an
expression can be read anywhere. Code whose source is not known may do anything. A place is excused
that excludes the call, by an attribute of the module, if it binds local names alone and its branch
returns nothing.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...nn.shared.subclassed import MisfitError, tried
from ..passes import Chosen, Pass, Scaling
from ..transaction import unwritable, write

_NORMS = ("LayerNorm", "RMSNorm")


def producers(model: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """Return norms and linear layers by path, with their numbers of channels.

    Modules whose parameters cannot be written to for themselves alone, and modules whose hooks may
    change their output, are left out. A norm that is not a PyTorch class counts if its output is
    proportional to its weight in a trial.
    """
    # How many modules have each parameter, by its id.
    owners = Counter(id(p) for one in model.modules() for p in one._parameters.values())
    shared = unwritable(model)
    found: dict[str, tuple[nn.Module, int]] = {}
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or path == "" or module._forward_hooks or module._forward_pre_hooks:
            continue
        if weight.numel() == 0 or not weight.is_floating_point():
            continue
        if parametrize.is_parametrized(module):
            continue
        own = {id(p) for p in module._parameters.values() if p is not None}
        if any(owners[each] > 1 or each in shared for each in own):
            continue
        is_linear = type(module) is nn.Linear
        is_norm = type(module).__name__.endswith(_NORMS) and weight.dim() == 1
        if is_linear or (is_norm and _follows_weight(module, len(weight))):
            found[path] = module, weight.shape[0]
    return found


def can_fold(producer: nn.Module, smooth: Tensor) -> bool:
    """Return whether the divided parameters are finite in the dtype of the producer."""
    with torch.no_grad():
        return all(
            bool(quotient.to(parameter.dtype).isfinite().all())
            for parameter, quotient in divided(producer, smooth)
        )


def divided(producer: nn.Module, smooth: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with its quotient by the factors, in the dtype of the factors."""
    for name in ("weight", "bias"):
        parameter = getattr(producer, name, None)
        if parameter is not None:
            factors = smooth.to(parameter.device).view(-1, *[1] * (parameter.dim() - 1))
            yield parameter, parameter.detach().to(smooth.dtype) / factors


def _follows_weight(norm: nn.Module, channels: int) -> bool:
    """Return whether dividing the norm's parameters divides its output (not ``1 + weight``)."""
    if set(norm._parameters) - {"weight", "bias"} or norm._modules:
        return False
    weight = norm._parameters["weight"]
    trial = copy.deepcopy(norm).eval()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, channels, generator=generator).to(weight)
    factors = torch.tensor([0.5, 2.0, 4.0]).repeat(channels)[:channels].to(weight)
    try:
        with torch.no_grad():
            before = tried(trial, rows)
            for parameter, quotient in divided(trial, factors):
                parameter.copy_(quotient)
            after = tried(trial, rows)
    except MisfitError:  # it is no norm as it is known here
        return False
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
        return False
    after = after * factors  # powers of two: no rounding
    return bool(torch.allclose(before, after, rtol=1e-3, atol=1e-6)) and bool(before.any())


class ScalesInputs(Pass):
    """A pass that divides the inputs of linear layers, where possible in the modules before."""

    name = ""  # what reports say of each scaled layer

    def __init__(self) -> None:
        self._abouts: dict[str, str] = {}
        self._folds: list[tuple[Tensor, Tensor]] = []  # what stays floating, and its new values

    def scale(
        self, found: Mapping[str, Scaling], chosen: Mapping[str, Chosen], model: nn.Module
    ) -> None:
        """Note how layers are scaled, and which modules divide their outputs for them."""
        folded: set[str] = set()
        for path, scaling in found.items():
            chosen[path].scaling = scaling
            self._abouts[path] = self.name + scaling.about()
            if scaling.producer is None or scaling.smooth is None:
                continue
            if scaling.producer in chosen:
                chosen[scaling.producer].divisor = scaling.smooth
            elif scaling.producer not in folded:
                folded.add(scaling.producer)
                producer = model.get_submodule(scaling.producer)
                self._folds += divided(producer, scaling.smooth)

    def describe(self, path: str) -> str:
        """Return the exponent, and where the division happens."""
        return self._abouts.get(path, "")

    def finish(self, model: nn.Module) -> None:
        """Fold the divisions into floating modules; quantized ones have them already."""
        for parameter, values in self._folds:
            write(parameter, values)


# ---- Who else could read its output --------------------------------------------------------------

_BLOCKS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# What runs in some calls alone, or later.
_BRANCHES = (
    *(ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.While, ast.ExceptHandler),
    *(ast.Lambda, ast.FunctionDef),
)


@dataclass
class Scope:
    """Where the output of one call of a module may be read.

    Attributes:
        frame: The call of the function that may read it; None: not known, which refuses nothing.
        line: The line that made the output, of a function whose branches count; None: they do not.
        has_other_use: Whether other calls may use the module that made the output.
    """

    frame: FrameType | None
    line: int | None
    has_other_use: bool = False

    def other_reader(self) -> str | None:
        """Return what may read the output in other calls, while a layer reads it; None: nothing."""
        if self.has_other_use:
            return "code that calls it elsewhere, or keeps what it gives"
        if self.frame is None:
            return None
        if all(frame is not self.frame for frame in _frames(sys._getframe(1))):
            return "what calls the function that returns it"
        if self.line is None:
            return None
        owner = self.frame.f_locals.get("self")
        for frame in _frames(sys._getframe(1)):
            if frame is self.frame:
                break
            if owner is not None and frame.f_locals.get("self") is owner:
                return "another method that it is handed to"
        return _read_in_branches(self.frame.f_code, self.line, self.frame.f_lineno)

    def release(self) -> None:
        """Let go of the variables of a function that has returned."""
        if self.frame is not None and all(f is not self.frame for f in _frames(sys._getframe(1))):
            self.frame.clear()
        self.frame = None


class Readers:
    """Finds who may read the outputs of a model's modules."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._blocks: set[int] = set()  # ids of repeated blocks
        self._parts: set[int] = set()  # of modules inside of them that have no blocks themselves
        for parent in model.modules():
            for block in parent.children() if isinstance(parent, _BLOCKS) else ():
                self._blocks.add(id(block))
                for part in [*block.modules()][1:]:
                    if not any(isinstance(one, _BLOCKS) for one in part.modules()):
                        self._parts.add(id(part))

    def scope(self, frame: FrameType | None, producer: nn.Module) -> Scope:
        """Return where an output of ``producer`` may be read: for the frame of its hook."""
        frames = list(self._frames_of_model(frame))
        scope = self._scope(frames)
        # What a list of modules gives is used where it is called.
        callers = (one for one in frames if not isinstance(one[1], _BLOCKS))
        caller, owner = next(callers, (None, None))
        if caller is not None and owner is not None and not _is_known(owner):
            code, line, is_part = caller.f_code, caller.f_lineno, id(owner) in self._parts
            scope.has_other_use = other_use(owner, producer, code, line, is_part=is_part)
        return scope

    def _scope(self, frames: list[tuple[FrameType, nn.Module | None]]) -> Scope:
        if not frames:
            return Scope(None, None)
        (caller, owner), *outer = frames
        if id(owner) in self._parts:
            return Scope(next((f for f, one in outer if id(one) in self._blocks), None), None)
        if owner is None or not _is_known(owner):
            return Scope(caller, caller.f_lineno)
        for frame, module in outer:
            if module is not owner:
                break
            caller = frame
        return Scope(caller, None)

    def _frames_of_model(
        self, frame: FrameType | None
    ) -> Iterator[tuple[FrameType, nn.Module | None]]:
        """Yield the frames of the model's own call with their modules, from within outwards."""
        for one in _frames(frame):
            owner = one.f_locals.get("self")
            yield one, owner if isinstance(owner, nn.Module) else None
            if owner is self._model:
                return


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames from a module's hook outwards, but for those of PyTorch's call itself."""
    own = ("torch.nn.modules.module", __name__, __name__.rpartition(".")[0] + ".smoothing")
    while frame is not None:
        if frame.f_globals.get("__name__") not in own:
            yield frame
        frame = frame.f_back


def _is_known(module: nn.Module) -> bool:
    """Whether PyTorch or this package has a module's function."""
    return type(module).__module__.partition(".")[0] in ("torch", "baraquant")


@functools.lru_cache(maxsize=1024)
def _read_in_branches(code: CodeType, line: int, now: int) -> str | None:
    """Return the line that reads under a condition what the call in a line gave.

    None if no line does, if the value was read before it got a name, or if the source is not known.
    ``now`` is the line at which the function is now, where it reads what the call gave.
    """
    source = _parsed(code)
    if source is None:
        return None
    after = _statements_after(source.tree.body, line - source.first + 1)
    if not after or not isinstance(after[0], _ASSIGNMENTS):
        return None
    reads_at = now - source.first + 1
    if after[0].lineno <= reads_at <= _end(after[0]):
        return None
    names = _names(after[0], ast.Store)
    for statement in after[1:]:
        for node in ast.walk(statement):
            if isinstance(node, _BRANCHES) and names & _names(node, ast.Load):
                return source.lines[node.lineno - 1].strip()
        if isinstance(statement, _BRANCHES):
            continue
        is_before = _end(statement) < reads_at
        if is_before and names & _names(statement, ast.Load):
            names |= _names(statement, ast.Store)  # it may be the value still: y = relu(y)
        else:
            names -= _names(statement, ast.Store)
    return None


def _statements_after(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the innermost statement of a line, and what runs after it in its function."""
    for index, statement in enumerate(body):
        if not statement.lineno <= line <= _end(statement):
            continue
        inner: list[list[ast.stmt]] = [
            value
            for _, value in ast.iter_fields(statement)
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt)
        ]
        for block in inner:
            found = _statements_after(block, line)
            if found:
                is_function = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
                return found if is_function else found + body[index + 1 :]
        return body[index:]
    return []


def _names(node: ast.AST, use: type[ast.expr_context]) -> set[str]:
    """Return the names that are read (``ast.Load``) or bound (``ast.Store``) in some code."""
    found = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in found if isinstance(one.ctx, use)}


_LIBRARIES = ("torch", "baraquant", "builtins", "typing", "abc")
# What keeps a result in any case, and what keeps it if it holds the call itself.
_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_KEEPS = (ast.NamedExpr, ast.Lambda, *_LOOPS)
_HOLDS = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Yield)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_CALLS = ("forward", "__call__")


def other_use(
    owner: nn.Module, producer: nn.Module, code: CodeType, line: int, *, is_part: bool
) -> bool:
    """Return whether other calls may use a module, as far as the code of its owner shows.

    The owner's function called it in a line. If the owner is a part of a repeated block, that
    function may bind what the module gives in several places: only the block reads what it returns.
    """
    source = _parsed(code)
    if source is None:
        return True
    statement = _statement_at(source.tree, line - source.first + 1)
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
        for node, tests in _mentions(parsed.tree, name, index):
            if other is code and statement.lineno <= node.lineno <= _end(statement):
                here, of_call = here + 1, tests
            elif other is code and _stays_local(parsed.tree, node.lineno):
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


class _Source(NamedTuple):
    """The lines of a function, the number of the first one, and its tree."""

    lines: list[str]
    first: int
    tree: ast.Module


@functools.lru_cache(maxsize=1024)
def _parsed(code: CodeType) -> _Source | None:
    """Return the source of a function; None: it is not known."""
    try:
        lines, first = inspect.getsourcelines(code)
        return _Source(lines, max(first, 1), ast.parse(textwrap.dedent("".join(lines))))
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
    if not isinstance(statement, _ASSIGNMENTS) or _is_kept(statement):
        return False
    branches = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    sides = (side for node in branches for side in (node.body, node.orelse))
    around = [side for side in sides if side and side[0].lineno <= line <= _end(side[-1])]
    parts = (node for side in around for one in side for node in ast.walk(one))
    return not any(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) for node in parts)


def _is_kept(statement: ast.stmt) -> bool:
    """Return whether a statement may keep what it computes elsewhere than in local names."""
    if isinstance(statement, _ASSIGNMENTS):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        stored = (part for target in targets for part in ast.walk(target))
        if any(isinstance(part, (ast.Attribute, ast.Subscript)) for part in stored):
            return True
    elif not isinstance(statement, (ast.Return, ast.Expr)):
        return not isinstance(statement, (ast.If, ast.For, ast.With))
    return statement.value is not None and _keeps(statement.value)


def _keeps(value: ast.AST) -> bool:
    """Return whether an expression keeps the result of a call within it."""
    return any(
        isinstance(node, _KEEPS)
        or (isinstance(node, _HOLDS) and any(isinstance(one, ast.Call) for one in ast.walk(node)))
        for node in ast.walk(value)
    )
