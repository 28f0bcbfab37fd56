# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family's benchmark runs, its peers compute the same, and it counts right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from baraquant import ops
from benchmarks import bench_int8_mm, h200_sweep, int8_mm_layer, int8_mm_rows, pytorch_linears
from benchmarks.bench import Timer
from benchmarks.bench_row import AnyOf, Case, HoldsLess, Row, Target
from benchmarks.cpu_peak import PEAK, has_peak, peak_call
from benchmarks.int8_mm_layer import INT_MM, SWEEP, Bench, Weights
from benchmarks.pytorch_linears import IntMm
from benchmarks.tests.whole_runs import files_in, written

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
M, N, K = 5, 24, 33


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_int8_mm, "COPIED", {"cpu": [16, 16], "cuda": [4096, 4096]})


@pytest.fixture
def weights() -> Weights:
    torch.manual_seed(0)
    return Weights(CPU, torch.float32, N, K)


def close(actual: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    """Apart by at most that share of the largest value."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    assert (actual - expected).abs().max() <= share * expected.abs().max()


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_int_mm_computes_the_same(weights: Weights, device: torch.device) -> None:
    """Of CUDA only the padding is tried, which runs anywhere."""
    int_mm = IntMm(device, M, N, K)
    assert int_mm.shape == ((M, N, K) if device == CPU else (17, 24, 40))
    assert int_mm.note == ("" if device == CPU else "torch._int_mm padded to 17x24x40")
    w = weights.integers[0]
    padded = int_mm.pad_weight(w)
    x, scale = weights.random_integers(M), weights.random_scale(M, 1)
    own = ops.int8_linear(x, w, scale, weights.scale, dtype=torch.float32)
    close(int_mm.linear(x, padded, scale, weights.scale, torch.float32), own, 1e-6)
    x = weights.random(M)
    own = ops.quantized_linear(x, w, weights.scale)
    close(int_mm.quantized_linear(x, padded, weights.scale), own, 1e-2)  # a tie may differ


def test_int_mm_is_padded_no_more_than_needed() -> None:
    assert IntMm(CUDA, 17, 8, 16).shape == (17, 8, 16)
    assert IntMm(CUDA, 17, 8, 16).note == ""
    x = torch.zeros(17, 16)
    assert IntMm(CUDA, 17, 8, 16).pad_input(x) is x


def test_fake_quantized_linear_computes_the_same(weights: Weights) -> None:
    x, w = weights.random(M).requires_grad_(), weights.floats[0].requires_grad_()
    own, peer = ops.qat_linear(x, w), pytorch_linears.fake_quantized_linear(x, w)
    close(peer, own, 1e-2)
    grad = torch.randn_like(own)
    for a, b in zip(*(torch.autograd.grad(y, (x, w), grad) for y in (peer, own)), strict=True):
        close(a, b, 1e-2)


def test_float8_rows(weights: Weights) -> None:
    x = weights.random(M)
    q, scale = pytorch_linears.float8_rows(x)
    assert q.dtype == torch.float8_e4m3fn and scale.shape == (M, 1)
    close(q.float() * scale, x, 0.04)  # three bits of mantissa


def test_float8_linear(cuda: str) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 products need compute capability 8.9")
    x, w = (torch.randn(s, 256, device=cuda).bfloat16() for s in (16, 64))
    y = pytorch_linears.float8_linear(x, *pytorch_linears.float8_rows(w))
    close(y, F.linear(x, w), 0.1)


def test_dynamic_linear(weights: Weights) -> None:
    x, w = weights.random(M), weights.random(N)
    close(pytorch_linears.dynamic_linear(w)(x), F.linear(x, w), 0.05)


def test_held_bytes_leave_the_weight_out(weights: Weights) -> None:
    x, w = weights.random(M).requires_grad_(), weights.floats[0].requires_grad_()
    assert int8_mm_rows.held_bytes(F.linear, x, w) == x.nbytes
    fake = pytorch_linears.fake_quantized_linear
    assert int8_mm_rows.held_bytes(fake, x, w) == x.nbytes + w.nbytes
    assert 0 < int8_mm_rows.held_bytes(ops.qat_linear, x, w) < (x.nbytes + w.nbytes) / 2


def run(folder: Path, *options: str) -> list[Row]:
    return bench_int8_mm.main([*options, "--sizes", "16x64", "33x31", *files_in(folder)])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Row], Path]]:
    """A whole run with tiny sizes: its rows, and the folder with what it wrote."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_int8_mm, "COPIED", {"cpu": [16, 16]})
        rows = run(folder, "--device=cpu", "--quick", "--threads=1", "--rows", "1", "3", "130")
    yield rows, folder


def check(rows: list[Row], device: str = "cpu") -> None:
    assert not [(r.op, r.case, r.error) for r in rows if r.error]
    assert not [(r.op, r.case, r.peer_errors) for r in rows if r.peer_errors]
    measured = set(bench_int8_mm.BENCHES) - ({"cached"} if device == "cuda" else set())
    assert {r.what for r in rows} == measured
    assert {r.op for r in rows} == {
        *("int8_linear", "smoothquant_linear", "quantized_linear", "qat_linear")
    }
    assert all(r.seconds is not None and r.seconds > 0 for r in rows)
    keys = [(r.what, r.op, r.case, r.dtype, *r.shape) for r in rows]
    assert len(set(keys)) == len(keys)


@pytest.mark.exhaustive
def test_runs_whole(report: tuple[list[Row], Path]) -> None:
    rows, folder = report
    check(rows)
    assert "| TOPS | of bound |" in written(folder, "int8_mm", rows)[1]
    peers = {what: {n for r in rows if r.what == what for n in r.speedups} for what in
             bench_int8_mm.BENCHES}  # fmt: skip
    linear, peak = "float32 linear", {PEAK} if has_peak() else set()  # of 130 rows
    assert peers == {
        "linear": {INT_MM, "_int_mm + dequantize", linear, *peak},
        "cached": {INT_MM, "_int_mm + dequantize", linear, *peak},
        "whole": {"quantize + _int_mm + dequantize", linear, "quantize_dynamic", *peak},
        "behind": {"quantized_linear", linear},
        "training": {linear, "fake_quantize + linear"},
        "odd": {INT_MM, "_int_mm + dequantize", linear, "at 16x64", "at 48x32"},
        "variants": {"int8 per token"},
    }
    assert all(len(r.held) == 3 for r in rows if r.what == "training")
    for r in rows:
        assert (r.of_bound is not None) is (r.shape[0] == 1 and r.what != "cached")


@pytest.mark.exhaustive
def test_counts_operations_and_bytes(report: tuple[list[Row], Path]) -> None:
    rows, _ = report
    for r in rows:
        m, n, k = r.shape
        products = 6 if r.what == "training" else 2
        assert r.tops * r.seconds * 1e12 == pytest.approx(products * m * n * k)
        scales, output = 4 * (m + n), 4 * m * n
        moved = {
            "whole": 4 * m * k + n * k + output + scales,
            "behind": 4 * m * k + n * k + output + scales,
            "training": 2 * (4 * m * k + 4 * n * k + output) + 2 * (m * k + n * k),
        }
        expected = moved.get(r.what, m * k + n * k + output + scales)
        assert r.gbps * r.seconds * 1e9 == pytest.approx(expected)


def test_a_weight_rotates_unless_it_shall_stay_in_a_cache() -> None:
    for rotated, count in ((True, 64), (False, 1)):
        weights = Weights(CPU, torch.float32, N, K, rotated)
        for own in (weights.integers, weights.floats, weights.float8[0], weights.dynamic):
            assert len(own) == len({id(w) for w in own}) == count


@pytest.mark.exhaustive
def test_targets_on_the_cpu(
    report: tuple[list[Row], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from baraquant import _C

    many = [Target(PEAK, 0.85)] if has_peak() else [Target("float32 linear", 1.4)]
    expected = {1: [Target("float32 linear", 5.0)], 3: [], 130: many}
    for r in report[0]:
        asked = expected[r.shape[0]] if r.what in ("linear", "cached", "whole") else []
        asked = [*asked, Target("quantize_dynamic", 1.1)] if r.what == "whole" else asked
        assert r.targets == asked
        assert None not in r.met and len(r.met) == len(asked)
    bench = Bench(Weights(CPU, torch.float32, N, K), 512, Timer(CPU), None, None)
    vnni = [Target(PEAK, 0.85)]
    for isa, targets in (("avx2", [Target("float32 linear", 1.4)]), ("avx_vnni", vnni)):
        monkeypatch.setattr(_C, "cpu_isa", lambda isa=isa: isa)
        assert int8_mm_layer.cpu_targets(bench) == targets


@pytest.mark.skipif(not has_peak(), reason="this machine has no VNNI")
@pytest.mark.parametrize("operations", [1, 3e5, 4e8])
def test_the_peak_does_the_operations_that_are_asked_for(operations: float) -> None:
    """Those asked for, and less than one more step of each thread: 12 sums of 128 operations."""
    done = peak_call(operations)(0)
    assert operations < done <= operations + torch.get_num_threads() * 12 * 128


@pytest.mark.parametrize("card", ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA L40S"])
def test_targets_on_a_gpu(card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of rows; of a made-up layer, as nothing runs."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: card)
    assert int8_mm_layer.int8_peak(CUDA) == (0 if "L40S" in card else 1979e12)
    assert int8_mm_layer.int8_peak(CPU) == 0

    def targets(m: int, n: int, k: int) -> list:
        weights = Weights.__new__(Weights)
        weights.device, weights.dtype, weights.n, weights.k = CUDA, torch.bfloat16, n, k
        return int8_mm_layer.product_targets(
            Bench(weights, m, Timer(CPU), None, None)  # type: ignore[arg-type]
        )

    sweep = Target(SWEEP, 0.97)
    known = [sweep] if "H200" in card else []
    stream = AnyOf((sweep, Target("weights streamed", 0.85)))
    fused = [Target(INT_MM, 1.45), Target("fp8 rowwise", 1.0)]
    assert targets(16, 4096, 4096) == [stream, Target(INT_MM, 1 / 0.65)]
    assert targets(64, 4096, 4096) == targets(1, 6144, 4096) == [stream]
    assert targets(128, 8192, 8192) == targets(512, 8192, 8192) == known
    assert targets(128, 6144, 4096) == []
    assert targets(1024, 4096, 14336) == [*fused, *known]
    assert targets(8192, 8192, 28672) == fused


def test_the_whole_layer_and_training_have_targets_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, weights: Weights
) -> None:
    monkeypatch.setattr(Bench, "on_cpu", False)
    monkeypatch.setattr(int8_mm_layer, "int8_peak", lambda device: 1e15)
    monkeypatch.setattr(Bench, "measure", lambda self, row, *_, **__: row)
    linear = "float32 linear"
    for m, whole, integers in (
        (4096, [Target(linear, 1.85)], 1.1),
        (64, [], 1.1),
        (16384, [], 1.6),
    ):
        bench = Bench(weights, m, Timer(CPU), None, None)
        assert [row.targets for row in int8_mm_rows.bench_whole(bench)] == [whole]
        assert [row.targets for row in int8_mm_rows.bench_behind(bench)] == [whole] * 3
        assert [row.targets for row in int8_mm_rows.bench_training(bench)] == [
            [Target(linear, least), HoldsLess(linear)] for least in (1.1, 1.1, integers)
        ]


def test_the_sweep_counts_on_its_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = h200_sweep.sweep_seconds
    assert seconds("NVIDIA H200", 4096, 28672, 4096) == pytest.approx(689.8e-6)
    assert seconds("NVIDIA H100 80GB HBM3", 4096, 28672, 4096) is None
    assert seconds("NVIDIA H200", 4, 4096, 4096) is None
    assert seconds("NVIDIA H200", 16, 6144, 4096) is None
    for (n, k), times in h200_sweep._MICROSECONDS.items():
        for m, time in zip(h200_sweep.ROWS, times, strict=True):
            assert time * 1e-6 > max(n * k / 4.8e12, 2 * m * n * k / 1979e12)  # the data sheet

    def measured(self: Timer, calls: dict, rotation: int) -> dict[str, float]:
        return dict.fromkeys(calls, 0.001)

    monkeypatch.setattr(Timer, "compare", measured)
    monkeypatch.setattr(Bench, "sweep_seconds", 2e-3)
    monkeypatch.setattr(int8_mm_layer, "int8_peak", lambda device: 1e12)
    copy = Case(CPU, torch.bfloat16, [16, 16])
    bench = Bench(Weights(CPU, torch.float32, N, K), 1, Timer(CPU), None, copy)
    either = AnyOf((Target(SWEEP, 0.97), Target("weights streamed", 0.85)))
    row = bench.row("linear", "int8_linear", "", either)
    bench.measure(row, {"baraquant": lambda i: None}, 1, 1)
    streamed = N * K / (copy.copied / 1e-3)
    assert row.speedups == pytest.approx({SWEEP: 2.0, "weights streamed": streamed / 1e-3})
    plain = bench.measure(bench.row("odd", "", ""), {"baraquant": lambda i: None}, 1, 1)
    assert plain.speedups == {}


@pytest.mark.exhaustive
def test_compiled_peers_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch.compile that compiles nothing: the real one takes seconds for each row."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(bench_int8_mm, "cpu_plans", lambda what: [
        bench_int8_mm.ProductPlan(["16x32"], ["float32"], [1], [2], compiled=True)
    ])  # fmt: skip
    rows = bench_int8_mm.main(["--device=cpu", "--what", "linear", "whole", "training"])
    assert [r.what for r in rows] == ["linear", "whole", *["training"] * 3]
    assert all(r.speedups["torch.compile"] > 0 for r in rows)


@pytest.mark.exhaustive
def test_what_fails_hinders_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that raises, a peer that does, and inputs that cannot be made."""

    def refuse(name: str):
        def call(*args: object, **kwargs: object) -> None:
            raise NotImplementedError(f"no {name}")

        return call

    monkeypatch.setattr(ops, "int8_linear", refuse("int8_linear"))
    monkeypatch.setattr(torch, "_int_mm", refuse("_int_mm"))
    small = ["--device=cpu", "--threads", "1", "--sizes", "16x64", "--rows", "2", "3"]
    rows = bench_int8_mm.main([*small, "--what", "linear", "whole", "training"])
    failed = [r for r in rows if r.what == "linear"]
    assert [r.error for r in failed] == ["NotImplementedError: no int8_linear"] * 2
    for r in (r for r in rows if r.what == "whole"):
        assert r.error is None and r.speedups["float32 linear"] > 0
        assert r.peer_errors == {
            "quantize + _int_mm + dequantize": "NotImplementedError: no _int_mm"
        }
    monkeypatch.setattr(IntMm, "pad_weight", refuse("memory"))
    rows = bench_int8_mm.main([*small, "--what", "whole", "training"])
    assert [(r.what, r.shape[0], r.error) for r in rows] == [
        *(("whole", m, "NotImplementedError: no memory") for m in (2, 3)),
        *(("training", m, None) for m in (2, 2, 2, 3, 3, 3)),
    ]


@pytest.mark.inductor
def test_peers_compile(weights: Weights) -> None:
    int_mm, x = IntMm(CPU, M, N, K), weights.random(M)
    compiled = torch.compile(int_mm.quantized_linear, fullgraph=True, dynamic=False)
    args = (x, weights.integers[0], weights.scale)
    close(compiled(*args), int_mm.quantized_linear(*args), 1e-2)
    fake = torch.compile(pytorch_linears.fake_quantized_linear, fullgraph=True, dynamic=False)
    x, w = x.requires_grad_(), weights.floats[0].requires_grad_()
    close(fake(x, w), pytorch_linears.fake_quantized_linear(x, w), 1e-2)
    assert int8_mm_rows.held_bytes(fake, x, w) > 0


def test_runs_on_cuda(cuda: str, tmp_path: Path) -> None:
    rows = run(tmp_path, "--device", cuda, "--quick", "--rows", "1", "17", "130")
    check(rows, "cuda")
    known = int8_mm_layer.int8_peak(torch.device(cuda)) > 0
    assert all((r.of_bound is not None) is (known or r.shape[0] == 1) for r in rows)
    assert all(r.note for r in rows if r.shape[0] == 1 and r.what in ("linear", "odd"))


@pytest.mark.parametrize("text", ["64MiB", "4096", "0x4", "4x0", "4x4x4", "x4", "4 x 4"])
def test_sizes_that_are_no_weight(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_int8_mm.parse_weight("57344x8192") == (57344, 8192)
    with pytest.raises(SystemExit):
        bench_int8_mm.main(["--device=cpu", "--sizes", text])
    assert "expected the size of a weight, such as 4096x14336" in capsys.readouterr().err


def test_every_shape_is_measured_once() -> None:
    """Those that are asked for stand in the plans, and quick runs are smaller."""
    for what in bench_int8_mm.BENCHES:
        for plans in (bench_int8_mm.cuda_plans(what), bench_int8_mm.cpu_plans(what)):
            assert all(len(set(plan.rows)) == len(plan.rows) for plan in plans)
            assert all(bench_int8_mm.parse_weight(s) for plan in plans for s in plan.sizes)
    whole = bench_int8_mm.cuda_plans("linear")[-1]
    assert len(whole.sizes) == 7 and whole.rows == bench_int8_mm.ROWS
