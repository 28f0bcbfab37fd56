# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of memory runs, and counts what stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_memory


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_memory, "VOCABULARY", 64)
    path = tmp_path / "memory.json"
    small = ["--device", "cpu", "--layers", "2", "--width", "256"]
    rows = bench_memory.main([*small, "--json", str(path)])
    report = json.loads(path.read_text())
    assert report["rows"] == rows and report["environment"]["torch"]
    assert [row["scheme"] for row in rows] == list(bench_memory.SCHEMES)
    weights = 2 * 256 * 256 * (2 + 2 / 4 + 3 * 7 / 2)
    floating = 2 * 256 * (2 * 64 + 5)
    for row in rows:
        assert row["float_bytes"] == 2 * weights + floating
        bits = 4 if row["scheme"].startswith("W4") else 8
        assert bits / 8 * weights < row["model_bytes"] - floating < (bits / 8 + 0.1) * weights
        assert row["peak_bytes"] is None and row["bytes_after"] is None
    assert torch.get_default_dtype() == torch.float32
