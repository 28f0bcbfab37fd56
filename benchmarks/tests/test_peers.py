# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of served layers runs whole, and a peer that is missing or fails is shown."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from benchmarks import bench_peers, peers
from benchmarks.bench_peers import targets_of
from benchmarks.bench_row import AtMost, Row, Target
from benchmarks.peers import PACKAGES, OfRows, schemes
from benchmarks.tests.whole_runs import files_in, written

CPU, FLOAT = torch.device("cpu"), "float32 linear"
OWN = ["W8A8", "W4A8", "W4A16", "W8A16"]
COMMAND = ["--device=cpu", "--quick", "--sizes", "128x256", "--rows", "1", "3"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tensors, and no package of others, whatever is installed."""
    monkeypatch.setattr(bench_peers, "COPIED", {"cpu": [16, 16], "cuda": [4096, 4096]})
    monkeypatch.setattr(bench_peers, "rotation_for", lambda _: 2)
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(peers, "missing", lambda package: package or "")
    monkeypatch.setattr(bench_peers, "missing", lambda package: package or "")


def test_runs_whole(tmp_path: Path) -> None:
    rows = bench_peers.main([*COMMAND, *files_in(tmp_path)])
    assert [row.op for row in rows] == [FLOAT, *OWN] * 2
    assert [row.shape for row in rows] == [[1, 128, 256]] * 5 + [[3, 128, 256]] * 5
    assert not [row.error for row in rows if row.error]
    for row in rows:
        also = {"W8A8"} if row.op == "W4A8" else set()
        assert row.peers.keys() == ({FLOAT, *also} if row.op != FLOAT else set())
        assert row.seconds > 0 and row.tops > 0 and not row.targets
    found, _ = written(tmp_path, "peers", rows)
    assert {found["environment"][package] for package in PACKAGES} == {"not installed"}


def test_a_peer_that_fails_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package can be found and not be imported, or raises; nothing else is hindered."""
    monkeypatch.setattr(bench_peers, "missing", lambda package: "")
    broken = ModuleType("humming.layer")
    for name, module in (("humming", ModuleType("humming")), ("humming.layer", broken)):
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)

    def refuse(**sizes: object) -> nn.Module:
        raise NotImplementedError("no kernel\nfor this layer")

    broken.HummingLayer = refuse  # type: ignore[attr-defined]
    names = ["W4A16", "humming W4A16", "gemlite W4A16"]
    rows = bench_peers.main([*COMMAND[:-1], "--schemes", *names])
    errors = {row.op: row.error for row in rows}
    assert list(errors) == [FLOAT, *names]
    assert errors[FLOAT] is None and errors["W4A16"] is None
    assert errors["humming W4A16"] == "NotImplementedError: no kernel for this layer"
    assert errors["gemlite W4A16"].startswith("ModuleNotFoundError")
    assert rows[1].peer_errors.keys() == {"humming", "gemlite"}


def test_compiled_layers_share_a_graph_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that compiles nothing."""
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled.append(f) or f)
    scheme = peers.Scheme("torchao W8A8", "W8A8", lambda model: None, "torchao", True)
    monkeypatch.setattr(bench_peers, "schemes", lambda name: [schemes(name)[0], scheme])
    monkeypatch.setattr(bench_peers, "missing", lambda package: "")
    rows = bench_peers.main(COMMAND)
    assert [row.error for row in rows] == [None] * 4 and len(compiled) == 2
    monkeypatch.setattr(bench_peers, "COMPILE_FOR", -1)
    rows = bench_peers.main(COMMAND)
    assert [row.error for row in rows][1::2] == ["not compiled: the time was used up"] * 2


@pytest.mark.parametrize(
    "scheme", [s for s in schemes(FLOAT) if not s.package], ids=lambda scheme: scheme.name
)
def test_all_compute_the_same_layer(scheme: peers.Scheme) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(256, 64, bias=False) for _ in range(2)]
    x = torch.randn(3, 256)
    right = [linear(x) for linear in linears]
    for layer, wanted in zip(scheme.layers(linears), right, strict=True):
        most = 0 if scheme.kind is None else 0.15 if scheme.kind[1] == "4" else 0.02
        assert (layer(x) - wanted).norm() <= most * wanted.norm()


def test_the_head_stays_floating() -> None:
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(256, 8)), "lm_head": nn.Linear(256, 8)})
    for scheme in schemes(FLOAT)[1:5]:
        scheme.quantize(model)
        assert type(model["lm_head"]) is nn.Linear
        assert type(model["body"][0]) is not nn.Linear
        model["body"] = nn.Sequential(nn.Linear(256, 8))
    peers.swap_linears(model, lambda linear: nn.Identity())
    assert type(model["lm_head"]) is nn.Linear and type(model["body"][0]) is nn.Identity


def test_targets() -> None:
    small, large, wide = bench_peers.SIZES

    def targets(kind: str, size: str, rows: int) -> list[object]:
        return targets_of(kind, size, rows, FLOAT)

    assert targets("W4A16", wide, 1) == [Target(FLOAT, 3.2)]
    assert targets("W4A16", small, 64) == [Target(FLOAT, 1.3)]
    assert targets("W8A16", large, 1) == [Target(FLOAT, 1.85)]
    assert targets("W8A16", large, 4096) == [Target(FLOAT, 0.95)]
    assert targets("W4A8", small, 64) == [Target(FLOAT, 1.3)]
    assert targets("W4A8", small, 1) == targets("W4A8", wide, 64) == targets("W8A8", wide, 1) == []
    assert targets("W4A8", large, 256) == [Target("W8A8", 0.95)]
    assert targets("W4A8", wide, 1) == [AtMost(25e-6)] and str(AtMost(25e-6)) == "≤ 25 µs"
    row = Row("whole", "W4A8", "layer", "bfloat16", [1], None, targets("W4A8", large, 1))
    assert row.fill({"W4A8": 15.5e-6}, "W4A8").met == [True]
    assert row.fill({"W4A8": 16e-6}, "W4A8").met == [False]


def test_runs_on_cuda(cuda: str) -> None:
    rows = bench_peers.main(["--device", cuda, *COMMAND[1:]])
    assert not [(row.op, row.error) for row in rows if row.error]


def test_a_layer_of_rows_takes_any_dimensions() -> None:
    linear, dimensions = nn.Linear(4, 5), []
    linear.register_forward_pre_hook(lambda _, given: dimensions.append(given[0].dim()))
    x = torch.randn(2, 3, 4)
    assert torch.equal(OfRows(linear)(x), nn.functional.linear(x, linear.weight, linear.bias))
    assert dimensions == [2]
