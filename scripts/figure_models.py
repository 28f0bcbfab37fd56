# SPDX-License-Identifier: BSD-3-Clause
"""Figures and tables of whole models: a step, the encoder, the digits."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable
from typing import Any

import results
from results import Row, one, table

H200, CPU, EPYC = "h200", "cpu", "epyc"
MISSING = "–"


# --- a training step on an H200


INTEGERS = "integer_training"  # the family of a later run, with backward passes of integers


def step_time(mode: str, variant: str, family: str = "training") -> str:
    """The time of a variant's step, as a multiple of bfloat16's in the same mode."""
    seconds = [step(mode, name, family)["seconds"] for name in (variant, "bfloat16")]
    return f"{seconds[0] / seconds[1]:.2f}"


def step_memory(mode: str, variant: str, family: str = "training") -> str:
    """Its peak memory, as a multiple of bfloat16's in the same mode."""
    peaks = step(mode, variant, family)["peaks"]
    return f"{peaks[variant] / peaks['bfloat16']:.2f}"


def step(mode: str, variant: str, family: str = "training") -> Row:
    """The row of a training step."""
    return one(H200, family, what=mode, op=variant)


def integer_training() -> str:
    """Time and memory of a step with each backward pass, as multiples of bfloat16's."""
    names = {
        "baraquant W8A8": '`"float"`',
        "baraquant W8A8 int8_input": '`"int8_input"`',
        "baraquant W8A8 int8": '`"int8"`',
        "baraquant W8A8 int8 stochastic": '`"int8"`, stochastic',
    }
    modes = ("eager", "compiled")
    bases = [step(mode, "bfloat16", INTEGERS) for mode in modes]
    times = [f"1 ({1e3 * base['seconds']:.1f} ms)" for base in bases]
    memory = [f"1 ({base['peaks']['bfloat16'] / 2**20:,.0f} MiB)" for base in bases]
    lines = [["no quantization", *times, *memory]]
    for variant, name in names.items():
        parts = (of(mode, variant, INTEGERS) for of in (step_time, step_memory) for mode in modes)
        lines.append([name, *parts])
    return table(["`backward`", "time, eager", "compiled", "peak memory, eager", "compiled"], lines)


def training() -> str:
    """All variants, as multiples of bfloat16 in the same mode."""
    names = {
        "baraquant W8A8": "baraquant W8A8",
        "PyTorch chain W8A8": "W8A8 as a chain of PyTorch ops",
        "baraquant W8A8 static": "baraquant W8A8 static",
        "baraquant W4A8 groups of 32": "baraquant W4A8 groups of 32",
        "torchao W8A8 asymmetric": "torchao 0.18, W8A8 asymmetric",
        "fake_quantize_per_channel W8A8": "`torch.fake_quantize_per_channel_affine`, W8A8",
        "torch.ao FakeQuantize W8A8 static": "`torch.ao` FakeQuantize, W8A8 static",
        "baraquant W8A8 asymmetric": "baraquant W8A8 asymmetric",
        "torchao W4A8 groups of 32": "torchao 0.18, W4A8 groups of 32",
    }
    everything = results.report(H200, "training")["rows"]

    def cell(of: Callable[[str, str], str], mode: str, variant: str) -> str:
        row = next((r for r in everything if (r["what"], r["op"]) == (mode, variant)), None)
        if row is None:
            return MISSING
        failed = "does not compile" if of is step_time else MISSING
        return of(mode, variant) if row["error"] is None else failed

    base = {mode: step(mode, "bfloat16") for mode in ("eager", "compiled", "graph")}
    first = [f"1 ({1e3 * row['seconds']:.1f} ms)" for row in base.values()]
    first += [f"1 ({base[m]['peaks']['bfloat16'] / 2**20:,.0f} MiB)" for m in ("eager", "compiled")]
    lines = [["bfloat16", *first]]
    for variant, name in names.items():
        times = [cell(step_time, mode, variant) for mode in base]
        lines.append(
            [name, *times, *(cell(step_memory, m, variant) for m in ("eager", "compiled"))]
        )
    return table(
        ["", "eager", "compiled", "in a CUDA graph", "peak memory, eager", "compiled"], lines
    )


# --- the sentence encoder


def encoder(name: str) -> Row:
    """The row of a scheme; ``float32`` is the model that the others are made of."""
    found = results.report(EPYC, "minilm")["rows"]
    return next(row for row in found if row["name"] == name)


SCHEMES = {
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
}


def _retrieval(row: Row) -> str:
    low, high = row["interval"]
    return f"{row['change']:+.1f} ({low:+.1f} to {high:+.1f})"


def encoders_readme() -> str:
    """Every scheme but the one that is shown for what does not work."""
    floats, lines = encoder("float32"), []
    for name in (name for name in SCHEMES if name != "SmoothQuant static"):
        row = encoder(name)
        cells = [f"{row['cosine']:.4f}", _retrieval(row)]
        cells += [f"{floats['file_bytes'] / row['file_bytes']:.2f} ×"]
        cells += [f"{row['speeds'][batch]['faster']:.2f} ×" for batch in ("32 x 64", "32 x 128")]
        lines.append([SCHEMES[name], *cells])
    titles = ["retrieval, points (95 %)", "smaller", "faster, 64 tokens", "faster, 128 tokens"]
    return table(["", "cosine", *titles], lines)


def encoders_guide() -> str:
    """Ours, with their sizes."""
    floats, lines = encoder("float32"), []
    for name in (name for name in SCHEMES if not name.startswith("PyTorch")):
        row = encoder(name)
        cells = [f"{row['cosine']:.4f}", _retrieval(row), f"{row['file_bytes'] / 1e6:.1f}"]
        lines.append([SCHEMES[name], *cells, f"{row['speeds']['32 x 64']['faster']:.2f} ×"])
    size = f"MB on disk (float32: {floats['file_bytes'] / 1e6:.1f})"
    return table(["scheme", "cosine similarity", "retrieval", size, "faster than float32"], lines)


# --- the handwritten digits


def _digits() -> dict[str, Any]:
    return results.report(CPU, "digits")


def digits_times() -> dict[str, Any]:
    """Everything of the digits, with what depends on the machine's load."""
    content = _digits()
    if "times" not in content:
        raise results.NotMeasuredError("the result of the digits holds no times")
    return content


def _summary(weight_bits: int, input_bits: int, group: int | None = None) -> dict[str, Any]:
    """All seeds at a width, with learned scales of the inputs."""
    wanted = (weight_bits, input_bits, group, "learned")
    for summary in _digits()["summary"]:
        widths = summary["widths"]
        if (*(widths[name] for name in WIDTHS),) == wanted:
            found: dict[str, Any] = summary
            return found
    raise LookupError(f"the digits have no width {wanted}")


WIDTHS = ("weight_bits", "input_bits", "group_size", "inputs")


def accuracy(way: str, weight_bits: int, input_bits: int) -> str:
    """The mean over the seeds, in percent."""
    return f"{_summary(weight_bits, input_bits)['accuracy'][way][0]:.1f}"


def accuracy_and_spread(way: str, weight_bits: int, input_bits: int) -> str:
    """The same with its deviation."""
    return _plus_minus(_summary(weight_bits, input_bits)["accuracy"][way])


def _plus_minus(pair: list[float]) -> str:
    return f"{pair[0]:.1f} ± {pair[1]:.1f}"


def digits_smaller(weight_bits: int, input_bits: int) -> str:
    """How many times fewer bytes than in float32."""
    return f"{_digits()['float_bytes'] / _summary(weight_bits, input_bits)['tensor_bytes']:.1f}"


def gain(weight_bits: int) -> str:
    """Points that training gains on fitted scales, over all widths with such weights."""
    found = [s for s in _digits()["summary"] if s["widths"]["weight_bits"] == weight_bits]
    found = [s for s in found if s["widths"]["inputs"] == "learned" and len(s["gains"]) > 1]
    found = [s for s in found if s["widths"]["input_bits"] in (8, 4)]
    by_seed = [statistics.mean(gains) for gains in zip(*(s["gains"] for s in found), strict=True)]
    return _plus_minus([statistics.mean(by_seed), statistics.stdev(by_seed)])


def wide(what: str) -> str:
    """Of the wide network, deployed: its accuracy, or how many times fewer bytes it takes."""
    deployments = _digits()["deployments"]
    if what == "accuracy":
        return f"{statistics.mean(d['accuracy']['qat'] for d in deployments):.1f}"
    sizes = deployments[0]["tensor_bytes"]
    return f"{sizes['float'] / sizes['qat']:.1f}"


def digits_table(widths: list[tuple[int, int, int | None]], sign: str, titles: list[str]) -> str:
    """A line for each width."""
    lines = []
    for weight_bits, input_bits, group in widths:
        summary = _summary(weight_bits, input_bits, group)
        cells = [_plus_minus(summary["accuracy"][way]) for way in ("ptq_max", "ptq", "qat")]
        gains = summary["gains"]
        cells += [f"{statistics.mean(gains):{sign}.1f} ± {statistics.stdev(gains):.1f}"]
        each = "channel" if group is None else f"group of {group}"
        lines.append(
            [f"{weight_bits} / {input_bits}", each, *cells, f"{summary['tensor_bytes']:,}"]
        )
    return table(["bits of weights / inputs", "a scale for each", *titles], lines, left=2)


def digits_readme() -> str:
    """Nine widths."""
    widths = [(8, 8, None), (4, 8, None), (4, 4, None), (4, 4, 32), (3, 8, None), (3, 4, None)]
    titles = ["PTQ, scale from the maximum", "PTQ, fitted scale", "QAT", "gain", "bytes"]
    return digits_table([*widths, (2, 8, None), (2, 4, None), (2, 4, 32)], "+", titles)


def digits_guide() -> str:
    """Six widths."""
    widths = [(8, 8, None), (4, 8, None), (4, 4, None), (3, 4, None), (2, 4, None), (2, 4, 32)]
    ways = ["not trained, scale from the maximum", "not trained, fitted scale", "trained", "gain"]
    return digits_table(widths, "", [*ways, f"bytes (float32: {_digits()['float_bytes']:,})"])


def demo_ending() -> str:
    """What make demo prints last."""
    content = digits_times()
    equal = sum(run["integers_equal"] for run in content["runs"])
    paragraphs = [
        f"Stored as integers and loaded into fresh networks, {equal} of {len(content['runs'])} "
        "give bit for bit the outputs of training's last evaluation.",
        content["deployed"],
        f"{content['settings']['seeds']} seeds, {content['seconds']:.0f} s. Plot, figures and "
        "networks: results/",
    ]
    text = "\n\n".join(textwrap.fill(paragraph, 80) for paragraph in paragraphs)
    return f"```text\n{text}\n```"


TABLES: dict[str, Callable[[], str]] = {
    "table.training": training,
    "table.training.integers": integer_training,
    "table.encoders.readme": encoders_readme,
    "table.encoders.guide": encoders_guide,
    "table.digits.readme": digits_readme,
    "table.digits.guide": digits_guide,
    "demo.ending": demo_ending,
}
