# SPDX-License-Identifier: BSD-3-Clause
"""What a process that has not made the models loads from their files."""

import functools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import baraquant
from tests.support.tiny_transformers import build as tiny
from tests.zoo.architecture import cast
from tests.zoo.cells import Cell
from tests.zoo.checks import described, expect_same, expect_same_merged


def load_back(cell: Cell, folder: Path, device: str) -> dict[str, str]:
    """Loads the files of a cell; returns the message of each way that failed."""
    failed: dict[str, str] = {}
    for kind in ("quantized", "converted"):
        file = folder / f"{cell}.{kind}.safetensors"
        if not file.exists():
            continue
        expected = torch.load(file.with_suffix(".expected"))
        for way in ("function", "meta"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    _load(cell, file, way, expected, device)
            except Exception as error:
                failed[f"loaded, {way}, {kind}"] = described(error)
        file.unlink()
        file.with_suffix(".expected").unlink()
    return failed


def expect_refused(target: Any, file: Path, message: str) -> None:
    """`load_` raises a ValueError with this in its message."""
    try:
        baraquant.load_(target, file)
    except ValueError as error:
        assert message in str(error), described(error)
    else:
        raise AssertionError(f"expected the error {message!r}, but the file was loaded")


def on_meta_unregistered(model: nn.Module) -> list[str]:
    """The attributes that are tensors on the meta device and neither parameters nor buffers.

    Nothing can fill them, so `load_` has to refuse the model. transformers 4 has such a second name
    of the rotary frequencies, which `model.to(dtype)` separates from the buffer.
    """
    registered = [*model.parameters(), *model.buffers()]
    return [
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
        and value.is_meta
        and not any(value is tensor for tensor in registered)
    ]


def _load(cell: Cell, file: Path, way: str, expected: list[torch.Tensor], device: str) -> None:
    row, dtype = cell.row, cell.torch_dtype
    target: Any = functools.partial(row.empty, 1, dtype)
    errors = [e for w, d, e in row.refused if w in ("*", way) and d in ("*", cell.dtype)]
    if way == "meta":
        with torch.device("meta"):
            target = target()
        lost = "expected a tensor with data, but it is on the"
        errors = [f"{name}: {lost}" for name in on_meta_unregistered(target)] + errors
    if errors:
        expect_refused(target, file, errors[0])
        return
    model = baraquant.load_(target, file).eval().to(device)
    inputs = cast(row.inputs(), dtype, device)

    def expect() -> None:
        expect_same([t.cpu() for t in tiny.outputs(model, inputs)], expected)

    expect()
    expect_same_merged(model, inputs, expect)
