# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers and embeddings, split over two and four processes, beside one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module

from baraquant.parallel import ColwiseParallel, RowwiseParallel
from baraquant.qat import convert_
from tests.parallel import models
from tests.parallel.models import FACTORS, SCHEMES
from tests.parallel.test_layouts import mesh, place
from tests.support.ranks import results_fixture

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
LINEAR = SCHEMES | FACTORS
# Each scheme in float32, and those of an integer product in the others.
CASES = [(name, "float32") for name in LINEAR]
CASES += [(name, d) for name in ("w8a8_asymmetric", "static") for d in ("bfloat16", "float64")]
TABLES = {"features": ColwiseParallel, "rows": RowwiseParallel}
Pair = dict[str, dict[str, Tensor]]  # what one process gives, and what several give


def split(model: nn.Module, **styles: Any) -> Any:
    return parallelize_module(model, mesh(), styles)


def weights_like(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y.numel(), device=y.device).reshape(y.shape)


def train(model: Any, x: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y = model.mlp(x)
    (y.float() * weights_like(y)).sum().backward()
    return {"y": y.detach(), "dx": x.grad, **models.gradients(model)}


def input_gradient(model: Any, x: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y = model.mlp(x)
    y.square().sum().backward()
    return {"dx": x.grad}


def inputs_of(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    plain, special = (models.features(models.SIZE, dtype, special) for special in (False, True))
    return plain.to(place()), special.to(place())


def mlp_of(name: str, dtype: str) -> dict[str, Pair]:
    """Two linear layers, first by outputs and then by inputs, in each phase of their life."""
    x, special = inputs_of(DTYPES[dtype])
    alone = models.prepared(LINEAR[name].config, DTYPES[dtype], place())
    found: dict[str, Pair] = {}

    def look(phase: str, compute: Callable[[Any], dict[str, Tensor]]) -> None:
        found[phase] = {"alone": compute(alone), "ours": compute(ours)}

    def evaluated(model: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            return {"y": model.eval().mlp(special)}

    for phase in ("prepared", "converted"):
        if phase == "converted":
            convert_(alone)
        ours = split(models.twin(alone), up=ColwiseParallel(), down=RowwiseParallel())
        if phase == "prepared":
            look("train", lambda model: train(model, x))
            look("prepared state", models.state)
        look(f"{phase} y", evaluated)
        look(f"{phase} gradient", lambda model: input_gradient(model, x))
    for layer in ("up", "down"):  # a split layer holds int8
        whole = getattr(alone, layer)
        setattr(alone, layer, whole.as_int8() if hasattr(whole, "as_int8") else whole)
    look("converted state", models.state)
    return found


def table_of(name: str, style: str) -> dict[str, Pair]:
    results: dict[str, Pair] = {}
    index = models.indices().to(place())
    alone = models.prepared(SCHEMES[name].config, device=place())
    ours = models.twin(alone)
    kind = TABLES[style](output_layouts=Replicate())
    split(ours, table=kind)
    for key, model in {"alone": alone, "ours": ours}.items():
        y = model.table(index)
        (y * weights_like(y)).sum().backward()
        found = {"y": y.detach(), "grad": models.gradients(model)["table.weight"]}
        results.setdefault("train", {})[key] = found
        results.setdefault("eval", {})[key] = {"y": model.eval().table(index).detach()}
    convert_(alone)
    ours = models.twin(alone)
    split(ours, table=kind)
    for key, model in {"alone": alone, "ours": ours}.items():
        results.setdefault("converted", {})[key] = {"y": model.table(index)}
    results["state"] = {"alone": models.state(alone), "ours": models.state(ours)}
    return results


def compute(rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {f"{name} {dtype}": mlp_of(name, dtype) for name, dtype in CASES}
    for name in SCHEMES:
        for style in TABLES:
            results[f"{name} {style}"] = table_of(name, style)
    return results


results = results_fixture("tensor_parallel", compute, 2, 4)


def check(pair: Pair, exact: bool, bits_of: tuple[str, ...] = (), tolerance: float = 0) -> None:
    alone, ours = pair["alone"], pair["ours"]
    assert ours.keys() == alone.keys()
    for key, expected in alone.items():
        near = 0.0 if exact and (not bits_of or key in bits_of) else tolerance
        assert ours[key].shape == expected.shape and ours[key].dtype == expected.dtype, key
        size = expected.abs().nan_to_num(0, 0, 0).amax().item() if expected.numel() else 0.0
        torch.testing.assert_close(
            ours[key], expected, rtol=near, atol=near * size, equal_nan=True,
            msg=lambda m, k=key: f"{k}: {m}",
        )  # fmt: skip


ROUNDING = {"float32": 2e-6, "bfloat16": 2e-2, "float64": 1e-14}


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("name, dtype", CASES)
def test_layers_that_are_split(name: str, dtype: str, results: list[dict[str, Any]]) -> None:
    """The bits of integer products; other numbers to the rounding of sums."""
    scheme, near = LINEAR[name], ROUNDING[dtype]
    for result in results:
        for phase, pair in result[f"{name} {dtype}"].items():
            if phase == "train":
                check(pair, scheme.trains_exactly, ("y",), near)
            elif phase.endswith("state"):
                check(pair, True)
            else:
                check(pair, scheme.serves_exactly and phase.endswith("y"), (), near)


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("style", TABLES)
@pytest.mark.parametrize("name", SCHEMES)
def test_embeddings_that_are_split(name: str, style: str, results: list[dict[str, Any]]) -> None:
    """The bits of one process, in each phase; gradients are sums in the same order."""
    for result in results:
        for pair in result[f"{name} {style}"].values():
            check(pair, True)
