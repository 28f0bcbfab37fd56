# SPDX-License-Identifier: BSD-3-Clause
"""A trained decoder as integers without training: its loss, its file, and the schemes of layers."""

import copy
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import baraquant
from baraquant.configs import Config
from lm_decoder import Decoder
from lm_generation import deployed
from lm_schemes import COMPARED
from lm_text import Text, batches
from lm_training import validate

QUANTIZED = "blocks.*"  # the embedding and the output layer stay floating, as is usual
CALIBRATED = 128  # windows of the training text
CALIBRATION_SEED = 1_000_000  # of other windows than any training sees first
Schemes = Config | Mapping[str, Config]


@dataclass(frozen=True)
class Deployed:
    """What one seed's model gave as it is served.

    Attributes:
        scheme: Its name, a deployment's.
        tuned: Whether it was trained with its scheme from the checkpoint, or rounded after that.
        seed: Of the checkpoint.
        loss: Of the validation text, in nats per byte.
        file_bytes: Of the file of ``baraquant.save``, or of a safetensors file of the float model.
        seconds: That ``quantize_`` took; None where it was not called.
    """

    scheme: str
    tuned: bool
    seed: int
    loss: float
    file_bytes: int
    seconds: float | None


@dataclass(frozen=True)
class Mixture:
    """The schemes of layers that ``baraquant.sensitivity`` chooses, and why.

    Attributes:
        report: What was measured of each layer.
        choice: A scheme for each layer.
        budget: The bytes that the tensors may take.
    """

    report: baraquant.Sensitivity
    choice: baraquant.Choice
    budget: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; ``chosen`` has the name of each layer's scheme."""
        names = {config: name for name, config in self.report.configs.items()}
        return {
            "budget": self.budget,
            "bytes": self.choice.bytes,
            "bits": self.choice.bits,
            "summary": self.choice.summary(),
            "chosen": {path: names[config] for path, config in self.choice.items()},
            "report": self.report.to_dict(),
        }


def calibration_batches(text: Text, seed: int, batch: int, context: int) -> list[Tensor]:
    """Return typical inputs: windows of the training text, int64 ``[batch, context]``."""
    stream = batches(text, CALIBRATION_SEED + seed, min(batch, CALIBRATED), context)
    return [next(stream)[:, :-1] for _ in range(-(-CALIBRATED // batch))]


def quantized(model: Decoder, config: Schemes, data: list[Tensor]) -> tuple[Decoder, float]:
    """Return a quantized copy, and the seconds that took.

    Args:
        model: The float model.
        config: Of the layers of all blocks, or a mapping from the paths of layers.
        data: For calibration.

    Raises:
        AssertionError: A layer of a block stays floating: the row would be of another model.
    """
    model = copy.deepcopy(model).eval()
    schemes = {QUANTIZED: config} if isinstance(config, Config) else config
    start = time.perf_counter()
    report = baraquant.quantize_(model, schemes, calibration=data, progress=False)
    _wait(data[0].device)
    seconds = time.perf_counter() - start
    left = {path: why for path, why in report.left_out.items() if path.startswith("blocks")}
    if left:
        raise AssertionError(f"layers of blocks stay floating: {left}")
    return model, seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def loss_and_bytes(model: Decoder, validation: list[Tensor]) -> tuple[float, int]:
    """Return the loss of a deployed model in nats per byte, and the bytes of its file."""
    loss = validate(model, validation, torch.float32)  # no autocast: it has its dtype already
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        if any(type(module).__module__.startswith("baraquant") for module in model.modules()):
            baraquant.save(model, path)
        else:
            save_file(model.state_dict(), path)
        return loss, path.stat().st_size


def mixture(model: Decoder, data: list[Tensor]) -> Mixture:
    """Measure the layers of the blocks, and choose their schemes.

    The budget is halfway between the bytes of four and of eight bits for all layers.
    """
    configs = {name: config(model.size.group) for name, config in COMPARED.items()}
    report = baraquant.sensitivity(
        model,
        configs,
        data,
        filter_fn=lambda _, path: path.startswith("blocks"),
        progress=False,
    )
    halves = (layer.bytes[name] for layer in report.layers for name in ("W4A16", "W8A16"))
    budget = report.other_bytes + sum(halves) // 2
    return Mixture(report, report.choose(budget), budget)


def deploy(
    model: Decoder,
    scheme: str,
    config: Schemes | None,
    data: list[Tensor],
    validation: list[Tensor],
    dtype: torch.dtype,
    seed: int,
) -> tuple[Deployed, Decoder]:
    """Quantize the checkpoint; return what it gave, and the model as it is served."""
    made, seconds = (model, None) if config is None else quantized(model, config, data)
    served = deployed(made, dtype)
    return Deployed(scheme, False, seed, *loss_and_bytes(served, validation), seconds), served
