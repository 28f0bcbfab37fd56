# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of quantizing a whole model runs, and counts what it stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_packing


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_packing.model_of, "__defaults__", (128, 256))
    path = tmp_path / "packing.json"
    rows = bench_packing.main(["--device", "cpu", "--parameters", "2e5", "--json", str(path)])
    report = json.loads(path.read_text())
    assert report["rows"] == rows and report["environment"]["torch"]
    assert [row["scheme"] for row in rows] == list(bench_packing.SCHEMES)
    for row in rows:
        assert row["parameters"] >= 2e5
        assert row["again_seconds"] > 0 and row["first_seconds"] > 0
    each = [row["bytes"] / row["parameters"] for row in rows]
    assert each[0] >= 1 and all(0.5 <= half < 0.6 for half in each[1:])


def test_all_layers_are_quantized() -> None:
    model = bench_packing.model_of(1e5, torch.device("cpu"), width=128, hidden=256)
    _, converted = bench_packing.seconds_of(model, bench_packing.SCHEMES["W4A16(128)"]())
    (layer,) = converted.children()
    assert {type(m).__name__ for m in layer.children()} == {"WeightOnlyInt4Linear"}
