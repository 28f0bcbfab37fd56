# SPDX-License-Identifier: BSD-3-Clause
"""Imports torchvision, also beside a torch that its C++ library was not built for.

PyPI's torchvision is built for PyPI's torch, with CUDA. Beside a torch for CPUs its library cannot
be loaded; then even `import torchvision` fails, as the op `torchvision::nms` is not there. Here the
op is defined in plain PyTorch, where the library has not brought it.

Run as a program, by `make zoo`, it installs torchvision into a folder of its own, build/aside:
transformers looks for torchvision too, and would fail in all other tests, where nothing has defined
the op.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

ASIDE = Path(__file__).resolve().parents[2] / "build" / "aside"
# The ops that `import torchvision` asks for; it calls `nms` alone.
_OPS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def version(name: str = "torchvision") -> str | None:
    """The version that is installed, aside or in the environment; None: none."""
    found = importlib.metadata.distributions(name=name, path=[*sys.path, str(ASIDE)])
    return next((str(one.version) for one in found), None)


def minor_of(to_torch: str) -> int:
    """The torchvision of a torch: 0.26 of torch 2.11, ..., 0.29 of 2.14 and those after it."""
    return min(int(to_torch.split(".")[1]), 14) + 15


def belongs(found: str, to_torch: str) -> bool:
    """Whether a torchvision is one of a torch; 0.29.0 is of 2.14 alone."""
    minor, patch = (int(number) for number in re.findall(r"\d+", found)[1:3])
    return minor == minor_of(to_torch) and (patch > 0 or int(to_torch.split(".")[1]) < 15)


def missing() -> str | None:
    """Why torchvision cannot be used here; None where it can."""
    found = version()
    if found is None:
        return "torchvision is not installed"
    if not belongs(found, torch.__version__):
        return f"torchvision {found} is not the one of torch {torch.__version__}"
    return None


def fetch() -> None:
    """Installs the torchvision of this torch into ASIDE, if there is none and it can be had."""
    if missing() is None:
        return
    options = ["--no-deps", "--upgrade", "--target", str(ASIDE)]
    command = [sys.executable, "-m", "pip", "install", *options]
    subprocess.run([*command, f"torchvision==0.{minor_of(torch.__version__)}.*"], check=False)


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
    importlib.import_module("torchvision.ops.poolers").roi_align = roi_align


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The positions of the boxes that overlap no box of a higher score by more than a threshold.

    Boxes are `[n, 4]`: left, top, right, bottom. The result has the highest score first.
    """
    order = scores.argsort(descending=True, stable=True)
    corners = boxes[order].float()
    areas = (corners[:, 2:] - corners[:, :2]).prod(-1)
    low = torch.maximum(corners[:, None, :2], corners[None, :, :2])
    high = torch.minimum(corners[:, None, 2:], corners[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    overlaps = (common > iou_threshold * (areas[:, None] + areas - common)).tolist()
    kept: list[int] = []
    for position, row in enumerate(overlaps):
        if not any(row[earlier] for earlier in kept):
            kept.append(position)
    return order[kept]


def roi_align(
    input: Tensor, boxes: Tensor, output_size: list[int], spatial_scale: float, sampling_ratio: int
) -> Tensor:
    """The means of bilinear samples within boxes.

    torchvision's own form in Python adds in an order that depends on what ran before it in the
    process. Beyond the border this one repeats it, where the library's has zeros. A row of `boxes`
    has the image's position, left, top, right, bottom. Returns `[k, channels, *output_size]`.
    """
    low, high = (boxes[:, 1:].float() * spatial_scale).split(2, dim=1)
    size = (high - low).clamp(min=1.0)
    positions = []
    for side in (0, 1):  # x, y
        count = output_size[1 - side] * sampling_ratio
        steps = (torch.arange(count, device=boxes.device) + 0.5) / count
        place = low[:, side, None] + size[:, side, None] * steps
        positions.append(2 * place / (input.shape[3 - side] - 1) - 1)
    x, y = positions
    shape = (len(boxes), y.shape[1], x.shape[1])
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=-1)
    samples = torch.nn.functional.grid_sample(
        input[boxes[:, 0].long()], grid.to(input.dtype), padding_mode="border", align_corners=True
    )
    return torch.nn.functional.avg_pool2d(samples, sampling_ratio)


if __name__ == "__main__":
    fetch()
