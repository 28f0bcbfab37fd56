# SPDX-License-Identifier: BSD-3-Clause
"""The range family's benchmark runs, its peers compute the same, and its bytes are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from baraquant import ops
from benchmarks import bench_range, range_rows
from benchmarks.bench import Compiler, Timer
from benchmarks.bench_row import Case, Target, Within
from benchmarks.pytorch_chains import AVERAGING_CONSTANT, QUANT_MAX, QUANT_MIN, Chain
from benchmarks.tests.whole_runs import files_in, written

SHAPE = (16, 1024)
GRANULARITIES = list(bench_range.GRANULARITIES.values())
chains = pytest.mark.parametrize(
    "chain",
    [Chain(g, symmetric) for g in GRANULARITIES for symmetric in (True, False)],
    ids=lambda chain: f"{chain.granularity}-{chain.symmetric}",
)


def values(dtype: torch.dtype) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@chains
def test_peers_compute_the_same(chain: Chain, dtype: torch.dtype) -> None:
    """But for ties, as the last bit of a scale may differ: only special values are left out."""
    x = values(dtype)
    args = (*chain.granularity.args, QUANT_MIN, QUANT_MAX)
    kwargs = {"symmetric": chain.symmetric}
    q, scale, zero_point = chain.granularity.op("dynamic_range_quantize", ops)(x, *args, **kwargs)
    peer_q, peer_scale, peer_zero_point = chain.quantize(x)
    torch.testing.assert_close(peer_scale.view(-1), scale.view(-1), rtol=3e-7, atol=0)
    assert ((peer_q.int() - q.int()).abs() > 0).float().mean() < 1e-3  # by a scale's last bit
    assert (peer_q.int() - q.int()).abs().max() <= 1
    if peer_zero_point is not None:
        assert torch.equal(peer_zero_point.view(-1), zero_point.view(-1))
    _, chosen_zero_point = chain.choose_qparams(x)
    assert torch.equal(chosen_zero_point.view(-1), zero_point.view(-1))
    y = chain.granularity.op("dynamic_fake_quantize", ops)(x, *args, **kwargs)
    leaf = x.clone().requires_grad_()
    peer_y = chain.straight_through(leaf)
    steps = (peer_y.double() - y.double()).abs() / scale.max()
    assert steps.max() < 1.01
    assert (steps > 1e-2).double().mean() < 1e-3
    assert torch.equal(chain.fake_quantize(x), peer_y)
    own = x.clone().requires_grad_()
    grad = torch.ones_like(x)
    (expected,) = torch.autograd.grad(
        chain.granularity.op("dynamic_fake_quantize", ops)(own, *args, **kwargs), own, grad
    )
    assert torch.equal(torch.autograd.grad(peer_y, leaf, grad)[0], expected)


@pytest.mark.parametrize("axis", [None, 0])
def test_observing_peers_compute_the_same(axis: int | None) -> None:
    granularity = bench_range.GRANULARITIES["tensor" if axis is None else "channel0"]
    chain, x = Chain(granularity, symmetric=True), values(torch.float32)
    shape = [1] if axis is None else [SHAPE[0]]
    own = [torch.full(shape, v) for v in (-1.0, 1.0, 1.0)] + [torch.zeros(shape).int()]
    on = torch.ones(1, dtype=torch.uint8)
    y = ops.observe_fake_quantize(
        x, *own, on, on, axis, QUANT_MIN, QUANT_MAX, averaging_constant=AVERAGING_CONSTANT
    )
    kept = [] if axis is None else [SHAPE[0], 1]
    state = [torch.full(kept, v) for v in (-1.0, 1.0, 1.0, 0.0)]
    torch.testing.assert_close(chain.observe_fake_quantize(x, *state), y, rtol=1e-5, atol=1e-5)
    for peer, mine in zip(state[:3], own[:3], strict=True):
        torch.testing.assert_close(peer.view(-1), mine.view(-1), rtol=1e-6, atol=0)


def run(folder: Path, *options: str) -> list:
    return bench_range.main([*options, "--sizes", "8x512", "2x1024", *files_in(folder)])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory):
    """A whole run with tiny sizes: its rows, and the folder with what it wrote."""
    folder = tmp_path_factory.mktemp("bench")
    every = ("--modes", "symmetric", "asymmetric", "--dtypes", "float32", "bfloat16")
    return run(folder, "--device=cpu", "--quick", "--threads=1", *every), folder


def check(rows: list) -> None:
    assert not [(r.op, r.case, r.error) for r in rows if r.error]
    assert not [(r.op, r.case, r.peer_errors) for r in rows if r.peer_errors]
    assert {r.what for r in rows} == {
        *("token", "decode", "segments", "choose", "forward", "forward + backward", "observe")
    }
    assert {r.op for r in rows} == {
        *("dynamic_range_quantize", "choose_qparams", "dynamic_fake_quantize"),
        *("observe_min_max_", "observe_fake_quantize"),
    }
    assert all(r.seconds is not None and r.seconds > 0 for r in rows)
    assert all(r.speedups["PyTorch"] > 0 for r in rows)
    assert all("fused_moving_avg_obs_fake_quant" in r.speedups for r in rows
               if r.what == "observe" and r.dtype == "float32")  # fmt: skip


@pytest.mark.exhaustive
def test_runs_whole(report) -> None:
    rows, folder = report
    check(rows)
    written(folder, "range", rows)
    keys = [(r.what, r.op, r.case, r.dtype, *r.shape) for r in rows]
    assert len(set(keys)) == len(keys)
    assert len({r.case for r in rows if r.what in ("token", "segments")}) == 10
    for r in rows:
        assert r.targets == list(range_rows.CPU_TARGETS)
        assert r.met == [r.speedups["PyTorch"] >= 2, None]  # quick compiles nothing


def test_runs_on_cuda(cuda: str, tmp_path: Path) -> None:
    rows = run(tmp_path, "--device", cuda, "--quick")
    check(rows)
    decode = [r for r in rows if r.what == "decode"]
    assert all(0 < r.launch < r.bound for r in decode)
    assert {type(t) for r in decode for t in r.targets} == {Within}


@pytest.mark.inductor
@pytest.mark.exhaustive
def test_compiled_peers_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that compiles nothing: the real one takes seconds for each row."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    small = ["--device=cpu", "--sizes", "4x512", "--dtypes", "float32", "--threads", "1"]
    rows = bench_range.main([*small, "--granularities", "tensor"])
    assert all(r.speedups["torch.compile"] > 0 and None not in r.met for r in rows)


@pytest.mark.inductor
def test_chains_compile() -> None:
    chain = Chain(bench_range.GRANULARITIES["token"], symmetric=False)
    x = values(torch.bfloat16)
    compiled = Compiler(600)(chain.quantize)
    assert compiled is not None
    torch.testing.assert_close(compiled(x)[0].int(), chain.quantize(x)[0].int(), rtol=0, atol=1)


@pytest.mark.exhaustive
def test_counts_the_bytes_that_must_move(report) -> None:
    """Per element: what is read, written, and the share of scales and zero points."""
    rows, _ = report
    moved = {
        (r.what, r.op, r.case): r.gbps * 1e9 * r.seconds / 4096
        for r in rows
        if r.dtype == "bfloat16" and r.shape == [8, 512]
    }
    row, group, channel1 = 8 / 512, 8 / 128, 8 / 8
    tensor = 8 / 4096
    quantize = ("segments", "dynamic_range_quantize")
    fake = "dynamic_fake_quantize"
    expected = {
        ("token", quantize[1], "per_token, symmetric"): 3 + row,
        ("decode", quantize[1], "per_token, asymmetric"): 3 + row,
        (*quantize, "per_group(128,-1), symmetric"): 3 + group,
        (*quantize, "per_tensor, symmetric"): 5 + tensor,
        (*quantize, "per_channel(0), symmetric"): 5 + row,
        (*quantize, "per_channel(1), asymmetric"): 5 + channel1,
        ("choose", "choose_qparams", "per_token, symmetric"): 2 + row,
        ("choose", "choose_qparams", "per_tensor, symmetric"): 2 + tensor,
        ("forward", fake, "per_token, asymmetric"): 4,
        ("forward", fake, "per_tensor, symmetric"): 6,
        ("forward + backward", fake, "per_token, symmetric"): 4,
        ("forward + backward", fake, "per_token, asymmetric"): 8.25,
        ("observe", "observe_min_max_", "per_tensor, symmetric"): 2,
        ("observe", "observe_fake_quantize", "per_channel(0), symmetric"): 6,
    }
    assert {key: moved[key] for key in expected} == pytest.approx(expected, rel=1e-6)


def test_targets_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 64 MiB and more; the case is a made-up one, as nothing runs."""
    monkeypatch.setattr(Case, "__post_init__", lambda self: None)
    asked = {}
    monkeypatch.setattr(
        range_rows.Bench, "measure", lambda self, row, *_: asked.update({row.what: row}) or row
    )
    for length, granularity, expected in (
        (4096, "token", [Target("copy", 0.92), Target("torch.compile", 2.5)]),
        (5120, "token", [Target("copy", 0.92)]),
        (4096, "group128", [Target("copy", 0.92)]),
        (4096, "tensor", [Target("copy", 0.9)]),
        (4096, "channel1", [Target("copy", 0.9)]),
    ):
        case = Case(torch.device("cuda"), torch.bfloat16, [65536, length])
        case.numel, case.itemsize, case.nbytes = 65536 * length, 2, 131072 * length
        chain = Chain(bench_range.GRANULARITIES[granularity], symmetric=True)
        bench = range_rows.Bench(case, chain, Timer(torch.device("cpu")), None)
        list(range_rows.bench_quantize(bench, "token"))
        assert asked["token"].targets == expected


@pytest.mark.parametrize(
    ("size", "shapes"),
    [
        ("3x512", [[3, 512]]),
        ("64KiB", [[64, 512], [8, 4096], [6, 5120], [2, 14336], [1, 65536]]),
        ("17", [[1, length] for length in bench_range.LENGTHS]),
    ],
)
def test_shapes_of_a_size(size: str, shapes: list[list[int]]) -> None:
    assert bench_range.shapes_of(size, torch.bfloat16) == shapes
