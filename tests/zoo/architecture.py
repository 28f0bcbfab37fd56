# SPDX-License-Identifier: BSD-3-Clause
"""What the tables of architectures are written with."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.tiny_transformers import build as tiny
from tests.support.tiny_transformers.models import Inputs, Tiny, numbers
from tests.zoo import torchvision_support


@dataclass(frozen=True)
class Architecture:
    """One architecture, tiny and with random weights.

    Attributes:
        name: What `--only` and the page call it.
        family: What kind of model it is.
        make: Builds the float model from a seed; also under `torch.device("meta")`.
        inputs: Makes keyword arguments of the model.
        package: What has to be installed for it: `transformers`, `torchvision` or `torch`.
        generates: Whether `generate` is called.
        is_discrete: Whether it chooses experts, clusters or boxes: then a small error of an input
            can be a large one of the output, and nearness to the float model is not asked for.
        train_inputs: What training calls it with; None: the same.
        outputs: What is compared with the float model; None: all outputs.
        least_cosine: What is asked for where a scheme asks for more: long chains of convolutions
            with random weights make a small error large.
        is_lively: Whether its weights are made as large as trained ones.
        refused: What `load_` has to refuse: the way (`function`, `meta` or `*`), the dtype (or `*`)
            and a part of the message.
    """

    name: str
    family: str
    make: Callable[[int], nn.Module]
    inputs: Callable[[], Inputs]
    package: str
    generates: bool = False
    is_discrete: bool = False
    train_inputs: Callable[[], Inputs] | None = None
    outputs: Callable[[nn.Module, Inputs], Any] | None = None
    least_cosine: float = 1.0
    is_lively: bool = True
    refused: tuple[tuple[str, str, str], ...] = ()

    def missing(self) -> str | None:
        """Why it cannot be run here; None where it can."""
        if self.package == "torchvision":
            return torchvision_support.missing()
        if importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return None

    def empty(self, seed: int, dtype: torch.dtype) -> nn.Module:
        """A model as a user builds it to load into: random weights, evaluation."""
        torch.manual_seed(seed)
        return self.make(seed).eval().to(dtype)

    def model(self, dtype: torch.dtype, device: str) -> nn.Module:
        """The float model, with weights as large as trained ones."""
        model = self.empty(0, torch.float32)
        if self.is_lively:
            tiny.liven(model)
        self._settle(model)
        return model.to(device, dtype)

    def _settle(self, model: nn.Module) -> None:
        """Gives batch norms the statistics of the inputs: else deep models give zeros."""
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if not norms:
            return
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        model.train()
        with torch.no_grad():
            model(**more((self.train_inputs or self.inputs)()))
        model.eval()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def more(inputs: Inputs) -> Inputs:
    """The inputs with 14 images of noise behind them; lists of images stay as they are."""
    return {
        key: torch.cat([value, numbers(14, *value.shape[1:])])
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 4
        else value
        for key, value in inputs.items()
    }


def cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    """The inputs on a device, their floating tensors in a dtype."""
    if isinstance(value, Tensor):
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)
    if isinstance(value, dict):
        return {key: cast(entry, dtype, device) for key, entry in value.items()}
    return [cast(entry, dtype, device) for entry in value] if isinstance(value, list) else value


def known(name: str, family: str, entry: Tiny | None = None, **more: Any) -> Architecture:
    """An architecture of transformers; without an entry one that the other tests use too."""
    entry = entry or tiny.TINY[name]
    options: dict[str, Any] = {"generates": entry.generates, "inputs": entry.inputs, **more}
    return Architecture(
        name, family, lambda seed: tiny.construct(entry, seed), package="transformers", **options
    )


def each(family: str, *names: str, **more: Any) -> list[Architecture]:
    """Those of one family."""
    return [known(name, family, **more) for name in names]


def table(*rows: Architecture) -> dict[str, Architecture]:
    """The rows by their names."""
    found = {row.name: row for row in rows}
    assert len(found) == len(rows), "two architectures have one name"
    return found
