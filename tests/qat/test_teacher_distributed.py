# SPDX-License-Identifier: BSD-3-Clause
"""A teacher in a model on two processes has the bits of one, and its student learns as without."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from baraquant.parallel import ColwiseParallel, RowwiseParallel, quantize_all_gather
from baraquant.qat import prepare_, teacher
from tests.support.models import training_models
from tests.support.ranks import RANKS, results_fixture
from tests.workflow.test_training_distributed import batch, device, part

CASES = [(wrapper, name) for wrapper in ("ddp", "fsdp") for name in ("w8a8", "learned", "static")]
CASES += [("tensor", "w8a8"), ("tensor", "static")]  # which takes no learned scales


def wrapped(model: nn.Module, wrapper: str) -> nn.Module:
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh(device(), (RANKS,))
    if wrapper == "tensor":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return parallelize_module(model, mesh, plan)
    for layer in (model.up, model.attention):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu()


def step(scheme: str, rank: int, wrapper: str, taught: bool) -> dict[str, Any]:
    """The teacher's outputs in training and evaluation, and the student's gradients beside it."""
    model = training_models.block().to(device())
    prepare_(model, training_models.SCHEMES[scheme])
    with torch.no_grad():
        model(batch(0))
    model = wrapped(model, wrapper)
    x = batch(1) if wrapper == "tensor" else part(batch(1), rank)
    outputs = []

    def teach() -> None:
        with torch.no_grad(), teacher(model) if taught else nullcontext():
            outputs.extend([whole(model(x))] if taught else [])

    teach()
    student = model(x)
    teach()
    student.square().mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    model.eval()
    teach()
    return {
        "outputs": outputs,
        "grads": {name: whole(grad) for name, grad in grads.items() if grad is not None},
    }


def refusal(rank: int) -> str:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).to(device())
    prepare_(model, training_models.SCHEMES["w8a8"])
    quantize_all_gather(model)
    fully_shard(model, mesh=init_device_mesh(device(), (RANKS,)))
    with pytest.raises(RuntimeError) as error, torch.no_grad(), teacher(model):
        model(batch(1))
    model(batch(1))
    return str(error.value)


def compute(rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {
        f"{wrapper} {scheme} {taught}": step(scheme, rank, wrapper, taught)
        for wrapper, scheme in CASES
        for taught in (True, False)
    }
    return {**results, "refusal": refusal(rank)}


results = results_fixture("teacher", compute)


@pytest.mark.parametrize(("wrapper", "scheme"), CASES)
def test_teacher_and_student(results: list[dict[str, Any]], wrapper: str, scheme: str) -> None:
    for rank, result in enumerate(results):
        taught, alone = (result[f"{wrapper} {scheme} {is_taught}"] for is_taught in (True, False))
        x = training_models.data(2 * RANKS, 3, 16, seed=1)
        expected = training_models.block()(x if wrapper == "tensor" else part(x, rank))
        assert len(taught["outputs"]) == 3
        for output in taught["outputs"]:  # a sum over processes adds in another order
            torch.testing.assert_close(output, expected)
        assert taught["grads"].keys() == alone["grads"].keys()
        for name, grad in taught["grads"].items():
            assert torch.equal(grad, alone["grads"][name]), name


def test_integers_that_were_gathered_have_no_floating_weight(
    results: list[dict[str, Any]],
) -> None:
    for result in results:
        assert "to have a teacher, use fully_shard without quantize_all_gather" in result["refusal"]
