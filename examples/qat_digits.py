# SPDX-License-Identifier: BSD-3-Clause
"""Quantization-aware training on real data, from pixels to stored integers.

The data: 1797 handwritten digits of 8 x 8 pixels, which scikit-learn ships inside its package.
For each seed this trains a small float network, and then for each width of weights and inputs

1. quantizes it after training (PTQ): scales fitted to the weights and to the training data;
2. trains that further with quantization in the loop (QAT), learning weights and scales together;
3. stores the result as packed integers, loads it into fresh layers, and checks that those give
   bit for bit the outputs of the last evaluation in training.

The scale of a layer's input is learned with the weights; beside that stand scales that are taken
on the fly from the range of each image, symmetric and asymmetric (``--inputs`` chooses).

Last, a wider network is trained with the int8 product itself in the forward, and deployed: from a
file of integers it gives bit for bit the logits of training, and a table shows accuracy, size and
latency beside float32.

Run ``python examples/qat_digits.py``; the plot and all figures land in ``results/``. The data and
the training are in ``digits.py``, the layers in ``quantized_layers.py`` and ``int8_layers.py``,
the table and plot in ``qat_report.py``, the deployment in ``qat_deploy.py``.
"""

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

import baraquant
from digits import FLOAT_RATE, QAT_RATE, evaluate, float_network, load_split, train
from qat_deploy import Deployment, conclude_deployments, deploy, print_deployments
from qat_report import Run, Summary, compare, conclude, plot, print_tables, summarize
from quantized_layers import (
    INPUT_SCHEMES,
    Widths,
    load,
    quantize_network,
    save,
    storage_bytes,
)

WEIGHT_BITS = (8, 4, 3, 2)
INPUT_BITS = (8, 4)
GROUP_SIZES = (None, 32)  # None: a scale per channel
COMPARED_WEIGHT_BITS = 4  # the schemes of the inputs are compared at this width of the weights
COMPARED_INPUT_BITS = (8, 4, 3, 2)


def run_seed(
    seed: int, sweep: list[Widths], args: argparse.Namespace, tick: Callable[[str], None]
) -> Iterator[Run]:
    """Trains a float network and takes it through every width; ``tick`` hears of each epoch."""
    torch.manual_seed(seed)
    digits = load_split(seed, args.device)
    floats = float_network().to(args.device)
    for _ in train(floats, digits, args.float_epochs, FLOAT_RATE, seed):
        tick(f"seed {seed}: float")

    for widths in sweep:
        accuracy = {"float": evaluate(floats, digits)[0]}
        network = quantize_network(floats, digits.train_images, widths, candidates=1)
        accuracy["ptq_max"], _ = evaluate(network, digits)
        network = quantize_network(floats, digits.train_images, widths)
        accuracy["ptq"], _ = evaluate(network, digits)
        for _ in train(network, digits, args.epochs, QAT_RATE, seed):
            tick(f"seed {seed}: {name_of(widths)}")
        accuracy["qat"], logits = evaluate(network, digits)

        path = args.out / "models" / f"{name_of(widths)}-seed{seed}.safetensors"
        tensor_bytes = save(network, path)
        _, stored_logits = evaluate(load(path, args.device), digits)
        if not torch.equal(stored_logits, logits):
            raise AssertionError(f"{path}: the stored integers give other outputs than training")
        yield Run(seed, widths, accuracy, tensor_bytes, path.stat().st_size, integers_equal=True)


def name_of(widths: Widths) -> str:
    """A short name, such as ``w3a4-group32-learned``."""
    granularity = f"group{widths.group_size}" if widths.group_size else "channel"
    return f"w{widths.weight_bits}a{widths.input_bits}-{granularity}-{widths.inputs}"


def plan(args: argparse.Namespace) -> tuple[list[Widths], list[Widths]]:
    """Lists what is trained: widths of the weights, and schemes of the inputs side by side."""
    weight_bits = (4, 2) if args.quick else WEIGHT_BITS
    main = [
        Widths(bits, input_bits, group_size, args.inputs[0])
        for bits, group_size, input_bits in itertools.product(weight_bits, GROUP_SIZES, INPUT_BITS)
    ]
    if len(args.inputs) == 1:
        return main, []
    compared_bits = (4, 2) if args.quick else COMPARED_INPUT_BITS
    compared = [
        Widths(COMPARED_WEIGHT_BITS, input_bits, None, scheme)
        for input_bits, scheme in itertools.product(compared_bits, args.inputs)
    ]
    return main, compared


def run_all(
    sweep: list[Widths], args: argparse.Namespace, console: Console
) -> tuple[list[Run], list[Deployment]]:
    """Runs every seed under one progress bar."""
    (args.out / "models").mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        total = args.seeds * (2 * args.float_epochs + (len(sweep) + 1) * args.epochs)
        task = progress.add_task("starting", total=total)

        def tick(text: str) -> None:
            progress.update(task, advance=1, description=text)

        runs = [run for seed in range(args.seeds) for run in run_seed(seed, sweep, args, tick)]
        models, epochs = args.out / "models", (args.float_epochs, args.epochs)
        deployments = [
            deploy(seed, args.device, models, epochs, tick) for seed in range(args.seeds)
        ]
        progress.update(task, description="done")
    return runs, deployments


def write_json(
    runs: list[Run],
    deployments: list[Deployment],
    conclusion: str,
    seconds: float,
    args: argparse.Namespace,
) -> None:
    """Writes every run, the summary, the conclusion and the settings."""
    everything = {
        "settings": {
            "seeds": args.seeds,
            "float_epochs": args.float_epochs,
            "qat_epochs": args.epochs,
            "inputs": args.inputs,
            "device": str(args.device),
        },
        "versions": {
            "baraquant": baraquant.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(seconds, 1),
        "float_bytes": storage_bytes(float_network().parameters()),
        "conclusion": conclusion,
        "deployed": conclude_deployments(deployments),
        "summary": [asdict(summary) for summary in summarize(runs)],
        "runs": [asdict(run) for run in runs],
        "deployments": [asdict(deployment) for deployment in deployments],
    }
    (args.out / "qat_digits.json").write_text(json.dumps(everything, indent=2) + "\n")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds, from 0 on")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of each QAT run")
    parser.add_argument("--float-epochs", type=int, default=30, help="epochs of the float network")
    parser.add_argument(
        "--inputs",
        nargs="+",
        choices=INPUT_SCHEMES,
        default=list(INPUT_SCHEMES),
        help="scales of the inputs: learned, or from the range of each image, symmetric or "
        "asymmetric; the first one for all widths of the weights, then all that are named side "
        f"by side with {COMPARED_WEIGHT_BITS}-bit weights (default: all)",
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument(
        "--quick", action="store_true", help="a taste: at most 2 seeds, 10 + 3 epochs, 4 and 2 bits"
    )
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds, args.epochs = min(args.seeds, 2), min(args.epochs, 3)
        args.float_epochs = min(args.float_epochs, 10)
    if min(args.seeds, args.epochs, args.float_epochs) < 1:
        parser.error("--seeds, --epochs and --float-epochs have to be at least 1")
    args.inputs = list(dict.fromkeys(args.inputs))
    return args


def main(argv: list[str] | None = None) -> None:
    """Runs the sweep and reports it."""
    args = parse_args(argv)
    console = Console()
    start = time.perf_counter()
    torch.set_num_threads(1)  # layers this small lose more to waking a second thread than they gain
    main_sweep, compared_sweep = plan(args)
    sweep = list(dict.fromkeys(main_sweep + compared_sweep))
    runs, deployments = run_all(sweep, args, console)
    seconds = time.perf_counter() - start

    summaries = {summary.widths: summary for summary in summarize(runs)}
    conclusion = report(
        [summaries[widths] for widths in main_sweep],
        [summaries[widths] for widths in compared_sweep],
        args.out / "qat_digits.png",
        console,
    )
    equal = sum(run.integers_equal for run in runs)
    console.print(
        f"Stored as integers and loaded into fresh layers, {equal} of {len(runs)} networks give "
        "bit for bit the outputs of training's last evaluation.\n",
        highlight=False,
    )
    print_deployments(deployments, console)
    console.print(f"[bold]{conclude_deployments(deployments)}[/bold]\n", highlight=False)
    write_json(runs, deployments, conclusion, seconds, args)
    console.print(f"{args.seeds} seeds, {seconds:.0f} s. Plot, figures and networks: {args.out}/")


def report(main: list[Summary], compared: list[Summary], path: Path, console: Console) -> str:
    """Prints the tables and the conclusion, and draws the plot; returns the conclusion."""
    print_tables(main, compared, storage_bytes(float_network().parameters()), console)
    plot(main, compared, path)
    conclusion = " ".join(filter(None, [conclude(main), compare(compared)]))
    console.print(f"\n[bold]{conclusion}[/bold]\n", highlight=False)
    return conclusion


if __name__ == "__main__":
    main()
