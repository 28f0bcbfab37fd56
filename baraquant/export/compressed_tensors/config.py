# SPDX-License-Identifier: BSD-3-Clause
"""The object ``quantization_config`` of compressed-tensors: which layer has which scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..._table import placed, shown
from .scheme import METHOD, MIXED, Scheme, parse_scheme
from .targets import Targets

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
        schemes: The scheme of each target; None leaves it floating.
        ignored: Targets that stay floating all the same.
        save: The number of the save that wrote it, if transformers did.
    """

    schemes: Targets[Scheme | None]
    ignored: Targets[None]
    save: str | None = None

    def scheme_of(self, path: str, module: nn.Module) -> Scheme | None:
        """Return the scheme of a floating module; None if it stays so."""
        found = self.schemes.find(path, module)
        return found[0] if found and not self.ignored.find(path, module) else None

    def check_save(self, metadata: Mapping[str, str]) -> None:
        """Raise a ValueError if a file is of another save than config.json."""
        got = metadata.get(SAVE)
        if got != self.save:
            raise ValueError(
                f"expected a file of the save that wrote config.json ({SAVE}: {shown(self.save)}), "
                f"but got {shown(got)}: a save_pretrained was interrupted, or is under way"
            )


def read_config(given: Any, caller: str) -> CtConfig:
    """Check an object ``quantization_config``, and return it."""
    name = f"{caller}: quantization_config"
    if not isinstance(given, dict):
        raise ValueError(f"{name}: expected an object, but got {type(given).__name__}")
    method = given.get("quant_method", METHOD)
    if method != METHOD:
        raise ValueError(f"{name}: expected quant_method to be {METHOD}, but got {shown(method)}")
    for key, what in _UNKNOWN_PARTS.items():
        part = given.get(key)
        is_set = part is not None and part != {}
        if is_set and not (isinstance(part, dict) and part.get("format") == "dense"):
            raise ValueError(f"{name}: expected no {key}, which {what}: baraquant cannot do that")
    groups, top = given.get("config_groups"), given.get("format")
    if not isinstance(groups, dict) or not groups:
        raise ValueError(f"{name}: expected config_groups with at least one group")
    if top is not None and not isinstance(top, str):
        raise ValueError(f"{name}: expected format to be a text, but got {shown(top)}")
    status = given.get("quantization_status", "compressed")
    if status not in ("compressed", None):
        raise ValueError(
            f"{name}: expected the status compressed, but it is {shown(status)}: its weights are "
            "not stored as integers"
        )
    ignore = given.get("ignore") or []
    if not isinstance(ignore, list) or not all(isinstance(entry, str) for entry in ignore):
        raise ValueError(f"{name}: expected ignore to be a list of texts, but got {shown(ignore)}")
    with placed(name):
        parsed = [parse_scheme(key, group, top) for key, group in groups.items()]
        return CtConfig(
            Targets((target, scheme) for targets, scheme in parsed for target in targets),
            Targets((target, None) for target in ignore),
            given.get(SAVE),
        )


def write_config(
    schemes: dict[str, Scheme], floating: list[str], by_class: str | None, head: str | None
) -> dict[str, Any]:
    """Return the object ``quantization_config`` for layers with schemes, and others that float.

    If all have the class ``by_class`` and one scheme, the class is the target, as servers expect it
    of simple models. In vLLM the class of the head is not ``Linear``, so its path is a target too.
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
