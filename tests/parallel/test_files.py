# SPDX-License-Identifier: BSD-3-Clause
"""Files of models that are split over two processes, and of models that are whole."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module

import baraquant
from baraquant.parallel import ColwiseParallel, RowwiseParallel
from baraquant.qat import convert_, prepare_
from tests.parallel import models
from tests.parallel.models import SCHEMES
from tests.parallel.test_layouts import FORMS, equal, mesh, mlp, place
from tests.support.ranks import results_fixture


def stored(form: str) -> dict[str, Any]:
    """Whole files: written by a parallel model and read by one process, and the other way round."""
    parallel = models.prepared(SCHEMES["static"].config, device=place())
    if form == "converted":
        convert_(parallel.eval())
    empty = models.twin(parallel)
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.zero_()
    plan = {
        "table": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel(),
        "out": ColwiseParallel(output_layouts=Replicate()),
    }  # fmt: skip
    parallelize_module(parallel, mesh(), plan)
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(parallel, options=options)
    read = models.twin(empty)
    read.load_state_dict(state)
    parallelize_module(empty, mesh(), plan)
    set_model_state_dict(empty, state, options=options)
    index = models.indices().to(place())
    file = io.BytesIO()
    torch.save({name: models.whole(t) for name, t in state.items()}, file)
    with torch.no_grad():
        return {
            "expected": parallel.eval()(index), "y": read.eval()(index),
            "loaded": empty.eval()(index), "bytes": len(file.getvalue()),
        }  # fmt: skip


def distributed_checkpoint(folder: str) -> dict[str, Tensor]:
    model = mlp("groups", "converted")
    empty = models.twin(model)
    with torch.no_grad():
        for tensor in empty.buffers():
            tensor.zero_()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallel = parallelize_module(models.twin(model), mesh(), plan)
    folders: list[Any] = [folder]
    dist.broadcast_object_list(folders)
    dcp.save(parallel.state_dict(), checkpoint_id=folders[0])
    whole = models.twin(empty)
    for name in plan:  # split layers have int8, which the others pack
        setattr(whole, name, getattr(whole, name).as_int8())
    state = whole.state_dict()
    dcp.load(state, checkpoint_id=folders[0])
    empty.load_state_dict(state)
    index = models.indices().to(place())
    with torch.no_grad():
        return {"y": empty(index), "expected": model(index)}


TOOLS: dict[str, Callable[[Any], Any]] = {
    "convert_": convert_,
    "prepare_": lambda model: prepare_(model, baraquant.W8A8()),
    "quantize_": lambda model: baraquant.quantize_(model, baraquant.W8A8()),
    "save": lambda model: baraquant.save(model, "never_written.safetensors"),
}


def refusals() -> dict[str, str]:
    """What tools say that take whole models only."""
    messages = {}
    for form in FORMS:
        model = mlp("w8a8", form)
        parallelize_module(model, mesh(), {"up": ColwiseParallel()})
        for name, tool in TOOLS.items():
            try:
                tool(model)
                messages[f"{form} {name}"] = ""
            except ValueError as error:
                messages[f"{form} {name}"] = str(error)
    return messages


def compute(rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {f"stored {form}": stored(form) for form in FORMS}
    with tempfile.TemporaryDirectory() as folder:
        results["checkpoint"] = distributed_checkpoint(folder)
        dist.barrier()
    results["refusals"] = refusals()
    return results


results = results_fixture("parallel_files", compute)


pytestmark = [pytest.mark.exhaustive, pytest.mark.process]


@pytest.mark.parametrize("form", FORMS)
def test_whole_files(form: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result[f"stored {form}"]
        equal(found, "y")
        assert torch.equal(found["loaded"], found["expected"])


def test_distributed_checkpoints(results: list[dict[str, Any]]) -> None:
    for result in results:
        equal(result["checkpoint"], "y")


def test_tools_for_whole_models_refuse_others(results: list[dict[str, Any]]) -> None:
    messages = results[0]["refusals"]
    assert len(messages) == 8
    for name, message in messages.items():
        assert "up: expected a model before it is split over processes, but got" in message, name
        assert "gather its state" in message
    assert not Path("never_written.safetensors").exists()
