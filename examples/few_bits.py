# SPDX-License-Identifier: BSD-3-Clause
"""What four, three and two bits cost a model, by each way to find the integers.

The language model, the sentence encoder and the digits share it. Ways without training start from a
float checkpoint and are compared with it. Those with training are compared with the float model
that was trained on for as many steps with the same batches.
"""

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from baraquant import QuantConfig
from baraquant.configs import Config

FLOAT = "float"
SCHEMES: dict[int, Callable[..., QuantConfig]] = {
    4: baraquant.W4A16,
    3: baraquant.W3A16,
    2: partial(baraquant.W2A16, symmetric=True),  # with zero points training lost more
}
UNTRAINED: dict[str, Callable[[QuantConfig], Config]] = {
    "nearest": lambda config: replace(config, scale_rule="max"),
    "search": lambda config: config,
    "AWQ": baraquant.AWQ,
    "GPTQ": baraquant.GPTQ,
}
RECONSTRUCTED, TRAINED, RECIPE = "reconstruction", "training", "training from GPTQ"
BY_ITSELF, BY_FLOAT = f"{RECIPE}, taught by itself", f"{RECIPE}, taught by the checkpoint"
ALONE = (*UNTRAINED, RECONSTRUCTED, TRAINED, RECIPE)
METHODS = (*ALONE, BY_ITSELF, BY_FLOAT)
TUNED = (TRAINED, RECIPE, BY_ITSELF, BY_FLOAT)  # their steps are training's
Teach = Callable[[nn.Module, Tensor], Tensor]  # gives the teacher's logits for a student's input


@dataclass(frozen=True)
class FewBits:
    """What one seed's model of integers gave.

    Attributes:
        method: One of ``METHODS``, or ``FLOAT`` with 0 bits for the float model.
        bits: Of the weights.
        group: Neighbours in a row of a weight that share a scale.
        seed: Of the checkpoint.
        tuned: Whether it was trained on from the checkpoint.
        loss: The smaller, the better.
        seconds: From the float checkpoint to the integers.
        more: Other figures of the model.
    """

    method: str
    bits: int
    group: int
    seed: int
    tuned: bool
    loss: float
    seconds: float
    more: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A float checkpoint, how a model like it is trained, and how it is measured.

    Attributes:
        checkpoint: It stays as it is.
        seed: Its seed.
        calibration: Typical inputs.
        train: Trains a float or a prepared model in place, always with the same batches; beside the
            labels by a teacher, if there is one.
        evaluate: Returns a model's loss, and other figures.
        pattern: The paths of the layers that are quantized.
        bits: Keys of ``SCHEMES``.
        groups: Group sizes that divide the inputs of all of these layers.
        methods: Some of ``METHODS``.
    """

    checkpoint: nn.Module
    seed: int
    calibration: Iterable[Any]
    train: Callable[[nn.Module, Teach | None], None]
    evaluate: Callable[[nn.Module], tuple[float, dict[str, float]]]
    pattern: str = "*"
    bits: tuple[int, ...] = tuple(SCHEMES)
    groups: tuple[int, ...] = (32,)
    methods: tuple[str, ...] = METHODS

    def measure(self, tick: Callable[[str, int], None], steps: int) -> list[FewBits]:
        """Measure every method at every width.

        ``tick`` hears what is done, and its steps: ``steps`` of a training, else one.
        """
        widths = [(0, 0), *((bits, group) for bits in self.bits for group in self.groups)]
        found = []
        for bits, group in widths:
            methods = self.methods if bits else (FLOAT, FLOAT)
            for index, method in enumerate(methods):
                tuned = method in TUNED if bits else index == 1
                start = time.perf_counter()
                model = self.made(method, SCHEMES[bits](group)) if bits else self.floats(tuned)
                seconds = round(time.perf_counter() - start, 2)
                loss, more = self.evaluate(model)
                one = FewBits(method, bits, group, self.seed, tuned, loss, seconds, more)
                found.append(one)
                tick(f"seed {self.seed}, {method}, {bits} bits: {loss:.4f}", steps if tuned else 1)
        return found

    def floats(self, tuned: bool) -> nn.Module:
        """Return a copy of the checkpoint, trained on or not."""
        model = copy.deepcopy(self.checkpoint)
        if tuned:
            self.train(model, None)
        return model.eval()

    def made(self, method: str, config: QuantConfig) -> nn.Module:
        """Return a copy of the checkpoint whose layers are integers that a method has found."""
        model = copy.deepcopy(self.checkpoint).eval()
        shared: dict[str, Any] = {"calibration": self.calibration, "progress": False}
        if method in UNTRAINED:
            baraquant.quantize_(model, {self.pattern: UNTRAINED[method](config)}, **shared)
        elif method == RECONSTRUCTED:
            baraquant.reconstruct_(model, {self.pattern: baraquant.GPTQ(config)}, **shared)
        else:
            start: Config = config if method == TRAINED else baraquant.GPTQ(config)
            baraquant.qat.prepare_(model, {self.pattern: start}, **shared)
            self.train(model, {BY_ITSELF: by_itself, BY_FLOAT: self.by_checkpoint}.get(method))
            baraquant.qat.convert_(model.eval())
        if next(iter(model.parameters())).is_cuda:
            torch.cuda.synchronize()  # the time is that of finished work
        return model

    def by_checkpoint(self, _: nn.Module, batch: Tensor) -> Tensor:
        """Return what the float checkpoint gives."""
        logits: Tensor = self.checkpoint.eval()(batch)
        return logits


def by_itself(model: nn.Module, batch: Tensor) -> Tensor:
    """Return what a prepared model gives without rounding."""
    with baraquant.qat.teacher(model):
        logits: Tensor = model(batch)
    return logits


def taught(logits: Tensor, model: nn.Module, batch: Tensor, teach: Teach, weight: float) -> Tensor:
    """Return how far a student's logits are from its teacher's, times a weight."""
    with torch.no_grad():
        expected = teach(model, batch)
    return weight * baraquant.qat.distillation_loss(logits, expected)


def planned_steps(widths: int, steps: int, methods: tuple[str, ...] = METHODS) -> int:
    """Return how many steps a task has, where a training has ``steps`` and all else has one."""
    return 1 + steps + widths * sum(steps if method in TUNED else 1 for method in methods)
