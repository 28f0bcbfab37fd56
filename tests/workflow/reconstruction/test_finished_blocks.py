# SPDX-License-Identifier: BSD-3-Clause
"""A reconstruction that is interrupted goes on where it was, with the same bits."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W4A16
from baraquant.workflow.reconstruction.learning import Learning
from tests.support.checks.refused import refused
from tests.workflow.reconstruction.models import made, outputs, reconstructed


def interrupt_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the learning of a block, by its number from 0, be interrupted."""
    learn, calls = Learning.learn, []

    def interrupted(self: Learning, *args: Any) -> Any:
        calls.append(args)
        if len(calls) > number:
            raise KeyboardInterrupt
        return learn(self, *args)

    monkeypatch.setattr(Learning, "learn", interrupted)


@pytest.mark.parametrize("done", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "convolutions", "transformer", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_second_call_goes_on_with_the_same_bits(
    name: str, done: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batches = made(name, dtype=dtype)
    whole, wanted = reconstructed(model, W4A16(8, False), batches)
    given = copy.deepcopy(model)
    options: dict[str, Any] = {"steps": 6, "progress": False, "resume": tmp_path / "blocks"}
    done = min(done, len(wanted.errors) - 1)
    with monkeypatch.context() as patch:
        interrupt_at(done, patch)
        with pytest.raises(KeyboardInterrupt):
            baraquant.reconstruct_(given, W4A16(8, False), calibration=batches, **options)
    assert len(list((tmp_path / "blocks").glob("*.safetensors"))) == done
    interrupt_at(len(wanted.errors) - done, monkeypatch)  # the others are not learned again
    for _ in range(2):
        own, report = reconstructed(given, W4A16(8, False), batches, **options)
        assert report.errors == wanted.errors
        state = whole.state_dict()
        assert state.keys() == own.state_dict().keys()
        assert all(torch.equal(value, state[key]) for key, value in own.state_dict().items())
        assert all(map(torch.equal, outputs(own, batches), outputs(whole, batches)))


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    model, batches = made("mlp")
    options: dict[str, Any] = {"calibration": batches, "steps": 2, "progress": False}
    options["resume"] = tmp_path / "blocks"
    baraquant.reconstruct_(copy.deepcopy(model), W4A16(8), **options)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight[0, 0] += 1

    def refuses(what: str, given: nn.Module = model, group: int = 8, **more: Any) -> None:
        refused(baraquant.reconstruct_, what, given, W4A16(group), **{**options, **more})

    refuses("differs in: weights", other)
    refuses("differs in: config", group=16)
    refuses("differs in: steps, lr", steps=3)
    refuses("differs in: seed", seed=1)
    refuses("differs in: blocks", blocks=["0", "2"], filter_fn=lambda module, name: name != "4")
    refuses("differs in: data", calibration=batches[:2])
    file = tmp_path / "blocks" / "block-00001.safetensors"
    (tmp_path / "blocks" / "block-00000.safetensors").replace(file)
    refuses("to hold what 2 has learned")
    file.write_bytes(file.read_bytes()[:-1])
    refuses("expected .* bytes of data")
    (tmp_path / "blocks" / "manifest.json").write_text(json.dumps({"version": 0}))
    refuses("differs in: version")
    (tmp_path / "blocks" / "manifest.json").unlink()
    refuses("has other files")
