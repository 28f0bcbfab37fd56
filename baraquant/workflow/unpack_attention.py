# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's attention modules swapped for ones whose projections are layers, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from ..nn import MultiheadAttention
from .replace import Decision, FilterFn, Swap, check_model, put, replace_modules, take_over

# What leaving PyTorch's fused evaluation changes in these modules.
_FLAGS = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu",),
    nn.TransformerEncoder: ("enable_nested_tensor", "use_nested_tensor"),
}


@contextmanager
def unpacked_attention(
    model: nn.Module,
    caller: str,
    filter_fn: FilterFn | None = None,
) -> Iterator[set[str]]:
    """Swap ``nn.MultiheadAttention`` within ``model``; back again where the context raises.

    Args:
        model: Changed in place.
        caller: The public function, for the messages.
        filter_fn: Whether to swap one; None: all that can be.

    Yields:
        The paths of those that were swapped.
    """
    check_model(model, caller)
    flags = [
        (module, name, getattr(module, name))
        for module in model.modules()
        for kind, names in _FLAGS.items()
        if isinstance(module, kind)
        for name in names
        if hasattr(module, name)
    ]
    before: dict[int, nn.Module] = {}  # by the id of the new ones
    kept: list[nn.Module] = []

    def decide(module: nn.Module, name: str) -> Decision:
        if not _is_packed(module) or name == "" or MultiheadAttention.why_not(module) is not None:
            return None
        new = MultiheadAttention.from_float(module)
        take_over(new, module)
        before[id(new)] = module
        kept.append(new)
        return Swap(new, name)

    report = replace_modules(model, caller, decide, filter_fn, _is_packed)
    try:
        yield set(report.changed)
    except BaseException:
        put(model, before)
        for module, name, value in flags:
            setattr(module, name, value)
        raise


def _is_packed(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


def within(paths: set[str]) -> Callable[[str], bool]:
    """Return a function that says whether a name lies below one of ``paths``."""

    def is_below(name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in paths for end in range(1, len(parts)))

    return is_below
