# SPDX-License-Identifier: BSD-3-Clause
"""A converted layer gives the bits of the prepared one's evaluation, whatever the configuration."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from baraquant import W8A8, QuantConfig, TensorConfig, W8A8Static
from baraquant.configs import Config
from baraquant.qat import convert_, prepare_

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
HOW: tuple[dict[str, bool], ...] = ({}, {"dynamic": False}, {"learned": True})


@st.composite
def fake_quant_configs(draw: Any, kinds: tuple[str, ...], group_size: int) -> TensorConfig:
    """What ``kinds`` of granularity allow; groups of an activation are dynamic."""
    kind = draw(st.sampled_from(kinds))
    is_activation = "per_token" in kinds
    is_free = kind == "per_tensor" or (kind != "per_token" and not is_activation)
    how = draw(st.sampled_from(HOW)) if is_free else {}
    size = group_size if kind == "per_group" else None
    return TensorConfig(draw(st.integers(2, 8)), kind, draw(st.booleans()), group_size=size, **how)


@st.composite
def cases(draw: Any) -> tuple[Config, dict[str, Any]]:
    """Return a configuration and a layer it fits."""
    group_size, groups = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    weight = draw(fake_quant_configs(("per_channel", "per_tensor", "per_group"), group_size))
    activation = draw(
        st.none() | fake_quant_configs(("per_token", "per_tensor", "per_group"), group_size)
    )
    observer = draw(st.sampled_from(("moving_average", "min_max")))
    scheme = draw(
        st.just(QuantConfig(weight, activation, observer))
        | st.builds(W8A8, st.booleans())
        | st.builds(W8A8Static, st.just(observer), st.booleans())
    )
    layer = {
        "in_features": group_size * groups,
        "out_features": draw(st.integers(1, 9)),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(DTYPES)),
    }
    return scheme, layer


def values(seed: int, *shape: int, dtype: torch.dtype, exponent: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2.0**exponent).to(dtype)


def bits_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bits of the numbers, the sign of zeros included, and which are NaN."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().nan_to_num(0.0, math.inf, -math.inf).view(integer), x.isnan()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=cases(),
    seed=st.integers(0, 2**20),
    exponents=st.tuples(st.integers(-12, 12), st.integers(-12, 8)),
    special=st.sampled_from((None, 0.0, math.inf, -math.inf, math.nan)),
    tokens=st.integers(1, 6),
)
def test_converted_bits(
    case: tuple[Config, dict[str, Any]],
    seed: int,
    exponents: tuple[int, int],
    special: float | None,
    tokens: int,
) -> None:
    config, shape = case
    dtype = shape["dtype"]
    model = nn.Sequential(nn.Linear(**shape))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(
                values(seed + number, *parameter.shape, dtype=dtype) * 2.0 ** exponents[1]
            )
            if seed % 3 == 0:
                parameter[0] = 0.0
    prepare_(model, config)
    batches = [
        values(seed + step, 3, shape["in_features"], dtype=dtype, exponent=exponents[0])
        for step in range(2)
    ]
    for batch in batches:
        model(batch).float().sum().backward()
    x = values(seed + 9, tokens, shape["in_features"], dtype=dtype, exponent=exponents[0])
    if special is not None:
        x[seed % tokens, seed % x.shape[1]] = special
    model.eval()
    with torch.no_grad():
        prepared = model(x)
    with_gradient = model(x)
    convert_(model)
    converted = model(x)
    assert converted.dtype == dtype
    expected, expected_nans = bits_of(converted)
    for evaluated in (prepared, with_gradient.detach()):
        got, nans = bits_of(evaluated)
        assert torch.equal(nans, expected_nans)
        assert torch.equal(got, expected)
