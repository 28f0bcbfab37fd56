# SPDX-License-Identifier: BSD-3-Clause
"""A language model trained with quantization in the loop, from text to a served integer model.

The text is Python's standard library, byte by byte; the model is a decoder with RMSNorm, rotary
positions and SwiGLU. For each seed and each scheme this

1. prepares the model: ``baraquant.qat.prepare_`` swaps the linear layers of its blocks for layers
   that round as integers do. The training loop is the same as for the float model;
2. trains it, once from scratch and once from the checkpoint of the float model;
3. converts it to integers, ``baraquant.qat.convert_``, and checks that it gives bit for bit the
   logits of the prepared model's evaluation.

``quantize_and_train`` is all of that. W8A8 rounds the forward pass alone. With
``backward="int8_input"`` or ``"int8"`` integers compute the gradients too; these have to reach the
same validation loss, to within 0.5 % and within the spread of the seeds. ``--cosine`` shows how far
their gradients are from the exact ones, layer by layer.

Run ``make lm``, or ``python examples/language_model.py``; the plot and all figures land in
``results/``. The model is in ``lm_decoder.py``, the text in ``lm_text.py``, the training loop in
``lm_training.py``, the schemes in ``lm_schemes.py``, the cosines in ``lm_gradients.py``, the tables
and the plot in ``lm_report.py``.
"""

import argparse
import copy
import json
import math
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Before torch is imported: its profiler, which measures memory on a CPU, writes to stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

import baraquant
from baraquant import _C
from lm_decoder import MLPS, SIZES, Decoder, Size
from lm_gradients import Cosines, least_cosines
from lm_report import (
    MODES,
    PASSED,
    Row,
    Run,
    conclude,
    judge_cosines,
    plot,
    print_tables,
    summarize,
)
from lm_schemes import BASELINE, DEFAULT, FLOAT, SCHEMES, missing
from lm_text import Text, batches, load_text, validation_batches
from lm_training import autocast, continued, has_same_logits, train, validate
from machine import processor
from minilm_speed import measure

QUANTIZED = "blocks.*"  # the embedding and the output layer stay floating, as is usual
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT = "def read(self, size=-1):\n"


@dataclass
class Experiment:
    """What all runs share, and what they gave.

    Attributes:
        args: The command line.
        size: Of the model and its training.
        text: Both halves.
        progress: Shows how far it is.
    """

    args: argparse.Namespace
    size: Size
    text: Text
    progress: Progress
    runs: list[Run] = field(default_factory=list)
    served: dict[str, nn.Module] = field(default_factory=dict)  # by scheme, of the first seed

    def __post_init__(self) -> None:
        """Read the validation text, and start the bar."""
        size = self.size
        self.dtype = DTYPES[self.args.dtype]
        self.validation = validation_batches(self.text, size.windows, size.batch, size.context)
        self.task = self.progress.add_task("starting", total=planned_steps(self.args, size))

    def run_seed(self, seed: int) -> None:
        """Train every scheme from the same first weights, then from the same checkpoint."""
        torch.manual_seed(seed)
        first = Decoder(self.size, self.args.mlp).to(self.args.device)
        trained = {}
        for scheme in scratch_schemes(self.args):
            trained[scheme] = self.quantize_and_train(first, scheme, "scratch", seed)
        if "checkpoint" in self.args.modes:
            for scheme in self.args.schemes:
                self.quantize_and_train(trained[FLOAT], scheme, "checkpoint", seed)

    def quantize_and_train(self, start: Decoder, scheme: str, mode: str, seed: int) -> nn.Module:
        """Take a float model, which stays as it is, to a trained one, and that to integers."""
        config = SCHEMES[scheme].config()
        model = copy.deepcopy(start)
        if config is not None:
            baraquant.qat.prepare_(model, {QUANTIZED: config}, progress=False)
        before = validate(model, self.validation, self.dtype)
        is_scratch = mode == "scratch"
        steps = self.size.steps if is_scratch else self.args.tuning_steps
        training = train(
            model,
            self.batches(2 * seed + (not is_scratch)),
            steps,
            self.size.learning_rate * (1 if is_scratch else 0.1),
            self.dtype,
            lambda count, loss: self.tick(f"seed {seed}, {mode}, {scheme}: {loss:.3f}", count),
        )
        validation = validate(model, self.validation, self.dtype)
        served, same_bits = copy.deepcopy(model).eval(), None
        if config is not None:
            baraquant.qat.convert_(served)
            same_bits = has_same_logits(model, served, self.validation, self.dtype)
            if not same_bits:
                raise AssertionError(f"{scheme}: the converted model gives other logits")
        self.served.setdefault(scheme, served)
        self.runs.append(Run(mode, scheme, seed, before, validation, training, same_bits))
        return model

    def batches(self, seed: int) -> Any:
        """Return the batches that every scheme of a seed is trained with."""
        torch.manual_seed(seed)  # stochastic rounding draws from PyTorch's generator
        return batches(self.text, seed, self.size.batch, self.size.context)

    def cosines(self) -> list[Cosines]:
        """Compare gradients while the baseline is trained from scratch with the first seed."""
        if not self.args.cosine:
            return []
        names = [BASELINE, *(n for n in self.args.schemes if SCHEMES[n].is_asked)]
        torch.manual_seed(0)
        floats = Decoder(self.size, self.args.mlp).to(self.args.device)
        return least_cosines(
            floats,
            {name: {QUANTIZED: SCHEMES[name].config()} for name in names},
            self.batches(0),
            self.size.steps,
            self.size.learning_rate,
            self.dtype,
            self.args.cosine,
            lambda text: self.tick(text, 1),
        )

    def speeds(self) -> dict[str, tuple[float, float]]:
        """Measure validation with the first seed's models in turns; tokens/s and times float's."""
        order = sorted(self.served, key=lambda name: name != FLOAT)
        tokens = self.validation[0][:, :-1]
        with autocast(tokens.device, self.dtype):
            found = measure({n: self.served[n] for n in order}, {"tokens": tokens}, 9)
        has_float = order[0] == FLOAT
        return {
            name: (tokens.numel() / speed.seconds, speed.faster if has_float else None)
            for name, speed in found.items()
        }

    def tick(self, text: str, steps: int) -> None:
        """Advance the bar."""
        self.progress.update(self.task, advance=steps, description=text)


def scratch_schemes(args: argparse.Namespace) -> list[str]:
    """Return what is trained from scratch: for a checkpoint, the float model in any case."""
    named = args.schemes if "scratch" in args.modes else []
    needs_float = "checkpoint" in args.modes and FLOAT not in named
    return [FLOAT, *named] if needs_float else named


def planned_steps(args: argparse.Namespace, size: Size) -> int:
    """Return the number of steps of all trainings together."""
    steps = len(scratch_schemes(args)) * size.steps
    steps += ("checkpoint" in args.modes) * len(args.schemes) * args.tuning_steps
    return args.seeds * steps + (size.steps if args.cosine else 0)


def describe(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Return what the figures depend on."""
    args, text = experiment.args, experiment.text
    is_cpu = args.device.type == "cpu"
    first = next(iter(experiment.served.values()))
    writer = experiment.served.get(BASELINE, first)
    return {
        "settings": {
            **{k: v for k, v in vars(args).items() if k not in ("out", "device")},
            **asdict(experiment.size),
        },
        "parameters": sum(p.numel() for p in Decoder(experiment.size, args.mlp).parameters()),
        "text": {
            "training_bytes": len(text.training),
            "validation_bytes": len(text.validation),
            "files": text.files,
            "sha256": text.sha256,
        },
        "machine": {
            "device": processor() if is_cpu else torch.cuda.get_device_name(args.device),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "cpu_isa": _C.cpu_isa(),
            "load": os.getloadavg()[2],  # over 15 minutes; more than this program's: it is slowed
        },
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": {
            "baraquant": baraquant.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(seconds, 1),
        "sample": continued(writer, PROMPT, 160, experiment.size.context, experiment.dtype),
    }


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0],
        epilog="The rows are compared with W8A8, which has a floating backward pass. "
        f"Schemes: {', '.join(SCHEMES)}. All but those of W4A8 in groups are the default.",
    )
    add = parser.add_argument
    sizes = ", ".join(f"{name} {size.width} x {size.layers}" for name, size in SIZES.items())
    has_cuda = torch.cuda.is_available()
    add("--size", choices=SIZES, default="cpu", help=f"width x layers: {sizes} (default: cpu)")
    add("--mlp", choices=MLPS, default="swiglu", help="the feed-forward part (default: swiglu)")
    add("--steps", type=int, help="of training from scratch (default: the size's)")
    add("--tuning-steps", type=int, help="from a checkpoint (default: a quarter of --steps)")
    add("--batch", type=int, help="windows in a step (default: the size's)")
    add("--learning-rate", type=float, help="its maximum (default: the size's)")
    add("--seeds", type=int, default=3, help="how many seeds, from 0 on (default: 3)")
    add(
        "--schemes", nargs="+", choices=SCHEMES, default=DEFAULT, metavar="SCHEME", help="see below"
    )
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="(default: both)")
    add("--cosine", type=int, default=0, metavar="N", help="compare gradients at N steps")
    add(
        "--device",
        type=torch.device,
        default="cuda" if has_cuda else "cpu",
        help="(default: cuda where there is a GPU)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        help="of floating products; the weights are float32 (default: bfloat16 on a GPU)",
    )
    add("--strict", action="store_true", help="fail if anything asked is missing or not reached")
    add(
        "--out", type=Path, default=Path("results"), help="folder of the results (default: results)"
    )
    args = parser.parse_args(argv)
    for name in ("steps", "batch", "learning_rate"):
        if getattr(args, name) is None:
            setattr(args, name, getattr(SIZES[args.size], name))
    if args.tuning_steps is None:
        args.tuning_steps = max(2, args.steps // 4)
    args.dtype = args.dtype or ("float32" if args.device.type == "cpu" else "bfloat16")
    args.missing = missing(args.schemes)
    args.schemes = [name for name in SCHEMES if name in args.schemes and name not in args.missing]
    if min(args.seeds, args.batch) < 1 or min(args.steps, args.tuning_steps) < 2:
        parser.error("--seeds and --batch have to be at least 1, --steps and --tuning-steps 2")
    if not 0 < args.learning_rate < math.inf:
        parser.error(f"--learning-rate has to be a positive number, but is {args.learning_rate}")
    if not args.schemes:
        parser.error(f"nothing to train: {'; '.join(args.missing.values())}")
    if not 0 <= args.cosine <= args.steps:
        parser.error(f"--cosine has to lie between 0 and --steps, which is {args.steps}")
    if args.cosine and not any(SCHEMES[name].is_asked for name in args.schemes):
        why = "; ".join(args.missing.values()) or "name one of those with a backward"
        parser.error(f"--cosine has no scheme to compare with {BASELINE}: {why}")
    return args


def all_passed(rows: list[Row], cosines: list[Cosines], absent: dict[str, str]) -> bool:
    """Return whether everything that was asked is there, and was reached."""
    verdicts = [row.verdict for row in rows if row.verdict]
    verdicts += judge_cosines(cosines).values()
    return not absent and all(verdict == PASSED for verdict in verdicts)


def train_all(args: argparse.Namespace, text: Text, console: Console) -> tuple[Experiment, Any]:
    """Train every seed under one progress bar; return that and the cosines."""
    chosen = {name: getattr(args, name) for name in ("steps", "batch", "learning_rate")}
    columns = (TextColumn("{task.description:<48}"), BarColumn(bar_width=None))
    columns += (MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        experiment = Experiment(args, replace(SIZES[args.size], **chosen), text, progress)
        for seed in range(args.seeds):
            experiment.run_seed(seed)
        cosines = experiment.cosines()
        experiment.tick("done", 0)
    return experiment, cosines


def main(argv: list[str] | None = None) -> int:
    """Train all, print the tables, write the plot and the JSON; return the exit status."""
    args, console = parse_args(argv), Console()
    console = console if console.is_terminal else Console(width=150)
    args.out.mkdir(parents=True, exist_ok=True)
    text = load_text(args.device)
    console.print(
        f"{len(text.training):,} bytes of {text.files[0]} files to train with, "
        f"{len(text.validation):,} of {text.files[1]} others to validate with; "
        f"sha256 {text.sha256[:12]}",
        highlight=False,
    )
    start = time.perf_counter()
    experiment, cosines = train_all(args, text, console)
    rows = summarize(experiment.runs, experiment.speeds())
    print_tables(rows, cosines, console)
    conclusion = conclude(rows, cosines, args.missing)
    for line in conclusion:
        console.print(line, highlight=False)

    everything = {
        **describe(experiment, time.perf_counter() - start),
        "conclusion": conclusion,
        "passed": all_passed(rows, cosines, args.missing),
        "rows": [asdict(row) for row in rows],
        "runs": [asdict(run) for run in experiment.runs],
        "cosines": [asdict(found) for found in cosines],
    }
    (args.out / "language_model.json").write_text(json.dumps(everything, indent=2) + "\n")
    plot(experiment.runs, rows, args.out / "language_model.png")
    console.print(f"\n{everything['seconds']:.0f} s. Plot and figures: {args.out}/")
    return int(args.strict and not everything["passed"])


if __name__ == "__main__":
    sys.exit(main())
