# SPDX-License-Identifier: BSD-3-Clause
"""Everything that ``language_model.py`` does with a seed: training, deployment, sensitivity."""

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn

import baraquant
import few_bits
from lm_decoder import Decoder, Size
from lm_deployment import (
    QUANTIZED,
    Deployed,
    calibration_batches,
    deploy,
    loss_and_bytes,
    mixture,
)
from lm_generation import continued, decoding_speeds, deployed
from lm_gradients import Cosines, least_cosines
from lm_report import Run
from lm_results import Results
from lm_schemes import BASELINE, DEPLOYMENTS, FLOAT, MIXED, SCHEMES, TUNED
from lm_text import Text, batches, validation_batches
from lm_training import autocast, has_same_logits, loss_of, taught_loss, train, validate
from minilm_speed import measure

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GROUPS = (32, 128)  # of few bits
PROMPT = "def read(self, size=-1):\n"


@dataclass
class Experiment:
    """What all seeds share.

    Attributes:
        args: The command line.
        size: Of the model and its training.
        text: Both halves.
        progress: Shows how far it is.
        results: What was measured; seeds that are done are not run again.
    """

    args: argparse.Namespace
    size: Size
    text: Text
    progress: Progress
    results: Results
    served: dict[str, Decoder] = field(default_factory=dict)  # by scheme, of the first seed
    written: dict[str, Decoder] = field(default_factory=dict)  # the same, in the dtype of serving

    def __post_init__(self) -> None:
        """Read the validation text, and start the bar."""
        size = self.size
        self.dtype = DTYPES[self.args.dtype]
        self.validation = validation_batches(self.text, size.windows, size.batch, size.context)
        total = planned_steps(self.args, size, self.args.seeds - len(self.results.done))
        self.task = self.progress.add_task("starting", total=total)

    def run_seed(self, seed: int) -> None:
        """Train every scheme from the same first weights, then deploy the float checkpoint."""
        torch.manual_seed(seed)
        first = Decoder(self.size, self.args.mlp).to(self.args.device)
        checkpoint = None
        for scheme in scratch_schemes(self.args):
            served = self.quantize_and_train(first, scheme, "scratch", seed)
            checkpoint = served if scheme == FLOAT else checkpoint
        for scheme in checkpoint_schemes(self.args):
            served = self.quantize_and_train(checkpoint, scheme, "checkpoint", seed)
            if scheme in deployed_schemes(self.args):
                self.deploy_tuned(served, scheme, seed)
        self.deploy_checkpoint(checkpoint, seed)
        if "few_bits" in self.args.parts:
            self.results.few_bits += self.few_bits(checkpoint, seed).measure(
                self.tick, self.args.tuning_steps
            )
        if not self.results.sample:  # the first of all seeds
            self.measure_speeds()
        self.results.done.append(seed)

    def quantize_and_train(self, start: Decoder, scheme: str, mode: str, seed: int) -> Decoder:
        """Take a float model, which stays as it is, to a trained one, and that to integers."""
        config = SCHEMES[scheme].config(self.size.group)
        model = copy.deepcopy(start)
        if config is not None:
            baraquant.qat.prepare_(model, {QUANTIZED: config}, progress=False)
        before = validate(model, self.validation, self.dtype)
        is_scratch = mode == "scratch"
        training = train(
            model,
            self.batches(2 * seed + (not is_scratch)),
            self.size.steps if is_scratch else self.args.tuning_steps,
            self.size.learning_rate * (1 if is_scratch else self.args.tuning_rate),
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
        if "training" in self.args.parts:
            self.served.setdefault(scheme, served)
        self.results.runs.append(Run(mode, scheme, seed, before, validation, training, same_bits))
        return served

    def batches(self, seed: int) -> Iterator[Tensor]:
        """Return the batches that every scheme of a seed is trained with."""
        torch.manual_seed(seed)  # stochastic rounding draws from PyTorch's generator
        return batches(self.text, seed, self.size.batch, self.size.context)

    def deploy_tuned(self, served: Decoder, scheme: str, seed: int) -> None:
        """Measure a model that was trained with its scheme, as it is served."""
        found = loss_and_bytes(deployed(served, self.dtype), self.validation)
        self.results.deployed.append(Deployed(scheme, True, seed, *found, None))

    def deploy_checkpoint(self, checkpoint: Decoder, seed: int) -> None:
        """Quantize a float model without training, by each scheme and by what is chosen."""
        names = deployed_schemes(self.args)
        is_mixed = "sensitivity" in self.args.parts
        if not names and not is_mixed:
            return
        size = self.size
        data = calibration_batches(self.text, seed, size.batch, size.context)
        configs: dict[str, Any] = {name: DEPLOYMENTS[name].config(size.group) for name in names}
        if is_mixed:
            found = mixture(checkpoint, data)
            configs = {FLOAT: None, **configs, MIXED: found.choice}
            self.tick(f"seed {seed}, sensitivity", 1)
            self.results.mixture = self.results.mixture or found.as_dict()
        for name, config in configs.items():
            self.tick(f"seed {seed}, deployed as {name}", 0)
            one, served = deploy(checkpoint, name, config, data, self.validation, self.dtype, seed)
            self.results.deployed.append(one)
            if name == MIXED or not DEPLOYMENTS[name].way:
                self.written.setdefault(name, served)
            self.tick(f"seed {seed}, deployed as {name}: {one.loss:.3f}", 1)

    def few_bits(self, checkpoint: Decoder, seed: int) -> few_bits.Task:
        """Return how the checkpoint is measured with few bits."""
        size = self.size

        def train_on(model: nn.Module, teach: few_bits.Teach | None) -> None:
            batches = self.batches(2 * seed + 1)  # those of all models that are trained on
            given = self.args.tuning_steps, size.learning_rate * self.args.tuning_rate, self.dtype
            loss_fn = loss_of if teach is None else partial(taught_loss, teach=teach)
            train(model, batches, *given, lambda *_: None, loss_fn)

        return few_bits.Task(
            checkpoint,
            seed,
            calibration_batches(self.text, seed, size.batch, size.context),
            train_on,
            lambda model: (validate(model, self.validation, self.dtype), {}),
            QUANTIZED,
            groups=groups_of(size),
        )

    def measure_speeds(self) -> None:
        """Measure the models of the first seed in turns, and let one of them write."""
        if self.served:
            self.tick("speed of validation", 1)
            self.results.speeds = self.validation_speeds()
        if self.written:
            self.tick("speed of writing", 1)
            self.results.decoded = decoding_speeds(self.written, self.validation[0])
        models = {**self.served, **self.written}
        if not models:
            return
        writer = models.get(BASELINE, next(iter(models.values())))
        self.results.sample = continued(deployed(writer, self.dtype), PROMPT, 160)
        self.served, self.written = {}, {}

    def validation_speeds(self) -> dict[str, tuple[float, float | None]]:
        """Return tokens per second of validation, and how many times as fast as float that is."""
        order = sorted(self.served, key=lambda name: name != FLOAT)
        tokens = self.validation[0][:, :-1]
        with autocast(tokens.device, self.dtype):
            found = measure({n: self.served[n] for n in order}, {"tokens": tokens}, 9)
        has_float = order[0] == FLOAT
        return {
            name: (tokens.numel() / speed.seconds, speed.faster if has_float else None)
            for name, speed in found.items()
        }

    def cosines(self) -> list[Cosines]:
        """Compare gradients while the baseline is trained from scratch with the first seed."""
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

    def run(self, save: Callable[[], bool]) -> None:
        """Run the seeds that are not done, then the cosines; ``save`` is called after each."""
        for seed in range(self.args.seeds):
            if seed not in self.results.done:
                self.run_seed(seed)
                save()
        if self.args.cosine and not self.results.cosines:
            self.results.cosines = self.cosines()
            save()
        self.tick("done", 0)

    def tick(self, text: str, steps: int) -> None:
        """Advance the bar."""
        self.progress.update(self.task, advance=steps, description=text)


def groups_of(size: Size) -> tuple[int, ...]:
    """Return the sizes of groups that few bits are measured with."""
    return tuple(group for group in GROUPS if size.width % group == 0)


def deployed_schemes(args: argparse.Namespace) -> list[str]:
    """Return what the checkpoint is deployed as; the float model in any case."""
    is_asked = "deployment" in args.parts
    return [name for name in DEPLOYMENTS if is_asked and name in (FLOAT, *args.deployments)]


def checkpoint_schemes(args: argparse.Namespace) -> list[str]:
    """Return what is trained on from the checkpoint: for its own sake, and to be deployed."""
    named = args.schemes if "training" in args.parts and "checkpoint" in args.modes else []
    tuned = [name for name in TUNED if name in deployed_schemes(args)]
    return [name for name in SCHEMES if name in (*named, *tuned)]


def scratch_schemes(args: argparse.Namespace) -> list[str]:
    """Return what is trained from scratch: where a checkpoint is needed, the float model too."""
    named = args.schemes if "training" in args.parts and "scratch" in args.modes else []
    needs_float = args.parts != ["training"] or "checkpoint" in args.modes
    return [FLOAT, *named] if needs_float and FLOAT not in named else list(named)


def planned_steps(args: argparse.Namespace, size: Size, seeds: int) -> int:
    """Return the number of steps of all trainings together, and one for each deployment."""
    steps = len(scratch_schemes(args)) * size.steps
    steps += len(checkpoint_schemes(args)) * args.tuning_steps
    names = deployed_schemes(args)
    is_mixed = "sensitivity" in args.parts
    steps += len({FLOAT, MIXED, *names} if is_mixed else names) + is_mixed
    if "few_bits" in args.parts:
        widths = len(few_bits.SCHEMES) * len(groups_of(size))
        steps += few_bits.planned_steps(widths, args.tuning_steps)
    speeds = ("training" in args.parts) + (args.parts != ["training"])
    return seeds * steps + speeds + (size.steps if args.cosine else 0)
