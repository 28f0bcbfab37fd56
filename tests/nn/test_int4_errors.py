# SPDX-License-Identifier: BSD-3-Clause
"""What quantizers, configurations and layers with factors for their groups refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import baraquant
from baraquant import W4A8, PerGroup, QuantConfig, TensorConfig
from baraquant.nn import FakeQuantizeInt4, QuantizedInt4Linear, StaticQuantizedInt4Linear

N, K = 24, 96


def scheme(size: int = 32, symmetric: bool = True, **options: Any) -> QuantConfig:
    return W4A8(size, symmetric, group_factors=True, **options)


BAD_QUANTIZERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"group_size": 3}, ValueError, "an even group_size > 0, but got 3"),
    ({"group_size": 0}, ValueError, "an even group_size > 0, but got 0"),
    ({"group_size": 2.0}, ValueError, "an even group_size > 0, but got 2.0"),
    ({"scale": None}, ValueError, "scale, group_factor and group_zero_point together"),
    ({"group_factor": None}, ValueError, "together"),
    ({"scale": torch.ones(4).half()}, TypeError, "scale to be float32 or float64"),
    ({"group_factor": torch.ones(4, 2)}, TypeError, "group_factor to be uint8"),
    ({"group_zero_point": torch.ones(4, 2)}, TypeError, "group_zero_point to be uint8"),
    ({"scale": torch.ones(3)}, ValueError, "the shape .rows, groups. and scale .rows."),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD_QUANTIZERS)
def test_quantizers_that_are_refused(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    bytes_ = torch.ones(4, 2, dtype=torch.uint8)
    given: dict[str, Any] = {"group_size": 2, "scale": torch.ones(4)}
    given |= {"group_factor": bytes_, "group_zero_point": bytes_} | change
    with pytest.raises(error, match=f"^FakeQuantizeInt4: expected .*{words}"):
        FakeQuantizeInt4(given.pop("group_size"), **given)


# --- configurations ------------------------------------------------------------------------------

BAD_CONFIGS: list[tuple[Any, str]] = [
    (lambda: TensorConfig(8, PerGroup(32), group_factors=True), "expected 4 bits.*but got int8"),
    (lambda: TensorConfig(4, group_factors=True), "granularity=PerGroup of an even size"),
    (lambda: TensorConfig(4, PerGroup(7), group_factors=True), r"per_group\(7\)"),
    (lambda: TensorConfig(4, PerGroup(8), dynamic=False, group_factors=True), "dynamic=True"),
    (lambda: W4A8(None, group_factors=True), "W4A8: expected a group_size"),
    (lambda: scheme(scale_dtype="bfloat16"), "scale_dtype='float32' with group_factors"),
    (
        lambda: QuantConfig(TensorConfig(4, PerGroup(32), group_factors=True)),
        "per_token or per_tensor activation .* but got floating inputs",
    ),
    (
        lambda: QuantConfig(
            TensorConfig(4, PerGroup(32), group_factors=True), TensorConfig(8, PerGroup(32))
        ),
        "per_token or per_tensor activation .* but got int8 per_group",
    ),
]


@pytest.mark.parametrize(("make", "words"), BAD_CONFIGS)
def test_configurations_that_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_configurations() -> None:
    config = scheme(32)
    assert config.trains_on_integers and "factors" in str(config)
    assert config.with_float_scales() == W4A8(32, group_factors=False)
    assert config.with_floating_input() == baraquant.W4A16(32)
    assert scheme(backward="int8").with_float_scales() == W4A8(32, group_factors=False)


# --- constructors --------------------------------------------------------------------------------

BYTES = {
    "packed": torch.full((N, K // 2), 0x88, dtype=torch.uint8),
    "group_factor": torch.ones(N, 3, dtype=torch.uint8),
    "weight_scale": torch.ones(N),
    "group_size": 32,
    "in_features": K,
}
BAD_LAYERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"group_size": 31}, ValueError, "an even group_size > 0, but got 31"),
    ({"in_features": 4.0}, ValueError, "in_features to be an int"),
    ({"in_features": K - 2}, ValueError, r"packed to have the shape \[out_features, 47\]"),
    ({"packed": BYTES["packed"].view(torch.int8)}, TypeError, "packed to be uint8"),
    ({"group_factor": torch.ones(N, 3)}, TypeError, "group_factor to be uint8"),
    ({"group_factor": BYTES["group_factor"][:, 1:]}, ValueError, r"shape \[24, 3\]"),
    ({"group_zero_point": BYTES["group_factor"][1:]}, ValueError, r"shape \[24, 3\]"),
    ({"weight_scale": torch.ones(N - 1)}, ValueError, "weight_scale to have 24 elements"),
    ({"weight_scale": torch.ones(N).half()}, TypeError, "weight_scale to be float32"),
    ({"bias": torch.ones(3)}, ValueError, r"bias to have 24 elements \(packed.size"),
    ({"bits": 9}, ValueError, "bits to be an int in"),
    ({"dtype": torch.int8}, TypeError, "dtype to be floating"),
    ({"rotate": 64}, ValueError, "rotate"),
]


@pytest.mark.parametrize("kind", (QuantizedInt4Linear, StaticQuantizedInt4Linear))
@pytest.mark.parametrize(("change", "error", "words"), BAD_LAYERS)
def test_layers_that_are_refused(
    kind: Any, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = BYTES | ({} if kind is QuantizedInt4Linear else {"act_scale": torch.tensor(1.0)})
    kind(**given)
    with pytest.raises(error, match=f"^{kind.__name__}: expected .*{words}"):
        kind(**given | change)
