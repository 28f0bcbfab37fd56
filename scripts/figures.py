# SPDX-License-Identifier: BSD-3-Clause
"""Writes the measured figures into README.md and docs/*.md, out of benchmarks/results/*.json.

Usage: figures.py [--check]. A page holds a figure between two comments,

    <!--=training.eager-->0.87<!--/--> of the time of a bfloat16 step

and what stands between them is replaced by the figure of that name. A table stands between them on
lines of its own. Links to results are turned to the newest ones. --check changes nothing, and fails
where a page and a result differ. FIGURES, below, says how each figure is computed.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figure_cards
import figure_distributed
import figure_int4
import figure_language
import figure_models
import figure_tables
import figure_tiles
import results
from figure_models import INTEGERS
from results import GPUS, among, at_least, fields, peers, percent, rows, span

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"<!--=([\w.-]+)-->(.*?)<!--/-->", re.DOTALL)
CPU = ("cpu", "epyc")  # of the CPUs the newest result counts

Figure = Callable[[], str]


def training(mode: str, variant: str, family: str = "training") -> Figure:
    """The time of a training step, as a multiple of bfloat16's in the same mode."""
    return lambda: figure_models.step_time(mode, variant, family)


def memory(mode: str, variant: str) -> Figure:
    """The peak memory of a training step, as a multiple of bfloat16's in the same mode."""
    return lambda: figure_models.step_memory(mode, variant)


def phase(variant: str, name: str) -> Figure:
    """Milliseconds of a part of an eager training step."""
    return lambda: f"{1e3 * figure_models.step('eager', variant)['phases'][name]:.1f}"


def product(peer: str, **wanted: Any) -> Figure:
    """Times as long as int8_linear: what a peer takes, over all weights."""
    return lambda: span(peers(linear(**wanted), peer))


def linear(**wanted: Any) -> list[results.Row]:
    """The rows of int8_linear on a GPU."""
    return rows(GPUS, "int8_mm", what="linear", dtype="bfloat16", **wanted)


def whole(**wanted: Any) -> list[float]:
    """How quantized_linear on a GPU compares with a bfloat16 layer."""
    return peers(rows(GPUS, "int8_mm", what="whole", **wanted), "bfloat16 linear")


def grouped(what: str, **wanted: Any) -> Figure:
    """How a grouped op with 8 groups on a GPU compares with PyTorch's grouped product."""
    return lambda: span(
        peers(rows(GPUS, "grouped", what=what, n=8, **wanted), "torch._grouped_mm"), ".1f"
    )


def tokens(machine: results.Machine, **wanted: Any) -> list[results.Row]:
    """The rows of dynamic quantization for each token, of long rows and many of them."""
    least = {"m": at_least(16384), "n": at_least(4096)} if machine == GPUS else {}
    chosen: dict[str, Any] = {"what": "token", "case": "per_token, symmetric", **least}
    return rows(machine, "range", **{**chosen, **wanted})


def decode(**wanted: Any) -> list[float]:
    """Microseconds above an empty launch and the bytes, of a few tokens."""
    return [
        1e6 * (row["seconds"] - row["bound"])
        for row in rows(GPUS, "range", what="decode", **wanted)
    ]


def dynamic(case: str, **wanted: Any) -> list[results.Row]:
    """The rows of dynamic fake quantize, forward and backward, on a GPU."""
    return rows(GPUS, "range", what="forward + backward", case=case, **wanted)


def affine(op: str, **wanted: Any) -> list[results.Row]:
    """Rows of 2^28 elements on a GPU, float32 and bfloat16, every granularity."""
    chosen: dict[str, Any] = {"m": 65536, "dtype": among("float32", "bfloat16"), **wanted}
    return rows(GPUS, op=op, **{"what": among("forward", "forward + backward"), **chosen})


def fake_cpu(**wanted: Any) -> list[results.Row]:
    """The rows of fake_quantize on two cores, float32."""
    chosen: dict[str, Any] = {"what": "forward", "op": "fake_quantize", "dtype": "float32"}
    return rows(CPU, **{**chosen, "threads": 2, **wanted})


def calls(case: str) -> list[results.Row]:
    """The rows of what a call through baraquant.ops costs."""
    return rows(CPU, what="call overhead", op="baraquant.ops", case=lambda text: case in text)


def cpp_calls(case: str) -> list[results.Row]:
    """The rows of what a call through <baraquant/ops.h> costs."""
    return rows(CPU, "cpp_calls", what="C++ calls", case=lambda text: case in text)


def cpu_product(**wanted: Any) -> list[results.Row]:
    """The rows of int8_linear on two cores from 128 rows on."""
    chosen: dict[str, Any] = {"what": "linear", "threads": 2, "m": at_least(128)}
    return rows(CPU, "int8_mm", **{**chosen, **wanted})


def depthwise() -> list[results.Row]:
    """The rows of MobileNetV2's convolutions on two cores."""
    return rows(CPU, "conv", what="mobilenet_v2")


def qat_linear(m: int) -> list[float]:
    """How qat_linear on a GPU compares with a bfloat16 layer."""
    found = rows(GPUS, "int8_mm", op="qat_linear", m=m, case="forward + backward")
    return peers(found, "bfloat16 linear")


def digits() -> dict[str, Any]:
    """The result of the digits."""
    return results.report(CPU, "digits")


def width(way: str, weight_bits: int, input_bits: int) -> Figure:
    """Percent of the digits that are recognized at this width, a scale for each channel."""
    return lambda: figure_models.accuracy(way, weight_bits, input_bits)


def milliseconds(network: str) -> Figure:
    """What the wide network of digits takes for all test images."""
    return lambda: f"{1e3 * figure_models.digits_times()['times']['all_images'][network]:.2f}"


def memory_of(family: str, machine: results.Machine = CPU) -> Figure:
    """How the process of a result on the CPU got its memory."""
    return lambda: (
        "with freed memory kept, unlike by default"
        if results.is_kept(machine, family)
        else "in a process as it is by default"
    )


def minilm(name: str, form: Callable[[results.Row, results.Row], str]) -> Figure:
    """Something of a row of the sentence encoder, beside the float model's."""
    return lambda: form(figure_models.encoder(name), figure_models.encoder("float32"))


def encoder_speed(name: str) -> Figure:
    """How many times faster than float32 a row of the sentence encoder is."""
    return minilm(name, lambda row, _: f"{row['speeds']['32 x 64']['faster']:.2f}")


FIGURES: dict[str, Figure] = {
    **figure_language.FIGURES,
    **figure_models.TABLES,
    **figure_tables.TABLES,
    **figure_distributed.TABLES,
    **figure_int4.TABLES,
    **figure_tiles.FIGURES,
    **figure_cards.FIGURES,
    # A training step on a GPU
    "training.eager": training("eager", "baraquant W8A8"),
    "training.compiled": training("compiled", "baraquant W8A8"),
    "training.integers.int8": training("eager", "baraquant W8A8 int8", INTEGERS),
    "training.integers.int8_input": training("eager", "baraquant W8A8 int8_input", INTEGERS),
    "training.graph": training("graph", "baraquant W8A8"),
    "training.memory": memory("eager", "baraquant W8A8"),
    "training.chain.eager": training("eager", "PyTorch chain W8A8"),
    "training.chain.compiled": training("compiled", "PyTorch chain W8A8"),
    "training.torchao.eager": training("eager", "torchao W8A8 asymmetric"),
    "training.static.eager": training("eager", "baraquant W8A8 static"),
    "training.static.compiled": training("compiled", "baraquant W8A8 static"),
    "training.static.memory": memory("eager", "baraquant W8A8 static"),
    "training.chain.ms": lambda: (
        f"{1e3 * figure_models.step('eager', 'PyTorch chain W8A8')['seconds']:.0f}"
    ),
    "training.forward": phase("baraquant W8A8", "forward"),
    "training.chain.forward": phase("PyTorch chain W8A8", "forward"),
    "training.backward": lambda: span(
        (
            1e3 * (row["phases"]["backward"] + row["phases"]["optimizer"])
            for row in rows(GPUS, "training", what="eager")
            if not row["op"].startswith("torchao")
        ),
        ".1f",
    ),
    # Products of integers on a GPU
    "int8.tops": lambda: span(fields(linear(m=at_least(1024)), "tops"), ".0f"),
    "int8.int_mm": product("torch._int_mm", m=at_least(1024)),
    "int8.bfloat16": product("bfloat16 linear", m=at_least(1024)),
    "int8.fp8": product("fp8 rowwise", m=at_least(1024)),
    "int8.one.int_mm": product("torch._int_mm", m=1),
    "int8.one.bfloat16": product("bfloat16 linear", m=1),
    "int8.met": lambda: figure_tables.targets_met(GPUS, "int8_mm"),
    "int8.whole": lambda: span(whole(m=4096)),
    "int8.whole.28672": lambda: span(whole(m=4096, n=28672)),
    "int8.whole.others": lambda: span(whole(m=4096, n=lambda n: n != 28672)),
    "int8.qat.16384": lambda: span(qat_linear(16384)),
    "int8.qat.4096": lambda: span(qat_linear(4096)),
    "grouped.4096": grouped("linear", m=4096),
    "grouped.few": grouped("linear", m=among(64, 512)),
    "grouped.whole": grouped("whole", m=4096),
    "grouped.met": lambda: figure_tables.targets_met(GPUS, "grouped"),
    # Scales from the data on a GPU: 2^28 elements and more, rows of 4096 and more
    "token.copy": lambda: percent(fields(tokens(GPUS), "of_copy")),
    "token.eager.bfloat16": lambda: span(peers(tokens(GPUS, dtype="bfloat16"), "PyTorch"), ".1f"),
    "token.eager.float32": lambda: span(peers(tokens(GPUS, dtype="float32"), "PyTorch"), ".1f"),
    "token.compile.bfloat16": lambda: span(
        peers(tokens(GPUS, dtype="bfloat16"), "torch.compile"), ".1f"
    ),
    "token.compile.float32": lambda: span(
        peers(tokens(GPUS, dtype="float32"), "torch.compile"), ".1f"
    ),
    "decode.64": lambda: span(decode(m=64, n=4096, case="per_token, symmetric"), ".1f"),
    "decode.most": lambda: f"{max(decode()):.1f}",
    "dynamic.token.copy": lambda: percent(
        row["of_copy"] for row in dynamic("per_token, symmetric", dtype="bfloat16")
    ),
    "dynamic.skewed.copy": lambda: percent(
        row["of_copy"]
        for case in ("per_token", "per_group(128,-1)", "per_channel(1)")
        for row in dynamic(f"{case}, asymmetric")
    ),
    "range.met": lambda: figure_tables.targets_met(GPUS, "range"),
    # The affine family on a GPU, 2^28 elements
    "fake.copy": lambda: percent(fields(affine("fake_quantize", what="forward"), "of_copy")),
    "fake.both.copy": lambda: percent(fields(affine("fake_quantize, input kept"), "of_copy")),
    # On two cores of a Xeon
    "cpu.memory": memory_of(""),
    "cpu.memory.range": memory_of("range"),
    "cpu.memory.int8": memory_of("int8_mm"),
    "cpu.memory.minilm": memory_of("minilm", figure_models.EPYC),
    "cpu.fake": lambda: span(peers(fake_cpu(m=4096), "PyTorch"), ".1f"),
    "cpu.token.eager": lambda: span(peers(tokens(CPU), "PyTorch"), ".1f"),
    "cpu.token.compile": lambda: span(peers(tokens(CPU), "torch.compile"), ".1f"),
    "cpu.range.met": lambda: figure_tables.targets_met(CPU, "range"),
    "cpu.int8.tops": lambda: span(fields(cpu_product(), "tops")),
    "cpu.int8.float32": lambda: span(peers(cpu_product(), "float32 linear"), ".1f"),
    "cpu.int8.dynamic": lambda: span(peers(rows(CPU, "int8_mm", what="whole"), "quantize_dynamic")),
    "cpu.int8.met": lambda: figure_tables.targets_met(CPU, "int8_mm"),
    "cpu.conv.met": lambda: figure_tables.targets_met(CPU, "conv"),
    "cpu.depthwise": lambda: span(peers(depthwise(), "float32 conv2d"), ".1f"),
    "call.time": lambda: span(fields(calls("no grad"), "seconds", 1e6), ".1f"),
    "call.no_grad": lambda: span(peers(calls("no grad"), "PyTorch")),
    "call.grad": lambda: span(peers(calls("grad recorded"), "PyTorch")),
    "call.both": lambda: span(peers(calls("forward + backward"), "PyTorch")),
    "cpp.time": lambda: span(fields(cpp_calls("no grad"), "seconds", 1e6), ".1f"),
    "cpp.no_grad": lambda: span(peers(cpp_calls("no grad"), "PyTorch")),
    "cpp.grad": lambda: span(peers(cpp_calls("grad recorded"), "PyTorch")),
    "cpp.both": lambda: span(peers(cpp_calls("forward + backward"), "PyTorch")),
    # The sentence encoder
    "minilm.float.retrieval": minilm("float32", lambda row, _: f"{row['retrieval']:.1f}"),
    "minilm.cosine": minilm("W8A8", lambda row, _: f"{row['cosine']:.3f}"),
    "minilm.smaller": minilm("W8A8", lambda row, f: f"{f['file_bytes'] / row['file_bytes']:.1f}"),
    "minilm.faster": minilm("W8A8", lambda row, _: f"{row['speeds']['32 x 64']['faster']:.1f}"),
    "minilm.pytorch": encoder_speed("PyTorch quantize_dynamic"),
    "minilm.pytorch.cosine": minilm(
        "PyTorch quantize_dynamic", lambda row, _: f"{row['cosine']:.3f}"
    ),
    "minilm.w8a8": encoder_speed("W8A8"),
    "minilm.smoothquant": encoder_speed("SmoothQuant"),
    "minilm.fused.w8a8": encoder_speed("W8A8, fused ops"),
    "minilm.fused.smoothquant": encoder_speed("SmoothQuant, fused ops"),
    # The handwritten digits
    "digits.float": width("float", 2, 4),
    "digits.2-4.qat": width("qat", 2, 4),
    "digits.2-4.fitted": width("ptq", 2, 4),
    "digits.2-4.maximum": width("ptq_max", 2, 4),
    "digits.2-4.smaller": lambda: figure_models.digits_smaller(2, 4),
    "digits.float.bytes": lambda: f"{digits()['float_bytes']:,}",
    "digits.float.spread": lambda: figure_models.accuracy_and_spread("float", 2, 4),
    "digits.gain.4": lambda: figure_models.gain(4),
    "digits.gain.3": lambda: figure_models.gain(3),
    "digits.gain.2": lambda: figure_models.gain(2),
    "digits.gain.8": lambda: figure_models.gain(8),
    "digits.wide.int8": milliseconds("qat"),
    "digits.wide.float": milliseconds("float"),
    "digits.wide.accuracy": lambda: figure_models.wide("accuracy"),
    "digits.wide.smaller": lambda: figure_models.wide("bytes"),
}


def refreshed_link(match: re.Match[str]) -> str:
    """The name of the result that counts, in the place of an older one."""
    return f"{results.stem(match['machine'], match['family'] or '')}.{match['suffix']}"


def written(text: str, name: str, used: set[str]) -> str:
    """A page with its figures and links as the results have them."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in FIGURES:
            sys.exit(f"figures: {name} names the figure {match[1]}, which scripts/figures.py lacks")
        used.add(match[1])
        try:
            figure = FIGURES[match[1]]()
        except results.NotMeasuredError as error:
            print(f"figures: {name} keeps its {match[1]}: {error}")
            return match[0]
        if "\n" in figure:
            figure = f"\n{figure}\n\n"
        elif not text[: match.start()].rpartition("\n")[2].strip(" "):
            sys.exit(  # Markdown would take the whole line for HTML
                f"figures: {name} has the figure {match[1]} at the start of a line; move it"
            )
        return f"<!--={match[1]}-->{figure}<!--/-->"

    link = re.compile(rf"(?<=benchmarks/results/){results.NAME.pattern}")
    return link.sub(refreshed_link, MARK.sub(replace, text))


def pages() -> list[Path]:
    """The pages that may hold figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(arguments: list[str]) -> int:
    """Writes the pages, or says what differs."""
    if arguments not in ([], ["--check"]):
        sys.exit("usage: figures.py [--check]")
    differs, used = False, set[str]()
    for path in pages():
        name, old = str(path.relative_to(ROOT)), path.read_text()
        new = written(old, name, used)
        if new == old:
            continue
        differs = True
        if arguments:
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "results", n=0)
            print("\n".join(lines))
        else:
            path.write_text(new)
            print(f"figures: {name} was brought up to date")
    if unused := sorted(FIGURES.keys() - used):
        sys.exit(f"figures: no page shows {', '.join(unused)}")
    if differs and arguments:
        print("figures: pages and results differ; make figures brings the pages up to date")
    return int(differs and bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
