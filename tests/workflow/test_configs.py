# SPDX-License-Identifier: BSD-3-Clause
"""Configurations: what they accept, and their way to a dictionary and back."""

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from baraquant import AWQ, GPTQ, SmoothQuant, configs, granularity, schemes
from baraquant.configs import Config, QuantConfig, TensorConfig
from baraquant.granularity import PerChannel, PerGroup, PerTensor, PerToken
from baraquant.schemes import (
    W2A8,
    W2A16,
    W3A8,
    W3A16,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    W8A8Static,
)
from tests.support.models import training_models

WEIGHT, PER_TOKEN = TensorConfig(), TensorConfig(granularity="per_token")
ODD = TensorConfig().to_dict() | {"symmetric": "no"}
WHOLE = W8A8().to_dict()
DEEP = functools.reduce(lambda inner, _: [inner], range(2000), [])
STATIC_GROUPS = TensorConfig(8, "per_group", group_size=4, dynamic=False)
PER_TENSOR = QuantConfig(TensorConfig(4, "per_tensor"))
ONE = "expected [a-z_]+ to be one of"
NAMED = (W8A8, W8A8Static, W8A16, W4A16, W4A8, W3A16, W3A8, W2A16, W2A8)
ALL = [
    W8A8(),
    W8A8(symmetric=False),
    *(W8A8Static(observer) for observer in configs.OBSERVERS),
    W8A8Static("mse", symmetric=False),
    SmoothQuant(),
    SmoothQuant(1),
    SmoothQuant("search", W8A8Static("percentile")),
    W4A16(),
    W4A16(32, symmetric=False),
    W4A16(scale_rule="max"),
    W4A8(),
    W4A8(group_size=None),
    W4A8(64, symmetric=False, scale_rule="max", group_factors=False),
    W4A8(32, group_factors=True, backward="int8", rotate=64),
    *training_models.weight_configs(bits=(2, 5, 8)),
    *(QuantConfig(TensorConfig(3), a) for a in training_models.activation_configs(bits=(4, 8))),
    QuantConfig(TensorConfig(), observer="min_max"),
    QuantConfig(TensorConfig(), observer="mse"),
    W8A8(scale_dtype="bfloat16"),
    W8A16(scale_dtype="float16"),
    W4A16(32, scale_dtype="bfloat16"),
    W4A8(32, scale_dtype="float16"),
    W8A8Static(scale_dtype="bfloat16", conv_inputs=True),
    W8A8Static(conv_inputs=False),
    SmoothQuant("search", W8A8Static("mse", False, scale_dtype="bfloat16", conv_inputs=True)),
    SmoothQuant(activation=W8A8(scale_dtype="float16", master="bfloat16")),
    AWQ(W4A16(32, scale_dtype="bfloat16", master="float16"), 7),
    GPTQ(W4A16(32, scale_dtype="bfloat16")),
    GPTQ(W8A8Static("mse"), 1, act_order=True),
    *(W8A8(s, backward="int8", rounding=r) for s in (True, False) for r in configs.ROUNDINGS),
    W8A8(backward="int8_input"),
    W4A8(None, backward="int8_input", rounding="stochastic"),
    QuantConfig(TensorConfig(3), TensorConfig(5, "per_token"), backward="int8"),
    *(scheme(rotate=256, master="bfloat16") for scheme in NAMED),
    W8A8(backward="int8", rotate=32768),
]
PRESETS = {
    W8A8: QuantConfig(TensorConfig(8), TensorConfig(8, "per_token")),
    W8A8Static: QuantConfig(WEIGHT, TensorConfig(8, "per_tensor", dynamic=False), "min_max"),
    W8A16: QuantConfig(TensorConfig(8)),
    W4A16: QuantConfig(TensorConfig(4, "per_group", group_size=128)),
    W4A8: QuantConfig(TensorConfig(4, PerGroup(128), group_factors=True), PER_TOKEN),
    W3A16: QuantConfig(TensorConfig(3, PerGroup(128))),
    W3A8: QuantConfig(TensorConfig(3, PerGroup(128), group_factors=True), PER_TOKEN),
    W2A16: QuantConfig(TensorConfig(2, PerGroup(64), False)),
    W2A8: QuantConfig(TensorConfig(2, PerGroup(64), False, group_factors=True), PER_TOKEN),
}


@pytest.mark.parametrize("config", ALL, ids=str)
def test_to_a_dictionary_and_back(config: Config) -> None:
    data = json.loads(json.dumps(config.to_dict()))
    assert data["scheme"] == type(config).scheme and data["version"] == 1
    for kind in (type(config), Config):
        back = kind.from_dict(data)
        assert back == config and hash(back) == hash(config) and type(back) is type(config)


def test_floating_forms() -> None:
    config = W8A8(backward="int8", rounding="stochastic")
    assert config.with_float_backward() == W8A8()
    assert config.with_floating_input() == W8A16()
    rotated = dataclasses.replace(config, rotate=64)
    assert rotated.with_float_backward() == W8A8(rotate=64)
    assert rotated.with_floating_input() == W8A16(rotate=64)
    assert all(one.trains_on_integers for one in (config, W4A8(None), W4A8(), W4A8(32)))
    assert W4A8(scale_dtype="bfloat16") == W4A8(group_factors=False, scale_dtype="bfloat16")
    for other in (W4A8(group_factors=False), W8A16(), W8A8Static(), W8A8(scale_dtype="float16")):
        assert not other.trains_on_integers


@pytest.mark.parametrize(
    ("features", "block"),
    [(0, None), (1, None), (7, None), (2, 2), (384, 128), (4096, 256), (1000, 8), (6, 2)],
)
def test_the_block_of_a_layer(features: int, block: int | None) -> None:
    assert W8A8(rotate=256).with_rotation(features) == W8A8(rotate=block)
    assert W8A8().with_rotation(features) == W8A8()


@pytest.mark.parametrize("value", [0, 1, 3, 255, 257, -2, -256, 65536, 2**63], ids=str)
def test_blocks_that_cannot_be(value: int) -> None:
    expected = r"expected rotate to be a power of two in \[2, 32768\]"
    message = rf"^QuantConfig: {expected}, but got {value};"
    for scheme in NAMED:
        with pytest.raises(ValueError, match=message):
            scheme(rotate=value)
    with pytest.raises(ValueError, match=message):
        Config.from_dict(W8A8().to_dict() | {"rotate": value})


@pytest.mark.parametrize("value", [True, False, 2.0, "256", [256], float("nan"), b"2"], ids=repr)
def test_blocks_of_another_type(value: object) -> None:
    message = f"expected rotate to be an int or None, but got {type(value).__name__}$"
    with pytest.raises(TypeError, match=f"^QuantConfig: {message}"):
        W8A8(rotate=value)  # type: ignore[arg-type]


def test_frozen_and_equal_only_to_its_own_kind() -> None:
    for one, name in ((W8A8(), "weight"), (W8A8().weight, "bits")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, 4)
    assert W8A8() != W8A8(False) and W8A8() != W8A8Static() and len(set(ALL)) == len(ALL)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.__name__)
def test_what_the_presets_are(preset: Callable[[], QuantConfig]) -> None:
    assert type(preset()) is QuantConfig and preset() == PRESETS[preset]


def test_options_of_the_presets() -> None:
    for preset in (W8A8, W8A8Static):
        skewed = preset(symmetric=False)
        assert skewed.activation == dataclasses.replace(preset().activation, symmetric=False)
        assert dataclasses.replace(skewed, activation=preset().activation) == preset()
    for preset in (W4A16, W4A8, W3A16, W3A8, W2A16, W2A8):
        bits, factors = int(preset.__name__[1]), preset in (W4A8, W3A8, W2A8)
        assert preset(32, True).weight == TensorConfig(bits, PerGroup(32), group_factors=factors)
        for symmetric in (True, False):
            assert preset(None, symmetric).weight == TensorConfig(bits, symmetric=symmetric)
        assert preset(32, False, "max").scale_rule == "max"
        assert preset().scale_rule == "search"


@pytest.mark.parametrize(
    ("given", "name", "size"),
    [
        (PerTensor(), "per_tensor", None),
        (PerChannel(), "per_channel", None),
        (PerToken(), "per_token", None),
        (PerGroup(32), "per_group", 32),
    ],
    ids=str,
)
def test_granularities_and_their_names(given: Any, name: str, size: int | None) -> None:
    config = TensorConfig(granularity=given)
    assert config == TensorConfig(granularity=name, group_size=size)
    assert config.granularity == name == str(given) and config.group_size == size


def test_range_of_integers_and_dynamic_unless_learned() -> None:
    for bits in range(2, 9):
        config, half = TensorConfig(bits), 2 ** (bits - 1)
        assert (config.quant_min, config.quant_max) == (-half, half - 1)
    assert TensorConfig().dynamic is True
    assert TensorConfig(learned=True).dynamic is False
    assert TensorConfig(dynamic=False).learned is False
    assert W8A16().conv_inputs is None


def test_in_words() -> None:
    config = TensorConfig(4, "per_group", symmetric=False, group_size=32)
    assert str(config) == "int4 per_group(32) asymmetric dynamic"
    assert str(TensorConfig(learned=True)) == "int8 per_channel symmetric learned"
    assert str(TensorConfig(granularity="per_tensor", dynamic=False)).endswith("static")
    assert str(W8A16()) == "weight=int8 per_channel symmetric dynamic, input=float"
    assert str(W8A8(backward="int8_input")) == f"{W8A8()}, backward=int8_input nearest"
    assert str(W4A16(rotate=2)) == f"{W4A16()}, rotate=2"
    assert str(W8A8(backward="int8", rotate=64)) == f"{W8A8()}, backward=int8 nearest, rotate=64"
    assert str(SmoothQuant(0.5)) == f"SmoothQuant(alpha=0.5, {W8A8()})"
    assert str(AWQ(W4A16())) == f"AWQ({W4A16()}, steps=20)"
    assert str(GPTQ(W8A8())) == f"GPTQ({W8A8()}, damping=0.01)"
    assert str(GPTQ(W8A8(), 0, True)) == f"GPTQ({W8A8()}, damping=0, act_order)"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"bits": 1}, ValueError, r"bits to lie in \[2, 8\], but got 1"),
        ({"bits": 4.0}, TypeError, "bits to be an int, but got float"),
        ({"granularity": "per_row"}, ValueError, "granularity to be one of per_tensor, .*per_row"),
        ({"granularity": None}, TypeError, "granularity to be a str, but got NoneType"),
        ({"symmetric": 1}, TypeError, "symmetric to be a bool, but got int"),
        ({"dynamic": "yes"}, TypeError, "dynamic to be a bool, but got str"),
        ({"learned": 0}, TypeError, "learned to be a bool, but got int"),
        ({"learned": True, "dynamic": True}, ValueError, "dynamic=False .* for a learned scale"),
        (
            {"bits": 2, "granularity": PerGroup(4), "ternary": True, "group_factors": True},
            ValueError,
            "2 bits, .*group_factors=False with ternary=True",
        ),
        ({"granularity": "per_token", "dynamic": False}, ValueError, "dynamic=True for per_token"),
        ({"granularity": "per_token", "learned": True}, ValueError, "dynamic=True for per_token"),
        ({"granularity": "per_group"}, TypeError, "group_size to be an int, but got NoneType"),
        ({"granularity": "per_group", "group_size": 0}, ValueError, "group_size > 0, but got 0"),
        ({"group_size": 4}, ValueError, "no group_size for per_channel, but got 4"),
        ({"granularity": PerGroup}, TypeError, r"granularity to be an instance, .*PerGroup\(32\)"),
        ({"granularity": PerToken}, TypeError, r"granularity to be an instance, .*PerToken\(\)"),
        ({"granularity": PerGroup(4), "group_size": 4}, ValueError, "no group_size beside PerGro"),
        ({"granularity": PerGroup(0)}, ValueError, "group_size > 0, but got 0"),
        ({"granularity": PerGroup("4")}, TypeError, "group_size to be an int, but got str"),
    ],
)
def test_what_a_tensor_config_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^TensorConfig: expected {message}"):
        TensorConfig(**arguments)


OF_CONVS = "a per_tensor activation with conv_inputs=True, but got"
INT8 = {"backward": "int8"}
REFUSED: dict[type[Exception], list[tuple[Callable[[], Config], str]]] = {
    TypeError: [
        (lambda: QuantConfig(W8A8()), "QuantConfig: expected weight to be a TensorConfig"),
        (lambda: QuantConfig(TensorConfig(), 8), "expected activation .* got int"),
        (lambda: W8A8(backward=8), "expected backward to be a str, but got int"),
        (lambda: W8A8(rounding=None), "expected rounding to be a str, but got NoneType"),
        (lambda: W8A8(scale_dtype=16), "expected scale_dtype to be a str, but got int"),
        (lambda: W4A16(scale_rule=None), "expected scale_rule to be a str, but got NoneType"),
        (lambda: W4A16(symmetric=1), "W4A16: expected symmetric to be a bool, but got int"),
        (lambda: W4A8(symmetric=0), "W4A8: expected symmetric to be a bool, but got int"),
        (lambda: W2A16(symmetric=0), "W2A16: expected symmetric to be a bool, but got int"),
        (lambda: W8A8("yes"), "W8A8: expected symmetric to be a bool, but got str"),
        (lambda: W8A8Static(symmetric=None), "W8A8Static: expected symmetric to be a bool"),
        (lambda: W8A8Static(conv_inputs="yes"), "conv_inputs to be a bool, but got str"),
        (lambda: SmoothQuant(True), "alpha to be a number or 'search', but got bool"),
        (lambda: SmoothQuant(activation="int8"), r"W8A8Static\(...\), but got str"),
        (lambda: AWQ("W4A16"), r"AWQ: .*config to be a QuantConfig.* but got str"),
        (lambda: AWQ(W4A16), r"but got the function W4A16; write W4A16\(\)"),
        (lambda: AWQ(SmoothQuant()), "config to be a QuantConfig.* but got SmoothQuant"),
        (lambda: AWQ(W4A16(), 2.0), "AWQ: expected steps to be an int, but got float"),
        (lambda: GPTQ(GPTQ(W8A8())), "but got GPTQ"),
        (lambda: GPTQ(W8A8(), "0.1"), "damping to be a number, but got str"),
        (lambda: GPTQ(W8A8(), act_order=1), "GPTQ: .*act_order to be a bool.* got int"),
    ],
    ValueError: [
        (lambda: QuantConfig(PER_TOKEN), r"weight\.granularity .* got 'per_token'"),
        (lambda: QuantConfig(WEIGHT, WEIGHT), r"activation\.granularity .* got 'per_channel'"),
        (lambda: QuantConfig(WEIGHT, STATIC_GROUPS), "a dynamic activation for per_group"),
        (lambda: QuantConfig(WEIGHT, observer="median"), f"{ONE} min_max, .*, but got 'median'"),
        (lambda: QuantConfig(WEIGHT, scale_rule="least"), f"{ONE} search, .*, but got 'least'"),
        (lambda: QuantConfig(WEIGHT, conv_inputs=True), f"{OF_CONVS} None"),
        (lambda: QuantConfig(WEIGHT, PER_TOKEN, conv_inputs=True), f"{OF_CONVS} .*W8A8Static"),
        (lambda: W8A16(scale_dtype="half"), f"{ONE} float32, bfloat16, float16, but got 'half'"),
        (lambda: W8A8(backward="int4"), f"{ONE} float, int8_input, int8, but got 'int4'"),
        (lambda: W8A8(backward="INT8"), f"{ONE} float, int8_input, int8, but got 'INT8'"),
        (lambda: W8A8(rounding="", **INT8), f"{ONE} nearest, stochastic, but got ''"),
        (lambda: W8A8(rounding="stochastic"), "'nearest' with backward='float'.*choose backward="),
        *(
            (build, r"backward='float' for layers that train on floating.*use W8A8\(")
            for build in (
                lambda: W4A8(group_factors=False, **INT8),
                lambda: W4A8(None, False, **INT8),
                lambda: W8A8(scale_dtype="bfloat16", backward="int8_input"),
                lambda: QuantConfig(TensorConfig(8), **INT8),
                lambda: dataclasses.replace(W8A8Static(), **INT8),
                lambda: dataclasses.replace(W4A16(), backward="int8_input"),
                lambda: QuantConfig(TensorConfig(8, learned=True), PER_TOKEN, **INT8),
            )
        ),
        (lambda: W4A8(group_size=0), "TensorConfig: expected group_size > 0, but got"),
        (lambda: SmoothQuant(1.5), r"alpha to lie in \[0, 1\] .* got 1.5"),
        (lambda: SmoothQuant(float("nan")), "alpha to lie in .* got nan"),
        (lambda: SmoothQuant("find"), "alpha to lie in .* 'search', but got 'find'"),
        (lambda: SmoothQuant(activation=W8A16()), r"W8A8Static\(...\), but got weight"),
        (lambda: SmoothQuant(activation=W4A8()), r"W8A8Static\(...\), but got weight"),
        (lambda: SmoothQuant(activation=W8A8(**INT8)), r"W8A8\(...\).*backward=int8 nearest"),
        (lambda: SmoothQuant(activation=W8A8(rotate=64)), "without rotate, .*=64.*one of the two"),
        (lambda: SmoothQuant(activation=W8A8Static(rotate=64)), "SmoothQuant: .*without rotate"),
        (lambda: AWQ(W8A8()), r"floating inputs, .* got weight=.*use SmoothQuant\(\)"),
        (lambda: AWQ(W4A16(rotate=64)), "without rotate, but got rotate=64.*one of"),
        (lambda: AWQ(PER_TENSOR), "a scale per_channel or per_group, but got per_tensor"),
        (lambda: AWQ(W4A16(), 0), "AWQ: expected steps >= 1, but got 0"),
        (lambda: GPTQ(W8A8(), 1.5), r"damping to lie in \[0, 1\], but got 1.5"),
        (lambda: GPTQ(W8A8(), float("nan")), "damping to lie in .* but got nan"),
    ],
}


@pytest.mark.parametrize(
    ("error", "build", "message"), [(e, *row) for e, rows in REFUSED.items() for row in rows]
)
def test_what_schemes_refuse(error: type[Exception], build: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 2}, ValueError, "expected version 1, but got 2; a newer baraquant"),
        ({"version": True}, ValueError, "version"),
        ({"version": DEEP}, ValueError, r"but got \[\[\[\[\.\.\.\]\]\]\]"),
        ({"scheme": DEEP}, ValueError, r"but got \[\[\[\[\.\.\.\]\]\]\]"),
        ({"scheme": "w4a4"}, ValueError, "scheme quant, but got 'w4a4'"),
        ({"scheme": "smoothquant"}, ValueError, "scheme quant, but got 'smoothquant'"),
        ({"extra": 1}, ValueError, "the fields activation, .*, but got activation, .*, extra, .*"),
        ({"observer": 3}, TypeError, "observer to be a str, but got int"),
        ({"master": "float8"}, ValueError, "master to be one of bfloat16, float16, but got 'floa"),
        ({"scale_rule": "no"}, ValueError, "scale_rule to be one of search, lattice, max, but"),
        ({"weight": [8]}, TypeError, "weight to be a TensorConfig, but got list"),
        ({"weight": ODD}, TypeError, "TensorConfig: expected symmetric to be a bool, but got str"),
        ({"weight": WHOLE}, TypeError, "weight to be a TensorConfig, but got QuantCon"),
    ],
)
def test_what_a_dictionary_is_refused(change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        QuantConfig.from_dict(WHOLE | change)


FIELDS = "QuantConfig: expected the fields activation, .*, weight, but got .*, scale_rule$"
NONE = "TensorConfig: expected the fields bits, .* got none"
NESTED = functools.reduce(lambda inner, _: WHOLE | {"weight": inner}, range(2000), 3)
OLD = SmoothQuant().to_dict()
OLD["activation"]["version"] = 2


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], TypeError, "Config: expected a dict, but got list"),
        ({}, ValueError, "version"),
        ({key: value for key, value in WHOLE.items() if key != "weight"}, ValueError, FIELDS),
        ({"scheme": "tensor", "version": 1}, ValueError, NONE),
        (NESTED, ValueError, "expected at most 8 levels of dictionaries"),
        (OLD, ValueError, "expected version 1, but got 2"),
    ],
)
def test_other_data_is_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Config.from_dict(data)


@pytest.mark.parametrize("module", [configs, schemes, granularity], ids=lambda m: m.__name__)
def test_needs_no_torch(module: ModuleType) -> None:
    """Alone, under a package of no code of its own: baraquant itself imports torch."""
    folder = Path(module.__file__).parent
    name = module.__name__.rpartition(".")[2]
    code = (
        "import importlib, sys, types; sys.modules['torch'] = None; "
        f"plain = types.ModuleType('plain'); plain.__path__ = [{str(folder)!r}]; "
        f"sys.modules['plain'] = plain; importlib.import_module('plain.{name}'); print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
