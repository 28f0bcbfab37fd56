# SPDX-License-Identifier: BSD-3-Clause
"""The object ``quantization_config`` of compressed-tensors: which layer has which scheme."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from .scheme import METHOD, MIXED, Scheme, parse_scheme

# The number of a save_pretrained, in config.json and in the metadata of its files.
SAVE = "baraquant_save"
# Keys that, if set, change what a layer computes.
_UNKNOWN_PARTS = {
    "kv_cache_scheme": "quantizes the cache of keys and values",
    "transform_config": "rotates inputs or outputs",
    "sparsity_config": "stores sparse weights",
}


@dataclass(frozen=True)
class CtConfig:
    """A configuration that was read.

    Attributes:
        groups: The targets of each scheme. A scheme of None leaves its targets floating.
        ignore: Targets that stay floating all the same.
        top_format: The format of the whole.
        save: The number of the save that wrote it, if transformers did.
    """

    groups: tuple[tuple[tuple[str, ...], Scheme | None], ...]
    ignore: tuple[str, ...]
    top_format: str
    save: str | None = None

    def scheme_of(self, path: str, module: nn.Module) -> Scheme | None:
        """Return the scheme of a module; None if it stays floating.

        A target is the path of a module, an expression after ``re:`` that matches the start of its
        path, or the name of its class; the first kind that matches decides.

        Args:
            path: Its path in the model.
            module: The floating module.
        """
        if any(_rank(target, path, module) is not None for target in self.ignore):
            return None
        ranked = [
            (rank, scheme)
            for targets, scheme in self.groups
            for target in targets
            if (rank := _rank(target, path, module)) is not None
        ]
        return min(ranked, key=lambda entry: entry[0])[1] if ranked else None

    def check_save(self, metadata: Mapping[str, str]) -> None:
        """Raise a ValueError if a file is of another save than config.json."""
        got = metadata.get(SAVE)
        if got != self.save:
            raise ValueError(
                f"expected a file of the save that wrote config.json ({SAVE}: {self.save}), but "
                f"got {got!r:.60}: a save_pretrained was interrupted, or is under way"
            )


def _rank(target: str, path: str, module: nn.Module) -> int | None:
    """Return how exactly a target matches, 0 for the path itself; None if it does not match."""
    if target == path:
        return 0
    if target.startswith("re:"):
        return 1 if re.match(target.removeprefix("re:"), path) else None
    return 2 if any(kind.__name__ == target for kind in type(module).__mro__) else None


def read_config(given: Any, caller: str) -> CtConfig:
    """Check an object ``quantization_config``, and return it.

    Raises:
        ValueError: It is of another method, of a kind that baraquant has no layer for, or damaged.
    """
    name = f"{caller}: quantization_config"
    if not isinstance(given, dict):
        raise ValueError(f"{name}: expected an object, but got {type(given).__name__}")
    method = given.get("quant_method", METHOD)
    if method != METHOD:
        raise ValueError(f"{name}: expected quant_method to be {METHOD}, but got {method!r}")
    for key, what in _UNKNOWN_PARTS.items():
        part = given.get(key)
        is_set = part is not None and part != {}
        if is_set and not (isinstance(part, dict) and part.get("format") == "dense"):
            raise ValueError(f"{name}: expected no {key}, which {what}: baraquant cannot do that")
    groups, top = given.get("config_groups"), given.get("format")
    if not isinstance(groups, dict) or not groups:
        raise ValueError(f"{name}: expected config_groups with at least one group")
    if top is not None and not isinstance(top, str):
        raise ValueError(f"{name}: expected format to be a text, but got {top!r:.60}")
    status = given.get("quantization_status", "compressed")
    if status not in ("compressed", None):
        raise ValueError(
            f"{name}: expected the status compressed, but it is {status!r}: its weights are not "
            "stored as integers"
        )
    ignore = given.get("ignore") or []
    if not isinstance(ignore, list) or not all(isinstance(entry, str) for entry in ignore):
        raise ValueError(f"{name}: expected ignore to be a list of texts, but got {ignore!r:.60}")
    try:
        parsed = [parse_scheme(key, group, top) for key, group in groups.items()]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    every = [*ignore, *(target for targets, _ in parsed for target in targets)]
    for target in (one for one in every if one.startswith("re:")):
        try:
            re.compile(target.removeprefix("re:"))
        except re.error as error:
            raise ValueError(f"{name}: {target}: not an expression: {error}") from None
    schemes = tuple((tuple(targets), scheme) for targets, scheme in parsed)
    return CtConfig(schemes, tuple(ignore), top or MIXED, given.get(SAVE))


def write_config(
    schemes: dict[str, Scheme], floating: list[str], by_class: str | None, head: str | None
) -> dict[str, Any]:
    """Return the object ``quantization_config``.

    Args:
        schemes: The scheme of each quantized layer, by path.
        floating: The paths of layers that stay floating and that a target could mean.
        by_class: The class that all quantized layers have. If they have one scheme too, the class
            is the target, as servers expect it of simple models. None: paths are the targets.
        head: The path of the layer that gives the logits. In vLLM its class is not ``Linear``, so
            it is a target of its own.
    """
    groups: dict[Scheme, list[str]] = {}
    for path, scheme in schemes.items():
        groups.setdefault(scheme, []).append(path)
    if by_class is not None and len(groups) == 1:
        heads = [head] if head is not None and head in schemes else []
        groups = {scheme: [*heads, by_class] for scheme in groups}
    formats = {scheme.format for scheme in groups}
    return {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else MIXED,
        "quantization_status": "compressed",
        "ignore": floating,
        "config_groups": {
            f"group_{number}": scheme.to_json(targets)
            for number, (scheme, targets) in enumerate(groups.items())
        },
    }
