# SPDX-License-Identifier: BSD-3-Clause
"""Hashes of results, and the file that holds them.

A hash covers the dtype, shape, strides and bits of every result of a group, in order. Every NaN
counts alike, as the contract fixes no payload. The strides of dimensions of one element, and those
of empty tensors, mean nothing and are left out.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.golden import affine, fused, int4, int8_mm, modules, scaled
from tests.golden import range as ranges
from tests.golden.values import Case

FILE = Path(__file__).resolve().parents[1] / "data" / "golden_hashes.json"
FAMILIES: dict[str, Callable[[torch.dtype], Iterator[Case]]] = {
    "affine": affine.all_cases,
    "range": ranges.all_cases,
    "int8_mm": int8_mm.all_cases,
    "modules": modules.all_cases,
    "scaled": scaled.all_cases,
    "fused": fused.all_cases,
    "int4": int4.all_cases,
}
EVERYWHERE = "every device"
Hashes = dict[str, dict[str, str]]  # by the device, then by the group


def bits(tensor: Tensor) -> bytes:
    """What is hashed of a tensor."""
    values = tensor.detach().cpu()
    strides = [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1]
    if values.is_floating_point():
        values = values.masked_fill(values.isnan(), torch.nan)
    flat = values.contiguous().reshape(-1).view(torch.uint8)
    head = f"{tensor.dtype} {list(tensor.shape)} {strides if tensor.numel() else []}"
    return head.encode() + flat.numpy().tobytes()


def digest(parts: Iterable[bytes]) -> str:
    """Sixteen hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        found.update(hashlib.sha256(part).digest())
    return found.hexdigest()[:16]


class PrivateOps(TorchDispatchMode):
    """Notes the results of the private ops that the calls inside turn into, by op."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, list[bytes]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name.startswith("baraquant::_"):
            made = result if isinstance(result, (tuple, list)) else (result,)
            changed = args if func._schema.is_mutable else ()
            tensors = [t for t in (*made, *changed) if isinstance(t, Tensor)]
            parts = self.results.setdefault(name.removeprefix("baraquant::"), [])
            parts += [bits(t) for t in tensors]
        return result


def case_digest(case: Case, device: str, private: PrivateOps | None = None) -> str:
    """The digest of a case's results; `private` notes what it turns into."""
    with private or nullcontext():
        results = tuple(case.run(device))
    return digest(map(bits, results))


def hashes_of(cases: Iterable[Case], device: str, with_private: bool = True) -> Hashes:
    """The hashes of whole groups on a device.

    What the private ops give belongs to a device, as which of them an op calls, and the order of
    the bits in a mask, are its own affair. Modules run without their notes, as the mode that takes
    them turns off the short way of `baraquant.ops` to a kernel.
    """
    parts: dict[tuple[str, str], list[bytes]] = {}
    for case in cases:
        private = PrivateOps() if with_private and case.has_private else None
        where = device if case.of_device else EVERYWHERE
        found = case_digest(case, device, private)
        parts.setdefault((where, case.group), []).append(found.encode())
        for name, results in (private.results if private else {}).items():
            parts.setdefault((device, f"{name} in {case.group}"), []).append(
                digest(results).encode()
            )
    made: Hashes = {EVERYWHERE: {}, device: {}}
    for (where, title), group in parts.items():
        made[where][title] = digest(group)
    return made


def differences(found: Hashes, expected: Hashes) -> list[str]:
    """The groups of `found` whose hash is another one, or not in the file.

    A device of which the file holds nothing is not compared.
    """
    return [
        f"{title} ({where})"
        for where, groups in found.items()
        if where in expected
        for title, hashed in groups.items()
        if expected[where].get(title) != hashed
    ]


def cases_that_differ(cases: Iterable[Case], titles: Iterable[str], device: str) -> list[str]:
    """What to look at: on a GPU the cases that differ from this CPU, else all cases."""
    groups = {title.split(" in ", 1)[-1].rsplit(" (", 1)[0] for title in titles}
    own = [case for case in cases if case.group in groups]
    if device != "cpu":
        own = [c for c in own if case_digest(c, device) != case_digest(c, "cpu")]
    return [f"{case.group}: {case.name}" for case in own]


def stored() -> Hashes:
    """What the file holds."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def store(hashes: Hashes) -> None:
    """Write the file, one line for each group."""
    ordered = {where: dict(sorted(hashes[where].items())) for where in sorted(hashes)}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n")
