# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of convolutions: it runs whole, and compares convolutions of the same weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import bench_int8_conv
from benchmarks.bench_int8_conv import LAST, OWN, Layer, calls, target_of
from benchmarks.bench_row import Target
from benchmarks.tests.whole_runs import files_in, written

CPU = torch.device("cpu")
FLOATS = "float32 conv2d"


def test_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"resnet18": (Layer(3, 4, 3, 2, 9),), "mobilenet_v2": (Layer(4, 4, 3, 1, 5, 4),)}
    monkeypatch.setattr(bench_int8_conv, "LAYERS", small)
    rows = bench_int8_conv.main(
        ["--device=cpu", "--quick", "--sizes", "1", "2", *files_in(tmp_path)]
    )
    assert [row.what for row in rows] == ["resnet18"] * 2 + ["mobilenet_v2"] * 2
    assert [row.case for row in rows[1:3]] == ["3x3 to 4, stride 2", "3x3 depthwise, stride 1"]
    assert not [row.error for row in rows if row.error]
    assert all(row.seconds and set(row.peers) == {FLOATS, f"{FLOATS} {LAST}"} for row in rows)
    assert all(None not in row.reached for row in rows)
    written(tmp_path, "int8_conv", rows)


@pytest.mark.parametrize("layer", [Layer(16, 24, 3, 2, 11), Layer(8, 8, 3, 1, 6, 8)], ids=str)
def test_all_compute_the_same_layer(layer: Layer) -> None:
    torch.manual_seed(0)
    found = calls(CPU, layer, 2)
    own, floating, last = (found[name](0) for name in (OWN, FLOATS, f"{FLOATS} {LAST}"))
    torch.testing.assert_close(last, floating)
    assert own.is_contiguous() and not torch.equal(own, floating)
    assert (own - floating).norm() < 0.02 * floating.norm()


def test_targets_and_operations() -> None:
    assert target_of("cpu", "resnet18") == Target(FLOATS, 1.5)
    assert target_of("cpu", "mobilenet_v2") is None and target_of("cuda", "resnet18") is None
    assert Layer(64, 64, 3, 1, 56).operations(2) == 2 * 2 * 56**2 * 64 * 64 * 9
    assert Layer(96, 96, 3, 2, 112, 96).operations(1) == 2 * 56**2 * 96 * 9
    with pytest.raises(SystemExit):
        bench_int8_conv.main(["--device=cpu", "--sizes", "8x8"])
