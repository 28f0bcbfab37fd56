# SPDX-License-Identifier: BSD-3-Clause
"""Configurations: what they accept, and their way to a dictionary and back."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

import qat_models
from baraquant import W8A8, QuantConfig, SmoothQuant, TensorConfig, W8A8Static, configs
from baraquant.configs import Config

PER_TOKEN = TensorConfig(granularity="per_token")
ALL = [
    W8A8(),
    W8A8(symmetric=False),
    *(W8A8Static(observer) for observer in configs.OBSERVERS),
    W8A8Static("mse", symmetric=False),
    SmoothQuant(),
    SmoothQuant(1),
    SmoothQuant("search", W8A8Static("percentile")),
    *qat_models.weight_configs(bits=(2, 5, 8)),
    *(QuantConfig(TensorConfig(3), a) for a in qat_models.activation_configs(bits=(4, 8))),
    QuantConfig(TensorConfig(), observer="min_max"),
]


@pytest.mark.parametrize("config", ALL, ids=str)
def test_to_a_dictionary_and_back(config: Config) -> None:
    data = json.loads(json.dumps(config.to_dict()))
    assert data["scheme"] == type(config).scheme and data["version"] == 1
    for kind in (type(config), Config):
        back = kind.from_dict(data)
        assert back == config and hash(back) == hash(config) and type(back) is type(config)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        W8A8().symmetric = False  # type: ignore[misc]


def test_equal_only_to_its_own_kind() -> None:
    assert W8A8() != W8A8(False) and W8A8() != W8A8Static() and len(set(ALL)) == len(ALL)


@pytest.mark.parametrize("bits", range(2, 9))
def test_range_of_integers(bits: int) -> None:
    config = TensorConfig(bits)
    assert config.quant_min == -(2 ** (bits - 1)) and config.quant_max == 2 ** (bits - 1) - 1


def test_dynamic_unless_learned() -> None:
    assert TensorConfig().dynamic is True
    assert TensorConfig(learned=True).dynamic is False
    assert TensorConfig(dynamic=False).learned is False


def test_in_words() -> None:
    config = TensorConfig(4, "per_group", symmetric=False, group_size=32)
    assert str(config) == "int4 per_group(32) asymmetric dynamic"
    assert str(TensorConfig(learned=True)) == "int8 per_channel symmetric learned"
    assert str(TensorConfig(granularity="per_tensor", dynamic=False)).endswith("static")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"bits": 1}, ValueError, r"bits to lie in \[2, 8\], but got 1"),
        ({"bits": 9}, ValueError, r"bits to lie in \[2, 8\], but got 9"),
        ({"bits": 4.0}, TypeError, "bits to be an int, but got float"),
        ({"bits": True}, TypeError, "bits to be an int, but got bool"),
        ({"granularity": "per_row"}, ValueError, "granularity to be one of per_tensor, .*per_row"),
        ({"granularity": None}, TypeError, "granularity to be a str, but got NoneType"),
        ({"symmetric": 1}, TypeError, "symmetric to be a bool, but got int"),
        ({"dynamic": "yes"}, TypeError, "dynamic to be a bool, but got str"),
        ({"learned": 0}, TypeError, "learned to be a bool, but got int"),
        ({"learned": True, "dynamic": True}, ValueError, "dynamic=False .* for a learned scale"),
        ({"granularity": "per_token", "dynamic": False}, ValueError, "dynamic=True for per_token"),
        ({"granularity": "per_token", "learned": True}, ValueError, "dynamic=True for per_token"),
        ({"granularity": "per_group"}, TypeError, "group_size to be an int, but got NoneType"),
        ({"granularity": "per_group", "group_size": 0}, ValueError, "group_size > 0, but got 0"),
        ({"group_size": 4}, ValueError, "no group_size for per_channel, but got 4"),
    ],
)
def test_what_fake_quant_config_refuses(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^TensorConfig: expected {message}"):
        TensorConfig(**arguments)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: QuantConfig(W8A8()), TypeError, "QuantConfig: expected weight to be a FakeQuantC"),
        (lambda: QuantConfig(None), TypeError, "QuantConfig: expected weight .* got NoneType"),
        (lambda: QuantConfig(TensorConfig(), 8), TypeError, "expected activation .* got int"),
        (lambda: QuantConfig(PER_TOKEN), ValueError, r"weight\.granularity .* got 'per_token'"),
        (
            lambda: QuantConfig(TensorConfig(), TensorConfig()),
            ValueError,
            r"activation\.granularity .* got 'per_channel'",
        ),
        (
            lambda: QuantConfig(
                TensorConfig(),
                TensorConfig(8, "per_group", group_size=4, dynamic=False),
            ),
            ValueError,
            "a dynamic activation for per_group",
        ),
        (
            lambda: QuantConfig(TensorConfig(), observer="mse"),
            ValueError,
            "observer to be one of min_max, moving_average, but got 'mse'",
        ),
        (lambda: W8A8("yes"), TypeError, "W8A8: expected symmetric to be a bool, but got str"),
        (lambda: W8A8Static("max"), ValueError, "W8A8Static: expected observer .* got 'max'"),
        (lambda: W8A8Static(symmetric=None), TypeError, "W8A8Static: expected symmetric"),
        (lambda: SmoothQuant(1.5), ValueError, r"alpha to lie in \[0, 1\] .* got 1.5"),
        (lambda: SmoothQuant(float("nan")), ValueError, "alpha to lie in .* got nan"),
        (lambda: SmoothQuant("find"), ValueError, "alpha to lie in .* 'search', but got 'find'"),
        (lambda: SmoothQuant(True), TypeError, "alpha to be a number or 'search', but got bool"),
        (lambda: SmoothQuant(activation="int8"), TypeError, "W8A8 or W8A8Static, but got str"),
    ],
)
def test_what_schemes_refuse(build, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 2}, ValueError, "version to be at most 1, but got 2; a newer baraquant"),
        ({"version": "1"}, ValueError, "version to be at most 1, but got '1'"),
        ({"version": None}, ValueError, "version"),
        ({"version": True}, ValueError, "version"),
        ({"scheme": "w4a4"}, ValueError, "scheme w8a8, but got 'w4a4'"),
        ({"scheme": "qat"}, ValueError, "scheme w8a8, but got 'qat'"),
        ({"scheme": ["w8a8"]}, ValueError, "scheme w8a8"),
        ({"extra": 1}, ValueError, "the fields symmetric, but got extra, symmetric"),
        ({"symmetric": "no"}, TypeError, "symmetric to be a bool, but got str"),
    ],
)
def test_what_a_dictionary_is_refused_for(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        W8A8.from_dict(W8A8().to_dict() | change)


def test_other_data_is_refused() -> None:
    with pytest.raises(TypeError, match="Config: expected a dict, but got list"):
        Config.from_dict([])
    with pytest.raises(ValueError, match="version"):
        Config.from_dict({})
    missing = {key: value for key, value in W8A8().to_dict().items() if key != "symmetric"}
    with pytest.raises(ValueError, match="W8A8: expected the fields symmetric, but got none"):
        Config.from_dict(missing)
    nested = SmoothQuant().to_dict()
    nested["activation"]["version"] = 7
    with pytest.raises(ValueError, match="version to be at most 1, but got 7"):
        SmoothQuant.from_dict(nested)


def test_needs_no_torch() -> None:
    path = Path(configs.__file__)
    code = (
        "import sys, runpy; sys.modules['torch'] = None; "
        f"runpy.run_path({str(path)!r}); print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
