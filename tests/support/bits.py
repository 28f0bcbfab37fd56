# SPDX-License-Identifier: BSD-3-Clause
"""The values of a tensor in NumPy, and whether two tensors have the same bits."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The exact values of a tensor (bfloat16 as float32)."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.int16).numpy().view(np.uint16)
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return tensor.numpy()


def same_bits(actual: Tensor, expected: np.ndarray) -> np.ndarray:
    """Where the bits agree; any NaN equals any NaN."""
    got = to_numpy(actual)
    if not np.issubdtype(got.dtype, np.floating):
        return (got == expected) | ((got != got) & (expected != expected))  # of complex NaN
    as_int = np.dtype(f"u{got.dtype.itemsize}")
    bits = np.ascontiguousarray(got).view(as_int) == np.ascontiguousarray(expected).view(as_int)
    return bits.reshape(got.shape) | (np.isnan(got) & np.isnan(expected))


def assert_same_bits(actual: Tensor, expected: np.ndarray | Tensor, note: str = "") -> None:
    """Same shape, same dtype, same bits (NaN payloads aside)."""
    if isinstance(expected, Tensor):
        assert actual.dtype == expected.dtype, f"{note} dtype {actual.dtype} for {expected.dtype}"
        expected = to_numpy(expected)
    got = to_numpy(actual)
    assert got.shape == expected.shape, f"{note} shape {got.shape} for {expected.shape}"
    assert got.dtype == expected.dtype, f"{note} dtype {got.dtype} for {expected.dtype}"
    wrong = ~same_bits(actual, expected)
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{note} {wrong.sum()} of {wrong.size} differ, first at {first}: "
            f"got {got[first]!r}, expected {expected[first]!r}"
        )


def assert_all_same(actual: Any, expected: Any, note: str = "") -> None:
    """The same bits of one tensor, or of each of several, and as many of them."""
    several = [t if isinstance(t, (tuple, list)) else (t,) for t in (actual, expected)]
    for got, right in zip(*several, strict=True):
        assert_same_bits(got, right, note)


def without_switches(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict without what only tells how fake quantizers were prepared and switched."""
    kept = {}
    for name, value in state.items():
        path, _, last = name.rpartition(".")
        is_switch = last == "fake_quant_enabled" and f"{path}.observer_enabled" not in state
        if last not in ("scheme", "saw_zeros") and not is_switch:
            kept[name] = value
    return kept
