# SPDX-License-Identifier: BSD-3-Clause
"""A served model comes back from its file, whatever model it is loaded into."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from tests.support.models.every_layer import same


def assert_stored(model: Any, build: Callable[[], nn.Module], x: Tensor, path: Path) -> list[Any]:
    """Save a model; load it into a built one, a function and an empty one, and return these."""
    expected = model(x)
    baraquant.save(model, path)
    with torch.device("meta"):
        empty = build()
    found = [baraquant.load_(fresh, path).eval() for fresh in (build(), build, empty)]
    for loaded in found:
        assert torch.equal(loaded(x), expected) and same(loaded, model)
        assert not any(t.is_meta for t in (*loaded.parameters(), *loaded.buffers()))
    return found
