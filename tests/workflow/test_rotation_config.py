# SPDX-License-Identifier: BSD-3-Clause
"""``QuantConfig(rotate=)``: its values, its dictionary, and the block of a layer."""

from __future__ import annotations

import pytest

from baraquant import W4A8, W4A16, W8A8, W8A16, SmoothQuant, W8A8Static
from baraquant.configs import Config


def test_in_words() -> None:
    assert str(W8A8(backward="int8", rotate=64)) == f"{W8A8()}, backward=int8 nearest, rotate=64"
    assert str(W4A16(rotate=2)) == f"{W4A16()}, rotate=2"
    assert W8A8(rotate=64) != W8A8(rotate=32) != W8A8()


def test_floating_forms() -> None:
    config = W8A8(backward="int8", rotate=64)
    assert config.with_float_backward() == W8A8(rotate=64)
    assert config.with_floating_input() == W8A16(rotate=64)


def test_smoothing_and_a_rotation() -> None:
    message = r"^SmoothQuant: expected activation without rotate, but got rotate=64.*one of the two"
    for activation in (W8A8(rotate=64), W8A8Static(rotate=64)):
        with pytest.raises(ValueError, match=message):
            SmoothQuant(activation=activation)


@pytest.mark.parametrize(
    ("features", "block"),
    [(0, None), (1, None), (7, None), (2, 2), (384, 128), (4096, 256), (1000, 8), (6, 2)],
)
def test_the_block_of_a_layer(features: int, block: int | None) -> None:
    assert W8A8(rotate=256).with_rotation(features) == W8A8(rotate=block)
    assert W8A8().with_rotation(features) == W8A8()


NO_BLOCKS = (0, 1, 3, 6, 255, 257, -2, -256, 32767, 65536, 2**40, 2**63)
NO_INTEGERS = (True, False, 2.0, "256", [256], (2,), 2 + 0j, float("nan"), b"2", {}, ..., range(2))


@pytest.mark.parametrize("value", NO_BLOCKS, ids=str)
def test_blocks_that_cannot_be(value: int) -> None:
    message = (
        rf"^QuantConfig: expected rotate to be a power of two in \[2, 32768\], but got {value};"
    )
    for scheme in (W8A8, W8A8Static, W8A16, W4A16, W4A8):
        with pytest.raises(ValueError, match=message):
            scheme(rotate=value)
    with pytest.raises(ValueError, match=message):
        Config.from_dict(W8A8().to_dict() | {"rotate": value})


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
def test_blocks_of_another_type(value: object) -> None:
    name = type(value).__name__
    message = f"^QuantConfig: expected rotate to be an int or None, but got {name}$"
    with pytest.raises(TypeError, match=message):
        W8A8(rotate=value)  # type: ignore[arg-type]
