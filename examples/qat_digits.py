# SPDX-License-Identifier: BSD-3-Clause
"""Quantization-aware training on real data, from pixels to stored integers.

The data: 1797 handwritten digits of 8 x 8 pixels, which scikit-learn ships inside its package.
For each seed this trains a small float network, and then for each width of weights and inputs

1. prepares a copy of it and fits the scales to the weights and to the training data: that is the
   network quantized after training (PTQ);
2. trains it further with quantization in the loop (QAT), weights and scales together;
3. converts it to integers, saves these, loads them into a fresh network, and checks that it gives
   bit for bit the outputs of the last evaluation in training.

``quantize_and_train`` is all of that. The scale of a layer's input is learned with the weights;
beside that stand scales that are taken on the fly from the range of each image, symmetric and
asymmetric (``--inputs`` chooses).

A wider network is trained with the int8 product itself in the forward, and deployed: from a file of
integers it gives bit for bit the logits of training, and a table shows accuracy, size and latency
beside float32.

Run ``python examples/qat_digits.py``; the plot and all figures land in ``results/``. The data and
the training are in ``digits.py``, the widths in ``qat_widths.py``, the tables and the plot in
``qat_report.py``, the deployment in ``qat_deploy.py``. The seeds are trained side by side, in a
process for each core.
"""

import argparse
import copy
import itertools
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

import baraquant
from baraquant import _C
from digits import Digits, evaluate, float_network, load_split, train
from machine import processor
from qat_deploy import (
    Deployment,
    Times,
    conclude_deployments,
    deploy,
    measure,
    print_deployments,
    stored_bytes,
)
from qat_report import Run, report, summarize
from qat_widths import INPUT_SCHEMES, Widths, fit_scales

WEIGHT_BITS = (8, 4, 3, 2)
INPUT_BITS = (8, 4)
GROUP_SIZES = (None, 32)  # None: a scale per channel
COMPARED_WEIGHT_BITS = 4  # the schemes of the inputs are compared at this width of the weights
COMPARED_INPUT_BITS = (8, 4, 3, 2)

Tick = Callable[[str], None]  # hears of each epoch


def quantize_and_train(
    floats: nn.Sequential,
    digits: Digits,
    widths: Widths,
    seed: int,
    args: argparse.Namespace,
    tick: Tick,
) -> Run:
    """Takes a trained float network, which stays as it is, to integers in a file and back."""
    accuracy = {"float": evaluate(floats, digits)[0]}
    network = copy.deepcopy(floats)
    baraquant.qat.prepare_(network, widths.config())
    fit_scales(network, digits.train_images, candidates=1)
    accuracy["ptq_max"], _ = evaluate(network, digits)
    fit_scales(network, digits.train_images)
    accuracy["ptq"], _ = evaluate(network, digits)
    for _ in train(network, digits, args.epochs, seed):
        tick(f"seed {seed}: {widths}")
    accuracy["qat"], logits = evaluate(network, digits)

    path = args.out / "models" / f"{widths}-seed{seed}.safetensors"
    baraquant.qat.convert_(network)
    baraquant.save(network, path)
    loaded = baraquant.load_(float_network().to(args.device), path)
    _, loaded_logits = evaluate(loaded, digits)
    if not torch.equal(loaded_logits, logits):
        raise AssertionError(f"{path}: the stored integers give other outputs than training")
    size = stored_bytes(path), path.stat().st_size
    return Run(seed, widths, accuracy, *size, integers_equal=True)


def run_seed(
    seed: int, sweep: list[Widths], args: argparse.Namespace, tick: Tick
) -> tuple[list[Run], Deployment]:
    """Trains a float network and takes it through every width; then the wide ones."""
    torch.manual_seed(seed)
    digits = load_split(seed, args.device)
    floats = float_network().to(args.device)
    for _ in train(floats, digits, args.float_epochs, seed):
        tick(f"seed {seed}: float")
    runs = [quantize_and_train(floats, digits, widths, seed, args, tick) for widths in sweep]
    epochs = wide_epochs(args)
    return runs, deploy(seed, digits, args.out / "models", epochs, tick)


def wide_epochs(args: argparse.Namespace) -> tuple[int, int]:
    """Epochs of the wide networks, float and QAT: half of the others', as they learn faster."""
    return -(-args.float_epochs // 2), -(-args.epochs // 2)


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
    """Runs the seeds, several at a time, under one progress bar."""
    (args.out / "models").mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
    )
    epochs = args.float_epochs + len(sweep) * args.epochs + sum(wide_epochs(args))
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    ticks = context.SimpleQueue()
    pool = ProcessPoolExecutor(min(args.jobs, args.seeds), context, _start_worker, (ticks,))
    try:
        futures = [pool.submit(_work, seed, sweep, args) for seed in range(args.seeds)]
        pending = set(futures)
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("starting", total=args.seeds * epochs)
            while pending:
                done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                while not ticks.empty():
                    progress.update(task, advance=1, description=ticks.get())
                for future in done:
                    future.result()  # raises what was raised there
            progress.update(task, description="done")
    finally:
        pool.shutdown(cancel_futures=True)
    results = [future.result() for future in futures]
    return [run for runs, _ in results for run in runs], [deployed for _, deployed in results]


def _start_worker(ticks: "multiprocessing.SimpleQueue[str]") -> None:
    global _ticks
    _ticks = ticks
    torch.set_num_threads(1)  # layers this small lose more to waking a thread than they gain


def _work(seed: int, sweep: list[Widths], args: argparse.Namespace) -> tuple[list[Run], Deployment]:
    return run_seed(seed, sweep, args, _ticks.put)


def write_json(
    runs: list[Run],
    deployments: list[Deployment],
    times: Times,
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
            "jobs": args.jobs,
        },
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "cpu_isa": _C.cpu_isa()},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": {
            "baraquant": baraquant.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(seconds, 1),
        "float_bytes": float_bytes(),
        "conclusion": conclusion,
        "deployed": conclude_deployments(deployments, times),
        "summary": [asdict(summary) for summary in summarize(runs)],
        "runs": [asdict(run) for run in runs],
        "deployments": [asdict(deployment) for deployment in deployments],
        "times": asdict(times),
    }
    (args.out / "qat_digits.json").write_text(json.dumps(everything, indent=2) + "\n")


def float_bytes() -> int:
    """Bytes of the float network's parameters."""
    return sum(parameter.nbytes for parameter in float_network().parameters())


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=6, help="how many seeds, from 0 on")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each QAT run")
    parser.add_argument("--float-epochs", type=int, default=60, help="epochs of the float network")
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
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="seeds that train side by side")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument(
        "--quick", action="store_true", help="a taste: at most 2 seeds, 10 + 3 epochs, 4 and 2 bits"
    )
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds, args.epochs = min(args.seeds, 2), min(args.epochs, 3)
        args.float_epochs = min(args.float_epochs, 10)
    if min(args.seeds, args.epochs, args.float_epochs, args.jobs) < 1:
        parser.error("--seeds, --epochs, --float-epochs and --jobs have to be at least 1")
    args.inputs = list(dict.fromkeys(args.inputs))
    return args


def main(argv: list[str] | None = None) -> None:
    """Runs the sweep and reports it."""
    args = parse_args(argv)
    console = Console()
    start = time.perf_counter()
    main_sweep, compared_sweep = plan(args)
    sweep = list(dict.fromkeys(main_sweep + compared_sweep))
    runs, deployments = run_all(sweep, args, console)
    torch.set_num_threads(1)
    times = measure(args.out / "models", load_split(0, args.device).test_images)
    seconds = time.perf_counter() - start

    summaries = {summary.widths: summary for summary in summarize(runs)}
    conclusion = report(
        [summaries[widths] for widths in main_sweep],
        [summaries[widths] for widths in compared_sweep],
        float_bytes(),
        args.out / "qat_digits.png",
        console,
    )
    equal = sum(run.integers_equal for run in runs)
    console.print(
        f"Stored as integers and loaded into fresh networks, {equal} of {len(runs)} give bit for "
        "bit the outputs of training's last evaluation.\n",
        highlight=False,
    )
    print_deployments(deployments, times, console)
    console.print(f"[bold]{conclude_deployments(deployments, times)}[/bold]\n", highlight=False)
    write_json(runs, deployments, times, conclusion, seconds, args)
    console.print(f"{args.seeds} seeds, {seconds:.0f} s. Plot, figures and networks: {args.out}/")


if __name__ == "__main__":
    main()
