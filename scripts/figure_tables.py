# SPDX-License-Identifier: BSD-3-Clause
"""The tables that figures.py writes into the pages, and figures that take more than one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import results
from results import GPUS, Row, one, peers, percent, pick, span, table

CPU = ("cpu", "epyc")  # of the CPUs the newest result counts
MISSING = "–"
GRANULARITIES = {
    "per_tensor": "`per_tensor`",
    "per_channel(0)": "`per_channel(0)`",
    "per_channel(1)": "`per_channel(1)`",
    "per_token": "`per_token`",
    "per_group(32,-1)": "`per_group(32,-1)`",
    "per_group(128,-1)": "`per_group(128,-1)`",
}


def ratio(row: Row, name: str, form: str = ".2f") -> str:
    """How many times as long a peer takes, or a dash where it was not measured."""
    return f"{row['speedups'][name]:{form}} ×" if name in row["speedups"] else MISSING


def targets_met(machine: results.Machine, family: str) -> str:
    """Such as ``79 of 106``."""
    met = [met for row in results.report(machine, family)["rows"] for met in row["met"]]
    return f"{met.count(True)} of {len(met)}"


def share(row: Row) -> str:
    """Of a copy's speed, such as ``44 %``."""
    return f"{row['of_copy']:.0%}".replace("%", " %")


# --- the fused family


def fused_gpu() -> str:
    """Percent of a copy, and times PyTorch's op followed by a quantization."""
    rows = results.report(GPUS, "fused")["rows"]
    lines = []
    for op in dict.fromkeys(row["op"] for row in rows):
        cells = [f"`{op}_per_token`"]
        for dtype in ("bfloat16", "float32"):
            row = one(GPUS, "fused", what="token", op=op, dtype=dtype, shape=[65536, 4096])
            cells += [share(row), ratio(row, "PyTorch + quantize")]
        row = one(GPUS, "fused", what="decode", op=op, dtype="bfloat16", shape=[16, 4096])
        cells += [f"{1e6 * row['seconds']:.1f}", ratio(row, "PyTorch + quantize")]
        lines.append(cells)
    titles = ["bfloat16, of a copy", "× PyTorch", "float32, of a copy", "× PyTorch"]
    return table(["", *titles, "16 tokens, bfloat16, µs", "× PyTorch"], lines)


# --- the affine family


def affine_gpu() -> str:
    """Percent of the copy in float32 and bfloat16, bold where the target is met."""
    operations = {
        "`quantize` to int8": ("forward", "quantize"),
        "`dequantize` from int8": ("forward", "dequantize"),
        "`fake_quantize`": ("forward", "fake_quantize"),
        "forward + backward, input kept": ("forward + backward", "fake_quantize, input kept"),
        "forward + backward, bit mask": ("forward + backward", "fake_quantize, bit mask"),
        "gradient of the scale": ("scale gradient", "fake_quantize_backward_qparams"),
    }

    def cell(what: str, op: str, case: str, dtype: str) -> str:
        row = one(GPUS, what=what, op=op, case=case, dtype=dtype, shape=[65536, 4096])
        return f"**{share(row)}**" if row["met"] and all(row["met"]) else share(row)

    lines = [
        [name, *(" / ".join(cell(*op, case, d) for d in ("float32", "bfloat16")) for case in cases)]
        for cases in [list(GRANULARITIES)]
        for name, op in operations.items()
    ]
    return table(["", *GRANULARITIES.values()], lines)


def affine_cpu() -> str:
    """Milliseconds, the share of the copy, and PyTorch's own op, on two cores."""
    forward, both = ("forward", "fake_quantize"), "forward + backward"
    gradient = ("scale gradient", "fake_quantize_backward_qparams")
    view = " (per channel, on a view)"
    chosen = [
        ("per tensor", *forward, "per_tensor", ""),
        ("per channel, axis 0", *forward, "per_channel(0)", ""),
        ("per channel, axis 1", *forward, "per_channel(1)", ""),
        ("per token", *forward, "per_token", view),
        ("per group of 32", *forward, "per_group(32,-1)", view),
        ("per group of 128", *forward, "per_group(128,-1)", view),
        *(
            (f"{both}, per channel, {way}", both, f"fake_quantize, {way}", "per_channel(0)", "")
            for way in ("input kept", "bit mask")
        ),
        ("gradients of scale and zero point, per channel", *gradient, "per_channel(0)", ""),
        ("gradients of scale and zero point, per group of 32", *gradient, "per_group(32,-1)", ""),
    ]
    lines = []
    for name, what, op, case, note in chosen:
        shape: dict[str, Any] = {"dtype": "float32", "threads": 2, "shape": [4096, 4096]}
        family = "scale_gradient" if what == gradient[0] else ""  # measured by themselves
        row = one(CPU, family, what=what, op=op, case=case, **shape)
        share = f"{percent([row['of_copy']])} %"
        cells = [f"{1e3 * row['seconds']:.1f}", share, ratio(row, "PyTorch", ".1f") + note]
        lines.append([name, *cells])
    return table(["`fake_quantize`", "ms", "of the copy", "PyTorch's own op takes"], lines)


def sizes_cpu() -> str:
    """How much longer PyTorch's own fake quantize takes, by size, with and without kept memory."""
    reports: list[list[Row]] = []
    for kept in (False, True):
        missing = not kept and results.is_kept(CPU)
        reports.append([] if missing else results.report(CPU, kept=kept)["rows"])
    chosen = {"what": "forward", "op": "fake_quantize", "dtype": "float32", "threads": 2}
    lines = []
    for size, m in ((8, 512), (16, 1024), (32, 2048), (64, 4096)):
        cells = []
        for found in reports:
            there = [row for row in found if row["shape"] == [m, 4096]]
            ratios = peers(pick(there, **chosen), "PyTorch") if there else []
            cells.append(f"{span(ratios, '.1f')} ×" if ratios else MISSING)
        lines.append([f"{size} MiB", *cells])
    titles = ["size, float32", "PyTorch's own op takes", "the same, freed memory kept"]
    return table(titles, lines)


def call_cost() -> str:
    """What a call on 64 values costs the host, and PyTorch's own op."""
    names = {
        "per_tensor, numbers": "`per_tensor`, numbers",
        "per_tensor, tensors": "`per_tensor`, tensors",
        "per_channel(0)": "`per_channel`",
    }
    ways = {"no grad": ".1f", "grad recorded": ".1f", "forward + backward": ".0f"}
    lines = []
    for case, name in names.items():
        cells = []
        for way, form in ways.items():
            row = one(CPU, what="call overhead", op="baraquant.ops", case=f"{case}, {way}")
            reached = row["speedups"]["PyTorch"]
            text = f"{1e6 * row['seconds']:{form}}, PyTorch {reached:.2f} ×"
            cells.append(text + (": missed" if reached < 1 else ""))
        lines.append([name, *cells])
    titles = [
        "`baraquant.ops.fake_quantize_*`",
        "without grad",
        "grad recorded",
        "forward + backward",
    ]
    return table(titles, lines)


# --- scales from the data


def range_gpu() -> str:
    """Share of the copy, and the same chain in PyTorch; bfloat16 / float32."""
    token: dict[str, Any] = {"what": "token", "case": "per_token, symmetric"}
    skewed = {**token, "case": "per_token, asymmetric"}
    segments = {"what": "segments"}
    chosen = [
        ("`dynamic_range_quantize_per_token`, rows of 512", {**token, "shape": [65536, 512]}),
        ("rows of 4096", {**token, "shape": [65536, 4096]}),
        ("rows of 5120", {**token, "shape": [65536, 5120]}),
        ("rows of 14336", {**token, "shape": [65536, 14336]}),
        ("rows of 65536", {**token, "shape": [16384, 65536]}),
        ("asymmetric, rows of 4096", {**skewed, "shape": [65536, 4096]}),
        ("asymmetric, rows of 14336", {**skewed, "shape": [65536, 14336]}),
        ("`…_per_group(128)`", {**segments, "case": "per_group(128,-1), symmetric"}),
        ("`…_per_tensor`", {**segments, "case": "per_tensor, symmetric"}),
        ("`…_per_channel(1)`", {**segments, "case": "per_channel(1), symmetric"}),
        (
            "`dynamic_fake_quantize_per_token`, forward",
            {"what": "forward", "case": "per_token, symmetric"},
        ),
    ]
    lines = []
    for name, wanted in chosen:
        pair = [one(GPUS, "range", dtype=d, **wanted) for d in ("bfloat16", "float32")]
        copies = [
            t["at_least"] for row in pair for t in row["targets"] if t.get("against") == "copy"
        ]
        cells = [
            " / ".join(f"{percent([row['of_copy']])} %" for row in pair),
            f"{percent(copies)} %",
            " / ".join(ratio(row, "PyTorch", ".1f") for row in pair),
            " / ".join(ratio(row, "torch.compile") for row in pair),
        ]
        lines.append([name, *cells])
    titles = ["of the copy", "target", "eager takes", "`torch.compile` takes"]
    return table(["bfloat16 / float32", *titles], lines)


def range_cpu() -> str:
    """The same on two cores; float32 / bfloat16, spans over the rows of a line."""
    token: dict[str, Any] = {"what": "token", "case": "per_token, symmetric"}
    segments = {"what": "segments"}
    observe = {"what": "observe", "op": "observe_min_max_", "case": "per_tensor, symmetric"}
    decode = {"what": "decode", "case": "per_token, symmetric", "m": 1}
    chosen: list[tuple[str, dict[str, Any], str]] = [
        ("`dynamic_range_quantize_per_token`, rows of 512 to 65536", token, ".1f"),
        ("the same, asymmetric", {**token, "case": "per_token, asymmetric"}, ".1f"),
        ("`…_per_group(128)`", {**segments, "case": "per_group(128,-1), symmetric"}, ".1f"),
        ("`…_per_channel(0)`", {**segments, "case": "per_channel(0), symmetric"}, ".1f"),
        ("`…_per_channel(1)`", {**segments, "case": "per_channel(1), symmetric"}, ".1f"),
        ("`…_per_tensor`", {**segments, "case": "per_tensor, symmetric"}, ".1f"),
        ("`…_per_token`, one row of 4096", decode, ".3f"),
        ("`observe_min_max_`, one range, float32", observe, ".1f"),
    ]

    def both(wanted: dict[str, Any], text: Callable[[list[Row]], str]) -> str:
        everything = results.report(CPU, "range")["rows"]
        known = {row["dtype"] for row in pick(everything, **wanted)}
        dtypes = [dtype for dtype in ("float32", "bfloat16") if dtype in known]
        return " / ".join(text(pick(everything, dtype=dtype, **wanted)) for dtype in dtypes)

    def milliseconds(form: str) -> Callable[[list[Row]], str]:
        return lambda found: span((1e3 * row["seconds"] for row in found), form)

    lines = [
        [
            name,
            both(wanted, milliseconds(form)),
            both(wanted, lambda found: f"{percent(row['of_copy'] for row in found)} %"),
            both(wanted, lambda found: f"{span(peers(found, 'PyTorch'), '.1f')} ×"),
            both(wanted, lambda found: f"{span(peers(found, 'torch.compile'), '.1f')} ×"),
        ]
        for name, wanted, form in chosen
    ]
    titles = ["ms", "of the copy", "eager takes", "`torch.compile` takes"]
    return table(["float32 / bfloat16", *titles], lines)


# --- products of integers


def int8_gpu() -> str:
    """Three of the weights on a GPU: time, rate, and what everything else takes."""
    names = ["torch._int_mm", "bfloat16 linear", "fp8 rowwise"]
    lines = []
    for n, k in ((4096, 4096), (28672, 4096), (8192, 8192)):
        for m in (1, 16, 64, 256, 1024, 4096, 8192):
            row = one(GPUS, "int8_mm", what="linear", dtype="bfloat16", shape=[m, n, k])
            cells = [f"{1e6 * row['seconds']:.1f}", f"{row['tops']:.0f}"]
            cells += [ratio(row, name) for name in names]
            streamed = row["speedups"].get("weights streamed") if m <= 64 else None
            cells.append(MISSING if streamed is None else f"{percent([streamed])} %")
            lines.append([f"{n} × {k}", str(m), *cells])
    titles = ["`_int_mm`", "bfloat16", "fp8", "of a copy"]
    return table(["N × K", "M", "µs", "TOPS", *titles], lines)


def int8_cpu() -> str:
    """Some products on two cores."""
    linear: dict[str, Any] = {"what": "linear", "threads": 2}
    chosen = [
        *(("`int8_linear`, 4096 × 4096", {**linear, "shape": [m, 4096, 4096]}) for m in (1, 16)),
        *(("`int8_linear`, 4096 × 4096", {**linear, "shape": [m, 4096, 4096]}) for m in (128, 512)),
        ("4096 × 14336", {**linear, "shape": [128, 4096, 14336]}),
        ("1024 × 4096", {**linear, "shape": [128, 1024, 4096]}),
        (
            "the same weight over and over, from the cache",
            {"what": "cached", "threads": 2, "shape": [1, 4096, 4096]},
        ),
        *(
            (
                "`quantized_linear`, 4096 × 4096",
                {"what": "whole", "threads": 2, "shape": [m, 4096, 4096]},
            )
            for m in (128, 512)
        ),
    ]
    lines, last = [], ""
    for name, wanted in chosen:
        row = one(CPU, "int8_mm", **wanted)
        dynamic = "quantize_dynamic" in row["speedups"]
        peer = "`quantize_dynamic`: " + ratio(row, "quantize_dynamic", ".1f")
        cells = [f"{1e3 * row['seconds']:.2f}", f"{row['tops']:.2f}"]
        cells += [ratio(row, "float32 linear", ".1f")]
        cells += [peer if dynamic else ratio(row, "torch._int_mm", ".1f")]
        lines.append(["" if name == last else name, str(row["shape"][0]), *cells])
        last = name
    titles = ["M", "ms", "tera-operations/s", "float32 layer", "`_int_mm`"]
    return table(["N × K, two threads", *titles], lines)


def gradient_kept(case: str) -> str:
    """Times as long as the gradients of scale and zero point, of PyTorch's, freed memory kept."""
    found = results.report(CPU, kept=True)["rows"]
    return span(peers(pick(found, what="scale gradient", case=case), "PyTorch"), ".1f")


AVX2 = "avx2"  # an EPYC that was held to it


def avx2_span(family: str, peer: str, **wanted: Any) -> str:
    """Times as long as ours, of a peer, with AVX2 alone."""
    return span(peers(pick(results.report(AVX2, family)["rows"], **wanted), peer), ".1f")


def layer_gpu() -> str:
    """How many times as long a bfloat16 layer takes as quantized_linear."""
    ms = (1, 16, 64, 256, 1024, 4096)
    lines = []
    for n, k in ((4096, 4096), (28672, 4096)):
        found = [one(GPUS, "int8_mm", what="whole", shape=[m, n, k]) for m in ms]
        lines.append([f"{n} × {k}", *(ratio(row, "bfloat16 linear") for row in found)])
    return table(["weight", "1 row", *map(str, ms[1:])], lines)


WEIGHTS = ((4096, 4096), (28672, 4096), (4096, 14336))


def behind_gpu() -> str:
    """The same of a layer and the norm or activation before it, which quantizes."""
    names = {case: f"`{case}`" for case in ("rms_norm", "silu_mul", "gelu")}
    return layers_gpu("behind", ["weight", "rows"], (16, 4096), names)


def qat_gpu() -> str:
    """How many times as long a bfloat16 layer takes as qat_linear, forward and backward."""
    step = "forward + backward"
    names = {
        step: '`"float"`',
        f"{step}, int8_input": '`"int8_input"`',
        f"{step}, int8": '`"int8"`',
    }
    return layers_gpu("training", ["weight", "tokens"], (4096, 16384), names)


def layers_gpu(what: str, first: list[str], ms: tuple[int, ...], cases: dict[str, str]) -> str:
    """A line for each number of rows and weight, a column for each case, by its title."""
    lines = []
    for m in ms:
        for n, k in WEIGHTS:
            shape = [m, n, k]
            found = [one(GPUS, "int8_mm", what=what, case=case, shape=shape) for case in cases]
            cells = [ratio(row, "bfloat16 linear") for row in found]
            lines.append([f"{n} × {k}", str(m), *cells])
    return table([*first, *cases.values()], lines)


# --- convolutions


def conv_cpu() -> str:
    """Milliseconds of ResNet-18's convolutions, and times float32's, for one image and eight."""
    lines = []
    for row in results.report(CPU, "conv")["rows"]:
        images, channels, height, width = row["shape"]
        if row["what"] != "resnet18" or images != 1:
            continue
        cells = [f"{row['case']}, of {channels} × {height}²"]
        for shape in ([1, channels, height, width], [8, channels, height, width]):
            timed = one(CPU, "conv", what="resnet18", case=row["case"], shape=shape)
            peer = "float32 conv2d"
            floats = [ratio(timed, name, ".1f") for name in (peer, f"{peer} channels_last")]
            cells += [f"{1e3 * timed['seconds']:.2f}", *floats]
        lines.append(cells)
    floats = ["float32 takes", "and channels_last"]
    return table(["", "1 image: ms", *floats, "8: ms", *floats], lines)


TABLES: dict[str, Callable[[], str]] = {
    "table.affine.gpu": affine_gpu,
    "table.affine.cpu": affine_cpu,
    "table.sizes.cpu": sizes_cpu,
    "table.calls": call_cost,
    "table.range.gpu": range_gpu,
    "table.range.cpu": range_cpu,
    "table.int8.gpu": int8_gpu,
    "table.int8.cpu": int8_cpu,
    "table.layer.gpu": layer_gpu,
    "table.behind.gpu": behind_gpu,
    "table.qat.gpu": qat_gpu,
    "table.fused.gpu": fused_gpu,
    "table.conv.cpu": conv_cpu,
    "gradient.kept.channel": lambda: gradient_kept("per_channel(0)"),
    "gradient.kept.group": lambda: gradient_kept("per_group(32,-1)"),
    "gradient.kept.tensor": lambda: gradient_kept("per_tensor"),
    "avx2.int8.one": lambda: avx2_span("int8_mm", "float32 linear", what="linear", m=1),
    "avx2.int8.many": lambda: avx2_span(
        "int8_mm", "float32 linear", what="linear", m=lambda m: m >= 128
    ),
    "avx2.int4.one": lambda: avx2_span("int4", "float32 linear", op="quantized_int4_linear", m=1),
    "avx2.int4.met": lambda: targets_met(AVX2, "int4"),
    "avx2.weights.one": lambda: avx2_span("int4", "float32 linear", op="weight_only_linear", m=1),
    "avx2.fake": lambda: avx2_span(
        "", "PyTorch", what="forward", op="fake_quantize", dtype="float32", m=2048
    ),
    "avx2.token": lambda: avx2_span("range", "PyTorch", what="token", dtype="float32"),
}
