# SPDX-License-Identifier: BSD-3-Clause
"""Configurations by their description: ``int4 per_group(8) asymmetric, int8 per_token``."""

import re
from typing import Any

from baraquant import QuantConfig, TensorConfig


def tensor(text: str) -> TensorConfig:
    """The configuration that `str` describes so; the words of defaults may be left out."""
    bits, size = re.match(r"int(\d)", text), re.search(r"\((\d+)\)", text)
    granularity = re.search(r"per_\w+", text)
    words = text.split()
    return TensorConfig(
        int(bits[1]),  # type: ignore[index]
        granularity[0] if granularity else "per_channel",
        "asymmetric" not in words,
        group_size=int(size[1]) if size else None,
        dynamic=not {"static", "learned"} & {*words},
        learned="learned" in words,
        group_factors="factors" in words,
        ternary="ternary" in words,
    )


def described(text: str, **options: Any) -> QuantConfig:
    """The configuration of a weight, or of a weight and an input behind a comma."""
    weight, _, activation = text.partition(", ")
    return QuantConfig(tensor(weight), tensor(activation) if activation else None, **options)


def all_described(*texts: str, **options: Any) -> dict[str, QuantConfig]:
    return {text: described(text, **options) for text in texts}
