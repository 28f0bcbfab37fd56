# SPDX-License-Identifier: BSD-3-Clause
"""Handwritten digits with weights of four, three and two bits, by each way to find the integers.

The data and the network are those of ``qat_digits.py``: 1797 digits, a perceptron, floating inputs
of its layers here. The ways are those of ``few_bits.py``, in groups of 32; the loss is the
cross-entropy of the test images. Run ``python examples/digits_few_bits.py``; the table, the plot
and all figures land in ``results/``.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

import baraquant
from digits import cross_entropy, evaluate, float_network, load_split, train
from few_bits import SCHEMES, FewBits, Task, Teach, planned_steps, taught
from few_bits_report import progress_bar, publish
from machine import processor

FLOAT_EPOCHS, EPOCHS = 60, 20  # those of qat_digits.py
TEACHING = 1.0  # the weight of what a teacher says


def run_seed(seed: int, epochs: tuple[int, int], tick: Callable[[str, int], None]) -> list[FewBits]:
    """Train a float network, and measure every way from it."""
    torch.manual_seed(seed)
    digits = load_split(seed, torch.device("cpu"))
    network = float_network()
    for _ in train(network, digits, epochs[0], seed):
        pass

    def train_on(model: nn.Module, teach: Teach | None) -> None:
        loss_fn = cross_entropy if teach is None else partial(taught_loss, teach=teach)
        for _ in train(model, digits, epochs[1], seed, loss_fn):
            pass

    def loss(model: nn.Module) -> tuple[float, dict[str, float]]:
        accuracy, logits = evaluate(model, digits)
        return float(F.cross_entropy(logits, digits.test_labels)), {"accuracy": accuracy}

    data = list(digits.train_images.split(128))
    return Task(network, seed, data, train_on, loss).measure(tick, epochs[1])


def taught_loss(model: nn.Module, images: Tensor, labels: Tensor, teach: Teach) -> Tensor:
    """Return the cross-entropy, and the divergence from what a teacher gives."""
    logits = model(images)
    return F.cross_entropy(logits, labels) + taught(logits, model, images, teach, TEACHING)


def main() -> None:
    """Run the seeds; print the table, write the plot and the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 0 on")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of each training")
    parser.add_argument("--float-epochs", type=int, default=FLOAT_EPOCHS, help="of the network")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    args, console = parser.parse_args(), Console()
    console = console if console.is_terminal else Console(width=150)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # layers this small lose more to waking a thread than they gain
    found: list[FewBits] = []
    with progress_bar(console, args.seeds * planned_steps(len(SCHEMES), args.epochs)) as tick:
        for seed in range(args.seeds):
            found += run_seed(seed, (args.float_epochs, args.epochs), tick)
    about = {
        "device": processor(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "baraquant": baraquant.__version__,
        "seeds": args.seeds,
        "epochs": args.epochs,
        "float_epochs": args.float_epochs,
    }
    publish(found, about, args.out / "digits_few_bits", "nats per digit", console)


if __name__ == "__main__":
    main()
