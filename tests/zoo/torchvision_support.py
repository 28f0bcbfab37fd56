# SPDX-License-Identifier: BSD-3-Clause
"""Imports torchvision, also beside a torch that its C++ library was not built for.

PyPI's torchvision is built for PyPI's torch, with CUDA. Beside a torch for CPUs its library cannot
be loaded; then even `import torchvision` fails, as the op `torchvision::nms` is not there. Here the
op is defined in plain PyTorch, where the library has not brought it.

`make zoo` installs torchvision into a folder of its own, build/aside: transformers looks for
torchvision too, and would fail in all other tests, where nothing has defined the op.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor

ASIDE = Path(__file__).resolve().parents[2] / "build" / "aside"
# The ops that `import torchvision` asks for; it calls `nms` alone.
_OPS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def version() -> str | None:
    """The version that is installed, aside or in the environment; None: none."""
    places = [*sys.path, str(ASIDE)]
    found = importlib.metadata.distributions(name="torchvision", path=places)
    return next((str(one.version) for one in found), None)


def missing() -> str | None:
    """Why torchvision cannot be used here; None where it can."""
    found, torch_minor = version(), torch.__version__.split(".")[1]
    if found is None:
        return "torchvision is not installed"
    if int(found.split(".")[1]) != int(torch_minor) + 15:
        return f"torchvision {found} is not the one of torch {torch.__version__}"
    return None


def install() -> None:
    """Makes `import torchvision` work in this process; does nothing where it is not installed."""
    if missing() is not None or "torchvision" in sys.modules:
        return
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(str(ASIDE))
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None and spec.origin is not None
    for library in Path(spec.origin).parent.glob("_C*.so"):
        with contextlib.suppress(OSError):
            torch.ops.load_library(str(library))
    if hasattr(torch.ops.torchvision, "nms"):
        return
    for op in _OPS:
        torch.library.define(f"torchvision::{op}", _SCHEMA)
        torch.library.impl(f"torchvision::{op}", "default")(nms)
    boxes = importlib.import_module("torchvision.ops.boxes")
    boxes._assert_has_ops = lambda: None  # it asks for the library, of which nms is all it needs


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The positions of the boxes that overlap no box of a higher score by more than a threshold.

    Args:
        boxes: `[n, 4]`: left, top, right, bottom.
        scores: `[n]`.
        iou_threshold: The least share of the intersection in the union that removes a box.

    Returns:
        int64 `[kept]`, the highest score first.
    """
    order = scores.argsort(descending=True, stable=True)
    corners, areas = boxes[order].float(), _area(boxes[order].float())
    low = torch.maximum(corners[:, None, :2], corners[None, :, :2])
    high = torch.minimum(corners[:, None, 2:], corners[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    overlaps = (common > iou_threshold * (areas[:, None] + areas - common)).tolist()
    kept: list[int] = []
    for position, row in enumerate(overlaps):
        if not any(row[earlier] for earlier in kept):
            kept.append(position)
    return order[kept]


def _area(corners: Tensor) -> Tensor:
    return (corners[:, 2:] - corners[:, :2]).prod(-1)
