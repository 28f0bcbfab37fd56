# SPDX-License-Identifier: BSD-3-Clause
"""The other readers of `fuzz.py`: folders, reports, configurations and prepared states.

A reader makes one damaged thing and reads it. Its error names the place, and nothing has changed;
what is read computes, or says what it was read from.
"""

import copy
import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

import baraquant
from baraquant import W4A8, W4A16, W8A8, QuantConfig, Sensitivity, W8A8Static, export, qat
from baraquant.configs import Config
from baraquant.export.compressed_tensors.targets import Expression
from tests.serialization import damages
from tests.serialization.damages import Contents, any_value, places_in
from tests.support.compressed_folders import IDS, Block, block

CT = "baraquant.export.from_compressed_tensors"
TEXTS = (
    *("re:(.*)*!", "re:.*", "re:(a|a)*$", "re:(", "re:(?i)x", "re:.*" * 30, "re:((.*a){9}){9}!"),
    *("Linear", "Module", "Embedding", "q_proj", "re:[kv]_proj", "re:(?!q_).*proj$", ""),
)


class Reader:
    """A reader in this process: what it may raise, and how its messages begin."""

    errors: tuple[type[Exception], ...] = (ValueError,)
    begin = ""

    def make(self, random: Random) -> int:
        """Make something damaged, and return its size in bytes."""
        raise NotImplementedError

    def read(self) -> None:
        raise NotImplementedError

    def check_error(self, text: str) -> None:
        assert text.startswith(self.begin), text[:2000]
        assert len(text) < 1100, text[:3000]


class Folder(Reader):
    """`from_compressed_tensors`, and the forward of what it has loaded."""

    errors = (ValueError, OSError)
    begin = f"{CT}: "
    configs: tuple[Any, ...] = (
        *(W8A8(), W8A8(symmetric=False), W8A8Static(), W4A16(32), W4A8(32, group_factors=False)),
        {nn.Linear: W4A16(16, symmetric=False), nn.Embedding: W4A16(32)},
    )

    def __init__(self, folder: Path) -> None:
        self.folder, self.seeds = folder / "damaged", []
        self.folder.mkdir(parents=True)
        for number, config in enumerate(self.configs):
            model = block(seed=number)
            rules = config if isinstance(config, dict) else {nn.Linear: config, nn.Embedding: None}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that all products are floating
                baraquant.quantize_(model, rules, calibration=[IDS], progress=False)
            seed = export.to_compressed_tensors(model, folder / f"seed{number}", serve=None)
            _, tensors = damages.taken_apart((seed / "model.safetensors").read_bytes())
            config = json.loads((seed / "config.json").read_text())
            self.seeds.append(Contents(tensors, {"quantization_config": config.popitem()[1]}))
            assert "config_groups" in self.seeds[-1].config["quantization_config"]

    def make(self, random: Random) -> int:
        contents = copy.deepcopy(random.choice(self.seeds))
        config = contents.config["quantization_config"]
        change_config: Callable[[str], str] = str
        change_header: Callable[[str], str] = str
        change: Callable[[bytes], bytes] = bytes
        how = random.randrange(9)
        if how < 2:
            damages.other_member(random, contents)
        elif how == 2:
            holder, key = random.choice([*places_in(config["config_groups"])])
            holder[key] = any_value(random, holder[key])
        elif how == 3:
            config["ignore"] = random.choices(TEXTS, k=random.choice((1, 2, 9)))
            if random.random() < 0.5:
                random.choice([*config["config_groups"].values()])["targets"] = config["ignore"]
        elif how == 4:
            lies = damages.other_shape, damages.other_tensors
            lies += damages.other_entry, damages.other_numbers
            random.choice(lies)(random, contents)
        elif how == 5:
            change_config = partial(damages.other_text, random)
        elif how == 6:
            change_header = partial(damages.other_text, random)
        elif how == 7:
            change = partial(damages.other_bytes, random)
        else:
            change = partial(damages.other_bits, random, count=random.choice((1, 2, 8)))
        entries, data = contents.header()
        text = change_header(json.dumps({"__metadata__": {"format": "pt"}, **entries}))
        raw = change(damages.joined(text.encode("utf-8", "surrogatepass"), data))
        plain = change_config(json.dumps(contents.config)).encode("utf-8", "surrogatepass")
        (self.folder / "model.safetensors").write_bytes(raw)
        (self.folder / "config.json").write_bytes(plain)
        return len(raw) + len(plain)

    def read(self) -> None:
        model = Block().eval()
        before = {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
        try:
            export.from_compressed_tensors(model, self.folder)
        except self.errors:
            now = model.state_dict(keep_vars=True)
            assert now.keys() == before.keys(), "the model has changed"
            for name, (number, values) in before.items():
                is_same = id(now[name]) == number and torch.equal(now[name], values)
                assert is_same, "the model has changed"
            raise
        model(IDS)


class Report(Reader):
    """`Sensitivity.from_dict`."""

    begin = "baraquant.Sensitivity.from_dict: "

    def __init__(self, folder: Path) -> None:
        model = block()
        configs = {"int8": W8A8(), "int4": W4A16(32)}
        found = baraquant.sensitivity(model, configs, [IDS], progress=False)
        self.plain = json.loads(json.dumps(found.to_dict()))
        self.data: Any = None

    def make(self, random: Random) -> int:
        self.data, text = damaged_json(random, self.plain)
        return len(text)

    def read(self) -> None:
        report = Sensitivity.from_dict(self.data).to_dict()
        configs = {k: Config.from_dict(one).to_dict() for k, one in self.data["configs"].items()}
        said = self.data | {"configs": configs}  # where a field of None may get its default
        assert same_json(report, said), "not what it says"


class Configuration(Reader):
    """`Config.from_dict`, also of configurations within each other."""

    errors = (ValueError, TypeError)

    def __init__(self, folder: Path) -> None:
        schemes = (W8A8(), W4A16(32), W8A8Static(), W4A8(32), baraquant.SmoothQuant())
        self.plain = [json.loads(json.dumps(one.to_dict())) for one in schemes]
        self.data: Any = None

    def make(self, random: Random) -> int:
        plain = random.choice(self.plain)
        self.data, text = damaged_json(random, plain)
        if random.random() < 0.1 and isinstance(self.data, dict):
            for _ in range(random.choice((1, 9, 2000))):
                key = random.choice(("weight", "activation", "config"))
                self.data = {**plain, key: self.data}
        return len(text)

    def read(self) -> None:
        one = Config.from_dict(self.data)  # a field of None may get its default
        assert Config.from_dict(one.to_dict()) == one, "not what it says"


class State(Reader):
    """`load_state_dict` of a prepared model, whose error names a tensor that was changed."""

    errors = (RuntimeError, ValueError, TypeError)

    def __init__(self, folder: Path) -> None:
        self.models = []
        learned = baraquant.TensorConfig(8, "per_tensor", learned=True)
        for config in (W8A8(), W8A8Static(), W4A16(32), QuantConfig(W8A8().weight, learned)):
            model = block()
            qat.prepare_(model, {nn.Linear: config, nn.Embedding: None})
            model.train()(IDS)
            self.models.append(model)
        self.model, self.state, self.name = self.models[0], {}, ""

    def make(self, random: Random) -> int:
        self.model = random.choice(self.models)
        self.state = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.name = random.choice(list(self.state))
        value = self.state[self.name]
        how = random.randrange(4)
        if how == 0:
            del self.state[self.name]
        elif how == 1:
            self.name += random.choice((".x", "_", "\0"))
            self.state[self.name] = value
        elif how == 2:
            self.state[self.name] = value[None].expand(2, *value.shape)
        else:
            wrong = (3, None, "x", [value], value.to("meta"))
            self.state[self.name] = random.choice(wrong)
        return sum(v.nbytes for v in self.state.values() if isinstance(v, torch.Tensor))

    def read(self) -> None:
        copy.deepcopy(self.model).load_state_dict(self.state)

    def check_error(self, text: str) -> None:
        assert self.name.rstrip("\0") in text, f"{self.name} is not named: {text[:2000]}"


class Pattern(Reader):
    """Expressions of a folder, on a long path."""

    def __init__(self, folder: Path) -> None:
        self.text = ""

    def make(self, random: Random) -> int:
        parts = (*"a.()|*+?^$", "[ab]", r"\d", r"\w", "{2}", "{9,}")
        self.text = "".join(random.choices(parts, k=random.choice((3, 9, 30))))
        return len(self.text)

    def read(self) -> None:
        Expression(self.text).matches("model.layers.17.mlp.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab")


READERS: dict[type[Reader], int] = {Folder: 8, Report: 4, Configuration: 4, State: 2, Pattern: 2}


def damaged_json(random: Random, plain: Any) -> tuple[Any, str]:
    """Return a damaged copy of a value as JSON has it, and its text."""
    value = copy.deepcopy(plain)
    for _ in range(random.choice((1, 1, 1, 2))):
        holder, key = random.choice(list(places_in(value)) or [({"a": 1}, "a")])
        how = random.randrange(5)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[f"{key}_"] = holder.pop(key)
        elif how == 2:
            text = random.choice(damages.TEXTS_OF_JSON)(random.choice((2, 30, 5000)))
            try:
                holder[key] = json.loads(text)
            except (ValueError, RecursionError):
                holder[key] = text
        else:
            holder[key] = any_value(random, holder[key])
    return value, json.dumps(value)


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same as JSON; 1 and 1.0 are, as an error may be either."""
    return bool(json.loads(json.dumps(one)) == other)
