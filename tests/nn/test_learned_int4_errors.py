# SPDX-License-Identifier: BSD-3-Clause
"""What quantizers and configurations with learned factors refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baraquant import W4A8, PerGroup, QuantConfig, TensorConfig
from baraquant.nn import LearnedFakeQuantizeInt4

# --- what is refused -----------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"group_size": 3}, ValueError, "an even group_size > 0, but got 3"),
    ({"group_size": 0}, ValueError, "an even group_size > 0, but got 0"),
    ({"group_size": 2.0}, ValueError, "an even group_size > 0, but got 2.0"),
    ({"shape": (4,)}, ValueError, r"shape to be \[rows, groups\], but got \[4\]"),
    ({"shape": (4, 2, 1)}, ValueError, r"shape to be \[rows, groups\], but got \[4, 2, 1\]"),
    ({"shape": (4, -1)}, ValueError, r"shape to be \[rows, groups\], but got \[4, -1\]"),
    ({"shape": (4, 2.0)}, ValueError, r"shape to be \[rows, groups\], but got \[4, 2.0\]"),
    ({"scale_rule": "mean"}, ValueError, "scale_rule to be one of search, max, but got 'mean'"),
    ({"dtype": torch.float16}, TypeError, "dtype to be float32 or float64, but got torch.float16"),
    ({"dtype": torch.int32}, TypeError, "dtype to be float32 or float64, but got torch.int32"),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD)
def test_arguments_that_are_refused(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = {"group_size": 2, "shape": (4, 2)} | change
    with pytest.raises(error, match=f"^LearnedFakeQuantizeInt4: expected .*{words}"):
        LearnedFakeQuantizeInt4(given.pop("group_size"), **given)


@pytest.mark.parametrize("shape", [(4, 6), (3, 4), (4,), (4, 4, 1)])
def test_weights_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    made = LearnedFakeQuantizeInt4(2, shape=(4, 2))
    with pytest.raises(ValueError, match=r"input to have the shape \[4, 4\], but got"):
        made.initialize(torch.ones(shape))


BAD_CONFIGS: list[tuple[Any, type[Exception], str]] = [
    (lambda: W4A8(32, learned=1), TypeError, "learned to be a bool, but got int"),
    (lambda: W4A8(None, learned=True, group_factors=True), ValueError, "expected a group_size"),
    (lambda: W4A8(7, learned=True), ValueError, "PerGroup of an even size"),
    (
        lambda: W4A8(32, learned=True, group_factors=True, scale_dtype="bfloat16"),
        ValueError,
        "scale_dtype='float32' with group_factors",
    ),
    (
        lambda: TensorConfig(4, PerGroup(8), dynamic=False, group_factors=True),
        ValueError,
        "dynamic=True or learned=True with group_factors=True",
    ),
    (
        lambda: TensorConfig(8, PerGroup(8), learned=True, group_factors=True),
        ValueError,
        "expected 4 bits",
    ),
    (
        lambda: TensorConfig(4, PerGroup(8), learned=True, dynamic=True, group_factors=True),
        ValueError,
        "dynamic=False .* for a learned scale",
    ),
]


@pytest.mark.parametrize(("make", "error", "words"), BAD_CONFIGS)
def test_configurations_that_are_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_configurations() -> None:
    config = W4A8(32, learned=True)
    assert config.weight == TensorConfig(4, PerGroup(32), learned=True, group_factors=True)
    assert config.trains_on_integers and not config.weight.dynamic
    assert QuantConfig.from_dict(config.to_dict()) == config
    assert config.with_float_scales() == W4A8(32, learned=True, group_factors=False)
    assert W4A8(None, learned=True).weight == TensorConfig(4, learned=True)


def test_sync_needs_processes() -> None:
    with pytest.raises(RuntimeError, match=r"torch\.distributed to be initialized"):
        LearnedFakeQuantizeInt4(2, shape=(4, 2)).sync_qparams()
