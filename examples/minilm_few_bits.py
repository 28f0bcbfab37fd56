# SPDX-License-Identifier: BSD-3-Clause
"""A real sentence encoder, all-MiniLM-L6-v2, with weights of four and three bits, by each way.

The layers of the encoder are quantized in groups of 32; the table of words stays floating. The ways
are those of ``few_bits.py``; training follows the embeddings and the layers of the float model, so
that both trainings have it as their teacher, and differ in what they start from. Measured are the
cosine similarity to the float embeddings, and retrieval, as in ``smoothquant_minilm.py``.

Run ``make minilm-few-bits``; the table, the plot and all figures land in ``results/``.
"""

import sys
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

from few_bits import ALONE, Task, Teach, planned_steps
from few_bits_report import progress_bar, publish
from minilm_training import distil
from smoothquant_minilm import Experiment, describe, parse

WIDTHS, GROUP = (4, 3), 32
LAYERS = "bert.encoder.*"
LOSS = "1 - cosine similarity"


def main() -> None:
    """Measure every method at every width; print the table, write the plot and the JSON."""
    args, console = parse(__doc__), Console()
    console = console if console.is_terminal else Console(width=150)
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(args, console.print)

    def train(model: nn.Module, _: Teach | None) -> None:
        given = experiment.floats, experiment.tokenizer, experiment.training, args.steps
        distil(model, *given)

    def evaluate(model: nn.Module) -> tuple[float, dict[str, float]]:
        figures = experiment.compared(model)
        return 1 - figures["cosine"], {k: figures[k] for k in ("least_cosine", "retrieval")}

    floats, data = experiment.floats, experiment.calibration
    task = Task(floats, 0, data, train, evaluate, LAYERS, WIDTHS, (GROUP,), ALONE)
    with progress_bar(console, planned_steps(len(WIDTHS), args.steps, ALONE)) as tick:
        found = task.measure(tick, args.steps)
    publish(found, describe(args), args.out / "minilm_few_bits", LOSS, console)


if __name__ == "__main__":
    main()
