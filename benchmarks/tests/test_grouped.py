# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of the grouped products: it runs whole, and its groups hold every token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import bench_grouped
from benchmarks.bench_grouped import GROUPED_MM, SHARES, Experts, ends_of
from benchmarks.tests.whole_runs import files_in, written

CPU = torch.device("cpu")


def test_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_grouped, "COPIED", {"cpu": [16, 16]})
    rows = bench_grouped.main(
        ["--device=cpu", "--quick", "--sizes", "2x16x32", "--rows", "3", *files_in(tmp_path)]
    )
    assert [(row.what, row.case) for row in rows] == [
        (what, share) for what in bench_grouped.WHAT for share in SHARES
    ]
    assert not [row.error for row in rows if row.error]
    assert all(row.seconds and row.tops and row.shape == [3, 2, 16, 32] for row in rows)
    written(tmp_path, "grouped", rows)


@pytest.mark.parametrize("share", SHARES)
def test_the_groups_hold_every_row(share: str) -> None:
    for rows, groups in ((4096, 8), (17, 3), (1, 5)):
        ends = ends_of(rows, groups, share, CPU)
        assert ends.dtype == torch.int32 and ends.shape == (groups,)
        assert int(ends[-1]) == rows and bool((ends.diff() >= 0).all())


def test_both_compute_the_same_groups() -> None:
    """With weights of integers as floats, which both hold exactly."""
    experts = Experts(CPU, torch.float32, (2, 16, 32))
    experts.floats = experts.integers.float() * experts.scale.unsqueeze(2)
    torch.manual_seed(0)
    calls = experts.calls("whole", 8, ends_of(8, 2, "even", CPU))
    own, peer = (calls[name](0) for name in (bench_grouped.OWN, GROUPED_MM))
    torch.testing.assert_close(own, peer, rtol=0.05, atol=0.5 * peer.std().item())


def test_sizes() -> None:
    assert bench_grouped.parse_weights("8x14336x4096") == (8, 14336, 4096)
    with pytest.raises(SystemExit):
        bench_grouped.main(["--device=cpu", "--sizes", "8x14336"])
