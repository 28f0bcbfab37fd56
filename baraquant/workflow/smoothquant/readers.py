# SPDX-License-Identifier: BSD-3-Clause
"""Who else could read the output of a module, in calls that calibration did not make.

The flow of the calls that were made does not show this, but the code that called the module does:

* What a function returns, its other callers can read. Here the function is that which called the
  module: a model's body that returns its last norm, or ``forward_features``.
* What a function reads under a condition, it reads in some calls alone: ``if features: return y``.

The parts of a block that is repeated, such as its attention, are no models that anyone calls
by themselves: what such a part returns, the block reads, and others read what the block returns.
The functions of PyTorch's modules are known.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

from torch import nn

from .mentions import other_use

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
            if isinstance(parent, _BLOCKS):
                for block in parent.children():
                    self._blocks.add(id(block))
                    self._parts |= {
                        id(one) for one in [*block.modules()][1:] if not _has_blocks(one)
                    }

    def scope(self, frame: FrameType | None, producer: nn.Module) -> Scope:
        """Return where an output of ``producer`` may be read: for the frame of its hook."""
        scope = self._scope(frame)
        for caller, owner in self._frames_of_model(frame):
            if owner is None:
                break
            if isinstance(owner, _BLOCKS):  # what it gives is used where it is called
                continue
            if type(owner).__module__.partition(".")[0] not in ("torch", "baraquant"):
                code, line = caller.f_code, caller.f_lineno
                is_part = id(owner) in self._parts
                scope.has_other_use = other_use(owner, producer, code, line, is_part=is_part)
            break
        return scope

    def _scope(self, frame: FrameType | None) -> Scope:
        frames = self._frames_of_model(frame)
        caller, owner = next(frames, (None, None))
        if caller is None or owner is None:
            return Scope(caller, None if caller is None else caller.f_lineno)
        if id(owner) in self._parts:
            block = (f for f, module in frames if id(module) in self._blocks)
            return Scope(next(block, None), None)
        if type(owner).__module__.partition(".")[0] in ("torch", "baraquant"):
            for outer, module in frames:
                if module is not owner:
                    break
                caller = outer
            return Scope(caller, None)
        return Scope(caller, caller.f_lineno)

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
    own = ("torch.nn.modules.module", __name__, __name__.rpartition(".")[0] + ".flow")
    while frame is not None:
        if frame.f_globals.get("__name__") not in own:
            yield frame
        frame = frame.f_back


def _has_blocks(module: nn.Module) -> bool:
    return any(isinstance(one, _BLOCKS) for one in module.modules())


@functools.lru_cache(maxsize=1024)
def _read_in_branches(code: CodeType, line: int, now: int) -> str | None:
    """Return the line that reads what a call gave, under a condition.

    Args:
        code: The function that made the call.
        line: The line of the call.
        now: The line at which the function is now, where it reads what the call gave.

    Returns:
        None if no line does, if the value was read before it got a name, or if the source is not
        known.
    """
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    at = line - max(first, 1) + 1
    after = _statements_after(tree.body, at)
    if not after or not isinstance(after[0], (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return None
    reads_at = now - max(first, 1) + 1
    if after[0].lineno <= reads_at <= (after[0].end_lineno or 0):
        return None
    names = _stored(after[0])
    for statement in after[1:]:
        for node in ast.walk(statement):
            if isinstance(node, _BRANCHES) and names & _loaded(node):
                return lines[node.lineno - 1].strip()
        if isinstance(statement, _BRANCHES):
            continue
        is_before = (statement.end_lineno or 0) < reads_at
        if is_before and names & _loaded(statement):
            names |= _stored(statement)  # it may be the value still: y = relu(y)
        else:
            names -= _stored(statement)
    return None


def _statements_after(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the innermost statement of a line, and what runs after it in its function."""
    for index, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
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


def _stored(statement: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _loaded(node: ast.AST) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }
