# SPDX-License-Identifier: BSD-3-Clause
"""``layers.json`` and the constructors of the layers say the same."""

import inspect

import pytest

from baraquant import nn
from baraquant.workflow.served import KINDS, TABLE, entry_of, form_of_table

NAMES = [*TABLE["classes"]]


@pytest.mark.parametrize("name", NAMES)
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
    assert {name for names in TABLE["layers"].values() for name in names} == set(NAMES)
