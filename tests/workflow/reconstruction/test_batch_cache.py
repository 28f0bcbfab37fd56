# SPDX-License-Identifier: BSD-3-Clause
"""What is kept of batches: its bits, and the memory that it takes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from baraquant import W4A16
from baraquant.workflow.reconstruction import reconstruct
from baraquant.workflow.reconstruction.batch_cache import BatchCache, Batches
from tests.workflow.reconstruction.models import made, reconstructed


class Keys:
    """An object that a call changes, such as a cache of keys."""

    def __init__(self) -> None:
        self.values = [torch.ones(3)]


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_value_comes_back_as_it_was(limit: int, tmp_path: Path) -> None:
    cache, keys = BatchCache(limit, tmp_path), Keys()
    mask, base = torch.ones(1, 4).expand(3, 4), torch.arange(12.0).reshape(3, 4).t()
    item = cache.put({"a": [base, mask, 3], "b": keys, "c": torch.nan})
    keys.values.clear()
    base += 1
    for _ in range(2):
        got = cache.get(item)
        assert torch.equal(got["a"][0], base - 1) and got["a"][0].stride() == base.stride()
        assert torch.equal(got["a"][1], mask) and got["a"][1].stride() == mask.stride()
        assert got["a"][2] == 3 and len(got["b"].values) == 1
        got["a"][0].zero_()
        got["b"].values.clear()
    assert cache.held == 0 if limit == 0 else 0 < cache.held == cache.peak
    cache.drop(item)
    assert cache.held == 0 and not list(tmp_path.iterdir())


def test_batches_are_gone_through_once(tmp_path: Path) -> None:
    batches = Batches(BatchCache(20, tmp_path), ({"x": torch.full((4,), i)} for i in range(3)))
    for _ in range(2):
        assert [int(one["x"][0]) for one in batches] == [0, 1, 2] and len(batches) == 3


@pytest.mark.parametrize("name", ["mlp", "llama"])
def test_the_memory_does_not_grow_with_the_batches(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[BatchCache] = []

    class Seen(BatchCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            caches.append(self)

    monkeypatch.setattr(reconstruct, "BatchCache", Seen)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    limit, reports = 1 << 15, []
    for count, bound in ((4, limit), (16, limit), (16, 1 << 30)):
        model, batches = made(name, count)
        reports.append(reconstructed(model, W4A16(16), batches, cache_bytes=bound)[1])
    assert all(cache.peak <= limit for cache in caches[:2]) and caches[2].peak > limit
    assert reports[1].errors == reports[2].errors  # wherever the values were
    assert not list(tmp_path.glob("baraquant-*"))
