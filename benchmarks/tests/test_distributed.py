# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of models on several processes runs, and its rows say what is promised."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_distributed
from tests.support.ranks import results_of, spawn

PARTS = ("product", "fsdp", "fsdp_compiled", "serve", "train")


def compute(rank: int) -> dict[str, Any]:
    """What each process does."""
    arguments = ["--rounds", "1", "--json", os.environ["BENCH_JSON"]]
    return {"rows": json.dumps(bench_distributed.main(arguments))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    os.environ["BENCH_JSON"] = str(folder / "found.json")
    try:
        spawn(folder, compute)
    finally:
        del os.environ["BENCH_JSON"]
    return folder


@pytest.mark.process
def test_it_runs(folder: Path) -> None:
    report = json.loads((folder / "found.json").read_text())
    assert report["environment"]["processes"] == 2
    for result in results_of(folder):
        found = json.loads(result["rows"])
        assert [r["variant"] for r in found] == [r["variant"] for r in report["rows"]]
        assert {r["part"] for r in found} == {*PARTS}
        assert all(r["seconds"] > 0 for r in found)


@pytest.mark.process
def test_bits_are_those_of_the_twin(folder: Path) -> None:
    rows = json.loads((folder / "found.json").read_text())["rows"]
    compared = [row for row in rows if row["same_bits"] is not None]
    counts = {part: sum(row["part"] == part for row in compared) for part in PARTS}
    assert counts == {"product": 1, "fsdp": 4, "fsdp_compiled": 4, "serve": 1, "train": 1}
    assert all(row["same_bits"] for row in compared)


@pytest.mark.process
def test_bytes_are_counted(folder: Path) -> None:
    """Weights are gathered twice, integers with a scale for each row; outputs are sums."""
    rows = json.loads((folder / "found.json").read_text())["rows"]
    sizes = bench_distributed.CPU
    numbers = 2 * sizes.blocks * sizes.block_width * sizes.block_hidden
    scales = 4 * sizes.blocks * (sizes.block_width + sizes.block_hidden)
    bits16, int8, int4 = 2 * numbers, numbers + scales, numbers // 2 + scales + numbers // 128
    expected = [bits16, *[bits16, int8] * 2, *[bits16, int4] * 2]
    for part in ("fsdp", "fsdp_compiled"):
        gathered = [row["gathered"] for row in rows if row["part"] == part]
        assert gathered == [2 * count for count in expected]
    sums = {row["variant"]: row["summed"] for row in rows if row["part"] == "serve"}
    of_float = 16 * sizes.width * 2
    ours = {name.rpartition(", ")[2]: count for name, count in sums.items() if "2 pro" in name}
    assert sums["bfloat16, one process"] == sums["W8A8, one process"] == 0
    assert sums["bfloat16, 2 processes"] == of_float
    assert ours["exact"] - ours["bfloat16"] == of_float  # int32 is twice as wide
