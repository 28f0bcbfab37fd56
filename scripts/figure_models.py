# SPDX-License-Identifier: BSD-3-Clause
"""The tables of whole models that figures.py writes into the pages, and README's five figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import results
from results import CPU, GPUS, MISSING, Cell, Row, grid, number, pick, plus_minus, report, table

H200, LM = "h200", "language_model"
PLACES = ((CPU, LM), (GPUS, LM), (GPUS, f"{LM}_gelu"))


# --- a training step


def steps(family: str) -> list[Row]:
    """The rows of a training step, with time and memory as multiples of bfloat16's."""
    rows = pick(report(H200, family)["rows"])
    bases = {row["what"]: row for row in rows if row["op"] == "bfloat16"}
    return [
        {
            **row,
            "time": row["seconds"] / bases[row["what"]]["seconds"],
            "memory": row["peaks"].get(row["op"], 0) / row["peaks"].get("bfloat16", 1),
            "base": row["peaks"].get("bfloat16"),
        }
        for row in rows
    ]


def training(family: str) -> str:
    """All variants, as multiples of bfloat16 in the same mode."""

    def multiple(name: str, base: Cell) -> Cell:
        def text(rows: list[Row]) -> str:
            of_base = f" ({base(rows)})" if rows[0]["op"] == "bfloat16" else ""
            return number(name, form=".2f")(rows) + of_base

        return text

    time = multiple("time", number("seconds", 1e3, unit=" ms"))
    memory = multiple("memory", number("base", 1 / 2**20, ",.0f", " MiB"))
    columns: dict[str, Any] = {
        "time, eager": (time, {"what": "eager"}),
        "compiled": (time, {"what": "compiled"}),
        "in a CUDA graph": (time, {"what": "graph"}),
        "peak memory, eager": (memory, {"what": "eager"}),
        "compiled|memory": (memory, {"what": "compiled"}),
    }
    rows = steps(family)
    return grid(rows, [""], {row["op"]: {"op": row["op"]} for row in rows}, columns, sparse=True)


# --- the sentence encoder, the digits


def encoders() -> str:
    """Every scheme: similarity, retrieval, size and speed."""
    rows = report("epyc", "minilm")["rows"]
    names = {
        "W8A8": "`W8A8()`",
        "W8A8, zero points": "`W8A8(symmetric=False)`",
        "W8A8 static": "`W8A8Static()`",
        "SmoothQuant": "`SmoothQuant(0.5)`",
        "SmoothQuant, alpha found": '`SmoothQuant("search")`',
        "SmoothQuant static": "`SmoothQuant(0.5, W8A8Static())`",
        "SmoothQuant static, alpha found": '`SmoothQuant("search", W8A8Static())`',
        "PyTorch quantize_dynamic": "PyTorch's `quantize_dynamic`",
        "W4A8": "`W4A8(32)`",
        "W4A8, trained": "the same, trained for 200 steps",
        "W8A8, fused ops": "`W8A8()`, fused ops",
        "SmoothQuant, fused ops": "`SmoothQuant(0.5)`, fused ops",
    }

    def retrieval(rows: list[Row]) -> str:
        low, high = rows[0]["interval"]
        return f"{rows[0]['change']:+.1f} ({low:+.1f} to {high:+.1f})"

    def faster(batch: str) -> Cell:
        return lambda rows: f"{rows[0]['speeds'][batch]['faster']:.2f} ×"

    size = pick(rows, name="float32")[0]["file_bytes"] / 1e6
    columns: dict[str, Any] = {
        "cosine similarity": number("cosine", form=".4f"),
        "retrieval": retrieval,
        f"MB on disk (float32: {size:.1f})": number("file_bytes", 1e-6),
        "faster than float32, 64 tokens": faster("32 x 64"),
        "128 tokens": faster("32 x 128"),
    }
    return grid(rows, ["scheme"], {n: {"name": k} for k, n in names.items()}, columns)


def digits() -> str:
    """Nine widths: accuracy, what training gains, and bytes."""
    rows = [{**row, **row["widths"]} for row in report(CPU, "digits")["summary"]]
    widths = [(8, 8, None), (4, 8, None), (4, 4, None), (4, 4, 32), (3, 8, None), (3, 4, None)]
    widths += [(2, 8, None), (2, 4, None), (2, 4, 32)]
    lines: dict[Any, Any] = {
        (f"{weight} / {inputs}", f"group of {group}" if group else "channel"): {
            "weight_bits": weight,
            "input_bits": inputs,
            "group_size": group,
        }
        for weight, inputs, group in widths
    }

    def accuracy(way: str) -> Cell:
        return lambda rows: plus_minus(rows[0]["accuracy"][way], ".1f")

    def gain(rows: list[Row]) -> str:
        gains = rows[0]["gains"]
        return plus_minus([statistics.mean(gains), statistics.stdev(gains)], "+.1f")

    columns: dict[str, Any] = {
        "not trained, scale from the maximum": accuracy("ptq_max"),
        "not trained, fitted scale": accuracy("ptq"),
        "trained": accuracy("qat"),
        "gain": gain,
        "float32": accuracy("float"),
        f"bytes (float32: {report(CPU, 'digits')['float_bytes']:,})": number(
            "tensor_bytes", form=","
        ),
    }
    first = ["bits of weights / inputs", "a scale for each"]
    return grid(rows, first, lines, columns, left=2, inputs="learned")


# --- the language model


def language(key: str, columns: dict[str, Any], names: dict[str, str]) -> str:
    """A table for each result of the language model that has rows under a key."""
    parts = []
    for place in PLACES:
        content = report(*place)
        rows = content.get(key)
        if not rows:
            continue
        settings, group = content["settings"], content["settings"].get("group")
        device = content["machine"]["device"].removeprefix("NVIDIA ")
        link = f"../benchmarks/results/{results.stem(*place)}.json"
        parts.append(
            f"{device}, {settings['mlp']}, {content['parameters']:,} parameters, "
            f"{settings['steps']} steps of {settings['batch']} × {settings['context']} bytes and "
            f"{settings['tuning_steps']} from the checkpoint, {settings['dtype']}, "
            f"{settings['seeds']} seeds, torch "
            f"{content['versions']['torch'].partition('+')[0]} ([all figures]({link})):"
        )
        there = {row["scheme"] for row in rows}
        lines: dict[Any, Any] = {
            name.format(group=group): {"scheme": scheme}
            for scheme, name in names.items()
            if scheme in there
        }
        parts.append(grid(rows, [""], lines, columns, sparse=True))
    return "\n\n".join(parts)


WAYS = [(way, how) for way in ("int8_input", "int8") for how in ("nearest", "stochastic")]
FLOAT = {"float": "not quantized", "W8A8": "`W8A8()`"}
FACTORS = {
    "W4A8": "`W4A8(None)`",
    "W4A8-groups": "`W4A8({group}, group_factors=False)`",
    "W4A8-factors": "`W4A8({group})`",
    "W4A16": "`W4A16({group})`",
}


def trained() -> str:
    """Losses, time and memory of every scheme that was trained."""
    names = {f"W8A8-{w}-{h}": f'`W8A8(backward="{w}", rounding="{h}")`' for w, h in WAYS}

    def loss(rows: list[Row]) -> str:
        return plus_minus(rows[0]["validation"])

    tuned = {"mode": "checkpoint"}
    columns: dict[str, Any] = {
        "from scratch": (loss, {"mode": "scratch"}),
        "checkpoint, not trained on": (number("before", form=".4f"), tuned),
        "checkpoint, trained on": (loss, tuned),
        "ms of a step": (number("step_seconds", 1e3, ".0f"), tuned),
        "CPU ms": (number("cpu_seconds", 1e3, ".0f"), tuned),
        "MiB of a step": (number("peak_bytes", 1 / 2**20, ",.1f"), tuned),
    }
    return language("rows", columns, {**FLOAT, **names, **FACTORS})


def deployed() -> str:
    """Perplexity, size and speed of each deployed model."""
    names = {**FLOAT, "W8A16": "`W8A16()`", "W4A16-max": '`W4A16({group}, scale_rule="max")`'}
    for scheme in ("W4A16", "W4A8", "W4A8-groups", "W4A8-factors"):
        name = FACTORS[scheme]
        names[scheme] = name
        if scheme == "W4A16":
            names["W4A16-AWQ"] = f"`AWQ({name.strip('`')})`"
        names[f"{scheme}-GPTQ"] = f"`GPTQ({name.strip('`')})`"
    names["mixed"] = "3, 4 and 8 bits, as `sensitivity` chooses"

    def perplexity(rows: list[Row]) -> str:
        return f"{rows[0]['perplexity'][0]:.4f}"

    def change(rows: list[Row]) -> str:
        if rows[0]["scheme"] == "float" or rows[0]["change"] is None:
            return ""
        return plus_minus((100 * value for value in rows[0]["change"]), "+.2f") + " %"

    def both(rows: list[Row]) -> str:
        return ", ".join(filter(None, (perplexity(rows), change(rows))))

    def recovered(rows: list[Row]) -> str:
        return "" if rows[0]["recovered"] is None else f"{100 * rows[0]['recovered']:.0f} %"

    def speed(batch: str) -> Cell:
        def text(rows: list[Row]) -> str:
            if batch not in rows[0]["faster"]:
                return MISSING
            rate, faster = rows[0]["tokens_per_second"][batch], rows[0]["faster"][batch]
            return f"{rate:,.0f} ({faster:.2f} ×)"

        return text

    first, tuned = {"tuned": False}, {"tuned": True}
    columns: dict[str, Any] = {
        "perplexity": (perplexity, first),
        "against float": (change, first),
        "trained on": (both, tuned),
        "of GPTQ's loss regained": (recovered, tuned),
        "MB": (number("file_bytes", 1e-6, ",.2f"), first),
        "tokens/s, batch 1": (speed("1"), first),
        "batch 32": (speed("32"), first),
    }
    return language("deployment_rows", columns, names)


# --- several GPUs


def fsdp() -> str:
    """A step's time as a multiple of bfloat16's, and what is gathered."""
    lines, base = [], dict[int, float]()
    for row in pick(report("h", "distributed")["rows"], part="fsdp"):
        first = base.setdefault(row["tokens"], row["seconds"])
        cells = [str(row["tokens"]), row["variant"], f"{1e3 * row['seconds']:.1f}"]
        lines.append([*cells, f"{row['seconds'] / first:.2f} ×", f"{row['gathered'] / 1e9:.2f}"])
    return table(["tokens of a GPU", "", "ms", "of bfloat16", "gathered, GB"], lines, 2)


def mlp() -> str:
    """The time of each variant as a multiple of bfloat16's on one GPU."""
    titles = {"serve": "serving", "graph": "serving, CUDA graph", "train": "training"}
    found: dict[tuple[str, int], list[Row]] = {}
    for part in titles:
        for row in pick(report("h", "distributed")["rows"], part=part):
            found.setdefault((part, row["tokens"]), []).append(row)
    lines, names = [], list[str]()
    for (part, tokens), rows in found.items():
        names = [
            row["variant"].replace("processes", "GPUs").replace("process", "GPU") for row in rows
        ]
        base = rows[0]["seconds"]
        cells = [f"{row['seconds'] / base:.2f} ×" for row in rows[1:]]
        lines.append([titles[part], str(tokens), f"{1e3 * base:.3f} ms", *cells])
    return table(["", "tokens", *names], lines)


# --- the first screen


def headline() -> str:
    """Five figures."""
    digit = [{**row, **row["widths"]} for row in report(CPU, "digits")["summary"]]
    two = pick(digit, weight_bits=2, input_bits=4, group_size=None, inputs="learned")[0]
    qat, ptq, floats = (f"{two['accuracy'][way][0]:.1f} %" for way in ("qat", "ptq_max", "float"))
    encoder = report("epyc", "minilm")["rows"]
    sizes = [pick(encoder, name=name)[0]["file_bytes"] for name in ("float32", "W8A8")]
    int8 = pick(encoder, name="W8A8")[0]
    step = {row["op"]: f"{row['time']:.2f} ×" for row in pick(steps("training"), what="eager")}
    wanted = {"what": "linear", "dtype": "bfloat16", "m": results.at_least(1024)}
    linear = results.times("torch._int_mm")(pick(report(GPUS, "int8_mm")["rows"], **wanted))
    wanted = {"what": "forward", "op": "fake_quantize", "dtype": "float32"}
    fake = pick(report(CPU)["rows"], threads=2, m=4096, **wanted)
    lines = {
        "handwritten digits, weights of 2 bits and inputs of 4": f"{qat} recognized after training "
        f"with baraquant; {ptq} without it, {floats} in float32",
        "all-MiniLM-L6-v2 in int8, two CPU cores": f"{sizes[0] / sizes[1]:.1f} × smaller and "
        f"{int8['speeds']['32 x 64']['faster']:.1f} × as fast as float32; cosine similarity "
        f"{int8['cosine']:.3f}",
        "training step of a Transformer block, W8A8, H200": f"{step['baraquant W8A8']} the time of "
        f"bfloat16; a chain of PyTorch ops takes {step['PyTorch chain W8A8']}, torchao "
        f"{step['torchao W8A8 asymmetric']}",
        "`int8_linear`, 1024 rows and more, H100": f"{linear} as fast as `torch._int_mm`, with "
        "dequantization and bias",
        "`fake_quantize` of 64 MiB, two CPU cores": f"{results.times('PyTorch', form='.1f')(fake)} "
        "as fast as PyTorch's own",
    }
    return table(["measured", "figure"], lines.items(), 2)


BLOCKS: dict[str, Callable[[], str]] = {
    "headline": headline,
    "table.training": lambda: training("training"),
    "table.training.integers": lambda: training("integer_training"),
    "table.encoders": encoders,
    "table.digits": digits,
    "table.language_model.trained": trained,
    "table.language_model.deployed": deployed,
    "distributed.fsdp": fsdp,
    "distributed.mlp": mlp,
}
