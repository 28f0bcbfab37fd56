# SPDX-License-Identifier: BSD-3-Clause
"""The fused family's benchmark runs, and its peers compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import bench_fused
from benchmarks.bench_row import Target
from benchmarks.tests.whole_runs import files_in, written


@pytest.mark.parametrize("name", bench_fused.OPS)
def test_peers_compute_the_same(name: str) -> None:
    """But for a step, as the last bits of the peers' results differ."""
    op = bench_fused.OPS[name]
    random = torch.Generator().manual_seed(0)
    x, r, w = (torch.randn(16, 512, generator=random) for _ in range(3))
    q, scale, _, *rest = op.own(x, r, w[0])
    for peer in (op.float_op, op.peer):
        if peer is None:
            continue
        (peer_q, peer_scale, _), result = bench_fused.then_quantized(peer)(x, r, w[0])
        torch.testing.assert_close(peer_scale, scale, rtol=1e-5, atol=0)
        assert (peer_q.int() - q.int()).abs().max() <= 1
        if rest:
            assert torch.equal(result[1], rest[0])
    assert (op.writes == 1) == bool(rest)


def run(folder: Path, *options: str) -> list:
    return bench_fused.main([*options, "--quick", "--sizes", "8x512", "2x1024", *files_in(folder)])


def check(rows: list) -> None:
    assert not [(r.op, r.case, r.error) for r in rows if r.error]
    assert not [(r.op, r.case, r.peer_errors) for r in rows if r.peer_errors]
    assert {r.op for r in rows} == {f"{name}_quantize" for name in bench_fused.OPS}
    assert all(r.seconds > 0 and r.speedups[bench_fused.PARTS] > 0 for r in rows)


@pytest.mark.exhaustive
def test_runs_whole(tmp_path: Path) -> None:
    rows = run(tmp_path, "--device=cpu", "--threads=1")
    check(rows)
    assert {r.what for r in rows} == set(bench_fused.WHATS)
    norm = next(r for r in rows if r.op == "rms_norm_quantize")
    assert norm.targets == [Target(bench_fused.PEER, 1.0)]
    written(tmp_path, "fused", rows)


def test_runs_on_cuda(cuda: str, tmp_path: Path) -> None:
    check(run(tmp_path, "--device", cuda))
