# SPDX-License-Identifier: BSD-3-Clause
"""Speed and memory of whole language models under every scheme, ours and other packages'.

The models have Llama's shape and random weights (transformers makes them; nothing is fetched). Each
is quantized, then it reads prompts without a cache, and decodes a token for each row with a static
cache; on a GPU decoding is in a CUDA graph. Models are measured one after another, the floating one
first: two would not fit. Ratios are to the floating model in the same mode, before any variant. The
head and the embedding stay floating. Memory is that of PyTorch's allocator: what the quantized
model takes, and the most that was taken while it was made of the floating one. On a CPU it is what
the tensors of the model take.

``8b/8`` are the first eight layers of ``8b``, with a small head. A model is measured only if it
should end within the budget, and the files are written after each: a run that is ended keeps what
it has.

    python -m benchmarks.bench_llm                          # on a GPU if there is one
    python -m benchmarks.bench_llm --sizes 8b/8 --what compiled --schemes W8A8 W4A8 --budget 120
    python -m benchmarks.bench_llm --device cpu --sizes 100m --rows 1 --prompts --out results/llm
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import baraquant
from benchmarks.bench import Timer, capture, describe, free_memory, refuse_waiting, replay_seconds
from benchmarks.bench_cli import Plan, parse, parser_of, parts_of, run, timer_of
from benchmarks.bench_memory import GIB, bytes_of, taken
from benchmarks.bench_plot import plot_speedups
from benchmarks.bench_report import Layout, Part, threads_text, verdicts
from benchmarks.bench_row import OWN, Row, TakesAtMost

# isort: split
from benchmarks.llama import NO_ATTENTION, SHAPES, Decoder, llama, parse_model, random_ids
from benchmarks.peers import Scheme, missing, own, schemes, versions
from tests.support.cases import name_of

MODES = ("eager", "compiled")
PLAIN, QUANTIZE = "plain", "quantize"
# What is done to a quantized model of ours, and to the floating one, before it is measured.
VARIANTS: dict[str, tuple[Callable[[nn.Module], object], ...]] = {
    PLAIN: (),
    "optimized": (baraquant.optimize_for_inference_,),
}
REPLAYS = 8  # tokens that are decoded in a measurement
BUDGET = 1800.0  # seconds
CALIBRATION = 1, 128  # rows x tokens that static scales are made from
# Of eight layers of 8b, compiled, with a variant: the most of the floating model's time.
TARGET_MODEL = "8b/8"
TARGETS = {
    ("W8A8", "decode 1"): 0.52,
    ("W4A8", "decode 1"): 0.36,
    ("W8A8", f"decode 16, {NO_ATTENTION}"): 0.70,
    ("W4A8", f"decode 16, {NO_ATTENTION}"): 0.70,
    ("W8A8", "prefill 1x4096"): 0.66,
}

Case = tuple[Scheme, str]  # a scheme and the name of a variant
Measures = dict[str, Callable[[], Callable[[], float]]]


@dataclass(frozen=True)
class LlmPlan(Plan):
    """A plan over schemes, each with its variants."""

    chosen: list[Case]

    def cases(self) -> list[Case]:
        """Each of them."""
        return self.chosen


@dataclass
class LlmRow(Row):
    """A run, ``case``, of a scheme, ``op``, in a mode, ``what``; ``shape`` is rows x tokens.

    ``model`` is its size, ``held`` has the bytes of the model and of the peak.
    """

    model: str = ""
    variant: str = PLAIN
    baseline: str = ""

    @property
    def tokens(self) -> float | None:
        """Tokens in a second."""
        return self.shape[0] * self.shape[1] / self.seconds if self.shape and self.seconds else None


NUMBERS = ("ms", "tokens/s", "faster than float", "model GiB", "peak GiB")


def columns(rows: list[Row]) -> tuple[str, ...]:
    """The titles."""
    return ("scheme", "variant", "model", "run", *NUMBERS, "note", "target", "")


def cells(row: LlmRow) -> tuple[str, ...]:
    """The texts of a row."""
    mode = row.what if row.threads is None else f"{row.what}, {threads_text(row.threads)}"
    speedup = row.speedups.get(row.baseline)
    return (
        *(row.op, row.variant, f"{row.model} {row.dtype}, {mode}", row.case),
        "" if row.seconds is None else f"{row.seconds * 1e3:,.3f}",
        "" if row.tokens is None else f"{row.tokens:,.0f}",
        "" if speedup is None else f"{speedup:.2f} ×",
        *(f"{row.held[k] / GIB:.2f}" if k in row.held else "" for k in ("model", "peak")),
        *(row.error or row.note, ", ".join(map(str, row.targets)), verdicts(row)),
    )


LLM = Layout(columns, cells, frozenset(NUMBERS))


def parse_prompt(text: str) -> tuple[int, int]:
    """Rows and tokens of ``4x2048``."""
    if match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text):
        return int(match[1]), int(match[2])
    raise argparse.ArgumentTypeError(f"expected rows x tokens, such as 4x2048, but got {text!r}")


def calibrate(model: nn.Module) -> None:
    """Shows the model random tokens."""
    model(input_ids=random_ids(model, *CALIBRATION), use_cache=False, logits_to_keep=1)


def known_schemes() -> list[Scheme]:
    """The floating model, ours, those of ours that are calibrated, and those of other packages."""
    floats, *others = schemes("")
    ours = [scheme for scheme in others if scheme.package is None]
    calibrated = [
        Scheme("W8A8 static", "W8A8", own(baraquant.W8A8Static(), calibrate)),
        Scheme("SmoothQuant", "W8A8", own(baraquant.SmoothQuant(), calibrate)),
    ]
    return [floats, *ours, *calibrated, *(scheme for scheme in others if scheme.package)]


class Models:
    """Measures models, one after another; keeps the times of the floating ones.

    Attributes:
        options: The command line.
        floats: Seconds of each run of the floating model, by mode, size, dtype and threads.
        took: Seconds that the last model took, by mode and size.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.timer = options, timer_of(options)
        if options.busy:
            self.timer.clock = time.process_time
        self.until = time.monotonic() + options.budget
        self.floats: dict[tuple[Any, ...], dict[str, float | str]] = {}
        self.took: dict[tuple[str, str], float] = {}

    def measure(
        self, mode: str, plan: LlmPlan, size: str, dtype: torch.dtype, cases: list[Case]
    ) -> Iterator[Row]:
        """The rows of some models; one that fails hinders no other."""
        for scheme, variant in cases:
            scheme = dataclasses.replace(scheme, name=scheme.name or name_of(dtype))
            torch._dynamo.reset()
            start = time.monotonic()
            with torch._dynamo.config.patch(recompile_limit=64):
                rows = self.rows(mode, size, dtype, scheme, variant)
            self.took[mode, size] = time.monotonic() - start
            yield from rows
            free_memory(self.options.device)

    def rows(
        self, mode: str, size: str, dtype: torch.dtype, scheme: Scheme, variant: str
    ) -> list[Row]:
        """The rows of one model: first its quantization, then its runs."""
        device, cpu = self.options.device, self.options.device.type == "cpu"
        name, _, layers = size.partition("/")

        def row_of(case: str, shape: list[int], *targets: TakesAtMost) -> LlmRow:
            threads = torch.get_num_threads() if cpu else None
            names = (mode, scheme.name, case, name_of(dtype), shape, threads, list(targets))
            model = f"{name} of {layers} layers" if layers else name
            return LlmRow(*names, model=model, variant=variant, baseline=name_of(dtype))

        row = row_of(QUANTIZE, [])
        if time.monotonic() + self.took.get((mode, size), 0) > self.until:
            row.note = f"not measured: the budget of {self.options.budget:g} s was used up"
            return [row]
        free_memory(device)
        before = 0 if cpu else torch.cuda.memory_allocated(device)
        try:
            model = llama(parse_model(size), device, dtype)
            row.seconds, after, peak = taken(lambda: scheme.quantize(model), device, before)
            row.held = {"model": bytes_of(model)} if cpu else {"model": after, "peak": peak}
            for change in VARIANTS[variant]:
                change(model)
            runs, results = self.run(mode, model.requires_grad_(False), variant)
        except Exception as error:  # such as too little memory
            return [row.fail(describe(error))]
        is_float = scheme.kind is None and variant == PLAIN
        key = (mode, size, dtype, torch.get_num_threads())
        floats = self.floats.setdefault(key, results if is_float else {})
        rows = [row]
        for case, shape in runs.items():
            run = row_of(case, shape, *self.targets(mode, size, scheme, variant, case))
            compared = {OWN: results[case]}
            if case in floats and not is_float:
                compared[run.baseline] = floats[case]
            rows.append(run.fill(compared, OWN))
        return rows

    def targets(
        self, mode: str, size: str, scheme: Scheme, variant: str, case: str
    ) -> list[TakesAtMost]:
        """What eight compiled layers of 8b have to reach on a GPU, with a variant."""
        is_asked = self.options.device.type == "cuda" and size == TARGET_MODEL
        is_asked &= mode == "compiled" and variant != PLAIN
        share = TARGETS.get((scheme.name, case)) if is_asked else None
        return [] if share is None else [TakesAtMost("bfloat16", share)]

    def run(
        self, mode: str, model: nn.Module, variant: str
    ) -> tuple[dict[str, list[int]], dict[str, float | str]]:
        """Rows and tokens of each run, and its seconds or the text of its error."""
        forward = model.forward
        if mode == "compiled":
            fuse = {"post_grad_custom_pre_pass": baraquant.graph.Fuse()}
            options = {} if variant == PLAIN else {"options": fuse}
            forward = torch.compile(model.forward, dynamic=False, **options)
        prompts = {f"prefill {r}x{t}": [r, t] for r, t in self.options.prompts}
        decoded = {f"decode {rows}": (rows, True) for rows in self.options.rows}
        decoded |= {f"decode {rows}, {NO_ATTENTION}": (rows, False) for rows in self.options.bare}
        prepares: Measures = {
            name: functools.partial(prefill, model, forward, self.timer, *shape)
            for name, shape in prompts.items()
        }
        prepares |= {
            name: functools.partial(decode, model, forward, self.timer, rows, attends)
            for name, (rows, attends) in decoded.items()
        }
        with torch.inference_mode():
            results = self.timer.in_turns(prepares, self.timer.rounds)
        return prompts | {name: [rows, 1] for name, (rows, _) in decoded.items()}, results


def prefill(
    model: nn.Module, forward: Callable[..., Any], timer: Timer, rows: int, tokens: int
) -> Callable[[], float]:
    """What measures the seconds in which a model reads prompts, without a cache."""
    ids = random_ids(model, rows, tokens)
    return timer.prepare(lambda _: forward(input_ids=ids, use_cache=False, logits_to_keep=1).logits)


def decode(
    model: nn.Module, forward: Callable[..., Any], timer: Timer, rows: int, attends: bool
) -> Callable[[], float]:
    """What measures the seconds in which a model decodes a token for each row."""
    decoder = Decoder(model, forward, rows, attends)

    def step(_: int = 0) -> torch.Tensor:
        decoder.rewind()
        return decoder.step()

    if timer.device.type != "cuda":
        return timer.prepare(step)
    step()  # compiles, where the model is compiled
    refuse_waiting(step)
    graph = capture(decoder.step, step)

    def measure() -> float:
        decoder.rewind()
        return replay_seconds(graph, REPLAYS) / REPLAYS

    return measure


def cases_of(options: argparse.Namespace) -> list[Case]:
    """The schemes that take part, the floating model first: what is installed, or was asked for.

    Variants are for ours. The floating model has them where plain is one of them, else plain alone.
    """
    floats, *others = known_schemes()
    found = [(floats, v) for v in (options.variants if PLAIN in options.variants else [PLAIN])]
    for scheme in others:
        if scheme.name in options.schemes if options.schemes else not missing(scheme.package):
            variants = [PLAIN] if scheme.package else options.variants
            found += [(scheme, variant) for variant in variants]
    return found


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, one for each mode and size, with parts: functions that yield rows."""
    models, threads = Models(options), [torch.get_num_threads()]
    dtype = "bfloat16" if options.device.type == "cuda" else "float32"
    for size in options.sizes:
        for mode in options.what:
            measure = functools.partial(models.measure, mode)
            one = argparse.Namespace(**{**vars(options), "sizes": [size]})
            plans = [LlmPlan([size], [dtype], threads, [case]) for case in cases_of(options)]
            yield f"{size}, {mode}", list(parts_of(plans, one, measure))


def plot(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Draws a panel for each model and run: how many times as fast as the floating model."""
    plot_speedups(
        rows,
        about,
        path,
        panel=lambda row: (f"{row.model}, {row.what}", row.case),
        label=lambda row: row.op if row.variant == PLAIN else f"{row.op}, {row.variant}",
    )


def main(argv: list[str] | None = None) -> list[Row]:
    """Runs the benchmark and reports it."""
    parser = parser_of("llm", __doc__, MODES, sizes=" ".join(SHAPES))
    known = [scheme.name for scheme in known_schemes() if scheme.kind]
    parser.add_argument("--schemes", nargs="+", choices=known, help="beside the floating model")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--rows", nargs="*", type=int, help="how many rows are decoded, or none")
    parser.add_argument(
        *("--bare", "--rows-without-attention"),
        nargs="*",
        type=int,
        help="how many are decoded without attention as well: what all else takes; or none",
    )
    parser.add_argument(
        "--prompts", nargs="*", type=parse_prompt, help="such as 1x512 4x2048, or none"
    )
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help=f"seconds of the run; {BUDGET:g} by default"
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="on a CPU with other work, with one thread: the time that the process had a core",
    )
    options = parse(parser, argv, parse_model)
    if options.busy and (options.device.type != "cpu" or options.threads != [1]):
        parser.error("expected --device cpu --threads 1 beside --busy")
    is_cuda, quick = options.device.type == "cuda", options.quick
    sizes = [TARGET_MODEL, "1b", "8b"] if is_cuda else ["100m"]
    options.sizes = options.sizes or (["tiny"] if quick else sizes)
    options.what = options.what or (["eager"] if quick or not is_cuda else list(MODES))
    if options.rows is None:
        options.rows = [1, 2] if quick else [1, 16, 64] if is_cuda else [1, 16]
    if options.bare is None:
        options.bare = [2] if quick else [16] if is_cuda else []
    if options.prompts is None:
        prompts = [(1, 512), (1, 4096), (4, 2048)]
        options.prompts = [(1, 16)] if quick else prompts if is_cuda else prompts[:1]
    about = versions() | ({"time": "of the process"} if options.busy else {})
    return run(sections(options), options, plot, LLM, about)


if __name__ == "__main__":
    main()
