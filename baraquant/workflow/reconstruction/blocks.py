# SPDX-License-Identifier: BSD-3-Clause
"""Finds the blocks of a prepared model: the modules that are reconstructed as a whole.

A container is a ``ModuleList``, ``Sequential`` or ``ModuleDict`` that has no forward of its own.
The blocks are the children of the outermost containers that hold prepared layers, as the decoder
layers of a language model, or the residual blocks of a ResNet, whose containers are nested. A layer
that is itself such a child, as in a plain ``Sequential``, is a block of its own, and so is a layer
in no container. Attentions and recurrent layers, whose parts are computed together, are not taken
apart.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from torch import nn

from ...nn import FakeQuantizedExperts, QuantizesWeight

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_THEIR_FORWARDS = {kind.forward for kind in _CONTAINERS}


Prepared = QuantizesWeight | FakeQuantizedExperts


def prepared_layers(module: nn.Module) -> dict[str, Prepared]:
    """Return the prepared layers in a module by their paths: those whose weights can be learned."""
    return {path: layer for path, layer in module.named_modules() if _is_layer(layer)}


def find_blocks(
    model: nn.Module, patterns: str | Iterable[str] | None, caller: str
) -> dict[str, nn.Module]:
    """Return the blocks by their paths; no two contain the same layer.

    Args:
        model: A prepared model.
        patterns: The paths of blocks, by :mod:`fnmatch`; a module within one that matches is no
            block. Layers outside of all of them are blocks of their own. None: the containers
            decide.
        caller: The public function, for messages.

    Raises:
        ValueError: A pattern matches no module with a prepared layer.
        TypeError: ``patterns`` are no strings.
    """
    if patterns is None:
        found: dict[int, tuple[str, nn.Module]] = {}
        for path, module in _children_of_containers(model, ""):
            found.setdefault(id(module), (path, module))
        return dict(found.values())
    return _matching(model, patterns, caller)


def _matching(model: nn.Module, patterns: str | Iterable[str], caller: str) -> dict[str, nn.Module]:
    wanted = _checked(patterns, caller)
    found = dict.fromkeys(wanted, False)
    blocks: dict[str, nn.Module] = {}
    inside: set[int] = set()  # ids of the modules in blocks, and of their layers
    for path, module in model.named_modules():
        if not path or not _has_layers(module):
            continue
        matching = [one for one in wanted if fnmatch.fnmatchcase(path, one)]
        found |= dict.fromkeys(matching, True)
        if id(module) not in inside and (matching or _is_whole(module)):
            blocks[path] = module
            inside |= {id(part) for part in module.modules()}
    useless = [one for one, is_used in found.items() if not is_used]
    if useless:
        raise ValueError(
            f"{caller}: expected blocks to match modules with layers to quantize, but "
            f"{useless[0]!r} matches none"
        )
    return blocks


def _checked(patterns: str | Iterable[str], caller: str) -> Sequence[str]:
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    for one in wanted:
        if not isinstance(one, str):
            raise TypeError(f"{caller}: expected blocks to be patterns of paths, but got {one!r}")
    return wanted


def _children_of_containers(module: nn.Module, path: str) -> Iterable[tuple[str, nn.Module]]:
    if _is_whole(module) and _has_layers(module):
        yield path, module
        return
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if not _is_container(module) or _is_container(child):
            yield from _children_of_containers(child, where)
        elif _has_layers(child):
            yield where, child


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, _CONTAINERS) and type(module).forward in _THEIR_FORWARDS


def _is_whole(module: nn.Module) -> bool:
    """Whether a module is a layer, or an attention or a recurrent layer of :mod:`baraquant.nn`."""
    return _is_layer(module) or type(module).__module__.startswith("baraquant.nn.")


def _has_layers(module: nn.Module) -> bool:
    return any(map(_is_layer, module.modules()))


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, Prepared) and not isinstance(module, nn.Embedding)
