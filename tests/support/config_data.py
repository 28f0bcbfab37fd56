# SPDX-License-Identifier: BSD-3-Clause
"""Dictionaries of configurations, as older versions wrote them."""

from __future__ import annotations

from typing import Any

# The fields that came with a version.
SINCE = {
    2: ("scale_dtype", "conv_inputs"),
    3: ("backward", "rounding"),
    4: ("rotate",),
    5: ("group_factors",),
    6: ("master",),
}
NEWEST = max(SINCE)


def older(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Return a dictionary of the newest version as an older one would be."""
    later = {name for first, names in SINCE.items() if first > version for name in names}
    return {
        key: older(value, version) if isinstance(value, dict) else value
        for key, value in (data | {"version": version}).items()
        if key not in later
    }
