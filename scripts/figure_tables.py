# SPDX-License-Identifier: BSD-3-Clause
"""The tables of ops and layers that figures.py writes into the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from results import (
    AVX2,
    CPU,
    GPUS,
    Cell,
    Machine,
    Row,
    at_least,
    grid,
    microseconds,
    milliseconds,
    number,
    of_copy,
    pick,
    report,
    table,
    times,
)

GRANULARITIES = ["per_tensor", "per_channel(0)", "per_channel(1)", "per_token"]
GRANULARITIES += ["per_group(32,-1)", "per_group(128,-1)"]
WEIGHTS = ((4096, 4096), (28672, 4096), (4096, 14336))
BOTH, GRADIENT = "forward + backward", ("scale gradient", "fake_quantize_backward_qparams")
EAGER = {"eager takes": times("PyTorch", form=".1f")}
FLOAT32_BFLOAT16 = ("float32", "bfloat16")

Lines = dict[tuple[str, ...] | str, dict[str, Any]]


def products(shapes: list[tuple[int, int, int]], **wanted: Any) -> Lines:
    """A line for each product."""
    return {(f"{n} × {k}", str(m)): {"shape": [m, n, k], **wanted} for m, n, k in shapes}


def bold_if_met(rows: list[Row]) -> str:
    """The share of a copy, bold where the target is met."""
    return f"**{of_copy(rows)}**" if rows[0]["met"] and all(rows[0]["met"]) else of_copy(rows)


def affine_gpu() -> str:
    """Percent of the copy in float32 and bfloat16."""
    operations = {
        "`quantize` to int8": ("forward", "quantize"),
        "`dequantize` from int8": ("forward", "dequantize"),
        "`fake_quantize`": ("forward", "fake_quantize"),
        f"{BOTH}, input kept": (BOTH, "fake_quantize, input kept"),
        f"{BOTH}, bit mask": (BOTH, "fake_quantize, bit mask"),
        "gradient of the scale": GRADIENT,
    }
    lines: Lines = {name: {"what": what, "op": op} for name, (what, op) in operations.items()}
    columns: dict[str, Any] = {f"`{c}`": (bold_if_met, {"case": c}) for c in GRANULARITIES}
    return grid((GPUS, ""), [""], lines, columns, dtypes=FLOAT32_BFLOAT16, shape=[65536, 4096])


def affine_cpu() -> str:
    """Milliseconds, the share of the copy, and PyTorch's own op, on two cores."""
    forward = {"what": "forward", "op": "fake_quantize"}
    gradient = {"what": GRADIENT[0], "op": GRADIENT[1], "family": "scale_gradient"}
    names = ["per tensor", "per channel, axis 0", "per channel, axis 1"]
    names += ["per token", "per group of 32", "per group of 128"]
    gradients = "gradients of scale and zero point"
    lines: Lines = {
        **{n: {**forward, "case": c} for n, c in zip(names, GRANULARITIES, strict=True)},
        **{
            f"{BOTH}, per channel, {way}": {
                "what": BOTH,
                "op": f"fake_quantize, {way}",
                "case": GRANULARITIES[1],
            }
            for way in ("input kept", "bit mask")
        },
        f"{gradients}, per channel": {**gradient, "case": "per_channel(0)"},
        f"{gradients}, per group of 32": {**gradient, "case": "per_group(32,-1)"},
    }

    columns: dict[str, Any] = {"ms": milliseconds, "of the copy": of_copy}
    columns["PyTorch's own op takes"] = EAGER["eager takes"]
    wanted: dict[str, Any] = {"dtype": "float32", "threads": 2, "shape": [4096, 4096]}
    return grid((CPU, ""), ["`fake_quantize`"], lines, columns, **wanted)


def sizes_cpu() -> str:
    """How much longer PyTorch's own fake quantize takes, by size, with and without kept memory."""
    lines: Lines = {f"{m // 64} MiB": {"shape": [m, 4096]} for m in (512, 1024, 2048, 4096)}
    kept = "the same, freed memory kept"
    own = EAGER["eager takes"]
    columns: dict[str, Any] = {
        "PyTorch's own op takes": own,
        kept: (own, {"family": "memory_kept"}),
    }
    wanted: dict[str, Any] = {"what": "forward", "op": "fake_quantize", "threads": 2}
    wanted["dtype"] = "float32"
    return grid((CPU, ""), ["size, float32"], lines, columns, **wanted)


def call_cost() -> str:
    """What a call on 64 values costs the host, and PyTorch's own op."""
    wanted = {"what": "call overhead", "op": "baraquant.ops"}
    rows = pick(report(CPU)["rows"], **wanted)
    lines: Lines = {row["case"]: {"case": row["case"]} for row in rows}
    columns: dict[str, Any] = {"µs": microseconds, "PyTorch's own op takes": times("PyTorch")}
    return grid(rows, ["`baraquant.ops.fake_quantize_*`"], lines, columns)


def target(rows: list[Row]) -> str:
    """What is asked, of a copy."""
    asked = [t["at_least"] for row in rows for t in row["targets"] if t.get("against") == "copy"]
    return f"{100 * asked[0]:.0f} %" if asked else ""


def range_gpu() -> str:
    """Share of the copy, and the same chain in PyTorch."""
    token, segments = {"what": "token", "case": "per_token, symmetric"}, {"what": "segments"}
    skewed = {**token, "case": "per_token, asymmetric"}
    op = "`dynamic_range_quantize_per_token`, "
    lines: Lines = {
        f"{op}rows of 512": {**token, "shape": [65536, 512]},
        **{f"rows of {n}": {**token, "shape": [65536, n]} for n in (4096, 5120, 14336)},
        "rows of 65536": {**token, "shape": [16384, 65536]},
        **{f"asymmetric, rows of {n}": {**skewed, "shape": [65536, n]} for n in (4096, 14336)},
        "`…_per_group(128)`": {**segments, "case": "per_group(128,-1), symmetric"},
        "`…_per_tensor`": {**segments, "case": "per_tensor, symmetric"},
        "`…_per_channel(1)`": {**segments, "case": "per_channel(1), symmetric"},
        "`dynamic_fake_quantize_per_token`, forward": {**token, "what": "forward"},
    }
    columns: dict[str, Any] = {"of the copy": of_copy, "target": (target, {"dtype": "bfloat16"})}
    columns |= {**EAGER, "`torch.compile` takes": times("torch.compile")}
    order = FLOAT32_BFLOAT16[::-1]
    return grid((GPUS, "range"), [" / ".join(order)], lines, columns, dtypes=order)


def range_cpu() -> str:
    """The same on two cores: spans over the rows of a line."""
    token, segments = {"what": "token", "case": "per_token, symmetric"}, {"what": "segments"}
    cases = {"group(128)": "group(128,-1)", "channel(0)": "channel(0)", "channel(1)": "channel(1)"}
    cases["tensor"] = "tensor"
    lines: Lines = {
        "`dynamic_range_quantize_per_token`, rows of 512 to 65536": token,
        "the same, asymmetric": {**token, "case": "per_token, asymmetric"},
        **{
            f"`…_per_{name}`": {**segments, "case": f"per_{case}, symmetric"}
            for name, case in cases.items()
        },
        "`…_per_token`, one row of 4096": {**token, "what": "decode", "m": 1},
        "`observe_min_max_`, one range, float32": {
            "what": "observe",
            "op": "observe_min_max_",
            "case": "per_tensor, symmetric",
        },
    }

    def fine(rows: list[Row]) -> str:
        return number("seconds", 1e3, ".3f" if rows[0]["what"] == "decode" else ".1f")(rows)

    columns: dict[str, Any] = {"ms": fine, "of the copy": of_copy, **EAGER}
    columns["`torch.compile` takes"] = times("torch.compile", form=".1f")
    order = FLOAT32_BFLOAT16
    return grid((CPU, "range"), [" / ".join(order)], lines, columns, dtypes=order)


def int8_gpu() -> str:
    """Three of the weights on a GPU: time, rate, and what everything else takes."""

    def streamed(rows: list[Row]) -> str:
        few = [row for row in rows if row["shape"][0] <= 64]
        share = "weights streamed"
        return number(share, 100, ".0f", " %")([r["speedups"] for r in few]) if few else "–"

    sizes = [(m, n, k) for n, k in ((4096, 4096), (28672, 4096), (8192, 8192)) for m in ROWS]
    columns: dict[str, Any] = {
        "µs": microseconds,
        "TOPS": number("tops", form=".0f"),
        "`_int_mm`": times("torch._int_mm"),
        "bfloat16": times("bfloat16 linear"),
        "fp8": times("fp8 rowwise"),
        "of a copy": streamed,
    }
    wanted: dict[str, Any] = {"what": "linear", "dtype": "bfloat16"}
    return grid((GPUS, "int8_mm"), ["N × K", "M"], products(sizes), columns, **wanted)


ROWS = (1, 16, 64, 256, 1024, 4096, 8192)


def int8_cpu() -> str:
    """Some products on two cores."""
    names = {
        ("linear", 4096, 4096): ("`int8_linear`, 4096 × 4096", 1, 16, 128, 512),
        ("linear", 4096, 14336): ("`int8_linear`, 4096 × 14336", 128),
        ("linear", 1024, 4096): ("`int8_linear`, 1024 × 4096", 128),
        ("cached", 4096, 4096): ("the same weight over and over, from the cache", 1),
        ("whole", 4096, 4096): ("`quantized_linear`, 4096 × 4096", 128, 512),
    }
    lines: Lines = {
        (str(name), str(m)): {"what": what, "shape": [m, n, k]}
        for (what, n, k), (name, *ms) in names.items()
        for m in ms
    }
    columns: dict[str, Any] = {
        "ms": number("seconds", 1e3, ".2f"),
        "tera-operations/s": number("tops", form=".2f"),
        "float32 layer": times("float32 linear", form=".1f"),
        "`_int_mm`": times("torch._int_mm", form=".1f"),
        "`quantize_dynamic`": times("quantize_dynamic", form=".1f"),
    }
    return grid((CPU, "int8_mm"), ["N × K, two threads", "M"], lines, columns, threads=2)


def layer_gpu() -> str:
    """How many times as long a bfloat16 layer takes as quantized_linear."""
    lines: Lines = {f"{n} × {k}": {"n": n, "k": k} for n, k in WEIGHTS[:2]}
    bfloat16 = times("bfloat16 linear")
    columns: dict[str, Any] = {
        f"{m} row" if m == 1 else str(m): (bfloat16, {"m": m}) for m in ROWS[:-1]
    }
    return grid((GPUS, "int8_mm"), ["weight"], lines, columns, what="whole")


def layers_gpu(what: str, unit: str, ms: tuple[int, ...], cases: dict[str, str]) -> str:
    """The same for each number of rows and weight, a column for each case."""
    columns: dict[str, Any] = {
        title: (times("bfloat16 linear"), {"case": case}) for case, title in cases.items()
    }
    lines = products([(m, n, k) for m in ms for n, k in WEIGHTS])
    return grid((GPUS, "int8_mm"), ["weight", unit], lines, columns, what=what)


def fused_gpu() -> str:
    """Percent of a copy, and times PyTorch's op followed by a quantization."""
    ops = dict.fromkeys(row["op"] for row in report(GPUS, "fused")["rows"])
    lines: Lines = {f"`{op}_per_token`": {"op": op} for op in ops}
    peer = times("PyTorch + quantize")
    columns: dict[str, Any] = {}
    for dtype in ("bfloat16", "float32"):
        wanted = {"what": "token", "dtype": dtype, "shape": [65536, 4096]}
        columns[f"{dtype}, of a copy"] = (of_copy, wanted)
        columns[f"× PyTorch|{dtype}"] = (peer, wanted)
    few = {"what": "decode", "dtype": "bfloat16", "shape": [16, 4096]}
    columns["16 tokens, bfloat16, µs"] = (microseconds, few)
    columns["× PyTorch|few"] = (peer, few)
    return grid((GPUS, "fused"), [""], lines, columns)


def conv_cpu() -> str:
    """Milliseconds of ResNet-18's convolutions, and times float32's, for one image and eight."""
    lines: Lines = {}
    for row in pick(report(CPU, "int8_conv")["rows"], what="resnet18"):
        _, channels, height, _ = row["shape"]
        lines[f"{row['case']}, of {channels} × {height}²"] = {
            "case": row["case"],
            "n": channels,
            "k": height,
        }
    columns: dict[str, Any] = {}
    for m, title in ((1, "1 image: ms"), (8, "8: ms")):
        columns[title] = (number("seconds", 1e3, ".2f"), {"m": m})
        columns[f"float32 takes|{m}"] = (times("float32 conv2d", form=".1f"), {"m": m})
        last = times("float32 conv2d channels_last", form=".1f")
        columns[f"and channels_last|{m}"] = (last, {"m": m})
    return grid((CPU, "int8_conv"), [""], lines, columns, what="resnet18")


def int4(machine: Machine, op: str, columns: dict[str, Any]) -> str:
    """The layers with weights of four bits."""
    rows = pick(report(machine, "int4")["rows"], op=op)
    sizes = list(dict.fromkeys((m, n, k) for m, n, k in (row["shape"] for row in rows)))
    source = (machine, "int4")
    return grid(source, ["weight N × K", "rows M"], products(sizes), columns)


def of_floats(form: str, *others: str) -> Cell:
    """How many times the speed of the float layer, and of others."""

    def text(rows: list[Row]) -> str:
        parts = [times("bfloat16 linear", "float32 linear", form=form, unit="")(rows)]
        return " / ".join(parts + [times(name, unit="")(rows) for name in others])

    return text


def int4_gpu() -> str:
    """Both ops with groups of 128, beside a bfloat16 layer and one of int8."""
    four = of_floats(".2f", "quantized_linear")
    columns: dict[str, Any] = {}
    for title, op, ratio in (
        ("four bits, of bfloat16 / of int8", INT4, four),
        ("floating inputs, of bfloat16", WEIGHT_ONLY, of_floats(".2f")),
    ):

        def cell(rows: list[Row], ratio: Cell = ratio) -> str:
            return f"{ratio(rows)} ({microseconds(rows)} µs)"

        columns[title] = (cell, {"op": op, "case": "groups of 128"})
    return int4(GPUS, INT4, columns)


def int4_cpu(op: str, cell: Cell, title: str) -> str:
    """An op with each size of groups."""
    titles = {32: f"groups of 32{title}", 64: "of 64", 128: "of 128"}
    columns = {
        name: (cell, {"op": op, "case": f"groups of {size}"}) for size, name in titles.items()
    }
    return int4(CPU, op, columns)


INT4, WEIGHT_ONLY = "quantized_int4_linear", "weight_only_linear"


def avx2() -> str:
    """What AVX2 alone reaches, and is asked to reach."""
    fake = {"what": "forward", "op": "fake_quantize", "dtype": "float32", "m": 2048}
    token = {"family": "range", "what": "token", "dtype": "float32"}
    linear = {"family": "int8_mm", "what": "linear"}
    lines: Lines = {
        ("`int8_linear`, one row", "5"): {**linear, "m": 1},
        ("`int8_linear`, 128 rows and more", "1.4"): {**linear, "m": at_least(128)},
        ("`W4A8`, one row", "6"): {"family": "int4", "op": INT4, "m": 1},
        ("floating inputs, four bits, one row", "3"): {"family": "int4", "op": WEIGHT_ONLY, "m": 1},
        ("`fake_quantize` of 32 MiB", ""): fake,
        ("quantization for each token", ""): token,
    }
    reached: dict[str, Any] = {"reached": times("float32 linear", "PyTorch", form=".1f")}
    return grid((AVX2, ""), ["", "target"], lines, reached)


def targets() -> str:
    """How many targets are met, in each family of results."""
    lines = []
    for name, machine, families in (
        ("GPU", GPUS, ("", "range", "int8_mm", "grouped", "int4")),
        ("CPU", CPU, ("", "range", "int8_mm", "int8_conv", "int4")),
        ("CPU, held to AVX2", AVX2, ("int4",)),
    ):
        for family in families:
            met = [met for row in report(machine, family)["rows"] for met in row["met"]]
            lines.append([name, family or "affine", f"{met.count(True)} of {len(met)}"])
    return table(["machine", "benchmark", "targets met"], lines, 2)


BLOCKS: dict[str, Callable[[], str]] = {
    "table.affine.gpu": affine_gpu,
    "table.affine.cpu": affine_cpu,
    "table.sizes.cpu": sizes_cpu,
    "table.calls": call_cost,
    "table.range.gpu": range_gpu,
    "table.range.cpu": range_cpu,
    "table.int8.gpu": int8_gpu,
    "table.int8.cpu": int8_cpu,
    "table.layer.gpu": layer_gpu,
    "table.behind.gpu": lambda: layers_gpu(
        "behind", "rows", (16, 4096), {c: f"`{c}`" for c in ("rms_norm", "silu_mul", "gelu")}
    ),
    "table.qat.gpu": lambda: layers_gpu(
        "training",
        "tokens",
        (4096, 16384),
        {
            BOTH: '`"float"`',
            f"{BOTH}, int8_input": '`"int8_input"`',
            f"{BOTH}, int8": '`"int8"`',
        },
    ),
    "table.fused.gpu": fused_gpu,
    "table.conv.cpu": conv_cpu,
    "table.int4.gpu": int4_gpu,
    "table.int4.cpu": lambda: int4_cpu(
        INT4, of_floats(".1f", "quantized_linear"), ": of float32 / of int8"
    ),
    "table.weight_only.cpu": lambda: int4_cpu(WEIGHT_ONLY, of_floats(".1f"), ""),
    "table.avx2": avx2,
    "table.targets": targets,
}
