# SPDX-License-Identifier: BSD-3-Clause
"""The data of the demo, and how a network learns it, quantized or not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
# Chosen on a validation part of the training images, as were the epochs of qat_digits.py. A scale
# is far smaller than a weight, and steps that suit a weight can throw it off.
LEARNING_RATE = 0.1
SCALE_RATE = 0.003  # of learned scales and zero points


@dataclass(frozen=True)
class Digits:
    """One split: images ``[n, 64]`` in [0, 1], labels ``[n]``."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_split(seed: int, device: torch.device) -> Digits:
    """Splits the digits 70 : 30 by the seed, each digit in proportion."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.astype("float32") / 16, labels, test_size=0.3, random_state=seed, stratify=labels
    )
    train_images, test_images, train_labels, test_labels = (
        torch.from_numpy(part).to(device) for part in split
    )
    return Digits(train_images, train_labels, test_images, test_labels)


def float_network(hidden: int = 64) -> nn.Sequential:
    """A perceptron with two hidden layers: 8,970 parameters, if they have 64 units."""
    return nn.Sequential(
        *(nn.Linear(64, hidden), nn.ReLU()),
        *(nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Linear(hidden, 10),
    )


def cross_entropy(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The loss of a batch."""
    return F.cross_entropy(network(images), labels)


def train(
    network: nn.Module,
    digits: Digits,
    epochs: int,
    seed: int,
    loss_fn: Callable[[nn.Module, Tensor, Tensor], Tensor] = cross_entropy,
) -> Iterator[int]:
    """Trains in place, and yields the number of each epoch that is done.

    SGD on a cosine schedule, for a fixed number of epochs: the test images decide nothing. Only
    the weights decay, as a bias or a scale that is pulled to zero would gain nothing.
    """
    named = list(network.named_parameters())
    scales = [p for name, p in named if name.endswith((".scale", ".zero_point"))]
    groups = [
        {"params": [p for name, p in named if name.endswith(".weight")], "weight_decay": 5e-4},
        {"params": [p for name, p in named if name.endswith(".bias")]},
        {"params": scales, "lr": SCALE_RATE},
    ]
    optimizer = torch.optim.SGD(groups, LEARNING_RATE, momentum=0.9)
    steps = len(digits.train_labels) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    for epoch in range(epochs):
        order = torch.randperm(len(digits.train_labels), generator=generator)
        for batch in order.to(digits.train_labels.device).split(BATCH)[:steps]:
            loss = loss_fn(network, digits.train_images[batch], digits.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        yield epoch


@torch.no_grad()
def evaluate(network: nn.Module, digits: Digits) -> tuple[float, Tensor]:
    """Returns the accuracy on the test images in percent, and the outputs ``[n, 10]``."""
    logits = network.eval()(digits.test_images)
    hits = int((logits.argmax(dim=1) == digits.test_labels).sum())
    return 100 * hits / len(digits.test_labels), logits
