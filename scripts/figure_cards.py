# SPDX-License-Identifier: BSD-3-Clause
"""The hardest targets on a GPU, and what an H200 and an H100 reach of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import results
from results import Row, one, table

CARDS = ("h200", "h100")
WIDE = (28672, 4096)
GROUPS = ("per_group(32,-1)", "per_group(128,-1)")
GRADIENT = {"what": "scale gradient", "op": "fake_quantize_backward_qparams"}
MASKED = {"what": "forward + backward", "op": "fake_quantize, bit mask"}


def least_of_copy(card: str, found: dict[str, str], cases: Iterable[str], dtypes: str) -> str:
    """The least share of a copy among cases of 2^28 elements, for each dtype."""

    def share(dtype: str) -> float:
        rows = [one(card, case=c, dtype=dtype, shape=[65536, 4096], **found) for c in cases]
        return float(min(row["of_copy"] for row in rows))

    return " / ".join(f"{100 * share(dtype):.0f}" for dtype in dtypes.split()) + " %"


def affine(op: str, *cases: str, dtypes: str = "float32 bfloat16") -> Callable[[str], str]:
    """An op of the affine family."""
    found = {"gradient": GRADIENT, "mask": MASKED}.get(op, {"what": "forward", "op": op})
    return lambda card: least_of_copy(card, found, cases, dtypes)


def short_rows(card: str) -> str:
    """Quantization for each token in rows of 512."""
    wanted = {"what": "token", "case": "per_token, symmetric", "dtype": "bfloat16"}
    return f"{100 * one(card, 'range', shape=[65536, 512], **wanted)['of_copy']:.0f} %"


def decode(card: str) -> str:
    """Microseconds above an empty launch and the bytes."""
    wanted = {"what": "decode", "case": "per_token, symmetric", "dtype": "bfloat16"}
    row = one(card, "range", shape=[64, 4096], **wanted)
    return f"+{1e6 * (row['seconds'] - row['bound']):.1f} µs"


def product(card: str, m: int, n: int, k: int) -> Row:
    """A row of int8_linear."""
    return one(card, "int8_mm", what="linear", dtype="bfloat16", shape=[m, n, k])


def times(n: int, k: int, *ms: int) -> Callable[[str], str]:
    """Microseconds of int8_linear."""

    def text(card: str) -> str:
        return " / ".join(f"{1e6 * product(card, m, n, k)['seconds']:.1f}" for m in ms) + " µs"

    return text


def long_product(card: str) -> str:
    """Tera-operations a second of many rows."""
    return f"{product(card, 8192, *WIDE)['tops']:,.0f} TOPS"


ALL = ("per_tensor", "per_channel(0)", "per_token", *GROUPS)
COLUMNS = "per_channel(1)"
LINES: dict[str, tuple[str, Callable[[str], str]]] = {
    "`quantize` to int8, the least of all granularities but the next": (
        "95 %",
        affine("quantize", *ALL, dtypes="bfloat16"),
    ),
    "the same, `per_channel(1)`": ("90 %", affine("quantize", COLUMNS, dtypes="bfloat16")),
    "`dequantize` per token and in groups of 128": (
        "95 %",
        affine("dequantize", "per_token", GROUPS[-1]),
    ),
    "forward + backward with a bit mask, per token": ("95 %", affine("mask", "per_token")),
    "forward + backward with a bit mask, `per_channel(1)`": ("95 %", affine("mask", COLUMNS)),
    "gradient of the scale, per token": ("90 / 85 %", affine("gradient", "per_token")),
    "gradient of the scale, `per_channel(1)`": ("90 / 85 %", affine("gradient", COLUMNS)),
    "gradient of the scale, in groups of 32 and 128": ("80 %", affine("gradient", *GROUPS)),
    "`dynamic_range_quantize_per_token`, rows of 512": ("95 %", short_rows),
    "the same, 64 rows of 4096": ("+1.0 µs", decode),
    "`int8_linear`, 4096 × 4096, M = 16 / 64 / 128": (
        "6 / 6.9 / 7.2 µs",
        times(4096, 4096, 16, 64, 128),
    ),
    "the same, M = 256 / 512": ("10 / 14.5 µs", times(4096, 4096, 256, 512)),
    "28672 × 4096, M = 16 / 64": ("30 µs", times(*WIDE, 16, 64)),
    "the same, M = 8192": ("–", long_product),
}


def cards() -> str:
    """A line for each target, a column for each card."""
    lines = [
        [work, target, *(value(card) for card in CARDS)] for work, (target, value) in LINES.items()
    ]
    return table(["float32 / bfloat16, or bfloat16", "target", "H200", "H100"], lines)


def dates() -> str:
    """When the results of a card were measured."""
    families = ("", "range", "int8_mm")
    found = (results.report(CARDS[0], family)["environment"]["date"] for family in families)
    return ", ".join(dict.fromkeys(found))


FIGURES = {"table.cards": cards, "cards.dates": dates}
