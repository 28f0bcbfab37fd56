# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of calls from C++: it builds its program, and runs whole."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks import bench_cpp_calls

CASES = ("per_tensor, numbers", "per_tensor, tensors", "per_channel(0)")
MODES = ("no grad", "grad recorded", "forward + backward")


@pytest.mark.process
def test_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_cpp_calls, "PROGRAM", tmp_path / "build" / "cpp_calls")
    files = [f"--{name}={tmp_path / '{family}'}.{name}" for name in ("json", "markdown")]
    rows = bench_cpp_calls.main(["--device=cpu", "--quick", *files])
    assert [row.case for row in rows] == [", ".join(pair) for pair in product(CASES, MODES)]
    assert not [row.error for row in rows if row.error]
    for row in rows:
        assert row.seconds
        assert row.peers.keys() == {"PyTorch", "at::clamp"}
        assert row.speedups["PyTorch"] == row.peers["PyTorch"] / row.seconds
        assert len(row.met) == 1 and row.met[0] is not None
    written = json.loads((tmp_path / "cpp_calls.json").read_text())
    assert len(written["rows"]) == 9 and (tmp_path / "cpp_calls.markdown").exists()


def test_lines_of_the_program() -> None:
    printed = "a\tno grad\tbaraquant\t1e-6\na\tno grad\tPyTorch\t2.5e-06\nb\tboth\tPyTorch\t3e-6\n"
    assert bench_cpp_calls.measured(printed) == {
        ("a", "no grad"): {"baraquant": 1e-6, "PyTorch": 2.5e-6},
        ("b", "both"): {"PyTorch": 3e-6},
    }
