# SPDX-License-Identifier: BSD-3-Clause
"""From training to serving: a network is trained on the int8 product, stored, loaded and timed.

Three networks of one size stand side by side: float32, quantized after training (PTQ), and trained
on with the int8 product in every forward (QAT). Both int8 networks run from a file of integers.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import baraquant
from digits import Digits, evaluate, float_network, train
from qat_report import mean_and_deviation

HIDDEN = 512  # wide enough for the products, not the calls, to take most of the time
NETWORKS = {"float": "float32", "ptq": "int8, PTQ", "qat": "int8, QAT"}
TIMED_SECONDS = 0.5  # for each network and number of images


@dataclass(frozen=True)
class Deployment:
    """What one seed gave; every figure by the key of ``NETWORKS``.

    Attributes:
        seed: The seed of split, first weights and order of training.
        accuracy: Percent of the test images.
        tensor_bytes: Weights, scales and biases as stored.
        logits_equal: The loaded integers gave the outputs of training's last evaluation.
    """

    seed: int
    accuracy: dict[str, float]
    tensor_bytes: dict[str, int]
    logits_equal: bool


@dataclass(frozen=True)
class Times:
    """Median seconds of a forward, by the key of ``NETWORKS``.

    Attributes:
        one_image: For a single image.
        all_images: For ``images`` of them at once.
        images: How many those are.
    """

    one_image: dict[str, float]
    all_images: dict[str, float]
    images: int


def deploy(
    seed: int,
    digits: Digits,
    folder: Path,
    epochs: tuple[int, int],
    tick: Callable[[str], None],
) -> Deployment:
    """Trains a float network and a QAT network from it, and runs both from stored integers.

    Args:
        seed: Of the first weights and the order of training.
        digits: The data, on the device where all of it runs.
        folder: Where the networks are stored.
        epochs: Of the float network, and of QAT.
        tick: Hears of each epoch.
    """
    torch.manual_seed(seed)
    device = digits.test_images.device
    floats = float_network(HIDDEN).to(device)
    for _ in train(floats, digits, epochs[0], seed):
        tick(f"seed {seed}: float, wide")
    accuracy = {"float": evaluate(floats, digits)[0]}
    size = {"float": sum(tensor.nbytes for tensor in floats.state_dict().values())}

    ptq, qat = copy.deepcopy(floats), copy.deepcopy(floats)
    baraquant.quantize_(ptq, baraquant.W8A8())
    baraquant.qat.prepare_(qat, baraquant.W8A8())
    for _ in train(qat, digits, epochs[1], seed):
        tick(f"seed {seed}: int8 product")
    _, training_logits = evaluate(qat, digits)
    baraquant.qat.convert_(qat)

    for name, network in (("ptq", ptq), ("qat", qat)):
        path = folder / f"int8-{name}-seed{seed}.safetensors"
        baraquant.save(network, path)
        loaded = baraquant.load_(float_network(HIDDEN).to(device), path)
        accuracy[name], logits = evaluate(loaded, digits)
        size[name] = stored_bytes(path)
    equal = torch.equal(logits, training_logits)
    if not equal:
        raise AssertionError(f"{path}: the stored integers give other logits than training")
    return Deployment(seed, accuracy, size, logits_equal=equal)


def stored_bytes(path: Path) -> int:
    """Bytes of all tensors in a safetensors file: it without its header."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    return path.stat().st_size - 8 - header


def measure(folder: Path, images: Tensor) -> Times:
    """Times the networks that ``deploy`` has stored for seed 0, on the device of the images.

    The float network is a new one: its numbers do not change its time.
    """
    networks = {name: float_network(HIDDEN).to(images.device).eval() for name in NETWORKS}
    for name in ("ptq", "qat"):
        baraquant.load_(networks[name], folder / f"int8-{name}-seed0.safetensors")
    return Times(latencies(networks, images[:1]), latencies(networks, images), len(images))


@torch.no_grad()
def latencies(networks: dict[str, nn.Module], images: Tensor) -> dict[str, float]:
    """Median seconds of a forward of each network, which take turns.

    In each turn a first forward, which is not timed, brings the network into the caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    end = time.perf_counter() + TIMED_SECONDS * len(networks)
    while time.perf_counter() < end:
        for name, network in networks.items():
            network(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            network(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(own) for name, own in seconds.items()}


def print_deployments(deployments: list[Deployment], times: Times, console: Console) -> None:
    """Prints accuracy, size and latency of the three networks."""
    title = f"Deployed: {HIDDEN} units in each hidden layer, 8-bit weights and inputs"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.pad_edge = False
    for name in ("network", "accuracy in %", "bytes", "µs for 1 image", f"µs for {times.images}"):
        table.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for key, name in NETWORKS.items():
        mean, spread = accuracy_of(deployments, key)
        table.add_row(
            name,
            f"{mean:.1f} ± {spread:.1f}",
            f"{deployments[0].tensor_bytes[key]:,}",
            f"{times.one_image[key] * 1e6:,.0f}",
            f"{times.all_images[key] * 1e6:,.0f}",
            f"{times.all_images['float'] / times.all_images[key]:.1f}x",
        )
    console.print(table)
    console.print(
        "Both int8 networks run from a file of integers. PTQ: the float network, by quantize_ "
        "with W8A8; QAT: trained on by prepare_ with W8A8, whose forward is the int8 product that "
        "convert_ keeps. Times: median of a forward on one thread; a single image is mostly "
        "calls.\n",
        highlight=False,
    )


def accuracy_of(deployments: list[Deployment], key: str) -> tuple[float, float]:
    """Mean and sample standard deviation over the seeds."""
    return mean_and_deviation([deployment.accuracy[key] for deployment in deployments])


def conclude_deployments(deployments: list[Deployment], times: Times) -> str:
    """Says in words what deployment gains and costs."""
    floats, qat = (accuracy_of(deployments, key)[0] for key in ("float", "qat"))
    bytes_of = deployments[0].tensor_bytes
    equal = sum(deployment.logits_equal for deployment in deployments)
    return (
        f"Deployed on integer products, the wide network recognizes {qat:.1f} % (float32: "
        f"{floats:.1f} %), in 1/{bytes_of['float'] / bytes_of['qat']:.1f} of the bytes and "
        f"{times.all_images['qat'] / times.all_images['float']:.2f} of the time for "
        f"{times.images} images; the logits of {equal} of {len(deployments)} networks are bit for "
        "bit those of training."
    )
