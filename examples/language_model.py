# SPDX-License-Identifier: BSD-3-Clause
"""A language model trained with quantization in the loop, from text to a served integer model.

The text is Python's standard library, byte by byte; the model is a decoder with RMSNorm, rotary
positions and SwiGLU. For each seed this has four parts (``--parts``):

**training**, with each scheme:

1. prepares the model: ``baraquant.qat.prepare_`` swaps the linear layers of its blocks for layers
   that round as integers do. The training loop is the same as for the float model;
2. trains it, once from scratch and once from the checkpoint of the float model;
3. converts it to integers, ``baraquant.qat.convert_``, and checks that it gives bit for bit the
   logits of the prepared model's evaluation.

``Experiment.quantize_and_train`` is all of that. W8A8 rounds the forward pass alone. With
``backward="int8_input"`` or ``"int8"`` integers compute the gradients too; these have to reach the
same validation loss, to within 0.5 % and within the spread of the seeds. ``--cosine`` shows how far
their gradients are from the exact ones, layer by layer.

**deployment**: ``baraquant.quantize_`` rounds the float checkpoint by each scheme, also with GPTQ
and AWQ. Models of four bits are trained on with their scheme too, and asked to come within 1 % of
the perplexity of the float model that was trained on as long, and to recover half of what GPTQ
loses. Each row has the size of its file, and the bytes of text a second that its layers write.

**few bits**: the checkpoint with 4, 3 and 2 bits in groups of 32 and 128: rounded to nearest, with
searched scales, AWQ and GPTQ, reconstructed block by block, trained, and trained from where GPTQ
ends, by labels and with a teacher. Training from GPTQ is asked to regain a share of GPTQ's loss.

**sensitivity**: ``baraquant.sensitivity`` measures each layer with 3, 4 and 8 bits, and chooses
among them within a budget of bytes; the model with this choice is a row of the deployed ones.

Run ``make lm``, or ``python examples/language_model.py``; the plots and all figures land in
``results/``, after each seed. ``--resume`` goes on from there. The model is in ``lm_decoder.py``,
the text in ``lm_text.py``, the training loop in ``lm_training.py``, the schemes in
``lm_schemes.py``, what is done with a seed in ``lm_experiment.py``, the deployed models in
``lm_deployment.py`` and ``lm_generation.py``, the cosines in ``lm_gradients.py``, few bits in
``few_bits.py``, tables and plots in ``lm_report.py`` and the other reports.
"""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Before torch is imported: its profiler, which measures memory on a CPU, writes to stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

import baraquant
from baraquant import _C
from few_bits_report import (
    FewBitsRow,
    conclude_few_bits,
    plot_few_bits,
    print_few_bits,
    summarize_few_bits,
)
from lm_decoder import SIZES, Decoder, Size
from lm_deployment_report import (
    DeploymentRow,
    conclude_deployments,
    plot_deployments,
    plot_mixture,
    print_deployments,
    print_mixture,
    summarize_deployments,
)
from lm_experiment import Experiment
from lm_gradients import Cosines
from lm_options import parse_args
from lm_report import PASSED, Row, conclude, judge_cosines, plot, print_tables, summarize
from lm_results import Results, resumed
from lm_text import Text, load_text
from machine import processor

NAME = "language_model"


@dataclass
class Report:
    """Writes what was measured so far: the tables, the JSON and the plots.

    Attributes:
        args: The command line.
        size: Of the model and its training.
        text: Both halves.
        results: What was measured.
    """

    args: argparse.Namespace
    size: Size
    text: Text
    results: Results

    def __post_init__(self) -> None:
        """Start the clock."""
        self.start = time.perf_counter() - self.results.seconds

    @property
    def rows(self) -> list[Row]:
        """Of training."""
        return summarize(self.results.runs, self.results.speeds)

    @property
    def deployment_rows(self) -> list[DeploymentRow]:
        """Of deployed models."""
        return summarize_deployments(self.results.deployed, self.results.decoded)

    @property
    def few_bits_rows(self) -> list[FewBitsRow]:
        """Of models of few bits."""
        return summarize_few_bits(self.results.few_bits)

    @property
    def conclusion(self) -> list[str]:
        """What the figures say, in words."""
        lines = conclude(self.rows, self.results.cosines, self.args.missing)
        lines += conclude_deployments(self.deployment_rows)
        return lines + conclude_few_bits(self.few_bits_rows)

    def save(self) -> bool:
        """Write the JSON and the plots; return whether everything that was asked was reached."""
        self.results.seconds = round(time.perf_counter() - self.start, 1)
        rows, deployments, few_bits = self.rows, self.deployment_rows, self.few_bits_rows
        verdicts = [row.verdict for row in (*rows, *deployments, *few_bits)]
        everything = {
            **describe(self.args, self.size, self.text),
            "conclusion": self.conclusion,
            "passed": all_passed(verdicts, self.results.cosines, self.args.missing),
            "rows": [asdict(row) for row in rows],
            "deployment_rows": [asdict(row) for row in deployments],
            "few_bits_rows": [asdict(row) for row in few_bits],
            **self.results.as_dict(),
        }
        path = self.args.out / f"{NAME}.json"
        path.write_text(json.dumps(everything, indent=2) + "\n")
        plot(self.results.runs, rows, self.args.out / f"{NAME}.png")
        if deployments:
            plot_deployments(deployments, self.args.out / f"{NAME}.deployed.png")
        if few_bits:
            plot_few_bits(few_bits, self.args.out / f"{NAME}.few_bits.png", "nats per byte")
        if self.results.mixture is not None:
            plot_mixture(self.results.mixture, self.args.out / f"{NAME}.sensitivity.png")
        return bool(everything["passed"])

    def print(self, console: Console) -> None:
        """Print the tables and the conclusion."""
        print_tables(self.rows, self.results.cosines, console)
        print_deployments(self.deployment_rows, self.results.decoded, console)
        print_few_bits(self.few_bits_rows, console)
        if self.results.mixture is not None:
            print_mixture(self.results.mixture, console)
        for line in self.conclusion:
            console.print(line, highlight=False)
        console.print(f"\n{self.results.seconds:.0f} s. Plots and figures: {self.args.out}/")


def settings(args: argparse.Namespace, size: Size) -> dict[str, Any]:
    """Return what the command line and the size say, as the JSON has it."""
    left = ("out", "device", "resume", "strict")
    return {**{k: v for k, v in vars(args).items() if k not in left}, **asdict(size)}


def describe(args: argparse.Namespace, size: Size, text: Text) -> dict[str, Any]:
    """Return what the figures depend on."""
    is_cpu = args.device.type == "cpu"
    return {
        "settings": settings(args, size),
        "parameters": sum(p.numel() for p in Decoder(size, args.mlp).parameters()),
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
    }


def all_passed(verdicts: list[str], cosines: list[Cosines], absent: dict[str, str]) -> bool:
    """Return whether everything that was asked is there, and was reached."""
    judged = [verdict for verdict in (*verdicts, *judge_cosines(cosines).values()) if verdict]
    return not absent and all(verdict == PASSED for verdict in judged)


def main(argv: list[str] | None = None) -> int:
    """Run all, print the tables, write the plots and the JSON; return the exit status."""
    args = parse_args(argv, (__doc__ or "").split("\n", 1)[0])
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    args.out.mkdir(parents=True, exist_ok=True)
    text = load_text(args.device)
    console.print(
        f"{len(text.training):,} bytes of {text.files[0]} files to train with, "
        f"{len(text.validation):,} of {text.files[1]} others to validate with; "
        f"sha256 {text.sha256[:12]}",
        highlight=False,
    )
    chosen = {name: getattr(args, name) for name in ("steps", "batch", "learning_rate")}
    size = replace(SIZES[args.size], **chosen)
    results = Results()
    if args.resume is not None:
        results = resumed(args.resume, describe(args, size, text))
    report = Report(args, size, text, results)
    columns = (TextColumn("{task.description:<48}"), BarColumn(bar_width=None))
    columns += (MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        Experiment(args, size, text, progress, results).run(report.save)
    passed = report.save()
    report.print(console)
    return int(args.strict and not passed)


if __name__ == "__main__":
    sys.exit(main())
