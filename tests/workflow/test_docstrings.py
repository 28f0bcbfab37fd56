# SPDX-License-Identifier: BSD-3-Clause
"""The examples in the docstrings of the workflow, and of what stands beside it, run.

``layers.json`` and the constructors of the layers say the same.
"""

import inspect
import re
from pathlib import Path

import pytest
import torch

import baraquant
from baraquant import configs, nn, parallel, qat
from baraquant.workflow.served import KINDS, TABLE, entry_of, form_of_table
from tests.support.docstrings import run_examples

WITHOUT = {"FakeQuantizedConv1D", "FakeQuantizedEmbedding"}
WITHOUT |= {"FakeQuantizedExperts", "QuantizedExperts"}
# What a user's own layers build on; docs/guide.md has an example of both.
BASES = {"HoldsIntegers", "QuantizesWeight"}
CLASSES = [name for name in nn.__all__ if name[0].isupper() and name not in WITHOUT | BASES]
OBJECTS = [getattr(nn, name) for name in CLASSES]
OBJECTS += [qat, *(getattr(qat, name) for name in qat.__all__ if name != "Report")]
OBJECTS += [configs.TensorConfig, configs.QuantConfig]
OBJECTS += [baraquant.quantize_, baraquant.AWQ, baraquant.GPTQ, baraquant.sensitivity]
OBJECTS += [baraquant.reconstruct_]
OBJECTS += [getattr(parallel, name) for name in sorted(parallel.__all__)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.__name__)
def test_examples(item: object) -> None:
    torch.manual_seed(0)
    run_examples(item, item.__name__)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(baraquant.save, "save")
    run_examples(baraquant.load_, "load_")


@pytest.mark.parametrize("name", nn.__all__)
def test_everything_is_documented(name: str) -> None:
    text = getattr(nn, name).__doc__
    assert text
    if name[0].isupper() and name not in BASES:
        assert "Args:" in text or re.search(r"is as in :class:`\w+`, whose arguments it has", text)


def test_names() -> None:
    assert set(baraquant.__all__) <= set(dir(baraquant))


@pytest.mark.parametrize("name", TABLE["classes"])
def test_constructors_take_what_is_stored(name: str) -> None:
    """Each option and tensor is an argument with the table's default, and there is no other."""
    parameters = dict(inspect.signature(getattr(nn, name)).parameters)
    entry, form = entry_of(name), form_of_table(getattr(nn, name))
    if form.takes_place:
        assert [*parameters][:2] == ["tensors", "like"]
        del parameters["tensors"], parameters["like"]
    else:
        for tensor, required in form.tensors.items():
            wanted = inspect.Parameter.empty if required else None
            assert parameters.pop(tensor).default is wanted, tensor
    parameters.pop("further", None)  # of a convolution: what not all of them have
    assert parameters.keys() == form.options.keys()
    for option, (kind, *default) in entry["options"].items():
        parsed = [None if d is None else KINDS[kind].parse(d) for d in default]
        assert [parameters[option].default] == (parsed or [inspect.Parameter.empty]), option


def test_layers_name_every_class() -> None:
    assert {name for names in TABLE["layers"].values() for name in names} == set(TABLE["classes"])
