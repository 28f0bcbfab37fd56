# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of four-bit weights: it runs whole, and compares layers of the same weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import bench_int4
from benchmarks.bench_int4 import INT4, INT8, OWN, WEIGHT_ONLY, Layers, target_of
from benchmarks.bench_row import Target
from benchmarks.tests.whole_runs import files_in, written

CPU = torch.device("cpu")


def test_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_int4, "COPIED", {"cpu": [16, 16]})
    monkeypatch.setattr(bench_int4, "rotation_for", lambda _: 2)
    sizes = ["--sizes", "16x64", "--rows", "1", "32", "--groups", "32", "64"]
    rows = bench_int4.main(["--device=cpu", "--quick", *sizes, *files_in(tmp_path)])
    assert [row.case for row in rows] == ["groups of 32", "groups of 64"] * 4
    assert [row.op for row in rows] == [INT4] * 4 + [WEIGHT_ONLY] * 4
    assert not [row.error for row in rows if row.error]
    assert all(row.seconds and set(row.peers) == {"float32 linear", INT8} for row in rows)
    assert all(None not in row.reached for row in rows)
    written(tmp_path, "int4", rows)


def test_all_compute_the_same_layer() -> None:
    torch.manual_seed(0)
    layers = Layers(CPU, torch.float32, (64, 256))
    calls = layers.calls(INT4, 8, 32)
    own, floating, int8 = (calls[name](0) for name in (OWN, "float32 linear", INT8))
    weight_only = layers.own(WEIGHT_ONLY, torch.eye(256), 32)(0).T
    for found, right, most in (
        *((own, floating, 0.15), (int8, floating, 0.02)),
        (weight_only, layers.floats[0], 0.15),
    ):
        assert (found - right).norm() < most * right.norm()


def test_targets() -> None:
    small, large, half = (4096, 4096), (8192, 8192), torch.bfloat16
    assert target_of(INT4, "cpu", 1, small, torch.float32) == Target("float32 linear", 6.0)
    assert target_of(INT4, "cpu", 4, small, torch.float32) is None
    assert target_of(INT4, "cpu", 128, small, torch.float32) == Target(INT8, 0.9)
    assert target_of(INT4, "cuda", 1, small, half) == Target("bfloat16 linear", 2.9)
    assert target_of(INT4, "cuda", 1, large, half) == Target("bfloat16 linear", 3.2)
    assert target_of(INT4, "cuda", 16, large, half) == Target("bfloat16 linear", 2.5)
    assert target_of(INT4, "cuda", 512, large, half) == Target(INT8, 0.95)
    assert target_of(WEIGHT_ONLY, "cpu", 1, small, torch.float32) == Target("float32 linear", 3.0)
    assert target_of(WEIGHT_ONLY, "cpu", 32, small, torch.float32) == Target("float32 linear", 0.9)
    assert target_of(WEIGHT_ONLY, "cpu", 128, small, torch.float32) is None
    assert target_of(WEIGHT_ONLY, "cuda", 4096, small, half) == Target("bfloat16 linear", 0.95)


def test_sizes() -> None:
    assert bench_int4.parse_weight("28672x4096") == (28672, 4096)
    with pytest.raises(SystemExit):
        bench_int4.main(["--device=cpu", "--sizes", "28672"])
