# SPDX-License-Identifier: BSD-3-Clause
"""Swaps PyTorch's attention and recurrent modules for modules of linear layers, and back.

PyTorch's modules pack their weights into parameters of their own. The modules of
:mod:`baraquant.nn` hold a linear layer for each product, which can be quantized. In the same way a
layer whose weight is computed, as by weight_norm, becomes one that has the computed weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .. import nn as bnn
from ..nn.shared.subclassed import take_over
from .computed import plain
from .layers import parents
from .replace import leave_fast_paths, put
from .report import Report
from .view import Decision, FilterFn, ModelView, Swap, choose_swaps

# PyTorch's classes, and the classes they become, which have `why_not(module)` and
# `from_float(module)`.
UNPACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: bnn.MultiheadAttention,
    nn.LSTM: bnn.LSTM,
    nn.GRU: bnn.GRU,
    nn.RNN: bnn.RNN,
    nn.LSTMCell: bnn.LSTMCell,
    nn.GRUCell: bnn.GRUCell,
    nn.RNNCell: bnn.RNNCell,
}

# What the names of their own parameters and modules begin with.
_OWN = (
    "weight_",
    "bias_",
    "in_proj_",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "out_proj",
)


def is_packed(module: nn.Module) -> bool:
    """Whether a module packs the weights of its products into its own parameters."""
    return isinstance(module, tuple(UNPACKED))


def _why_not(module: nn.Module, kind: Any) -> str | None:
    """Return why one of PyTorch's modules cannot be unpacked into a class; None if it can."""
    reason: str | None = kind.why_not(module)
    names = {*module._parameters, *module._buffers, *module._modules}
    further = sorted(name for name in names if not name.startswith(_OWN))
    if reason is None and further:
        return f"it has {', '.join(further)} beside its own weights"
    return reason


@dataclass
class Unpacked:
    """The modules that were unpacked.

    Attributes:
        view: The model as it is with them.
        given: The sizes of the model before.
        before: The original modules, by all their paths.
        news: The new modules, by the ids of the original ones.
        packed: Why other modules of their kinds stay packed, by their ids.
    """

    view: ModelView
    given: Report = field(default_factory=Report)
    before: dict[str, nn.Module] = field(default_factory=dict)
    news: dict[int, nn.Module] = field(default_factory=dict)
    packed: dict[int, str] = field(default_factory=dict)

    def whole_of(self, name: str) -> tuple[str, nn.Module] | None:
        """Return the path and the original module that contains a path; None if there is none."""
        for parent in parents(name):
            if parent in self.before:
                return parent, self.before[parent]
        return None

    def repack(self, swapped: set[str]) -> set[str]:
        """Restore the modules with no path in ``swapped``, and return their paths."""
        used = {whole[0] for name in swapped if (whole := self.whole_of(name)) is not None}
        used |= swapped & self.before.keys()  # a layer whose weight was computed
        used_ids = {id(self.before[path]) for path in used}
        back = {path for path, module in self.before.items() if id(module) not in used_ids}
        olds = {id(self.before[path]): self.before[path] for path in back}
        put(self.view.model, [(self.news[each], old) for each, old in olds.items()])
        for path in back:
            del self.before[path]
        if back:
            self.view.look()
        return back

    def release(self) -> None:
        """Let go of the original modules, after what was in them has been swapped.

        What stays floating gets memory of its own.
        """
        self.before.clear()
        for new in self.news.values():
            if isinstance(new, bnn.MultiheadAttention):
                new.own_memory_()
        self.news.clear()


def unpack_modules(
    model: nn.Module, caller: str, filter_fn: FilterFn | None = None, *, computed: bool = True
) -> Unpacked:
    """Unpack all modules of a model that can be unpacked and that a filter takes.

    :meth:`Unpacked.release` has to be called in the end, unless it is undone. With ``computed``,
    layers get the weights that parametrizations or hooks compute.
    """
    view = ModelView(model, caller)
    result = Unpacked(view)

    def is_candidate(module: nn.Module) -> bool:
        return is_packed(module) or is_to_compute(module)

    def is_to_compute(module: nn.Module) -> bool:
        seen = view.seen[id(module)]
        return computed and seen.is_computed and seen.layer is not None

    def decide(module: nn.Module, name: str) -> Decision:
        if name != "" and is_to_compute(module):
            return Swap(plain(module), name)
        kind = next((new for old, new in UNPACKED.items() if isinstance(module, old)), None)
        if kind is None:
            return None
        reason = _why_not(module, kind)
        if reason is not None or name == "":
            result.packed[id(module)] = reason or "it is the model itself; wrap it in nn.Sequential"
            return None
        new = getattr(kind, "sharing", kind.from_float)(module)
        take_over(new, module)
        return Swap(new, name)

    swaps, result.given = choose_swaps(view, caller, decide, filter_fn, is_candidate)
    for old, new in swaps.values():
        result.news[id(old)] = new
        result.before |= dict.fromkeys(view.seen[id(old)].paths, old)
    if swaps:
        put(model, swaps.values())
        leave_fast_paths(model, result.news.values())
        view.look()
    return result
