# SPDX-License-Identifier: BSD-3-Clause
"""From training to serving: a network is trained on the int8 product, stored, loaded and timed.

Three networks of one size stand side by side: float32, its weights quantized after training (PTQ),
and the one that was trained on with the int8 product in every forward (QAT). Both int8 networks
run from a file of integers.
"""

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

import int8_layers
from digits import FLOAT_RATE, QAT_RATE, evaluate, float_network, load_split, train

HIDDEN = 512  # wide enough for the products, not the calls, to take most of the time
NETWORKS = {"float": "float32", "ptq": "int8, PTQ", "qat": "int8, QAT"}
TIMED_SECONDS = 0.2  # for each network and number of images


@dataclass(frozen=True)
class Deployment:
    """What one seed gave; every figure by the key of ``NETWORKS``.

    Attributes:
        seed: The seed of split, first weights and order of training.
        accuracy: Percent of the test images.
        tensor_bytes: Weights, scales and biases as stored.
        one_image: Median seconds for a single image.
        all_images: Median seconds for all test images at once.
        images: How many those are.
        logits_equal: The loaded integers gave the outputs of training's last evaluation.
    """

    seed: int
    accuracy: dict[str, float]
    tensor_bytes: dict[str, int]
    one_image: dict[str, float]
    all_images: dict[str, float]
    images: int
    logits_equal: bool


def deploy(
    seed: int,
    device: torch.device,
    folder: Path,
    epochs: tuple[int, int],
    tick: Callable[[str], None],
) -> Deployment:
    """Trains a float network and a QAT network from it, and runs both from stored integers.

    Args:
        seed: Of split, first weights and order of training.
        device: Where all of it runs.
        folder: Where the networks are stored.
        epochs: Of the float network, and of QAT.
        tick: Hears of each epoch.
    """
    torch.manual_seed(seed)
    digits = load_split(seed, device)
    floats = float_network(HIDDEN).to(device)
    for _ in train(floats, digits, epochs[0], FLOAT_RATE, seed):
        tick(f"seed {seed}: float, wide")
    trained = int8_layers.trainable(floats)
    for _ in train(trained, digits, epochs[1], QAT_RATE, seed):
        tick(f"seed {seed}: int8 product")
    _, training_logits = evaluate(trained, digits)

    networks: dict[str, nn.Module] = {"float": floats}
    for name, network in (("ptq", floats), ("qat", trained)):
        path = folder / f"int8-{name}-seed{seed}.safetensors"
        int8_layers.save(network, path)
        networks[name] = int8_layers.load(path, device)
    accuracy, logits = {}, {}
    for name, network in networks.items():
        accuracy[name], logits[name] = evaluate(network, digits)
    equal = torch.equal(logits["qat"], training_logits)
    if not equal:
        raise AssertionError(f"{path}: the stored integers give other logits than training")
    return Deployment(
        seed,
        accuracy,
        {name: stored_bytes(network) for name, network in networks.items()},
        latencies(networks, digits.test_images[:1]),
        latencies(networks, digits.test_images),
        len(digits.test_images),
        logits_equal=equal,
    )


def stored_bytes(network: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    return sum(tensor.nbytes for tensor in network.state_dict().values())


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


def print_deployments(deployments: list[Deployment], console: Console) -> None:
    """Prints accuracy, size and latency of the three networks."""
    images = deployments[0].images
    title = f"Deployed: {HIDDEN} units in each hidden layer, 8-bit weights and inputs"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.pad_edge = False
    for name in ("network", "accuracy in %", "bytes", "µs for 1 image", f"µs for {images}", ""):
        table.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    slowest = median_of(deployments, "all_images", "float")
    for key, name in NETWORKS.items():
        mean, spread = accuracy_of(deployments, key)
        seconds = median_of(deployments, "all_images", key)
        table.add_row(
            name,
            f"{mean:.1f} ± {spread:.1f}",
            f"{deployments[0].tensor_bytes[key]:,}",
            f"{median_of(deployments, 'one_image', key) * 1e6:,.0f}",
            f"{seconds * 1e6:,.0f}",
            f"{slowest / seconds:.1f}x",
        )
    console.print(table)
    console.print(
        "Both int8 networks run from a file of integers with quantized_linear: PTQ is the float "
        "network, quantized; QAT was trained on with qat_linear, whose forward is the same "
        "product. Times: median of a forward on one thread; a single image is mostly calls.\n",
        highlight=False,
    )


def accuracy_of(deployments: list[Deployment], key: str) -> tuple[float, float]:
    """Mean and sample standard deviation over the seeds."""
    values = [deployment.accuracy[key] for deployment in deployments]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def median_of(deployments: list[Deployment], what: str, key: str) -> float:
    """The median over the seeds of ``one_image`` or ``all_images``."""
    return statistics.median(getattr(deployment, what)[key] for deployment in deployments)


def conclude_deployments(deployments: list[Deployment]) -> str:
    """Says in words what deployment gains and costs."""
    floats, qat = (accuracy_of(deployments, key)[0] for key in ("float", "qat"))
    bytes_of = deployments[0].tensor_bytes
    seconds = {key: median_of(deployments, "all_images", key) for key in ("float", "qat")}
    equal = sum(deployment.logits_equal for deployment in deployments)
    return (
        f"Deployed on integer products, the wide network recognizes {qat:.1f} % (float32: "
        f"{floats:.1f} %), in 1/{bytes_of['float'] / bytes_of['qat']:.1f} of the bytes and "
        f"{seconds['qat'] / seconds['float']:.2f} of the time for {deployments[0].images} images; "
        f"the logits of {equal} of {len(deployments)} networks are bit for bit those of training."
    )
