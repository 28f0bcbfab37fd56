# SPDX-License-Identifier: BSD-3-Clause
"""Speed and memory of whole language models under every scheme, ours and other packages'.

The models have Llama's shape and random weights (transformers makes them; nothing is fetched). Each
is quantized, then it reads prompts without a cache, and decodes a token for each row with a static
cache; on a GPU decoding is in a CUDA graph. Models are measured one after another, the floating one
first: two would not fit. Ratios are to the floating model in the same mode, before any variant. The
head and the embedding stay floating. Memory is that of PyTorch's allocator, so a CPU has none:
what the quantized model takes, and the most that was taken while it was made of the floating one.

    python -m benchmarks.bench_llm                          # on a GPU if there is one
    python -m benchmarks.bench_llm --size 8b --layers 8 --what compiled --schemes W8A8 W4A8
    python -m benchmarks.bench_llm --device cpu --size 100m --rows 1 --prompts
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
from benchmarks.bench_memory import GIB, taken
from benchmarks.bench_plot import plot_speedups
from benchmarks.bench_report import Layout, Part, threads_text, verdicts
from benchmarks.bench_row import OWN, Row

# isort: split
from benchmarks.llama import SHAPES, Decoder, llama, random_ids
from benchmarks.peers import Scheme, missing, schemes, versions
from benchmarks.training_row import TakesAtMost
from tests.support.cases import name_of

MODES = ("eager", "compiled")
PLAIN, QUANTIZE = "plain", "quantize"
# What is done to a quantized model of ours, and to the floating one, before it is measured.
VARIANTS: dict[str, tuple[Callable[[nn.Module], object], ...]] = {
    PLAIN: (),
    "optimized": (baraquant.optimize_for_inference_,),
}
REPLAYS = 8  # tokens that are decoded in a measurement
COMPILE_FOR = 900  # seconds into the run: nothing is compiled after that
VOCABULARY = 4096  # of a model with fewer layers, whose head would else outweigh them
# Of eight layers of 8b, compiled, with a variant: the most of the floating model's time.
TARGET_LAYERS = 8
TARGETS = {
    ("W8A8", "decode 1"): 0.52,
    ("W4A8", "decode 1"): 0.36,
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


def parse_model(text: str) -> str:
    """The name of a size."""
    if text not in SHAPES:
        raise ValueError(f"expected a size among {list(SHAPES)}, but got {text!r}")
    return text


class Models:
    """Measures models, one after another; keeps the times of the floating ones.

    Attributes:
        options: The command line.
        floats: Seconds of each run of the floating model, by mode, size, dtype and threads.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.timer = options, timer_of(options)
        self.until = time.monotonic() + COMPILE_FOR
        self.floats: dict[tuple[Any, ...], dict[str, float | str]] = {}

    def build(self, size: str, dtype: torch.dtype) -> nn.Module:
        """The floating model."""
        shape, layers, vocabulary = SHAPES[size], self.options.layers, self.options.vocabulary
        if layers is not None:
            shape = dataclasses.replace(shape, layers=layers, vocabulary=VOCABULARY)
        if vocabulary is not None:
            shape = dataclasses.replace(shape, vocabulary=vocabulary)
        return llama(shape, self.options.device, dtype)

    def measure(
        self, mode: str, plan: LlmPlan, size: str, dtype: torch.dtype, cases: list[Case]
    ) -> Iterator[Row]:
        """The rows of some models; one that fails hinders no other."""
        for scheme, variant in cases:
            scheme = dataclasses.replace(scheme, name=scheme.name or name_of(dtype))
            torch._dynamo.reset()
            with torch._dynamo.config.patch(recompile_limit=64):
                rows = self.rows(mode, size, dtype, scheme, variant)
            yield from rows
            free_memory(self.options.device)

    def rows(
        self, mode: str, size: str, dtype: torch.dtype, scheme: Scheme, variant: str
    ) -> list[Row]:
        """The rows of one model: first its quantization, then its runs."""
        device, cpu = self.options.device, self.options.device.type == "cpu"

        def row_of(case: str, shape: list[int], *targets: TakesAtMost) -> LlmRow:
            threads = torch.get_num_threads() if cpu else None
            names = (mode, scheme.name, case, name_of(dtype), shape, threads, list(targets))
            layers = "" if self.options.layers is None else f" of {self.options.layers} layers"
            return LlmRow(*names, model=size + layers, variant=variant, baseline=name_of(dtype))

        row = row_of(QUANTIZE, [])
        free_memory(device)
        before = 0 if cpu else torch.cuda.memory_allocated(device)
        try:
            model = self.build(size, dtype)
            row.seconds, after, peak = taken(lambda: scheme.quantize(model), device, before)
            row.held = {} if cpu else {"model": after, "peak": peak}
            for change in VARIANTS[variant]:
                change(model)
            runs, results = self.run(mode, model.requires_grad_(False), variant)
        except Exception as error:  # such as too little memory
            return [row.fail(describe(error))]
        if isinstance(results, str):
            row.note = results
            return [row]
        is_float = scheme.kind is None and variant == PLAIN
        key = (mode, size, dtype, torch.get_num_threads())
        floats = self.floats.setdefault(key, results if is_float else {})
        rows = [row]
        for case, shape in runs.items():
            own = row_of(case, shape, *self.targets(mode, size, scheme, variant, case))
            compared = {OWN: results[case]}
            if case in floats and not is_float:
                compared[own.baseline] = floats[case]
            rows.append(own.fill(compared, OWN))
        return rows

    def targets(
        self, mode: str, size: str, scheme: Scheme, variant: str, case: str
    ) -> list[TakesAtMost]:
        """What eight compiled layers of 8b have to reach on a GPU, with a variant."""
        is_asked = self.options.device.type == "cuda" and self.options.layers == TARGET_LAYERS
        is_asked &= mode == "compiled" and size == "8b" and variant != PLAIN
        share = TARGETS.get((scheme.name, case)) if is_asked else None
        return [] if share is None else [TakesAtMost("bfloat16", share)]

    def run(
        self, mode: str, model: nn.Module, variant: str
    ) -> tuple[dict[str, list[int]], dict[str, float | str] | str]:
        """Rows and tokens of each run, and its seconds or the text of its error; or why not."""
        forward = model.forward
        if mode == "compiled":
            if time.monotonic() > self.until:
                return {}, "not compiled: the time was used up"
            fuse = {"post_grad_custom_pre_pass": baraquant.graph.Fuse()}
            options = {} if variant == PLAIN else {"options": fuse}
            forward = torch.compile(model.forward, dynamic=False, **options)
        prompts = {f"prefill {r}x{t}": [r, t] for r, t in self.options.prompts}
        decoded = {f"decode {rows}": [rows, 1] for rows in self.options.rows}
        prepares: Measures = {
            name: functools.partial(prefill, model, forward, self.timer, *shape)
            for name, shape in prompts.items()
        }
        prepares |= {
            name: functools.partial(decode, model, forward, self.timer, rows)
            for name, (rows, _) in decoded.items()
        }
        with torch.inference_mode():
            results = self.timer.in_turns(prepares, self.timer.rounds)
        return prompts | decoded, results


def prefill(
    model: nn.Module, forward: Callable[..., Any], timer: Timer, rows: int, tokens: int
) -> Callable[[], float]:
    """What measures the seconds in which a model reads prompts, without a cache."""
    ids = random_ids(model, rows, tokens)
    return timer.prepare(lambda _: forward(input_ids=ids, use_cache=False, logits_to_keep=1).logits)


def decode(
    model: nn.Module, forward: Callable[..., Any], timer: Timer, rows: int
) -> Callable[[], float]:
    """What measures the seconds in which a model decodes a token for each row."""
    decoder = Decoder(model, forward, rows)

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
    """The schemes that take part, the floating model first: what is installed, as it is asked for.

    Variants are for ours and for the floating model.
    """
    found = []
    for scheme in schemes(""):
        if missing(scheme.package):
            continue
        if scheme.kind is None or not options.schemes or scheme.name in options.schemes:
            variants = [PLAIN] if scheme.package else options.variants
            found += [(scheme, variant) for variant in variants]
    return found if found[0][1] == PLAIN else [(found[0][0], PLAIN), *found]


def sections(options: argparse.Namespace) -> Iterator[tuple[str, list[Part]]]:
    """The titles of the run, one for each mode and size, with parts: functions that yield rows."""
    models, threads = Models(options), [torch.get_num_threads()]
    dtype = "bfloat16" if options.device.type == "cuda" else "float32"
    for mode in options.what:
        measure = functools.partial(models.measure, mode)
        for size in options.sizes:
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
    known = [scheme.name for scheme in schemes("") if scheme.kind]
    parser.add_argument("--layers", type=int, help="only so many, and a vocabulary of 4096")
    parser.add_argument("--vocabulary", type=int, help="another one than the model has")
    parser.add_argument("--schemes", nargs="+", choices=known, help="beside the floating model")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--rows", nargs="*", type=int, help="how many rows are decoded, or none")
    parser.add_argument(
        "--prompts", nargs="*", type=parse_prompt, help="such as 1x512 4x2048, or none"
    )
    options = parse(parser, argv, parse_model)
    is_cuda, quick = options.device.type == "cuda", options.quick
    options.sizes = options.sizes or (["tiny"] if quick else ["1b", "8b"] if is_cuda else ["100m"])
    options.what = options.what or (["eager"] if quick or not is_cuda else list(MODES))
    if options.rows is None:
        options.rows = [1, 2] if quick else [1, 16, 64] if is_cuda else [1, 16]
    if options.prompts is None:
        prompts = [(1, 512), (1, 4096), (4, 2048)]
        options.prompts = [(1, 16)] if quick else prompts if is_cuda else prompts[:1]
    return run(sections(options), options, plot, LLM, versions())


if __name__ == "__main__":
    main()
